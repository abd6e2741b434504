"""The graph of a plan as a Mermaid flowchart, for a README, a wiki or a pull request."""

from __future__ import annotations

from typing import Final

from reconciler.model.text.visible import mermaid_text
from reconciler.plan.render.sections.actions import BOXES_MAX, flow_of
from reconciler.plan.render.sections.cells import Box, Flow
from reconciler.plan.render.wording import counted
from reconciler.plan.value.plan import Plan

_LABEL_MAX: Final = 80
_HEAD: Final = (
    "flowchart LR",
    "  classDef provision fill:#dafbe1,stroke:#1a7f37,color:#0b3d1a",
    "  classDef replace fill:#fff8c5,stroke:#9a6700,color:#4d3800",
    "  classDef terminate fill:#ffebe9,stroke:#cf222e,color:#5c0f14",
)


def render_mermaid(plan: Plan) -> str:
    """Return the actions and their edges; beyond ``BOXES_MAX`` the rest is counted."""
    return draw(flow_of(plan))


def draw(flow: Flow) -> str:
    """Return the order of actions as a flowchart."""
    lines = list(_HEAD)
    shown = flow.boxes[:BOXES_MAX]
    numbers = {box.id: f"a{number}" for number, box in enumerate(shown)}
    lines += [f'  {numbers[b.id]}["{_label(b)}"]:::{b.kind}' for b in shown]
    for box in shown:
        lines += [f"  {numbers[b]} --> {numbers[box.id]}" for b in box.after if b in numbers]
    rest = len(flow.boxes) - len(shown)
    if rest:
        lines.append(f'  rest["and {counted(rest, "more action")} (-o json lists all)"]')
    if not shown:
        lines.append('  none["nothing to do"]')
    return "\n".join(lines) + "\n"


def _label(box: Box) -> str:
    return "<br/>".join(escaped(part) for part in (box.title, box.detail) if part)


def escaped(text: str) -> str:
    """Return text that a quoted Mermaid label shows unchanged."""
    line = " ".join(text.split())
    return mermaid_text(line if len(line) <= _LABEL_MAX else line[: _LABEL_MAX - 1] + "…")
