"""When nodes of one NodePool can be disrupted in the next days, and gaps in the rules.

The calendar combines what applies at each time: the pool's budgets, those of the fleet, windows,
suspensions and rate limits. Gaps are reasons that can never disrupt a node, or not for a long time.
Conflicts are rules that have no effect beside the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Final

from reconciler.disruption.consolidation.flapdamping import avoided_offerings
from reconciler.disruption.gates.limits import FleetLimits, Span
from reconciler.disruption.gates.policy import minimum_age_end
from reconciler.model.history import NO_HISTORY, History
from reconciler.model.karpenter.budget import Budget, DisruptionReason, allowance
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.schedule import parse_schedule
from reconciler.model.settings import PoolOption, Settings
from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.times import format_time
from reconciler.observed.state import StateNode
from reconciler.plan.explain.answer import Decision, Explanation
from reconciler.plan.render.windows import disruption_rules
from reconciler.plan.render.wording import format_words

_NO_NODES: Final[Mapping[str, int]] = MappingProxyType({})
SPAN: Final = timedelta(days=7)
_ROWS_MAX: Final = 40
"""The maximum number of times that are listed one by one."""
_LONG_GAP: Final = timedelta(hours=24)


def daily_limit_warnings(
    pool: str, limits: FleetLimits, now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield how long replacing all nodes of the pool takes, if a daily limit allows few."""
    total = limits.staying[pool]
    for cap in with_fields(limits, history=NO_HISTORY).later(now).caps:
        a_day = cap.covers(pool, DisruptionReason.EMPTY)  # waves do not count empty nodes
        if a_day and 0 < cap.left < total:
            days = -(-total // cap.left)
            whose = "this NodePool" if cap.node_pool else "the fleet"
            text = f"{format_count(cap.left, 'node')} of {whose} may be disrupted within 24 hours"
            yield (
                "DailyMaximum",
                f"{text}: replacing all {total} takes {format_count(days, 'day')} or more",
            )


def consolidation_pauses(
    pool: str, settings: Settings, nodes: Sequence[StateNode], now: datetime
) -> Iterator[tuple[str, str]]:
    """Yield which nodes consolidation ignores for now, and until when at the latest."""
    claims = [n.claim for n in nodes if n.claim is not None and n.node_pool == pool]
    yield from _too_young(pool, settings, claims, now)
    yield from _remembered(pool, settings, claims, now)


def _too_young(
    pool: str, settings: Settings, claims: Sequence[NodeClaim], now: datetime
) -> Iterator[tuple[str, str]]:
    young = [at for c in claims if (at := minimum_age_end(c, pool, settings)) and at > now]
    if young:
        key = settings.key_of(pool, PoolOption.MINIMUM_AGE)
        last = format_time(max(young))
        text = f"{format_count(len(young), 'node')} younger than {key}: consolidation ignores"
        yield "TooYoung", f"{text} them until they are old enough, the last until {last}"


def _remembered(
    pool: str, settings: Settings, claims: Sequence[NodeClaim], now: datetime
) -> Iterator[tuple[str, str]]:
    ends = [[until for _, until in avoided_offerings(c, settings) if until > now] for c in claims]
    undo_ends = [max(row) for row in ends if row]
    if undo_ends:
        key = settings.key_of(pool, PoolOption.UNDO_PERIOD)
        text = f"consolidation of {format_count(len(undo_ends), 'node')} must not be undone"
        yield "Remembered", f"{text} ({key}), the last until {format_time(max(undo_ends))}"


def _cause(pool: str, limits: FleetLimits, reason: DisruptionReason, at: datetime) -> str:
    """Return which rule allows no disruption for the reason at that time."""
    limit = limits.later(at).limit(pool, reason)
    if limit.budget is None:
        return limit.hold.message if limit.hold is not None else "it has no nodes"
    owner = "" if limit.budget.node_pool else "the fleet's disruption."
    return f"{owner}budgets[{limit.budget.binding}] allows 0 nodes"


def explain_node_pool(
    pool: NodePool,
    settings: Settings,
    nodes: Sequence[StateNode],
    now: datetime,
    history: History = NO_HISTORY,
    planned: Mapping[str, int] = _NO_NODES,
    recorded: Mapping[str, int] = _NO_NODES,
) -> Explanation:
    """Return the calendar of a NodePool; its reasons are the gaps and conflicts.

    ``planned`` are the nodes of each NodePool once a plan is applied. They count while the NodePool
    has no nodes, because budgets of no nodes say nothing; ``recorded`` ones count before these.
    """
    limits = FleetLimits.from_nodes([pool], settings, nodes, history)
    total = limits.total(pool.name)
    whose = f"{format_count(total, 'node')} in this NodePool"
    if not total and (recorded.get(pool.name) or planned.get(pool.name)):
        is_recorded = bool(recorded.get(pool.name))
        known = recorded if is_recorded else planned
        limits = FleetLimits.from_totals([pool], settings, known, history)
        total = limits.total(pool.name)
        why, noun = "no nodes yet", "planned node"
        if is_recorded:
            why, noun = "no cluster", "recorded node"
        whose = f"{why}: counted with the {format_count(total, noun)}"
    spans = limits.spans(pool, now, now + SPAN)
    cause = partial(_cause, pool.name, limits)
    is_complete = spans[-1].end == now + SPAN
    found = [
        Decision(kind="NodePool", name=pool.name, code=code, message=message)
        for code, message in (
            *_invalid_budgets(pool, now),
            *(_gaps(spans, cause) if total and is_complete else ()),
            *_budgets_without_effect(pool, now, total),
            *_disabled_reasons(pool),
            *daily_limit_warnings(pool.name, limits, now),
            *consolidation_pauses(pool.name, settings, nodes, now),
        )
    ]
    verdict = f"allowed disruptions over the next 7 days ({whose})"
    rules = disruption_rules(pool, settings)
    rows = [f"rules: {'; '.join(rules)}"] if rules else []
    rows += _format_spans(spans, is_complete=is_complete)
    return Explanation(
        kind="NodePool", name=pool.name, verdict=verdict, facts=tuple(rows), reasons=tuple(found)
    )


def _format_span(span: Span) -> str:
    amounts = ", ".join(f"{reason.cause} {span.allowed[reason]}" for reason in sorted(span.allowed))
    return f"{format_time(span.start)} to {format_time(span.end)}: {amounts}"


def _invalid_budgets(pool: NodePool, now: datetime) -> Iterator[tuple[str, str]]:
    found = allowance(pool.spec.disruption.budgets, DisruptionReason.DRIFTED, 1, now)
    if found.error is not None:
        text = f"budgets[{found.binding}] is invalid, so no node can be disrupted: {found.error}"
        yield "BudgetUnreadable", text


def _gaps(
    spans: Sequence[Span], cause: Callable[[DisruptionReason, datetime], str]
) -> Iterator[tuple[str, str]]:
    """Yield the reasons that can never disrupt a node, or not for a day or longer.

    Reasons that the same rule closes for the same time are one gap.
    """
    closed: dict[tuple[str, str, str], list[str]] = {}
    for reason in sorted(spans[0].allowed if spans else ()):
        gap = _longest_gap(spans, reason)
        if gap is not None:
            code, when, start = gap
            closed.setdefault((code, when, cause(reason, start)), []).append(reason.cause)
    for (code, when, why), causes in closed.items():
        yield code, f"no disruption for {format_words(causes)} {when}: {why}"


def _longest_gap(
    spans: Sequence[Span], reason: DisruptionReason
) -> tuple[str, str, datetime] | None:
    """Return the code of a gap, when it is, and its start; None if there is none of a day."""
    closed = _closed_periods(spans, reason)
    if closed and all(span.allowed[reason] == 0 for span in spans):
        return "NeverOpen", "in the next 7 days", spans[0].start
    start, end = max(closed, key=lambda row: row[1] - row[0], default=(None, None))
    if start is None or end is None or end - start < _LONG_GAP:
        return None
    hours = int((end - start).total_seconds() // 3600)
    return "LongHole", f"for {hours} hours from {format_time(start)}", start


def _closed_periods(
    spans: Sequence[Span], reason: DisruptionReason
) -> list[tuple[datetime, datetime]]:
    """Return the periods in which nothing can be disrupted for the reason."""
    closed: list[tuple[datetime, datetime]] = []
    for span in spans:
        if span.allowed[reason] > 0:
            continue
        if closed and closed[-1][1] == span.start:
            closed[-1] = (closed[-1][0], span.end)
        else:
            closed.append((span.start, span.end))
    return closed


def _format_spans(spans: Sequence[Span], *, is_complete: bool) -> Iterator[str]:
    yield from map(_format_span, spans[:_ROWS_MAX])
    end = format_time(spans[-1].end)
    if len(spans) > _ROWS_MAX:
        yield f"and {len(spans) - _ROWS_MAX} more changes until {end}"
    if not is_complete:
        yield f"too many changes for 7 days; shown until {end}"


def _budgets_without_effect(pool: NodePool, now: datetime, total: int) -> Iterator[tuple[str, str]]:
    """Yield the budgets that have no effect, for example because another is always stricter."""
    budgets = pool.spec.disruption.budgets
    for index, budget in enumerate(budgets):
        try:
            change, is_active = budget.next_change(now), budget.is_active(now)
        except ValueError:
            continue  # reported as unreadable
        if budget.schedule is not None and change is None and is_active:
            code, why = "AlwaysHolds", "starts again before it ends"
            if parse_schedule(budget.schedule).next_after(now) is None:
                code, why = "NeverHits", "never starts"
            schedule = quote_value(budget.schedule)
            yield code, f"budgets[{index}]: schedule {schedule} {why}, so it always applies"
        elif change is not None and not is_active and change > now + SPAN:
            yield "OutOfSeason", f"budgets[{index}] next applies at {format_time(change)}"
        stricter = _stricter_budget(budgets, index, total, now)
        if stricter is not None:
            text = (
                f"budgets[{index}] has no effect: budgets[{stricter}] is always at least as strict"
            )
            yield "Shadowed", text


def _stricter_budget(
    budgets: Sequence[Budget], index: int, total: int, now: datetime
) -> int | None:
    """Return a budget without a schedule that is as strict, for at least the same reasons."""
    own = budgets[index]
    mine = _budget_limit(own, total, now)
    if mine is None:
        return None
    for other, budget in enumerate(budgets):
        if other == index or budget.schedule is not None or budget.duration is not None:
            continue
        theirs = _budget_limit(budget, total, now)
        if theirs is None or not _covers_reasons(budget, own):
            continue
        if (theirs, other) < (mine, index):
            return other
    return None


def _covers_reasons(budget: Budget, other: Budget) -> bool:
    """Return whether a budget applies to each reason to which the other applies."""
    if budget.reasons is None:
        return True
    return other.reasons is not None and set(other.reasons) <= set(budget.reasons)


def _budget_limit(budget: Budget, total: int, now: datetime) -> int | None:
    """Return what the budget allows within its window, None if it cannot be read."""
    try:
        return Budget(nodes=budget.nodes).allowed_disruptions(total, now)
    except ValueError:
        return None


def _disabled_reasons(pool: NodePool) -> Iterator[tuple[str, str]]:
    """Yield why a reason disrupts nothing, regardless of the budgets."""
    disruption = pool.spec.disruption
    if pool.is_static:
        yield "Static", "a static NodePool is not consolidated: its budgets only limit drift"
    elif disruption.consolidates_after is None:
        text = "consolidateAfter is Never: no disruption for emptiness or underutilization"
        yield "ConsolidationDisabled", text
    elif disruption.consolidation_policy == "WhenEmpty":
        text = "consolidationPolicy is WhenEmpty: no disruption for underutilization"
        yield "WhenEmpty", text
