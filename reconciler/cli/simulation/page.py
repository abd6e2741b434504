"""A simulation as one self-contained page: a Gantt chart of nodes and a cost curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from reconciler.cli.simulation.chronicle import RulePeriod
from reconciler.cli.simulation.driver import Sample
from reconciler.cli.simulation.report import Life, Report
from reconciler.cli.simulation.timeline import (
    hourly,
    merge_of,
    outcome_of,
    story_of,
    stuck_groups,
)
from reconciler.plan.render.charts import (
    LEFT,
    RIGHT,
    WIDTH,
    Axis,
    hue_of,
    lanes,
    level,
    price_label,
    round_above,
    timeline,
)
from reconciler.plan.render.html import section_of
from reconciler.plan.render.page import Markup, el, finder, joined, page
from reconciler.plan.render.sections.cells import (
    Bar,
    BarKind,
    Cell,
    Column,
    Dollars,
    Lane,
    Line,
    Moment,
    Moved,
    Name,
    NameList,
    Number,
    Section,
    SectionRow,
    Text,
    Timeline,
)
from reconciler.plan.render.wording import counted, dollars, moment

LANES_MAX: Final = 500
EVENTS_MAX: Final = 2000

_HEIGHT: Final = 220
_TOP: Final = 14
_BOTTOM: Final = 190


def render_html(report: Report) -> str:
    """Return the page."""
    begin, end, cost = report.started_at, report.at, report.cost
    money = f"{hourly(cost.before)} → {hourly(cost.after)}; peak {hourly(cost.peak)}"
    tables = (_merge(report), _pools(report), _stuck(report))
    return page(
        "Rollout timeline",
        el("h1", "Rollout timeline"),
        el("p", f"{moment(begin)} to {moment(end)}, simulated by the engine", cls="soft"),
        el(
            "div",
            el("p", outcome_of(report)),
            el("p", f"{money}; spent {dollars(cost.spent)}"),
            cls="sum" if report.converged else "sum alarm",
        ),
        finder(),
        el("h2", "Cost", el("small", "$/hour")),
        cost_curve(report.curve, begin, end, cost.before),
        el("h2", "Nodes"),
        gantt(report),
        *(section_of(section) for section in tables if section.rows),
        _story(report),
    )


def cost_curve(samples: Sequence[Sample], begin: datetime, end: datetime, before: float) -> Markup:
    """Return the cost over time, as steps; ``before`` is USD an hour at the start."""
    axis = Axis(begin, end)
    highest = round_above(max([before, *(s.per_hour for s in samples), 1e-9]))

    def y(price: float) -> float:
        return round(_BOTTOM - price / highest * (_BOTTOM - _TOP), 1)

    steps = "".join(f"H{axis.x(s.at)}V{y(s.per_hour)}" for s in samples)
    line = f"M{axis.x(begin)} {y(before)}{steps}H{axis.x(end)}"
    area = f"{line}V{_BOTTOM}H{axis.x(begin)}Z"
    prices = (highest * share / 4 for share in range(5))
    marks = (level(price_label(price), y(price), LEFT, WIDTH - RIGHT) for price in prices)
    drawing = el(
        "svg", *marks, axis.grid(_TOP, _BOTTOM), el("path", cls="area", d=area),
        el("path", cls="cost", d=line), cls="fill", viewBox=f"0 0 {WIDTH} {_HEIGHT}", role="img",
        aria_label=f"cost over time, from {hourly(before)}, at most {hourly(highest)}",
    )  # fmt: skip
    return el("div", drawing, cls="wide", tabindex=0)


def gantt(report: Report) -> Markup:
    """Return the lifetimes of nodes below their limits; nodes without an event are collapsed."""
    lives, begin, end = report.nodes, report.started_at, report.at
    if not lives:
        return el("p", "No nodes.", cls="soft")
    pools = sorted({life.node_pool for life in lives})
    hues = {pool: number for number, pool in enumerate(pools)}
    moving = [life for life in lives if life.launched_at is not None or life.gone_at is not None]
    still = [life for life in lives if life.launched_at is None and life.gone_at is None]
    moving.sort(key=lambda life: (life.launched_at or life.going_at or end, life.node_claim))
    affected = {life.node_pool for life in moving}
    rules = list(_rules(period for period in report.rules if period.node_pool in affected))
    drawn = [*rules, *(_lane(life, begin, end, hues) for life in moving[:LANES_MAX])]
    left = len(moving) - LANES_MAX
    more = f"and {counted(left, 'more node')} (`-o json` lists all)" if left > 0 else ""
    return joined(
        _key(hues),
        timeline(Timeline(begin, end, tuple(drawn))) if drawn else "",
        el("p", more, cls="soft") if more else "",
        _still([_lane(life, begin, end, hues) for life in still], begin, end),
    )


def _still(drawn: Sequence[Lane], begin: datetime, end: datetime) -> Markup:
    if not drawn:
        return Markup("")
    said = f"{counted(len(drawn), 'node')} that did not change"
    if len(drawn) > LANES_MAX:
        said += f" (the first {LANES_MAX:,}; `-o json` lists all)"
    chart = lanes(Timeline(begin, end, tuple(drawn[:LANES_MAX])))
    return el("details", el("summary", said), chart)


def _key(hues: dict[str, int]) -> Markup:
    items = [
        joined(el("span", cls=f"key k-hue h{hue_of(number)}"), pool or "(none)")
        for pool, number in hues.items()
    ]
    return el("p", *items, cls="soft")


def _rules(periods: Iterable[RulePeriod]) -> Iterable[Lane]:
    """Yield a lane for each NodePool with the times in which a window or a budget limits it."""
    by_pool: dict[str, list[RulePeriod]] = {}
    for period in periods:
        by_pool.setdefault(period.node_pool, []).append(period)
    for pool, found in by_pool.items():
        yield Lane(f"{pool}: budgets", tuple(_rule(period) for period in found))


def _rule(period: RulePeriod) -> Bar:
    allowed = ", ".join(f"{reason} {nodes}" for reason, nodes in period.allowed.items())
    said = "no disruption allowed" if period.closed else f"nodes at a time: {allowed}"
    times = f"{moment(period.begin)} to {moment(period.end)}"
    about = f"NodePool {period.node_pool}, {times}: {said}"
    return Bar(period.begin, period.end, "closed" if period.closed else "limited", about)


def _lane(life: Life, begin: datetime, end: datetime, hues: dict[str, int]) -> Lane:
    born = life.launched_at or begin
    ready = life.ready_at or (begin if life.launched_at is None else None)
    gone = life.gone_at or end
    drained_from = min(life.going_at or gone, gone)
    started = min(ready or gone, drained_from)
    price = "price unknown" if life.price is None else f"${life.price:.4f}/hour"
    why = f"; {life.reason}" if life.reason else ""
    kind = f"{life.instance_type} {life.capacity_type} in {life.zone}"
    about = f"{life.node_claim} of {life.node_pool or '(none)'}: {kind}, {price}{why}"
    hue = hues[life.node_pool]
    spans: list[tuple[BarKind, str, datetime, datetime]] = [
        ("start", "starting", born, started),
        ("run", "running", max(started, born), drained_from),
        ("drain", "draining", drained_from, gone),
    ]
    bars = [
        Bar(start, stop, kind, f"{about}; {word} {moment(start)} to {moment(stop)}", hue)
        for kind, word, start, stop in spans
        if stop > start
    ]
    return Lane(life.node_claim, tuple(bars))


def _merge(report: Report) -> Section:
    merge = report.merge
    if merge is None:
        return Section(key="merge", title="Effect of the merge")
    rows = tuple(
        SectionRow(
            cells=(
                Name(node.node_claim),
                Name(node.node_pool),
                Text(node.reason),
                NameList(node.replacements),
                Moment(node.started_at),
                Moment(node.gone_at) if node.gone_at is not None else Text("not yet"),
            )
        )
        for node in merge.replaced
    )
    note = f"of {merge.head} into {merge.base}: {merge_of(merge)}"
    head = ("NodeClaim", "NodePool", "reason", "replaced by", "starts", "terminated")
    columns = tuple(map(Column, head))
    blanks: list[Cell] = [Text("")] * (len(head) - 1)
    none = (SectionRow(cells=(Text("no node is replaced"), *blanks)),)
    return Section(key="merge", title="Merge", note=note, columns=columns, rows=rows or none)


def _pools(report: Report) -> Section:
    rows = tuple(
        SectionRow(
            cells=(
                Name(name) if name else Text("(none)"),
                Moved(Number(pool.nodes_before), Number(pool.nodes_after)),
                Moved(Dollars(pool.before), Dollars(pool.after)),
                Text(dollars(pool.spent)),
            )
        )
        for name, pool in report.cost.by_node_pool.items()
    )
    numbers = (Column(title, numeric=True) for title in ("nodes", "$/hour", "spent"))
    columns = (Column("NodePool"), *numbers)
    return Section(key="pools", title="Cost by NodePool", columns=columns, rows=rows)


def _stuck(report: Report) -> Section:
    rows = tuple(
        SectionRow(
            cells=(NameList(tuple(names), kind, kind), Text(reason)),
            lines=(Line((Text(message),)),),
        )
        for (kind, reason), message, names in stuck_groups(report)
    )
    columns = (Column("object"), Column("reason"))
    return Section(
        key="stuck", title="Stuck", columns=columns, rows=rows, lines_title="message", tone="bad"
    )


def _story(report: Report) -> Markup:
    story = story_of(report, wall_clock=True)
    shown = "\n".join(story[:EVENTS_MAX])
    rest = len(story) - EVENTS_MAX
    more = f"and {counted(rest, 'more line')} (`-o json` lists all)" if rest > 0 else ""
    said = el("summary", counted(len(report.events), "event"))
    return joined(
        el("h2", "Events"),
        el("details", said, el("pre", shown, cls="wide"), el("p", more), open=""),
    )
