"""What a fleet did in a period: spent, saved by which rule, interrupted, blocked, and the forecast.

Everything is read from the recorded state. The cost of a fleet is that in its recorded plans: a
plan is recorded whenever the cost changes, and it holds until the next one. While no pass runs, as
where the daemon is down, nodes may be interrupted or deleted: their cost is unknown then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.disruption.command import ForcefulReason
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.waiting import Blocker
from reconciler.model.decode import decode_json
from reconciler.model.duration import format_duration
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_monthly, format_spent, format_whole_dollars
from reconciler.model.text.times import format_date, format_time
from reconciler.plan.render.wording import blocker_title
from reconciler.plan.value.plan import Plan
from reconciler.ports.passes import PassPeriod, PassTimes
from reconciler.ports.state import CommandPhase, RecordedPlan, RunningCommand, StateStore

_HOUR: Final = timedelta(hours=1)
_DAY: Final = timedelta(days=1)
_LEAST_FORGONE: Final = 1.0
"""USD a month: blockers that prevent less are not advice."""
_ADVICE_MAX: Final = 3
_BLOCKERS_IN_TEXT: Final = 3


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the report; the fields have the names of the JSON."""


class RuleOutcome(_Part, frozen=True, kw_only=True):
    """The commands of one reason: how many, with how many nodes, and what they save.

    ``saved_per_month`` is USD a month, negative if they cost more; None if no amount is known, as
    for nodes that were replaced for another reason than their cost.
    """

    reason: str
    commands: int
    nodes: int
    saved_per_month: float | None


class ReportedBlocker(_Part, frozen=True, kw_only=True):
    """What blocks nodes now, since when, and the savings that it prevents, in USD a month."""

    kind: str
    name: str
    message: str
    nodes: int
    since: datetime | None
    forgone_per_month: float | None


class Forecast(_Part, frozen=True, kw_only=True):
    """USD a month: the present cost, and that once nothing is left to do in the newest plan."""

    per_month: float
    planned_per_month: float


class FleetReport(_Part, frozen=True, kw_only=True):
    """What a fleet did from ``since`` to ``until``.

    ``spent`` is USD from ``known_since`` on, when the first plan of the period was recorded; both
    are None if there is none, or no pass. It omits the times without passes, which are
    ``unobserved``: which nodes ran then is not known. ``unpriced`` are the nodes without a price
    that it omits now. ``interrupted`` are the interrupted nodes by NodePool. ``blockers`` and
    ``forecast`` are those of the newest plan.
    """

    api_version: str = "reconciler/v1"
    kind: str = "FleetReport"
    fleet: str
    since: datetime
    until: datetime
    known_since: datetime | None = None
    spent: float | None = None
    unobserved: tuple[PassPeriod, ...] = ()
    unpriced: int = 0
    rules: tuple[RuleOutcome, ...] = ()
    rolled_back: int = 0
    interrupted: dict[str, int] = {}
    blockers: tuple[ReportedBlocker, ...] = ()
    unschedulable: int = 0
    forecast: Forecast | None = None
    advice: tuple[str, ...] = ()

    @property
    def per_day(self) -> float:
        """What was spent a day on average, in USD."""
        return self.spent / (self.observed / _DAY) if self.spent and self.observed else 0.0

    @property
    def observed(self) -> timedelta:
        """How long the cost is known."""
        if self.known_since is None:
            return timedelta()
        return self.until - self.known_since - self.unknown

    @property
    def unknown(self) -> timedelta:
        """How long no pass ran."""
        return sum((period.length for period in self.unobserved), timedelta())

    @property
    def last_pass(self) -> datetime | None:
        """When the last pass ran, if that was long before the end."""
        last = self.unobserved[-1:]
        return last[0].since if last and last[0].until == self.until else None


def report_of(
    fleet: str,
    store: StateStore,
    passes: PassTimes,
    plan: Plan | None,
    since: datetime,
    until: datetime,
) -> FleetReport:
    """Return the report on a fleet; ``plan`` is the newest one, and ``passes`` ran at their times.

    Raises:
        StateError: the records cannot be read.
    """
    commands = [c for c in store.commands_since(since) if c.started_at <= until]
    gaps = tuple(passes.gaps(since, until))
    known_since, spent = _spent(store.plans_since(since), since, until, gaps)
    blockers = tuple(_blockers(plan)) if plan is not None else ()
    report = FleetReport(
        fleet=fleet,
        since=since,
        until=until,
        known_since=known_since,
        spent=spent,
        unobserved=gaps if known_since is not None else (),
        rules=tuple(_rules(commands)),
        rolled_back=sum(c.phase is CommandPhase.ROLLED_BACK for c in commands),
        interrupted=_interrupted(commands),
        blockers=blockers,
    )
    if plan is None:
        return report
    steady, cost = plan.steady_state, plan.cost
    planned = steady.per_hour if steady is not None else cost.after
    report = msgspec.structs.replace(
        report,
        unpriced=cost.unpriced,
        unschedulable=len(plan.unschedulable),
        forecast=Forecast(per_month=_monthly(cost.before), planned_per_month=_monthly(planned)),
    )
    return msgspec.structs.replace(report, advice=tuple(_advice(report)))


class _PlannedCost(msgspec.Struct, frozen=True):
    before: float


class _CostOfPlan(msgspec.Struct, frozen=True):
    """The part of a recorded plan that has its cost; all else is skipped."""

    cost: _PlannedCost


