"""A simulation as one self-contained page: a Gantt chart of nodes and a cost curve."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from reconciler.model.text.counting import format_count
from reconciler.model.text.money import (
    format_cost_change,
    format_dollars,
    format_rate,
    format_spent,
)
from reconciler.model.text.times import format_time
from reconciler.render.cells import (
    Bar,
    BarKind,
    Cell,
    Column,
    Dollars,
    Lane,
    Line,
    Moment,
    Name,
    NameList,
    Number,
    Section,
    SectionRow,
    Text,
    Timeline,
    ValueChange,
    Verbatim,
)
from reconciler.render.charts import LEFT, RIGHT, WIDTH, Axis, hue_of, lanes, timeline
from reconciler.render.curves import format_price_label, level_line, round_up
from reconciler.render.html import render_section
from reconciler.render.page import Markup, el, filter_field, join_markup, report_page
from reconciler.render.reply import render_page, text_section
from reconciler.simulate.driver import Sample
from reconciler.simulate.eventlog import RulePeriod
from reconciler.simulate.report import Life, Report
from reconciler.simulate.timeline import (
    merge_sentence,
    outcome_of,
    range_lines,
    stuck_groups,
    timeline_lines,
)

_TITLE: Final = "Rollout timeline"
LANES_MAX: Final = 500
EVENTS_MAX: Final = 2000

_HEIGHT: Final = 220
_TOP: Final = 14
_BOTTOM: Final = 190


def render_markdown(report: Report) -> str:
    """Return the outcome, the tables and the events for a comment or a document."""
    lines = timeline_lines(report)
    events = Section(
        key="events",
        title="Events",
        note=format_count(len(report.events), "event"),
        figure=Verbatim("\n".join(lines[:EVENTS_MAX])),
        folded=True,
    )
    tables = (_merge_section(report), _pool_section(report), _stuck_section(report))
    summary = text_section("outcome", "", (_period(report), *_sum(report)))
    sections = [summary, *(section for section in tables if section.rows), events]
    return render_page(_TITLE, sections, "markdown")


def _period(report: Report) -> str:
    period = f"{format_time(report.started_at)} to {format_time(report.at)}"
    return f"{period}, simulated by the engine"


def _sum(report: Report) -> list[str]:
    """Return the outcome and the cost in sentences."""
    cost = report.cost
    money = f"{format_cost_change(cost.before, cost.after)}; peak {format_rate(cost.peak)}"
    return [
        outcome_of(report),
        *range_lines(report),
        f"{money}; spent {format_spent(cost.spent)}",
    ]


def render_html(report: Report) -> str:
    """Return the page."""
    begin, end = report.started_at, report.at
    tables = (_merge_section(report), _pool_section(report), _stuck_section(report))
    return report_page(
        _TITLE,
        _period(report),
        _sum(report),
        filter_field(),
        el("h2", "Cost", el("small", "$/hour")),
        cost_curve(report.curve, begin, end, report.cost.before),
        el("h2", "Nodes"),
        gantt(report),
        *(render_section(section) for section in tables if section.rows),
        _event_section(report),
        is_alarming=not report.converged,
    )


def cost_curve(samples: Sequence[Sample], begin: datetime, end: datetime, before: float) -> Markup:
    """Return the cost over time, as steps; ``before`` is USD an hour at the start."""
    axis = Axis(begin, end)
    highest = round_up(max([before, *(s.per_hour for s in samples), 1e-9]))

    def y(price: float) -> float:
        return round(_BOTTOM - price / highest * (_BOTTOM - _TOP), 1)

    steps = "".join(f"H{axis.x(s.at)}V{y(s.per_hour)}" for s in samples)
    line = f"M{axis.x(begin)} {y(before)}{steps}H{axis.x(end)}"
    area = f"{line}V{_BOTTOM}H{axis.x(begin)}Z"
    prices = (highest * share / 4 for share in range(5))
    marks = (
        level_line(format_price_label(price), y(price), LEFT, WIDTH - RIGHT) for price in prices
    )
    drawing = el(
        "svg",
        *marks,
        axis.grid(_TOP, _BOTTOM),
        el("path", cls="area", d=area),
        el("path", cls="cost", d=line),
        cls="fill",
        viewBox=f"0 0 {WIDTH} {_HEIGHT}",
        role="img",
        aria_label=f"cost over time, from {format_rate(before)}, at most {format_rate(highest)}",
    )
    return el("div", drawing, cls="wide", tabindex=0)


def gantt(report: Report) -> Markup:
    """Return the lifetimes of nodes below their limits; nodes without an event are collapsed."""
    lives, begin, end = report.nodes, report.started_at, report.at
    if not lives:
        return el("p", "No nodes.", cls="soft")
    pools = sorted({life.node_pool for life in lives})
    hues = {pool: number for number, pool in enumerate(pools)}
    moving = [life for life in lives if _is_moving(life)]
    moving.sort(key=lambda life: (life.launched_at or life.going_at or end, life.node_claim))
    still = [_node_lane(life, begin, end, hues) for life in lives if not _is_moving(life)]
    return join_markup(
        _color_key(hues),
        _changed_nodes(report, moving, hues),
        _unchanged_nodes(still, begin, end),
    )


def _is_moving(life: Life) -> bool:
    """Return whether a node was launched or is gone."""
    return life.launched_at is not None or life.gone_at is not None


def _changed_nodes(report: Report, moving: Sequence[Life], hues: dict[str, int]) -> Markup:
    begin, end = report.started_at, report.at
    affected = {life.node_pool for life in moving}
    rules = list(_rule_lanes(period for period in report.rules if period.node_pool in affected))
    drawn = [*rules, *(_node_lane(life, begin, end, hues) for life in moving[:LANES_MAX])]
    left = len(moving) - LANES_MAX
    more = f"and {format_count(left, 'more node')} (`-o json` lists all)" if left > 0 else ""
    return join_markup(
        timeline(Timeline(begin, end, tuple(drawn))) if drawn else "",
        el("p", more, cls="soft") if more else "",
    )


def _unchanged_nodes(drawn: Sequence[Lane], begin: datetime, end: datetime) -> Markup:
    if not drawn:
        return Markup("")
    summary = f"{format_count(len(drawn), 'node')} that did not change"
    if len(drawn) > LANES_MAX:
        summary += f" (the first {LANES_MAX:,}; `-o json` lists all)"
    chart = lanes(Timeline(begin, end, tuple(drawn[:LANES_MAX])))
    return el("details", el("summary", summary), chart)


def _color_key(hues: dict[str, int]) -> Markup:
    items = [
        join_markup(el("span", cls=f"key k-hue h{hue_of(number)}"), pool or "(none)")
        for pool, number in hues.items()
    ]
    return el("p", *items, cls="soft")


def _rule_lanes(periods: Iterable[RulePeriod]) -> Iterable[Lane]:
    """Yield a lane for each NodePool with the times in which a window or a budget limits it."""
    by_pool: dict[str, list[RulePeriod]] = {}
    for period in periods:
        by_pool.setdefault(period.node_pool, []).append(period)
    for pool, found in by_pool.items():
        yield Lane(f"{pool}: budgets", tuple(_rule_bar(period) for period in found))


def _rule_bar(period: RulePeriod) -> Bar:
    allowed = ", ".join(f"{reason} {nodes}" for reason, nodes in period.allowed.items())
    rule = "no disruption allowed" if period.closed else f"nodes at a time: {allowed}"
    times = f"{format_time(period.begin)} to {format_time(period.end)}"
    about = f"NodePool {period.node_pool}, {times}: {rule}"
    return Bar(period.begin, period.end, "closed" if period.closed else "limited", about)


def _node_lane(life: Life, begin: datetime, end: datetime, hues: dict[str, int]) -> Lane:
    born = life.launched_at or begin
    ready = life.ready_at or (begin if life.launched_at is None else None)
    gone = life.gone_at or end
    drained_from = min(life.going_at or gone, gone)
    started = min(ready or gone, drained_from)
    price = "price unknown" if life.price is None else f"{format_dollars(life.price)}/hour"
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
        Bar(start, stop, kind, f"{about}; {word} {format_time(start)} to {format_time(stop)}", hue)
        for kind, word, start, stop in spans
        if stop > start
    ]
    return Lane(life.node_claim, tuple(bars))


def _merge_section(report: Report) -> Section:
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
    note = f"of {merge.head} into {merge.base}: {merge_sentence(merge, report.range)}"
    head = ("NodeClaim", "NodePool", "reason", "replaced by", "starts", "terminated")
    columns = tuple(map(Column, head))
    blanks: list[Cell] = [Text("")] * (len(head) - 1)
    none = (SectionRow(cells=(Text("no node is replaced"), *blanks)),)
    return Section(key="merge", title="Merge", note=note, columns=columns, rows=rows or none)


def _pool_section(report: Report) -> Section:
    rows = tuple(
        SectionRow(
            cells=(
                Name(name) if name else Text("(none)"),
                ValueChange(Number(pool.nodes_before), Number(pool.nodes_after)),
                ValueChange(Dollars(pool.before), Dollars(pool.after)),
                Text(format_spent(pool.spent)),
            )
        )
        for name, pool in report.cost.by_node_pool.items()
    )
    numbers = (Column(title, numeric=True) for title in ("nodes", "$/hour", "spent"))
    columns = (Column("NodePool"), *numbers)
    return Section(key="pools", title="Cost by NodePool", columns=columns, rows=rows)


def _stuck_section(report: Report) -> Section:
    rows = tuple(
        SectionRow(
            cells=(NameList(tuple(names), kind, kind), Text(reason)),
            lines=(Line((Text(message),)),),
        )
        for (kind, reason), message, names in stuck_groups(report)
    )
    columns = (Column("object"), Column("reason"))
    return Section(
        key="stuck",
        title="Needs intervention",
        columns=columns,
        rows=rows,
        lines_title="message",
        tone="bad",
    )


def _event_section(report: Report) -> Markup:
    lines = timeline_lines(report)
    shown = "\n".join(lines[:EVENTS_MAX])
    rest = len(lines) - EVENTS_MAX
    more = f"and {format_count(rest, 'more line')} (`-o json` lists all)" if rest > 0 else ""
    summary = el("summary", format_count(len(report.events), "event"))
    return join_markup(
        el("h2", "Events"),
        el("details", summary, el("pre", shown, cls="wide"), el("p", more), open=""),
    )
