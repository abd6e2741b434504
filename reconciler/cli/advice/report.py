"""Advice as text for a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from reconciler.cli.advice.result import Advice, AdviceReport
from reconciler.plan.render.layout import table
from reconciler.plan.render.wording import counted, dollars, hourly

NOT_TRIED_MAX: Final = 12


def as_text(report: AdviceReport, most: int) -> str:
    """Return the report with its first ``most`` proposals."""
    return "\n".join(_lines(report, most)) + "\n"


def _lines(report: AdviceReport, most: int) -> Iterator[str]:
    base = report.base
    state = "at rest" if base.is_at_rest else "when the search reached its work limit"
    cost = f"${hourly(base.per_hour)} an hour, {dollars(base.per_month)} a month"
    yield f"Fleet {report.fleet} {state}: {counted(base.nodes, 'node')}, {cost}"
    yield f"Limits: {_limits(report)}"
    yield ""
    shown = report.advice[:most]
    if not shown:
        yield "No change was found that saves at least $1 a month and keeps the limits."
    else:
        yield from table(
            [["rank", "a month", "change", "risk", "confidence", "proposal"], *map(_row, shown)],
            ">>><<<",
        )
    if len(report.advice) > most:
        yield f"{counted(len(report.advice) - most, 'more proposal')}: see --top and -o json"
    if report.together is not None:
        one = report.together
        yield ""
        yield f"Together: {', '.join(one.parts)}"
        yield (
            f"  {_a_month(one.per_month)} ({one.percent:+.1f}%), "
            f"risk {one.risk}, confidence {one.confidence}"
        )
    for one in (*((report.together,) if report.together is not None else ()), *shown):
        yield from _details(one)
    yield from _owners(report, most)
    yield from _purchases(report, most)
    yield from _left_out(report)


def _row(one: Advice) -> list[str]:
    money = dollars(one.per_month, signed=True)
    return [
        str(one.rank), money, f"{one.percent:+.1f}%", one.risk, one.confidence,
        f"{one.title} ({one.id})",
    ]  # fmt: skip


def _a_month(amount: float) -> str:
    return f"{dollars(amount, signed=True)} a month"


def _limits(report: AdviceReport) -> str:
    limits = report.limits
    parts = [
        f"at most {limits.spot_percent:g}% of the pods on spot nodes",
        f"pods in at least {counted(limits.zones, 'zone')}",
    ]
    if any(one.backtest is not None for one in (*report.advice, report.together) if one):
        parts.append(f"99% of the pods wait at most {limits.waiting_seconds:g} s")
        parts.append(f"evictions for each pod and day: at most {limits.evictions_per_pod_day:g}")
    return "; ".join(parts)


def _details(one: Advice) -> Iterator[str]:
    yield ""
    yield f"{one.title} ({one.id})"
    yield f"  {counted(one.nodes, 'node')} at rest, {counted(one.replaced, 'node')} replaced"
    if one.bounds is not None:
        low, high = (_a_month(amount) for amount in one.bounds)
        yield f"  between {low} and {high}"
    for risk in one.risks:
        yield f"  risk: {risk}"
    for reason in one.reasons:
        yield f"  lower confidence: {reason}"
    for name in one.warnings:
        yield f"  policy {name} warns about it"
    if one.backtest is not None:
        yield from _backtest(one)
    yield ""
    yield from one.patch.removesuffix("\n").split("\n")


def _backtest(one: Advice) -> Iterator[str]:
    found = one.backtest
    assert found is not None, "the caller has seen one"
    before, after = found.base, found.head
    waits = f"{before.waiting_seconds.p99:,.0f} s → {after.waiting_seconds.p99:,.0f} s"
    evictions = f"{before.evictions_per_pod_day:g} → {after.evictions_per_pod_day:g}"
    yield (
        f"  backtest: {_a_month(found.per_month)}; p99 waiting {waits}; "
        f"evictions for each pod and day {evictions}"
    )


def _owners(report: AdviceReport, most: int) -> Iterator[str]:
    shown = report.workloads[:most]
    if not shown:
        return
    yield ""
    yield "For the owners of workloads to decide:"
    yield from table(
        [
            ["  a month", "change", "pods", "constraint"],
            *(
                [
                    f"  {dollars(one.per_month, signed=True)}", f"{one.percent:+.1f}%",
                    f"{one.pods:,}", f"{one.title} ({one.risk})",
                ]
                for one in shown
            ),
        ],
        ">>><",
    )  # fmt: skip
    if len(report.workloads) > most:
        yield f"{counted(len(report.workloads) - most, 'more constraint')}: see --top and -o json"


def _purchases(report: AdviceReport, most: int) -> Iterator[str]:
    shown = report.commitments[:most]
    if not shown:
        return
    yield ""
    yield f"Commitments worth buying, by {shown[0].basis} (alternatives, do not add them up):"
    yield from table(
        [
            ["  a month", "used", "break-even", "confidence", "commitment"],
            *(
                [
                    f"  {dollars(one.per_month, signed=True)}", f"{one.used_percent:.0f}%",
                    f"{one.break_even_percent:.0f}%", one.confidence, one.title,
                ]
                for one in shown
            ),
        ],
        ">>><<",
    )  # fmt: skip
    if len(report.commitments) > most:
        yield f"{counted(len(report.commitments) - most, 'more commitment')}: see --top and -o json"


def _left_out(report: AdviceReport) -> Iterator[str]:
    if report.refused:
        yield ""
        yield "Cheaper, but not proposed:"
        for one in report.refused:
            yield f"  {dollars(one.per_month, signed=True)} a month  {one.id}: {one.reason}"
    yield ""
    effect = counted(len(report.no_effect), "candidate")
    yield f"Evaluated {counted(report.evaluations, 'fleet')} at rest; {effect} would save nothing."
    yield "Not tried:"
    for gap in report.not_tried[:NOT_TRIED_MAX]:
        yield f"  {gap.what}: {gap.reason}"
    if len(report.not_tried) > NOT_TRIED_MAX:
        yield f"  and {len(report.not_tried) - NOT_TRIED_MAX} more: see -o json"
