"""Compute how many more nodes of each NodePool may be disrupted now, by reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Protocol

from reconciler.disruption.gates.policy import Hold
from reconciler.model.decision.waiting import PoolBudget
from reconciler.model.karpenter.budget import (
    Budget,
    DisruptionReason,
    allowance,
    next_budget_change,
)
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.state import StateNode

_REASONS: Final = (
    DisruptionReason.DRIFTED,
    DisruptionReason.EMPTY,
    DisruptionReason.UNDERUTILIZED,
)


def budget_reasons(settings: Settings) -> tuple[DisruptionReason, ...]:
    """Return the reasons for which nodes of a fleet are disrupted within budgets."""
    return (*_REASONS, DisruptionReason.UNHEALTHY) if settings.repairs_within_budgets else _REASONS


@dataclass(slots=True)
class Count:
    """The nodes of a pool that count, and how many of them are being disrupted or not ready.

    ``deleting`` are those that are being disrupted. Repair does not count a node that is not ready:
    otherwise unhealthy nodes would use up the budget for their own repair.
    """

    total: int = 0
    disrupting: int = 0
    deleting: int = 0

    def against(self, reason: DisruptionReason) -> int:
        """Return how many count against the budgets for a reason."""
        return self.deleting if reason is DisruptionReason.UNHEALTHY else self.disrupting


def remaining_disruptions(allowed: int, disrupting: int) -> int:
    """Return how many more may be disrupted; never negative."""
    return max(allowed - disrupting, 0)


def node_counts(nodes: Iterable[StateNode]) -> dict[str, Count]:
    """Return the counts by NodePool.

    Only managed and initialized nodes whose instance is not terminating count: an uninitialized
    replacement must not allow more disruption. The node's label determines its pool.
    """
    by_pool: dict[str, Count] = {}
    for node in nodes:
        if node.claim is None or node.node is None:
            continue
        if not (node.is_initialized or node.is_rebooting):
            continue
        if node.claim.is_true("InstanceTerminating"):
            continue
        count = by_pool.setdefault(node.node_pool, Count())
        count.total += 1
        is_disrupted = node.is_deleting or node.is_rebooting
        count.deleting += is_disrupted
        if is_disrupted or not node.node.is_ready:
            count.disrupting += 1
    return by_pool


def budget_states(
    pools: Iterable[NodePool],
    by_pool: Mapping[str, Count],
    now: datetime,
    reasons: Sequence[DisruptionReason] = _REASONS,
) -> tuple[PoolBudget, ...]:
    """Return the state of each pool's budgets by voluntary reason, ordered by pool and reason."""
    states: list[PoolBudget] = []
    for pool in sorted(pools, key=lambda p: p.name):
        count, budgets = by_pool.get(pool.name, Count()), pool.spec.disruption.budgets
        states += _states_by_reason(pool.name, budgets, count, now, reasons)
    return tuple(states)


def _states_by_reason(
    pool: str,
    budgets: Sequence[Budget],
    count: Count,
    now: datetime,
    reasons: Sequence[DisruptionReason],
) -> Iterator[PoolBudget]:
    change = next_budget_change(budgets, now)
    for reason in reasons:
        allowed = allowance(budgets, reason, count.total, now)
        yield PoolBudget(
            node_pool=pool,
            reason=reason,
            total=count.total,
            disrupting=count.against(reason),
            allowed=remaining_disruptions(allowed.nodes, count.against(reason)),
            next_change=change,
            binding=allowed.binding,
        )


def fleet_states(
    budgets: Sequence[Budget],
    by_pool: Mapping[str, Count],
    now: datetime,
    reasons: Sequence[DisruptionReason] = _REASONS,
) -> tuple[PoolBudget, ...]:
    """Return the state of the fleet's budgets by reason, empty if there are none.

    They count all nodes in the same way as those of a NodePool; ``node_pool`` is empty.
    """
    if not budgets:
        return ()
    counts = by_pool.values()
    count = Count(
        sum(c.total for c in counts),
        sum(c.disrupting for c in counts),
        sum(c.deleting for c in counts),
    )
    return tuple(_states_by_reason("", budgets, count, now, reasons))


class Guard(Protocol):
    """A rate limit in addition to the budgets (``guards.Cap`` is one)."""

    @property
    def left(self) -> int: ...
    @property
    def hold(self) -> Hold: ...
    def covers(self, node_pool: str, reason: DisruptionReason) -> bool: ...
    def after_disruption(self, node_pool: str, reason: DisruptionReason) -> Guard: ...


class BudgetLedger:
    """What is left of the budgets during a pass; one disrupted node counts for every reason.

    ``fleet`` are the states of the fleet's budgets, which apply in addition to each pool's.
    ``holds`` are pools and reasons for which nothing may be disrupted, whatever the budgets.
    ``caps`` are the rate limits; only voluntary commands count towards them.

    A node that is not ready counts against its budget before it is disrupted, and once more
    afterwards. Under this strict interpretation a pass never disrupts more nodes than a budget
    allowed at its start.
    """

    def __init__(
        self,
        states: Iterable[PoolBudget],
        fleet: Iterable[PoolBudget] = (),
        holds: Collection[tuple[str, DisruptionReason]] = (),
        caps: Sequence[Guard] = (),
    ) -> None:
        self._left = {(s.node_pool, s.reason): s.allowed for s in states}
        self._fleet = {s.reason: s.allowed for s in fleet}
        self._holds = holds
        self._caps = tuple(caps)

    def allowed_disruptions(self, node_pool: str, reason: DisruptionReason) -> int:
        """Return how many more nodes of the pool may be disrupted; 0 for an unknown pool."""
        if (node_pool, reason) in self._holds:
            return 0
        of_pool = self.allowed_by_pool(node_pool, reason)
        capped = (cap.left for cap in self._caps if cap.covers(node_pool, reason))
        return min(of_pool, self.allowed_by_fleet(reason, of_pool), *capped)

    def allowed_by_pool(self, node_pool: str, reason: DisruptionReason) -> int:
        """Return what the pool's own budgets allow."""
        return self._left.get((node_pool, reason), 0)

    def allowed_by_fleet(self, reason: DisruptionReason, default: int = 1) -> int:
        """Return what the fleet's budgets allow, ``default`` if there are none."""
        return self._fleet.get(reason, default)

    def exhausted_limit(self, node_pool: str, reason: DisruptionReason) -> Guard | None:
        """Return the first rate limit that is exhausted."""
        return next((c for c in self._caps if c.left == 0 and c.covers(node_pool, reason)), None)

    def copy(self) -> BudgetLedger:
        """Return a ledger to test a command of several nodes."""
        trial = BudgetLedger((), (), self._holds, self._caps)
        trial._left, trial._fleet = dict(self._left), dict(self._fleet)
        return trial

    def count_disruption(self, node_pool: str, gate: DisruptionReason | None) -> None:
        """Count one node of the pool that a command removes; ``gate`` is None if it is forceful."""
        if gate is not None:
            self._caps = tuple(cap.after_disruption(node_pool, gate) for cap in self._caps)
        for reason in DisruptionReason:
            key = (node_pool, reason)
            if key in self._left:
                self._left[key] = max(self._left[key] - 1, 0)
            if reason in self._fleet:
                self._fleet[reason] = max(self._fleet[reason] - 1, 0)