def _spent(
    plans: Iterable[RecordedPlan], since: datetime, until: datetime, gaps: Sequence[PassPeriod]
) -> tuple[datetime | None, float | None]:
    """Return from when on the cost is known, and what was spent from then on, in USD.

    Nothing is counted in the ``gaps``.
    """
    began: datetime | None = None
    total, at, per_hour = 0.0, since, 0.0
    for plan in plans:
        try:
            cost = decode_json(plan.body, _CostOfPlan).cost.before
        except msgspec.MsgspecError:
            continue  # of another release
        moment = min(max(plan.at, since), until)
        began = began or moment
        total += per_hour * _observed(at, max(moment, at), gaps) / _HOUR
        at, per_hour = max(moment, at), cost
    if began is None or not _observed(began, until, gaps):
        return None, None
    return began, round(total + per_hour * _observed(at, until, gaps) / _HOUR, 6)


def _observed(since: datetime, until: datetime, gaps: Sequence[PassPeriod]) -> timedelta:
    """Return how long a period is without its parts in gaps."""
    ends = ((max(gap.since, since), min(gap.until, until)) for gap in gaps)
    lost = (max(last - first, timedelta()) for first, last in ends)
    return until - since - sum(lost, timedelta())


def _rules(commands: Iterable[RunningCommand]) -> Iterator[RuleOutcome]:
    """Yield the outcome of each reason, the largest saving first."""
    by_reason: dict[str, list[RunningCommand]] = {}
    for command in commands:
        if command.phase is not CommandPhase.ROLLED_BACK:
            by_reason.setdefault(command.reason, []).append(command)
    rows = []
    for reason, members in by_reason.items():
        known = [c.savings for c in members if c.savings is not None]
        rows.append(
            RuleOutcome(
                reason=reason,
                commands=len(members),
                nodes=sum(len(c.node_claims) for c in members),
                saved_per_month=_monthly(sum(known)) if known else None,
            )
        )
    yield from sorted(rows, key=lambda row: (-(row.saved_per_month or 0.0), row.reason))


def _interrupted(commands: Iterable[RunningCommand]) -> dict[str, int]:
    reason = ForcefulReason.INTERRUPTED
    pools = Counter(pool for c in commands if c.reason == reason for pool in c.node_pools)
    return dict(sorted(pools.items()))


def _blockers(plan: Plan) -> Iterator[ReportedBlocker]:
    """Yield what blocks nodes in a plan, the largest savings first."""

    def order(blocker: Blocker) -> tuple[float, str, str]:
        return (-(blocker.forgone or 0.0), blocker.kind, blocker.name)

    for one in sorted(plan.blockers, key=order):
        yield ReportedBlocker(
            kind=one.kind,
            name=one.name,
            message=one.message,
            nodes=len(one.nodes),
            since=one.since,
            forgone_per_month=None if one.forgone is None else _monthly(one.forgone),
        )


def _advice(report: FleetReport) -> Iterator[str]:
    """Yield what could be done next, the largest saving first."""
    if report.unschedulable:
        pods = format_count(report.unschedulable, "pod")
        yield f"{pods} cannot be scheduled: `reconciler explain pod NAME` shows why"
    yield from blocker_advice(report)
    yield "`reconciler advise` finds changes to the files that save money"


def blocker_advice(report: FleetReport) -> Iterator[str]:
    """Yield the part of the advice that a table of the blockers states as well."""
    costly = [b for b in report.blockers if (b.forgone_per_month or 0.0) >= _LEAST_FORGONE]
    for one in costly[:_ADVICE_MAX]:
        saving = format_whole_dollars(one.forgone_per_month or 0.0)
        nodes = format_count(one.nodes, "node")
        title = blocker_title(one.kind, one.name)
        yield f"{title} prevents the consolidation of {nodes}, which would save {saving}/month"


def _monthly(per_hour: float) -> float:
    return round(per_hour * HOURS_A_MONTH, 6)


def text_of(report: FleetReport) -> str:
    """Return the report as a paragraph, for a notification."""
    return " ".join(f"{sentence}." for sentence in _sentences(report))


def _sentences(report: FleetReport) -> Iterator[str]:
    since = format_date(report.since)
    if report.spent is None:
        yield f"Since {since}, no cost is recorded"
    else:
        daily = format_spent(report.per_day)
        yield f"Since {since}, the fleet has cost {format_spent(report.spent)} ({daily}/day)"
        if report.unobserved:
            unknown = format_duration(report.unknown)
            yield f"What it cost in {unknown} without a pass is unknown and not included"
    for rule in report.rules:
        commands, nodes = format_count(rule.commands, "command"), format_count(rule.nodes, "node")
        saved = rule.saved_per_month
        effect = "" if saved is None else f" and {_effect(saved)}"
        yield f"{rule.reason}: {commands} removed or replaced {nodes}{effect}"
    if report.rolled_back:
        were = "was" if report.rolled_back == 1 else "were"
        yield f"{format_count(report.rolled_back, 'command')} {were} rolled back"
    if report.blockers:
        shown = [blocker_title(b.kind, b.name) for b in report.blockers]
        yield f"Blocked by {format_list(shown, _BLOCKERS_IN_TEXT)}"
    if report.forecast is not None:
        yield _forecast_sentence(report.forecast, report.last_pass)
    yield from report.advice[:1]


def _effect(saved: float) -> str:
    if saved < 0:
        return f"cost {format_whole_dollars(-saved)}/month more"
    return f"saved {format_whole_dollars(saved)}/month"


def _forecast_sentence(found: Forecast, last: datetime | None) -> str:
    now, then = (
        format_monthly(v / HOURS_A_MONTH) for v in (found.per_month, found.planned_per_month)
    )
    later = f", and {then}/month once its plan is applied" if now != then else ""
    if last is not None:
        return f"At the last pass, {format_time(last)}, the fleet cost {now}/month{later}"
    return f"The fleet costs {now}/month now{later}"
