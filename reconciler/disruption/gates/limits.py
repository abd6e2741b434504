"""What may be disrupted in a NodePool of a fleet, for which reason, when, and why not more.

A pool's budgets, those of the fleet, windows, suspensions, daily maximums, waves and halts all
apply: the strictest one decides. The planner, ``explain``, the dashboard and ``simulate`` ask this
module, now and for the days to come, and so cannot disagree.

Past disruptions are known, future ones are not. So a later time is evaluated as if nothing were
being disrupted, and as if a running wave succeeded when its nodes have been healthy for long
enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

import msgspec

from reconciler.disruption.gates.budgets import (
    BudgetLedger,
    Count,
    budget_reasons,
    budget_states,
    fleet_states,
    node_counts,
)
from reconciler.disruption.gates.guards import (
    Cap,
    caps_for,
    count_remaining_nodes,
    holds_of_caps,
    rollout_change_times,
)
from reconciler.disruption.gates.policy import Hold, Holds, holds_of, policy_changes
from reconciler.model.decision.waiting import PoolBudget, WaitsFor
from reconciler.model.history import DAY, NO_HISTORY, History, Rollout
from reconciler.model.karpenter.budget import (
    Budget,
    DisruptionReason,
    allowance,
    next_budget_change,
)
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.state import StateNode

CHANGES_MAX: Final = 500
"""The maximum number of changes of a calendar: a window each half hour for more than a week."""


@dataclass(frozen=True, slots=True)
class Limit:
    """How many nodes may be disrupted, and the rule that allows no more.

    ``budget`` is the binding budget; its ``node_pool`` is empty if it is one of the fleet. ``hold``
    is another rule. Neither is set where only the number of nodes is a limit.
    """

    nodes: int
    budget: PoolBudget | None = None
    hold: Hold | None = None


@dataclass(frozen=True)
class Limits:
    """The limits of a fleet at one time.

    ``states`` are the budgets of each pool by reason, ``fleet`` those of the fleet. ``suspended``
    are pools and reasons that nothing may disrupt whatever the budgets, ``caps`` the rate limits.
    """

    at: datetime
    settings: Settings
    budgets: Mapping[str, Sequence[Budget]]
    states: tuple[PoolBudget, ...]
    fleet: tuple[PoolBudget, ...]
    suspended: Holds
    caps: tuple[Cap, ...]

    @cached_property
    def holds(self) -> Holds:
        """What allows nothing from the start: suspensions, windows and exhausted rate limits."""
        return {**holds_of_caps(self.caps, self.budgets), **self.suspended}

    def ledger(self) -> BudgetLedger:
        """Return what is left, to count the disruptions of a pass."""
        return BudgetLedger(self.states, self.fleet, self.holds, self.caps)

    def limit(self, node_pool: str, reason: DisruptionReason) -> Limit:
        """Return how many nodes of the pool may be disrupted for the reason, and why not more."""
        ledger = self.ledger()
        nodes = ledger.allowed_disruptions(node_pool, reason)
        suspension = self.suspended.get((node_pool, reason))
        if suspension is not None:
            return Limit(nodes, hold=suspension)
        if ledger.allowed_by_pool(node_pool, reason) == nodes:
            return Limit(nodes, budget=self._state(node_pool, reason))
        if self.fleet and ledger.allowed_by_fleet(reason) == nodes:
            return Limit(nodes, budget=self._fleet_state(reason))
        cap = next(c for c in self.caps if c.left == nodes and c.covers(node_pool, reason))
        return Limit(nodes, hold=cap.hold)

    def hold(self, node_pool: str, reason: DisruptionReason, ledger: BudgetLedger) -> Hold:
        """Return what a node waits for if ``ledger`` has nothing left for it.

        Suspensions and windows are reported before budgets, the pool's budgets before the fleet's,
        and rate limits last.
        """
        suspension = self.suspended.get((node_pool, reason))
        if suspension is not None:
            return suspension
        if ledger.allowed_by_pool(node_pool, reason) == 0:
            whose = f"the budget of NodePool {node_pool}"
            state = self._state(node_pool, reason)
            return self._budget_hold(state, self.budgets[node_pool], whose)
        if ledger.allowed_by_fleet(reason) == 0:
            state = self._fleet_state(reason)
            whose = f"the fleet's budget (disruption.budgets[{state.binding}])"
            return self._budget_hold(state, self.settings.fleet_budgets, whose)
        cap = ledger.exhausted_limit(node_pool, reason)
        assert cap is not None, "asked only where nothing is left"
        return cap.hold

    def _state(self, node_pool: str, reason: DisruptionReason) -> PoolBudget:
        return next(s for s in self.states if (s.node_pool, s.reason) == (node_pool, reason))

    def _fleet_state(self, reason: DisruptionReason) -> PoolBudget:
        return next(s for s in self.fleet if s.reason == reason)

    def _budget_hold(self, state: PoolBudget, budgets: Sequence[Budget], owner: str) -> Hold:
        binding = budgets[state.binding] if state.binding is not None else None
        scheduled = binding is not None and binding.schedule is not None
        change = binding.next_change(self.at) if binding is not None and scheduled else None
        error = allowance(budgets, state.reason, state.total, self.at).error
        if error is not None:
            message = f"{owner} is invalid: {error}"
        else:
            at_once = state.allowed + state.disrupting
            message = (
                f"{owner} allows {at_once} of {state.total} nodes to be disrupted for "
                f"{state.reason.cause} at a time ({state.disrupting} disrupted or not ready now)"
            )
        return Hold(WaitsFor.SCHEDULE if scheduled else WaitsFor.BUDGET, change, message)


@dataclass(frozen=True, slots=True)
class Span:
    """A period with the same limits: how many nodes can be disrupted at a time, by reason."""

    start: datetime
    end: datetime
    allowed: Mapping[DisruptionReason, int]


@dataclass(frozen=True)
class FleetLimits:
    """The limits of a fleet over time.

    ``counts`` are the nodes by NodePool to which budgets refer, ``staying`` those to which rate
    limits refer.
    """

    pools: tuple[NodePool, ...]
    settings: Settings
    counts: Mapping[str, Count]
    staying: Counter[str]
    history: History = NO_HISTORY

    @classmethod
    def from_nodes(
        cls,
        pools: Iterable[NodePool],
        settings: Settings,
        nodes: Iterable[StateNode],
        history: History = NO_HISTORY,
    ) -> FleetLimits:
        """Return the limits of a fleet with these nodes."""
        known = tuple(nodes)
        counts, staying = node_counts(known), count_remaining_nodes(known)
        return cls(tuple(pools), settings, counts, staying, history)

    @classmethod
    def from_totals(
        cls,
        pools: Iterable[NodePool],
        settings: Settings,
        totals: Mapping[str, int],
        history: History = NO_HISTORY,
    ) -> FleetLimits:
        """Return the limits of a fleet of which only the numbers of nodes by NodePool are known."""
        counts = {name: Count(total) for name, total in totals.items()}
        return cls(tuple(pools), settings, counts, Counter(totals), history)

    @property
    def reasons(self) -> tuple[DisruptionReason, ...]:
        """The reasons for which nodes are disrupted within budgets."""
        return budget_reasons(self.settings)

    def total(self, node_pool: str) -> int:
        """Return how many nodes of a pool its budgets count."""
        return self.counts.get(node_pool, Count()).total

    def now(self, at: datetime) -> Limits:
        """Return the limits at the time at which the nodes were observed."""
        return self._limits(self.counts, self.history, at)

    def later(self, at: datetime) -> Limits:
        """Return the limits at a time if nothing is disrupted until then."""
        rollouts = tuple(self._end_if_settled(rollout, at) for rollout in self.history.rollouts)
        history = msgspec.structs.replace(self.history, rollouts=rollouts)
        quiet = {name: Count(count.total) for name, count in self.counts.items()}
        return self._limits(quiet, history, at)

    def _limits(self, counts: Mapping[str, Count], history: History, at: datetime) -> Limits:
        names = [pool.name for pool in self.pools]
        return Limits(
            at=at,
            settings=self.settings,
            budgets={pool.name: pool.spec.disruption.budgets for pool in self.pools},
            states=budget_states(self.pools, counts, at, self.reasons),
            fleet=fleet_states(self.settings.fleet_budgets, counts, at, self.reasons),
            suspended=holds_of(names, self.settings, at),
            caps=tuple(caps_for(names, self.staying, history, self.settings, at)),
        )

    def _end_if_settled(self, rollout: Rollout, at: datetime) -> Rollout:
        soak = self.settings.pool(rollout.node_pool).wave_soak
        over = all(move.is_settled(soak, at) for move in rollout.moves)
        return msgspec.structs.replace(rollout, moves=()) if over else rollout

    def allowed(self, node_pool: str, at: datetime) -> dict[DisruptionReason, int]:
        """Return how many nodes of a pool may be disrupted at a time then, by reason."""
        ledger, total = self.later(at).ledger(), self.total(node_pool)
        return {
            reason: min(ledger.allowed_disruptions(node_pool, reason), total)
            for reason in self.reasons
        }

    def spans(self, pool: NodePool, begin: datetime, end: datetime) -> list[Span]:
        """Return the periods of a pool with equal limits, in order and without a gap.

        With more changes than the maximum, they end with the last of them.
        """
        own = FleetLimits((pool,), self.settings, self.counts, self.staying, self.history)
        spans: list[Span] = []
        at = begin
        for change in own._change_times(pool, begin, end):
            allowed = own.allowed(pool.name, at)
            if spans and spans[-1].allowed == allowed:
                spans[-1] = Span(spans[-1].start, change, allowed)
            else:
                spans.append(Span(at, change, allowed))
            at = change
        return spans

    def _change_times(self, pool: NodePool, begin: datetime, end: datetime) -> Iterator[datetime]:
        """Yield each time at which something may change; ``end`` is the last."""
        at, of_rates = begin, sorted(set(self._rate_change_times(pool.name)))
        for _ in range(CHANGES_MAX):
            moments = [
                next_budget_change(pool.spec.disruption.budgets, at),
                *policy_changes(self.settings, at),
                next((moment for moment in of_rates if moment > at), None),
            ]
            at = min((m for m in moments if m is not None and at < m), default=end)
            if at >= end:
                yield end
                return
            yield at

    def _rate_change_times(self, node_pool: str) -> Iterator[datetime]:
        """Yield when a rate limit may allow more."""
        yield from (row.at + DAY for row in self.history.taken)
        rollouts = [r for r in self.history.rollouts if r.node_pool == node_pool]
        yield from rollout_change_times(rollouts, self.settings)
