"""Advice as text for a terminal, and as sections of a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from reconciler.advise.result import (
    Advice,
    AdviceBacktest,
    AdviceReport,
    CommitmentAdvice,
    SavingRange,
    WorkloadAdvice,
)
from reconciler.model.grouping import group_pairs
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_percent_change, format_whole_dollars
from reconciler.plan.render.spans import range_phrase
from reconciler.render.cells import Section, Verbatim
from reconciler.render.layout import table, wrap
from reconciler.render.reply import table_section, text_section

NOT_TRIED_MAX: Final = 12
_PROPOSALS: Final = ("rank", "$/month", "change", "risk", "confidence", "proposal")
_WORKLOADS: Final = ("$/month", "change", "pods", "constraint")
_REASONS: Final = ("$/month", "proposal", "reason")
_COMMITMENTS: Final = ("$/month", "used", "break-even", "confidence", "commitment")
_NOTHING: Final = "No single change was found that saves at least $1 a month and keeps the limits."
_OWNERS: Final = "For the owners of workloads to decide"
_REFUSED: Final = "Cheaper, but not proposed"
_METHOD: Final = (
    "The fleet and the best proposals are simulated, as by `plan --base` and `simulate`; amounts "
    "of other changes and of constraints of workloads are estimates of the planner."
)
_NEW_NODES: Final = (
    "Fleets of new nodes are compared. Amounts are estimates of the planner; those of `simulate` "
    "differ, since it also plays how long nodes take to join."
)
_ONE_RUN: Final = (
    "The fleet is far from its steady state. Savings are those of one run from there on; for the "
    "same changes, `plan --base` states the interval of several runs, or a wider one."
)
_WIDTH: Final = 100

_ALL: Final = 100


def render_text(report: AdviceReport, most: int) -> str:
    """Return the report with its first ``most`` proposals."""
    # a name of a catalog may contain a line break, which must not begin a line of the report
    return "\n".join(" ".join(line.splitlines()) for line in _lines(report, most)) + "\n"


def sections_of(report: AdviceReport, most: int) -> Iterator[Section]:
    """Yield the report with its first ``most`` proposals, for a page."""
    yield text_section("fleet", "", _head(report))
    shown = report.advice[:most]
    if not shown:
        yield text_section("proposals", "Proposals", [_NOTHING])
    else:
        yield table_section("proposals", _PROPOSALS, list(map(_row, shown)), title="Proposals")
    for one in (*((report.together,) if report.together is not None else ()), *shown):
        title = f"{one.title} ({one.id})"
        facts = text_section(one.id, title, _facts(one))
        yield replace(facts, figure=Verbatim(one.patch))
    if report.workloads:
        rows = list(map(_workload_row, report.workloads[:most]))
        yield table_section("workloads", _WORKLOADS, rows, title=_OWNERS)
    if report.commitments:
        rows = list(map(_commitment_row, report.commitments[:most]))
        yield table_section("commitments", _COMMITMENTS, rows, title=_to_consider(report))
    if report.refused:
        refused = [
            (_format_amount(one.per_month), f"{one.title} ({one.id})", one.reason)
            for one in report.refused
        ]
        yield table_section("refused", _REASONS, refused, title=_REFUSED)
    omitted = text_section("omitted", "Not tried", _not_tried(report))
    yield replace(omitted, end=_effort(report))


def _head(report: AdviceReport) -> Iterator[str]:
    """Yield the present fleet, the limits, and how savings were found."""
    base = report.base
    state = "in steady state" if base.is_at_rest else "when the search reached its work limit"
    month = f"{format_whole_dollars(base.per_month)}/month"
    yield f"Fleet {report.fleet} {state}: {range_phrase(base.range)}, {month}"
    limits = _limits(report)
    if limits:
        yield f"Limits: {limits}"
    if base.simulated:
        yield _METHOD
    elif report.new_nodes:
        yield _NEW_NODES
    elif base.range.seeds == 1:
        yield _ONE_RUN


def _lines(report: AdviceReport, most: int) -> Iterator[str]:
    yield from chain.from_iterable(wrap(line, _WIDTH) for line in _head(report))
    yield ""
    shown = report.advice[:most]
    if not shown:
        yield _NOTHING
    else:
        yield from table([_PROPOSALS, *map(_row, shown)], ">>><<<")
    if len(report.advice) > most:
        yield f"{format_count(len(report.advice) - most, 'more proposal')}: see --top and -o json"
    if report.together is not None:
        one = report.together
        yield ""
        yield f"Together: {', '.join(one.parts)}"
        yield (
            f"  {_format_monthly(one.per_month)} ({format_percent_change(one.percent, 1)}), "
            f"risk {one.risk}, confidence {one.confidence}"
        )
    for one in (*((report.together,) if report.together is not None else ()), *shown):
        yield from _details(one)
    workloads = [_WORKLOADS, *map(_workload_row, report.workloads)]
    yield from _table_section(_OWNERS, workloads, ">>><", most, "constraint")
    if report.commitments:
        rows = [_COMMITMENTS, *map(_commitment_row, report.commitments)]
        yield from _table_section(_to_consider(report), rows, ">>><<", most, "commitment")
    yield from _omitted_section(report)


def _row(advice: Advice) -> list[str]:
    return [
        str(advice.rank),
        _format_amount(advice.per_month),
        format_percent_change(advice.percent, 1),
        advice.risk,
        advice.confidence,
        f"{advice.title} ({advice.id})",
    ]


def _format_amount(amount: float) -> str:
    return format_whole_dollars(amount, signed=True)


def _format_monthly(amount: float) -> str:
    return f"{_format_amount(amount)}/month"


def _limits(report: AdviceReport) -> str:
    """Return what proposals keep to, without the limits that exclude nothing."""
    limits = report.limits
    parts = []
    if limits.spot_percent < _ALL:
        parts.append(f"at most {limits.spot_percent:g}% of the pods on spot nodes")
    if limits.zones > 1:
        parts.append(f"pods in at least {format_count(limits.zones, 'zone')}")
    if any(one.backtest is not None for one in (*report.advice, report.together) if one):
        parts.append(f"99% of the pods wait at most {limits.waiting_seconds:g} s")
        parts.append(f"evictions for each pod and day: at most {limits.evictions_per_pod_day:g}")
    return "; ".join(parts)


def _details(advice: Advice) -> Iterator[str]:
    yield ""
    yield f"{advice.title} ({advice.id})"
    for fact in _facts(advice):
        yield f"  {fact}"
    yield ""
    yield from advice.patch.removesuffix("\n").split("\n")


def _facts(advice: Advice) -> Iterator[str]:
    nodes, replaced = format_count(advice.nodes, "node"), format_count(advice.replaced, "node")
    yield f"{nodes} in steady state, {replaced} replaced"
    if advice.bounds is not None:
        low, high = (_format_monthly(amount) for amount in advice.bounds)
        yield f"between {low} and {high}"
    if advice.range is not None:
        yield _range_phrase(advice.range)
    for risk in advice.risks:
        yield f"risk: {risk}"
    for reason in advice.reasons:
        yield f"lower confidence: {reason}"
    for name in advice.warnings:
        yield f"policy {name} warns about it"
    if advice.backtest is not None:
        yield _describe_backtest(advice.backtest)


def _range_phrase(found: SavingRange) -> str:
    """Return the interval of a saving, and over how many runs."""
    runs = format_count(found.seeds, "run")
    low, high = (_format_monthly(amount) for amount in (found.low, found.high))
    if low == high:
        return f"the same in all {runs}"
    chance = "" if found.beyond_chance else ": no difference beyond chance"
    return f"between {low} and {high} in {runs}{chance}"


def _describe_backtest(found: AdviceBacktest) -> str:
    before, after = found.base, found.head
    waits = f"{before.waiting_seconds.p99:,.0f} s → {after.waiting_seconds.p99:,.0f} s"
    evictions = f"{before.evictions_per_pod_day:g} → {after.evictions_per_pod_day:g}"
    return (
        f"backtest: {_format_monthly(found.per_month)}; p99 waiting {waits}; "
        f"evictions for each pod and day {evictions}"
    )


def _workload_row(one: WorkloadAdvice) -> list[str]:
    return [
        _format_amount(one.per_month),
        format_percent_change(one.percent, 1),
        f"{one.pods:,}",
        f"{one.title} ({one.risk})",
    ]


def _commitment_row(one: CommitmentAdvice) -> list[str]:
    return [
        _format_amount(one.per_month),
        f"{one.used_percent:.0f}%",
        f"{one.break_even_percent:.0f}%",
        one.confidence,
        one.title,
    ]


def _to_consider(report: AdviceReport) -> str:
    basis = report.commitments[0].basis
    return f"Commitments to consider, based on {basis} (alternatives; savings do not add up)"


def _table_section(
    title: str, rows: Sequence[Sequence[str]], align: str, most: int, what: str
) -> Iterator[str]:
    """Yield the first rows below their title and header, and how many more there are."""
    header, *found = rows
    if not found[:most]:
        return
    yield ""
    yield f"{title}:"
    yield from table([[f"  {first}", *others] for first, *others in [header, *found[:most]]], align)
    if len(found) > most:
        more = format_count(len(found) - most, f"more {what}")
        yield f"{more}: see --top and -o json"


def _omitted_section(report: AdviceReport) -> Iterator[str]:
    if report.refused:
        yield ""
        yield f"{_REFUSED}:"
        for one in report.refused:
            yield f"  {_format_monthly(one.per_month)}  {one.title} ({one.id}): {one.reason}"
    yield ""
    yield _effort(report)
    yield "Not tried:"
    for line in _not_tried(report):
        yield f"  {line}"


def _effort(report: AdviceReport) -> str:
    effect = format_count(len(report.no_effect), "candidate")
    fleets = format_count(report.evaluations, "fleet")
    return f"Evaluated {fleets} in steady state; {effect} would save nothing."


def _not_tried(report: AdviceReport) -> Iterator[str]:
    alike = group_pairs((gap.reason, gap.what) for gap in report.not_tried)
    shown = list(alike.items())[:NOT_TRIED_MAX]
    for reason, (first, *others) in shown:
        more = f" and {format_count(len(others), 'other')}" if others else ""
        yield f"{first}{more}: {reason}"
    left = len(report.not_tried) - sum(len(names) for _, names in shown)
    if left:
        yield f"and {left} more: see -o json"
