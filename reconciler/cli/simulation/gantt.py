"""The lives of the nodes of a simulation, one lane each, in SVG.

A bar is pale while its node starts, in the colour of its NodePool while it runs, and red while it
is drained.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Final

from reconciler.cli.simulation.axis import LEFT, WIDTH, Axis
from reconciler.cli.simulation.report import Life
from reconciler.model.visible import html_text

LANES_MAX: Final = 500
_LANE: Final = 15
_TOP: Final = 6
_COLOURS: Final = (
    "#4493f8", "#bc8cff", "#39c5cf", "#d29922", "#db61a2", "#7ee787", "#8b949e", "#ff9f63",
)  # fmt: skip
KEYS: Final = (
    "".join(f".key{number}{{background:{colour}}}" for number, colour in enumerate(_COLOURS))
    + ".keywait{background:var(--soft);opacity:.35}.keyrun{background:var(--soft)}"
    + ".keygone{background:var(--gone);opacity:.75}\n"
)
"""The part of the page's style sheet that colours the key: the page allows no other styles."""


def gantt(lives: Sequence[Life], begin: datetime, end: datetime) -> str:
    """Return the chart with its legend; nodes that run all the time come last and may be cut."""
    if not lives:
        return '<p class="soft">No nodes.</p>\n'
    axis = Axis(begin, end)
    pools = sorted({life.node_pool for life in lives})
    colours = {pool: _COLOURS[n % len(_COLOURS)] for n, pool in enumerate(pools)}
    moving = [life for life in lives if life.launched_at is not None or life.gone_at is not None]
    still = [life for life in lives if life.launched_at is None and life.gone_at is None]
    shown = [*moving, *still][:LANES_MAX]
    bottom = _TOP + _LANE * len(shown)
    lanes = "".join(
        _lane(life, axis, _TOP + _LANE * number, colours[life.node_pool])
        for number, life in enumerate(shown)
    )
    left = len(lives) - len(shown)
    more = f'<p class="soft">and {left} more nodes</p>\n' if left else ""
    return (
        f"{_key(colours)}"
        f'<svg viewBox="0 0 {WIDTH} {bottom + 24}" role="img" aria-label="node lifetimes">'
        f"{axis.grid(_TOP, bottom)}{lanes}</svg>\n{more}"
    )


def _key(colours: dict[str, str]) -> str:
    items = "".join(
        f'<span class="key key{_COLOURS.index(colour)}"></span>{html_text(pool or "(none)")}'
        for pool, colour in colours.items()
    )
    return (
        f'<p class="soft">NodePools:{items}</p>\n'
        '<p class="soft">States:'
        '<span class="key keywait"></span>starting<span class="key keyrun"></span>running'
        '<span class="key keygone"></span>draining</p>\n'
    )


def _lane(life: Life, axis: Axis, top: int, colour: str) -> str:
    born = life.launched_at or axis.begin
    ready = life.ready_at or (axis.begin if life.launched_at is None else None)
    gone = life.gone_at or axis.end
    drained_from = min(life.going_at or gone, gone)
    bars = []
    if ready is None or ready > born:
        started = min(ready or gone, drained_from)
        bars.append(_bar(axis, born, started, top, f'fill="{colour}" class="wait"'))
    if ready is not None:
        bars.append(_bar(axis, ready, drained_from, top, f'fill="{colour}"'))
    bars.append(_bar(axis, drained_from, gone, top, 'class="drain"'))
    price = "price unknown" if life.price is None else f"${life.price:.4f}/hour"
    why = f"; {life.reason}" if life.reason else ""
    text = f"{life.node_claim}: {life.instance_type} {life.capacity_type}, {price}{why}"
    return (
        f"<g><title>{html_text(text)}</title>"
        f'<text x="{LEFT - 8}" y="{top + 11}" text-anchor="end">{html_text(_name(life))}</text>'
        f"{''.join(bars)}</g>"
    )


def _name(life: Life) -> str:
    return life.node_claim if len(life.node_claim) <= 28 else f"{life.node_claim[:27]}…"


def _bar(axis: Axis, begin: datetime, end: datetime, top: int, style: str) -> str:
    if end <= begin:
        return ""
    left = axis.x(begin)
    width = round(max(axis.x(end) - left, 1.0), 1)
    return f'<rect x="{left}" y="{top + 2}" width="{width}" height="{_LANE - 4}" rx="2" {style}/>'
