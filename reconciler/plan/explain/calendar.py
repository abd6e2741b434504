"""When nodes of one NodePool can be disrupted in the next days, and gaps in the rules.

The calendar combines what applies at each time: the pool's budgets, those of the fleet, windows,
suspensions and rate limits. Gaps are reasons that can never disrupt a node, or not for a long time.
Conflicts are rules that have no effect beside the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.consolidation.flapdamping import avoided_offerings
from reconciler.disruption.gates.budgets import Count, fleet_states, node_counts
from reconciler.disruption.gates.guards import (
    Cap,
    caps_for,
    count_remaining_nodes,
    rollout_change_times,
)
from reconciler.disruption.gates.policy import holds_of, minimum_age_end, policy_changes
from reconciler.model.history import DAY, NO_HISTORY, History, Rollout
from reconciler.model.karpenter.budget import (
    Budget,
    DisruptionReason,
    allowance,
    next_budget_change,
)
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.schedule import parse_schedule
from reconciler.model.settings import PoolOption, Settings
from reconciler.model.text.quoting import quote_value
from reconciler.observed.state import StateNode
from reconciler.plan.explain.answer import Decision, Explanation
from reconciler.plan.render.wording import format_count, format_time

# What the rate limits add to a pool's calendar: gaps and slowness.
#
# Past disruptions are known, future ones are not. So each time is evaluated as if nothing were
# disrupted until then, and as if a running wave succeeded when its nodes have been healthy for long
# enough.


@dataclass(frozen=True)
class RateLimits:
    """The rate limits of one NodePool, for the nodes that are to stay."""

    pool: str
    settings: Settings
    history: History
    staying: Counter[str]

    @classmethod
    def for_pool(
        cls, pool: str, settings: Settings, history: History, nodes: Sequence[StateNode]
    ) -> RateLimits:
        """Return the rate limits of a pool, with the nodes counted once."""
        return cls(pool, settings, history, count_remaining_nodes(nodes))

    def change_times(self) -> Iterator[datetime]:
        """Yield when a rate limit may allow more."""
        yield from (row.at + DAY for row in self.history.taken)
        rollouts = [r for r in self.history.rollouts if r.node_pool == self.pool]
        yield from rollout_change_times(rollouts, self.settings)

    def cap(self, reason: DisruptionReason, at: datetime) -> Cap | None:
        """Return the strictest rate limit for the reason at a time, None if there is none."""
        found = [c for c in self.caps(at) if c.covers(self.pool, reason)]
        return min(found, key=lambda cap: cap.left, default=None)

    def caps(self, at: datetime) -> list[Cap]:
        """Return all rate limits that apply at a time."""
        if not self._has_limits:
            return []
        rollouts = tuple(self._end_if_settled(rollout, at) for rollout in self.history.rollouts)
        history = replace(self.history, rollouts=rollouts)
        return caps_for([self.pool], self.staying, history, self.settings, at)

    @property
    def _has_limits(self) -> bool:
        own = self.settings.pool(self.pool)
        values = (own.maximum_per_day, own.wave_size, self.settings.fleet_maximum_per_day)
        return any(values) or own.stop_after_failures > 0

    def _end_if_settled(self, rollout: Rollout, at: datetime) -> Rollout:
        soak = self.settings.pool(rollout.node_pool).wave_soak
        over = all(move.is_settled(soak, at) for move in rollout.moves)
        return replace(rollout, moves=()) if over else rollout


def daily_limit_warnings(limits: RateLimits, now: datetime) -> Iterator[tuple[str, str]]:
    """Yield how long replacing all nodes of the pool takes, if a daily limit allows few."""
    total = limits.staying[limits.pool]
    fresh = RateLimits(limits.pool, limits.settings, History(), limits.staying)
    for cap in fresh.caps(now):
        a_day = cap.covers(limits.pool, DisruptionReason.EMPTY)  # waves do not count empty nodes
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
    young = [at for c in claims if (at := minimum_age_end(c, pool, settings)) and at > now]
    if young:
        key = settings.key_of(pool, PoolOption.MINIMUM_AGE)
        last = format_time(max(young))
        text = f"{format_count(len(young), 'node')} younger than {key}: consolidation ignores"
        yield "TooYoung", f"{text} them until they are old enough, the last until {last}"
    ends = [[until for _, until in avoided_offerings(c, settings) if until > now] for c in claims]
    undo_ends = [max(row) for row in ends if row]
    if undo_ends:
        key = settings.key_of(pool, PoolOption.UNDO_PERIOD)
        text = f"consolidation of {format_count(len(undo_ends), 'node')} must not be undone"
        yield "Remembered", f"{text} ({key}), the last until {format_time(max(undo_ends))}"


SPAN: Final = timedelta(days=7)
_STEPS_MAX: Final = 500
"""The maximum number of changes: a window each half hour for a week."""
_ROWS_MAX: Final = 40
"""The maximum number of times that are listed one by one."""
_LONG_GAP: Final = timedelta(hours=24)


@dataclass(frozen=True, slots=True)
class Span:
    """A period with the same limits: how many nodes can be disrupted at a time, by reason."""

    start: datetime
    end: datetime
    allowed: Mapping[DisruptionReason, int]


def calendar_of(
    pool: NodePool,
    settings: Settings,
    nodes: Sequence[StateNode],
    now: datetime,
    history: History = NO_HISTORY,
) -> list[Span]:
    """Return the spans of the next seven days, in order and without a gap.

    With more changes than the maximum, the calendar ends with the last of them. It assumes the
    present number of nodes, of which none is being disrupted. ``history`` is the history for the
    rate limits.
    """
    limits = RateLimits.for_pool(pool.name, settings, history, nodes)
    totals = _node_totals(pool, settings, nodes, now)
    spans: list[Span] = []
    at = now
    for change in _change_times(pool, settings, limits, now):
        allowed = _allowed_disruptions(pool, settings, totals, limits, at)
        if spans and spans[-1].allowed == allowed:
            spans[-1] = Span(spans[-1].start, change, allowed)
        else:
            spans.append(Span(at, change, allowed))
        at = change
    return spans


def _node_totals(
    pool: NodePool, settings: Settings, nodes: Sequence[StateNode], now: datetime
) -> tuple[int, int]:
    """Return how many nodes of the pool count, and how many of the fleet if it has budgets."""
    states = fleet_states(settings.fleet_budgets, nodes, now)
    total = node_counts(nodes).get(pool.name, Count()).total
    return total, states[0].total if states else 0


def _change_times(
    pool: NodePool, settings: Settings, limits: RateLimits, now: datetime
) -> Iterator[datetime]:
    """Yield each time at which something may change; the end of the calendar is the last."""
    end, at = now + SPAN, now
    limit_changes = sorted(set(limits.change_times()))
    for _ in range(_STEPS_MAX):
        moments = [
            next_budget_change(pool.spec.disruption.budgets, at),
            *policy_changes(settings, at),
            next((m for m in limit_changes if m > at), None),
        ]
        at = min((m for m in moments if m is not None and at < m), default=end)
        if at >= end:
            yield end
            return
        yield at


def _allowed_disruptions(
    pool: NodePool, settings: Settings, totals: tuple[int, int], limits: RateLimits, at: datetime
) -> dict[DisruptionReason, int]:
    holds = holds_of([pool.name], settings, at)
    total, fleet_total = totals
    allowed: dict[DisruptionReason, int] = {}
    for reason in DisruptionReason:
        own = min(allowance(pool.spec.disruption.budgets, reason, total, at).nodes, total)
        fleet = allowance(settings.fleet_budgets, reason, fleet_total, at).nodes
        cap = limits.cap(reason, at)
        limited = cap.left if cap is not None else own
        allowed[reason] = 0 if (pool.name, reason) in holds else min(own, fleet, limited)
    return allowed


def _cause(
    pool: NodePool,
    settings: Settings,
    totals: tuple[int, int],
    limits: RateLimits,
    reason: DisruptionReason,
    at: datetime,
) -> str:
    """Return which rule allows no disruption for the reason at that time."""
    hold = holds_of([pool.name], settings, at).get((pool.name, reason))
    if hold is not None:
        return hold.message
    own = allowance(pool.spec.disruption.budgets, reason, totals[0], at)
    if own.nodes == 0:
        return f"budgets[{own.binding}] allows 0 nodes"
    fleet = allowance(settings.fleet_budgets, reason, totals[1], at)
    cap = limits.cap(reason, at)
    if fleet.nodes > 0 and cap is not None:
        return cap.hold.message
    return f"the fleet's disruption.budgets[{fleet.binding}] allows 0 nodes"


def explain_node_pool(
    pool: NodePool,
    settings: Settings,
    nodes: Sequence[StateNode],
    now: datetime,
    history: History = NO_HISTORY,
) -> Explanation:
    """Return the calendar of a NodePool; its reasons are the gaps and conflicts."""
    totals = _node_totals(pool, settings, nodes, now)
    total = totals[0]
    spans = calendar_of(pool, settings, nodes, now, history)
    limits = RateLimits.for_pool(pool.name, settings, history, nodes)
    cause = partial(_cause, pool, settings, totals, limits)
    is_complete = spans[-1].end == now + SPAN
    found = [
        Decision(kind="NodePool", name=pool.name, code=code, message=message)
        for code, message in (
            *_invalid_budgets(pool, now),
            *(_gaps(spans, cause) if total and is_complete else ()),
            *_budgets_without_effect(pool, now, total),
            *_disabled_reasons(pool),
            *daily_limit_warnings(limits, now),
            *consolidation_pauses(pool.name, settings, nodes, now),
        )
    ]
    verdict = (
        f"allowed disruptions over the next 7 days ({format_count(total, 'node')} in this NodePool)"
    )
    rows = [_format_span(span) for span in spans[:_ROWS_MAX]]
    if len(spans) > _ROWS_MAX:
        rows.append(f"and {len(spans) - _ROWS_MAX} more changes until {format_time(spans[-1].end)}")
    if not is_complete:
        rows.append(f"too many changes for 7 days; shown until {format_time(spans[-1].end)}")
    return Explanation(
        kind="NodePool", name=pool.name, verdict=verdict, facts=tuple(rows), reasons=tuple(found)
    )


def _format_span(span: Span) -> str:
    amounts = ", ".join(f"{reason} {span.allowed[reason]}" for reason in sorted(DisruptionReason))
    return f"{format_time(span.start)} to {format_time(span.end)}: {amounts}"


def _invalid_budgets(pool: NodePool, now: datetime) -> Iterator[tuple[str, str]]:
    found = allowance(pool.spec.disruption.budgets, DisruptionReason.DRIFTED, 1, now)
    if found.error is not None:
        text = f"budgets[{found.binding}] is invalid, so no node can be disrupted: {found.error}"
        yield "BudgetUnreadable", text


def _gaps(
    spans: Sequence[Span], cause: Callable[[DisruptionReason, datetime], str]
) -> Iterator[tuple[str, str]]:
    """Yield the reasons that can never disrupt a node, or not for a day or longer."""
    for reason in sorted(DisruptionReason):
        closed = _closed_periods(spans, reason)
        if closed and all(span.allowed[reason] == 0 for span in spans):
            why = cause(reason, spans[0].start)
            yield "NeverOpen", f"no disruption for {reason.cause} in the next 7 days: {why}"
        elif closed:
            start, end = max(closed, key=lambda row: row[1] - row[0])
            if end - start >= _LONG_GAP:
                hours = int((end - start).total_seconds() // 3600)
                text = (
                    f"no disruption for {reason.cause} for {hours} hours from {format_time(start)}"
                )
                yield "LongHole", f"{text}: {cause(reason, start)}"


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


def _budgets_without_effect(pool: NodePool, now: datetime, total: int) -> Iterator[tuple[str, str]]:
    """Yield the budgets that have no effect, for example because another is always stricter."""
    budgets = pool.spec.disruption.budgets
    for index, budget in enumerate(budgets):
        try:
            change, is_active = budget.next_change(now), budget.is_active(now)
        except ValueError:
            continue  # reported as unreadable
        if budget.schedule is not None and change is None and is_active:
            hits = parse_schedule(budget.schedule).next_after(now) is not None
            why = "starts again before it ends" if hits else "never starts"
            schedule = quote_value(budget.schedule)
            text = f"budgets[{index}]: schedule {schedule} {why}, so it always applies"
            yield "AlwaysHolds" if hits else "NeverHits", text
        elif budget.schedule is not None and not is_active and change and change > now + SPAN:
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
    for other, budget in enumerate(budgets):
        if other == index or budget.schedule is not None or budget.duration is not None:
            continue
        covers_reasons = budget.reasons is None or (
            own.reasons is not None and set(own.reasons) <= set(budget.reasons)
        )
        mine, theirs = (_budget_limit(b, total, now) for b in (own, budget))
        if not covers_reasons or mine is None or theirs is None:
            continue
        if theirs < mine or (theirs == mine and other < index):
            return other
    return None


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
