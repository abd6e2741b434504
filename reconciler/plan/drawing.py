"""The order of a plan's actions as a drawing: a column for each wave, an edge for each wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from reconciler.model.visible import html_text
from reconciler.plan.plan import Action
from reconciler.plan.wording import short_node

ACTIONS_MAX: Final = 150
"""More boxes than this say nothing to anybody; then there is no drawing."""

_WIDTH: Final = 230
_HEIGHT: Final = 40
_GAP_X: Final = 60
_GAP_Y: Final = 12
_LETTERS: Final = 30


def render_svg(actions: Sequence[Action]) -> str:
    """Return the drawing as SVG, nothing where there are too many actions or no waits."""
    if len(actions) > ACTIONS_MAX or not any(action.depends_on for action in actions):
        return ""
    rows: dict[int, int] = {}
    corners: dict[str, tuple[int, int]] = {}
    for action in actions:
        row = rows[action.wave] = rows.get(action.wave, -1) + 1
        corners[action.id] = (action.wave * (_WIDTH + _GAP_X) + 1, row * (_HEIGHT + _GAP_Y) + 1)
    width = (max(rows) + 1) * (_WIDTH + _GAP_X) - _GAP_X + 2
    height = (max(rows.values()) + 1) * (_HEIGHT + _GAP_Y) - _GAP_Y + 2
    edges = [
        _edge(corners[before], corners[action.id])
        for action in actions
        for before in action.depends_on
    ]
    boxes = [_box(action, *corners[action.id]) for action in actions]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    label = 'role="img" aria-label="the order of the actions"'
    return f"<svg {size} {label}>{''.join((*edges, *boxes))}</svg>"


def _edge(start: tuple[int, int], end: tuple[int, int]) -> str:
    x1, y1 = start[0] + _WIDTH, start[1] + _HEIGHT // 2
    x2, y2 = end[0], end[1] + _HEIGHT // 2
    bend = (x1 + x2) // 2
    return f'<path class="edge" d="M{x1} {y1}C{bend} {y1} {bend} {y2} {x2} {y2}"/>'


def _box(action: Action, x: int, y: int) -> str:
    verb = {"provision": "launch", "replace": "validate", "terminate": "remove"}[action.kind]
    name = short_node(action.node or "") or action.node_claim or action.command or ""
    kind = " ".join(filter(None, (action.instance_type, action.capacity_type)))
    lines = (f"{verb} {name}", kind or action.reason)
    texts = "".join(
        f'<text x="{x + 10}" y="{y + 17 + 15 * i}">{html_text(_cut(line))}</text>'
        for i, line in enumerate(lines)
    )
    corner = f'x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="6"'
    return f'<rect class="box {action.kind}" {corner}/>{texts}'


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else text[: _LETTERS - 1] + "…"
