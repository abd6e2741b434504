"""The graph of a plan as a Mermaid flowchart, for a README, a wiki or a pull request."""

from __future__ import annotations

from typing import Final

from reconciler.model.text.visible import mermaid_text
from reconciler.plan.render.wording import counted
from reconciler.plan.value.actions import Action, ActionKind
from reconciler.plan.value.plan import Plan

ACTIONS_MAX: Final = 120
"""A chart with more boxes helps nobody, and renderers refuse long ones."""

_LABEL_MAX: Final = 80
_HEAD: Final = (
    "flowchart LR",
    "  classDef provision fill:#dafbe1,stroke:#1a7f37,color:#0b3d1a",
    "  classDef replace fill:#fff8c5,stroke:#9a6700,color:#4d3800",
    "  classDef terminate fill:#ffebe9,stroke:#cf222e,color:#5c0f14",
)


def render_mermaid(plan: Plan) -> str:
    """Return the actions and their edges; beyond ``ACTIONS_MAX`` the rest is counted."""
    lines = list(_HEAD)
    shown = plan.actions[:ACTIONS_MAX]
    numbers = {action.id: f"a{number}" for number, action in enumerate(shown)}
    lines += [f'  {numbers[a.id]}["{_label(a)}"]:::{a.kind}' for a in shown]
    for action in shown:
        lines += [
            f"  {numbers[before]} --> {numbers[action.id]}"
            for before in action.depends_on
            if before in numbers
        ]
    rest = len(plan.actions) - len(shown)
    if rest:
        lines.append(f'  rest["and {counted(rest, "more action")}"]')
    if not shown:
        lines.append('  none["nothing to do"]')
    return "\n".join(lines) + "\n"


def _label(action: Action) -> str:
    words = {
        ActionKind.PROVISION: "launch",
        ActionKind.REPLACE: "validate",
        ActionKind.TERMINATE: "remove",
    }
    what = action.node or action.node_claim or action.command or ""
    kind = " ".join(filter(None, (action.instance_type, action.capacity_type, action.zone)))
    detail = kind if action.kind != ActionKind.REPLACE else action.reason
    parts = [f"{words[action.kind]} {what}", detail]
    return "<br/>".join(escaped(part) for part in parts if part)


def escaped(text: str) -> str:
    """Return text that a quoted Mermaid label shows as it stands."""
    line = " ".join(text.split())
    return mermaid_text(line if len(line) <= _LABEL_MAX else line[: _LABEL_MAX - 1] + "…")
