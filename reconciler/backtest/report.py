"""The result of a backtest: its sides and their difference, as text and as one page."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from statistics import fmean
from typing import Final

import msgspec

from reconciler.backtest.frontier import frontier_chart, frontier_rows
from reconciler.backtest.sides import SideCurves
from reconciler.model.duration import format_duration
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_dollars, format_whole_dollars
from reconciler.model.text.times import format_time
from reconciler.plan.render.summary import backtest_length, backtest_sentence, format_seconds
from reconciler.plan.value.costs import (
    BASE,
    COMPARED,
    HEAD,
    KARPENTER,
    Backtest,
    CostGap,
    Difference,
    DollarSpread,
    SideResult,
    Utilization,
    WaitingSeconds,
)
from reconciler.render.cells import Column, Section, SectionRow, Text
from reconciler.render.curves import (
    Curve,
    SpanScale,
    TimeScale,
    chart,
    format_price_label,
    round_up,
)
from reconciler.render.html import render_section
from reconciler.render.layout import table
from reconciler.render.page import Markup, el, join_markup, report_page
from reconciler.render.reply import render_page, text_section

_COUNTS: Final = ("evictions", "interruptions", "commands", "pods", "unplaced", "passes")
_AMOUNTS: Final = (
    "dollars",
    "dollars_per_month",
    "lower_bound",
    "node_hours",
    "evictions_per_pod_day",
)
_COMPARED: Final = (
    *("dollars", "dollars_per_month", "lower_bound", "node_hours"),
    *("evictions", "commands", "unplaced"),
)

FRONTIER_TITLE: Final = "Cost and evictions"
FRONTIER_NOTE: Final = "* No other side costs at most as much with at most as many evictions."

GAP_TITLE: Final = "What the cost consists of"
_GAP_LINES: Final = (
    ("minimum without any constraint", "unconstrained"),
    ("DaemonSets and system overhead", "overhead"),
    ("capacity types of NodePools", "capacity_types"),
    ("other requirements of NodePools", "node_pool_requirements"),
    ("requirements of pods", "pod_requirements"),
    ("limits of pods on one host", "host_rules"),
    ("whole nodes only", "whole_nodes"),
    ("other rules between pods", "pod_rules"),
    ("past decisions", "past_decisions"),
    ("nodes without pods", "idle_nodes"),
)


def backtest_of(
    begin: datetime, until: datetime, rounded: int, results: dict[str, list[SideResult]]
) -> Backtest:
    """Return the backtest of sides, each with its results by seed."""
    sides = {name: _mean(found) for name, found in results.items()}
    costs = {name: [result.dollars for result in found] for name, found in results.items()}
    other = next((name for name in (BASE, KARPENTER) if name in sides), None)
    return Backtest(
        begin=begin,
        until=until,
        seeds=len(results[HEAD]),
        rounded_gpus=rounded,
        sides=sides,
        spread={name: DollarSpread(min(found), max(found)) for name, found in costs.items()},
        difference=_difference(sides[HEAD], sides[other], other) if other is not None else None,
    )


def _means(items: Sequence[object], names: Sequence[str], digits: int) -> list[float]:
    """Return the mean of each of the named numbers, rounded."""
    return [round(fmean(getattr(item, name) for item in items), digits) for name in names]


def _mean(results: Sequence[SideResult]) -> SideResult:
    """Return the mean of results; one alone is returned as it is."""
    if len(results) == 1:
        return results[0]
    values = dict(zip(_AMOUNTS, _means(results, _AMOUNTS, 6), strict=True))
    values |= {
        name: round(mean) for name, mean in zip(_COUNTS, _means(results, _COUNTS, 6), strict=True)
    }
    full = [result.utilization for result in results]
    utilization = Utilization(*_means(full, ("cpu", "memory"), 6))
    waits = [result.waiting_seconds for result in results]
    waiting = WaitingSeconds(*_means(waits, ("p50", "p95", "p99"), 3))
    return msgspec.structs.replace(
        results[0],
        **values,
        utilization=utilization,
        waiting_seconds=waiting,
        gap=_mean_gap([result.gap for result in results if result.gap is not None]),
    )


def _mean_gap(gaps: Sequence[CostGap]) -> CostGap | None:
    """Return the mean of each part."""
    if not gaps:
        return None
    names = CostGap.__struct_fields__
    return CostGap(*(round(fmean(getattr(gap, name) for gap in gaps), 6) for name in names))


def _difference(head: SideResult, other: SideResult, name: str) -> Difference:
    waits = head.waiting_seconds, other.waiting_seconds
    changes = {name: round(getattr(head, name) - getattr(other, name), 6) for name in _COMPARED}
    return Difference(
        against=name,
        percent=round((head.dollars / other.dollars - 1) * 100, 2) if other.dollars else None,
        utilization=Utilization(
            round(head.utilization.cpu - other.utilization.cpu, 6),
            round(head.utilization.memory - other.utilization.memory, 6),
        ),
        waiting_seconds=WaitingSeconds(
            *(round(getattr(waits[0], p) - getattr(waits[1], p), 3) for p in ("p50", "p95", "p99"))
        ),
        **changes,
    )


def render_text(backtest: Backtest) -> str:
    """Return the backtest for a terminal."""
    period = f"from {format_time(backtest.begin)} to {format_time(backtest.until)}"
    lines = [
        f"Backtest {period} ({format_duration(backtest.until - backtest.begin)})",
        "",
        *table(rows_of(backtest), "<" + ">" * len(_compared(backtest))),
    ]
    if backtest.frontier:
        rows = frontier_rows(backtest.frontier, backtest.sides)
        lines += ["", FRONTIER_TITLE, "", *table(rows, "><" + ">" * (len(rows[0]) - 2))]
        lines += ["", FRONTIER_NOTE]
    for note in notes_of(backtest):
        lines += ["", note]
    gaps = gap_rows(backtest)
    if gaps:
        lines += ["", GAP_TITLE, "", *table(gaps, "<" + ">" * (len(gaps[0]) - 1))]
    if backtest.difference is not None:
        lines += ["", backtest_sentence(backtest)]
    return "\n".join(lines) + "\n"


def rows_of(backtest: Backtest) -> list[list[str]]:
    """Return the figures with one column for each side; the first row names the sides."""
    names = _compared(backtest)
    rows = [["", *names]]
    for label, show in _LINES:
        rows.append([label, *(show(backtest.sides[name]) for name in names)])
    if backtest.seeds > 1:
        spread = backtest.spread
        cells = [
            f"{format_dollars(spread[n].low)} to {format_dollars(spread[n].high)}" for n in names
        ]
        rows.append([f"cost over {backtest.seeds} seeds", *cells])
    return rows


def _compared(backtest: Backtest) -> list[str]:
    """Return the names of the sides that are shown in columns."""
    return [name for name in backtest.sides if name in COMPARED]


def gap_rows(backtest: Backtest) -> list[list[str]]:
    """Return the causes of the cost with one column for each side; empty if they are unknown."""
    sides = {name: side for name, side in backtest.sides.items() if side.gap is not None}
    if not sides:
        return []
    rows = [["", *sides]]
    for label, name in _GAP_LINES:
        rows.append([label, *(_format_part(side, name) for side in sides.values())])
    return rows


def _format_part(side: SideResult, name: str) -> str:
    """Return an amount of the gap, and its share in the cost of the side."""
    amount: float = getattr(side.gap, name)
    share = amount / side.dollars if side.dollars else 0.0
    return f"{format_dollars(amount)} ({share:.1%})"


def notes_of(backtest: Backtest) -> list[str]:
    """Return the notes on the figures."""
    if not backtest.rounded_gpus:
        return []
    pods = format_count(backtest.rounded_gpus, "pod")
    return [f"{pods} requested a share of a GPU and got a complete one."]


_LINES: Final[tuple[tuple[str, Callable[[SideResult], str]], ...]] = (
    ("cost", lambda side: format_dollars(side.dollars)),
    ("cost per month", lambda side: format_whole_dollars(side.dollars_per_month)),
    ("theoretical minimum cost", lambda side: format_dollars(side.lower_bound)),
    ("node-hours", lambda side: f"{side.node_hours:,.1f}"),
    ("CPU utilization", lambda side: f"{side.utilization.cpu:.1%}"),
    ("memory utilization", lambda side: f"{side.utilization.memory:.1%}"),
    ("waiting, median", lambda side: format_seconds(side.waiting_seconds.p50)),
    ("waiting, 95th percentile", lambda side: format_seconds(side.waiting_seconds.p95)),
    ("waiting, 99th percentile", lambda side: format_seconds(side.waiting_seconds.p99)),
    ("evictions", lambda side: f"{side.evictions:,}"),
    ("interruptions", lambda side: f"{side.interruptions:,}"),
    ("commands", lambda side: f"{side.commands:,}"),
    ("pods", lambda side: f"{side.pods:,}"),
    ("pods without a node", lambda side: f"{side.unplaced:,}"),
)


def outcome_of(backtest: Backtest) -> str:
    """Return the difference in one sentence, or the result of the only side."""
    if backtest.difference is not None:
        return backtest_sentence(backtest)
    (side,) = backtest.sides.values()
    return (
        f"Over {backtest_length(backtest)}, this fleet would have cost"
        f" {format_dollars(side.dollars)}"
        f" ({format_dollars(side.dollars_per_month)}/month); CPU utilization"
        f" {side.utilization.cpu:.0%},"
        f" p99 waiting {format_seconds(side.waiting_seconds.p99)}."
    )


def render_html(backtest: Backtest, curves: Mapping[str, SideCurves]) -> str:
    """Return the page; ``curves`` are those of each side with the first seed."""
    begin, until = backtest.begin, backtest.until
    curves = {name: curve for name, curve in curves.items() if name in COMPARED}
    period = f"{format_time(begin)} to {format_time(until)} ({format_duration(until - begin)})"
    change = backtest.difference
    places_fewer = change is not None and change.unplaced > 0
    points = backtest.frontier
    return report_page(
        "Backtest",
        f"{period}, simulated by the engine",
        (outcome_of(backtest),),
        *(el("p", note, cls="soft") for note in notes_of(backtest)),
        *map(render_section, _figures(backtest)),
        frontier_chart(points, backtest.sides) if points else "",
        _cost_section(curves, begin, until),
        _utilization_section(curves, begin, until),
        _waiting_section(curves),
        el("p", "The curves are those of the first seed.", cls="soft")
        if backtest.seeds > 1
        else "",
        is_alarming=places_fewer,
    )


def render_markdown(backtest: Backtest) -> str:
    """Return the backtest for a comment or a document."""
    notes = (outcome_of(backtest), *notes_of(backtest))
    sections = [text_section("outcome", "", notes), *_figures(backtest)]
    return render_page("Backtest", sections, "markdown")


def _figures(backtest: Backtest) -> Iterator[Section]:
    """Yield the figures of each side, the causes of its cost, and its place among the others."""
    seeds = f"means over {backtest.seeds} seeds" if backtest.seeds > 1 else ""
    yield _sides_section("results", "Results", rows_of(backtest), note=seeds)
    gaps = gap_rows(backtest)
    if gaps:
        yield _sides_section("gap", GAP_TITLE, gaps, note="and their shares in the cost")
    if backtest.frontier:
        rows = frontier_rows(backtest.frontier, backtest.sides)
        about = "of the same workload with other settings"
        yield _sides_section("frontier", FRONTIER_TITLE, rows, note=about, end=FRONTIER_NOTE)


def _sides_section(
    key: str, title: str, rows: Sequence[Sequence[str]], *, note: str = "", end: str = ""
) -> Section:
    """Return rows of figures below their heading; those that begin with a digit are numeric."""
    heads, *figures = rows
    numeric = [figures[0][place][:1] in "$0123456789" for place in range(len(heads))]
    columns = (
        Column(head, numeric=is_number) for head, is_number in zip(heads, numeric, strict=True)
    )
    cells = (SectionRow(cells=tuple(map(Text, row))) for row in figures)
    return Section(
        key=key, title=title, note=note, columns=tuple(columns), rows=tuple(cells), end=end
    )


def _cost_section(curves: Mapping[str, SideCurves], begin: datetime, until: datetime) -> Markup:
    clock = TimeScale(begin, until)
    drawn = [
        Curve(name, [(clock.share(sample.at), sample.per_hour) for sample in side.cost])
        for name, side in curves.items()
    ]
    most = {name: max((s.per_hour for s in side.cost), default=0) for name, side in curves.items()}
    about = "; ".join(f"{name} at most {format_price_label(price)}" for name, price in most.items())
    top = round_up(max(most.values()) or 1.0)
    return join_markup(
        el("h2", "Cost", el("small", "$/hour")),
        chart(drawn, top, format_price_label, clock.grid(), f"cost per hour over time: {about}"),
    )


def _utilization_section(
    curves: Mapping[str, SideCurves], begin: datetime, until: datetime
) -> Markup:
    clock = TimeScale(begin, until)
    drawn = [
        Curve(name, [(clock.share(step.at), step.cpu_share) for step in side.utilization_steps])
        for name, side in curves.items()
    ]
    most = {
        name: max((step.cpu_share for step in side.utilization_steps), default=0.0)
        for name, side in curves.items()
    }
    about = "; ".join(f"{name} at most {share:.0%}" for name, share in most.items())
    top = 1.0 if max(most.values()) <= 1 else round_up(max(most.values()))
    return join_markup(
        el("h2", "CPU utilization", el("small", "requested by pods, as a share of allocatable")),
        chart(drawn, top, _percent, clock.grid(), f"CPU utilization over time: {about}"),
    )


def _waiting_section(curves: Mapping[str, SideCurves]) -> Markup:
    spans = SpanScale(max((side.waits[-1] for side in curves.values() if side.waits), default=60.0))
    drawn = [
        Curve(
            name,
            [
                (0.0, 0.0),
                *(
                    (spans.share(wait), number / side.pods)
                    for number, wait in enumerate(side.waits, 1)
                ),
            ],
        )
        for name, side in curves.items()
    ]
    about = "; ".join(
        f"{name} {len(side.waits):,} of {side.pods:,}" for name, side in curves.items()
    )
    return join_markup(
        el("h2", "Waiting", el("small", "share of pods that had a node after this time")),
        chart(drawn, 1.0, _percent, spans.grid(), f"pods that got a node: {about}"),
    )


def _percent(share: float) -> str:
    return f"{share:.0%}"
