"""A simulation as one self-contained page: a Gantt of its nodes and a curve of its cost.

Nothing is fetched; the pictures are inline SVG, and it reads well by day and night.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.cli.simulation.driver import Sample
from reconciler.cli.simulation.report import Life, Report
from reconciler.cli.simulation.timeline import hourly, merge_of, outcome_of, span, story_of
from reconciler.model.text.visible import html_text
from reconciler.plan.render.html import page_head
from reconciler.plan.render.wording import dollars

# The time axis that the pictures of a simulation share.


WIDTH: Final = 1100
LEFT: Final = 210
RIGHT: Final = 20

_STEPS_S: Final = (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)
_TICKS_MAX: Final = 10


@dataclass(frozen=True, slots=True)
class Axis:
    """Moments from ``begin`` to ``end`` on the width of a picture."""

    begin: datetime
    end: datetime

    def x(self, moment: datetime) -> float:
        """Return where a moment stands; what is outside stands at the edge."""
        whole = max((self.end - self.begin).total_seconds(), 1.0)
        part = min(max((moment - self.begin).total_seconds() / whole, 0.0), 1.0)
        return round(LEFT + part * (WIDTH - LEFT - RIGHT), 1)

    def grid(self, top: float, bottom: float) -> str:
        """Return lines at round spans, each with its span below."""
        whole = (self.end - self.begin).total_seconds()
        step = next((s for s in _STEPS_S if whole / s <= _TICKS_MAX), _STEPS_S[-1])
        parts = []
        for number in range(int(whole // step) + 1):
            at = self.x(self.begin + timedelta(seconds=number * step))
            parts.append(f'<line class="grid" x1="{at}" y1="{top}" x2="{at}" y2="{bottom}"/>')
            parts.append(
                f'<text class="soft" x="{at}" y="{bottom + 14}" text-anchor="middle">'
                f"{_short(number * step)}</text>"
            )
        return "".join(parts)


def _short(seconds: int) -> str:
    if seconds >= 86400 and seconds % 86400 == 0:
        return f"{seconds // 86400}d"
    hours, rest = divmod(seconds, 3600)
    if hours and not rest:
        return f"{hours}h"
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours}h{minutes:02}"
    return f"{minutes}m" if not left else f"{minutes}:{left:02}"


# The cost of a fleet over time, as steps, in SVG.


_HEIGHT: Final = 220
_TOP: Final = 14
_BOTTOM: Final = 190


def cost_curve(samples: Sequence[Sample], begin: datetime, end: datetime, before: float) -> str:
    """Return the picture; ``before`` is USD an hour at the first moment."""
    axis = Axis(begin, end)
    highest = max([before, *(s.per_hour for s in samples), 1e-9]) * 1.05

    def y(price: float) -> float:
        return round(_BOTTOM - price / highest * (_BOTTOM - _TOP), 1)

    steps = "".join(f"H{axis.x(s.at)}V{y(s.per_hour)}" for s in samples)
    line = f"M{axis.x(begin)} {y(before)}{steps}H{axis.x(end)}"
    marks = "".join(_mark(highest * share / 4, y(highest * share / 4)) for share in range(5))
    return (
        f'<svg viewBox="0 0 {WIDTH} {_HEIGHT}" role="img" aria-label="cost over time">'
        f"{marks}{axis.grid(_TOP, _BOTTOM)}"
        f'<path class="area" d="{line}V{_BOTTOM}H{axis.x(begin)}Z"/>'
        f'<path class="cost" d="{line}"/></svg>\n'
    )


def _mark(price: float, at: float) -> str:
    return (
        f'<line class="grid" x1="{LEFT}" y1="{at}" x2="{WIDTH - RIGHT}" y2="{at}"/>'
        f'<text class="soft" x="{LEFT - 8}" y="{at + 4}" text-anchor="end">${price:.3f}</text>'
    )


# The lives of the nodes of a simulation, one lane each, in SVG.
#
# A bar is pale while its node starts, in the colour of its NodePool while it runs, and red while
# it is drained.


LANES_MAX: Final = 500
_LANE: Final = 15
_TOP_GANTT: Final = 6
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
    bottom = _TOP_GANTT + _LANE * len(shown)
    lanes = "".join(
        _lane(life, axis, _TOP_GANTT + _LANE * number, colours[life.node_pool])
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


ROWS_MAX: Final = 2000

_STYLE: Final = """
:root{color-scheme:light dark;--ink:#1f2328;--soft:#59636e;--line:#d1d9e0;--paper:#fff;
--wash:#f6f8fa;--go:#1a7f37;--gone:#cf222e}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--soft:#9198a1;--line:#3d444d;
--paper:#0d1117;--wash:#151b23;--go:#3fb950;--gone:#f85149}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.5rem 4rem;max-width:76rem;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
h1{font-size:1.5rem;margin:0 0 .2rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.sum{margin:1rem 0;padding:.8rem 1rem;background:var(--wash);border:1px solid var(--line);
border-radius:8px}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;color:var(--soft);font-size:.85rem}
th,td{padding:.3rem .7rem .3rem 0;border-bottom:1px solid var(--line);vertical-align:top}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
svg{width:100%;height:auto;display:block}
svg text{font:11px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:var(--ink)}
svg .soft{fill:var(--soft)}svg .grid{stroke:var(--line);stroke-width:1}
svg .cost{fill:none;stroke:var(--go);stroke-width:2}svg .area{fill:var(--go);opacity:.12}
svg .wait{opacity:.35}svg .drain{fill:var(--gone);opacity:.75}
.key{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin:0 .35em 0 1em}
summary{cursor:pointer}pre{font:12px/1.5 ui-monospace,Menlo,Consolas,monospace;overflow-x:auto}
"""


def render_html(report: Report) -> str:
    """Return the page."""
    begin, end = report.started_at, report.at
    cost = report.cost
    parts = [
        page_head("Rollout timeline", f"{_STYLE}{KEYS}"),
        "\n<h1>Rollout timeline</h1>\n",
        (
            f'<p class="soft">{begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, '
            "simulated by the engine in virtual time</p>\n"
        ),
        (
            f'<div class="sum"><p>{html_text(outcome_of(report))}</p>'
            f"<p>{hourly(cost.before)} → <b>{hourly(cost.after)}</b>; "
            f"peak {hourly(cost.peak)}; spent {dollars(cost.spent)}</p></div>\n"
        ),
        "<h2>Cost</h2>\n<p class=soft>$/hour</p>\n",
        cost_curve(report.curve, begin, end, cost.before),
        "<h2>Nodes</h2>\n",
        gantt(report.nodes, begin, end),
        _merge(report),
        _pools(report),
        _stuck(report),
        _story(report),
        "</body></html>\n",
    ]
    return "".join(parts)


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], numbers: int) -> str:
    """Return a table whose last ``numbers`` columns are numbers."""
    names = list(head)
    first = len(names) - numbers

    def cells(tag: str, row: Iterable[str]) -> str:
        kinds = ("" if i < first else ' class="n"' for i in range(len(names)))
        return "".join(
            f"<{tag}{kind}>{html_text(cell)}</{tag}>" for kind, cell in zip(kinds, row, strict=True)
        )

    body = "\n".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="wide"><table><thead><tr>{cells("th", names)}</tr></thead>\n'
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _merge(report: Report) -> str:
    merge, begin = report.merge, report.started_at
    if merge is None:
        return ""
    rows = [
        (
            node.node_claim,
            node.node_pool,
            node.reason,
            ", ".join(node.replacements),
            span(node.started_at - begin),
            span(node.gone_at - begin) if node.gone_at is not None else "not yet",
        )
        for node in merge.replaced[:ROWS_MAX]
    ]
    head = ("NodeClaim", "NodePool", "reason", "replaced by", "starts", "terminated")
    text = f"Merging {merge.head} into {merge.base}: {merge_of(merge)}"
    return f"<h2>Effect of the merge</h2>\n<p>{html_text(text)}</p>\n{_table(head, rows, 2)}"


def _pools(report: Report) -> str:
    rows = [
        (
            name or "(none)",
            f"{pool.nodes_before} → {pool.nodes_after}",
            f"${pool.before:.4f}",
            f"${pool.after:.4f}",
            f"${pool.spent:.2f}",
        )
        for name, pool in report.cost.by_node_pool.items()
    ]
    head = ("NodePool", "nodes", "before, $/hour", "after, $/hour", "spent")
    return f"<h2>Cost by NodePool</h2>\n{_table(head, rows, 4)}" if rows else ""


def _stuck(report: Report) -> str:
    if not report.stuck:
        return ""
    rows = [(s.kind, s.name, s.reason, s.message) for s in report.stuck[:ROWS_MAX]]
    return f"<h2>Stuck</h2>\n{_table(('kind', 'name', 'reason', 'message'), rows, 0)}"


def _story(report: Report) -> str:
    lines = "\n".join(html_text(line) for line in story_of(report)[:ROWS_MAX])
    return (
        "<h2>Events</h2>\n<details open><summary>"
        f"{len(report.events)} events</summary><pre>{lines}</pre></details>\n"
    )
