"""How many more nodes of each NodePool may be disrupted now, and for which reason."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from reconciler.disruption.command import BudgetState
from reconciler.disruption.gates.policy import Hold
from reconciler.model.karpenter.budget import Budget, DisruptionReason, allowance, next_change_of
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.observed.state import StateNode

REASONS = (DisruptionReason.DRIFTED, DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED)


@dataclass(slots=True)
class Count:
    """The nodes of a pool that count, and how many of them go or are not ready already."""

    total: int = 0
    disrupting: int = 0


def remaining(allowed: int, disrupting: int) -> int:
    """Return how many more may go; never negative."""
    return max(allowed - disrupting, 0)


def counts(nodes: Iterable[StateNode]) -> dict[str, Count]:
    """Return the counts by NodePool.

    Only managed and initialized nodes whose instance is not terminating yet count: an
    uninitialized replacement must not make room for more disruption. The node's label decides
    which pool it is of.
    """
    by_pool: dict[str, Count] = {}
    for node in nodes:
        if node.claim is None or not node.is_initialized or node.node is None:
            continue
        if node.claim.is_true("InstanceTerminating"):
            continue
        count = by_pool.setdefault(node.node_pool, Count())
        count.total += 1
        if node.is_deleting or not node.node.is_ready:
            count.disrupting += 1
    return by_pool


def budget_states(
    pools: Sequence[NodePool], nodes: Iterable[StateNode], now: datetime
) -> tuple[BudgetState, ...]:
    """Return what each pool's budgets say for each voluntary reason, ordered by pool and reason."""
    by_pool = counts(nodes)
    states: list[BudgetState] = []
    for pool in sorted(pools, key=lambda p: p.name):
        count, budgets = by_pool.get(pool.name, Count()), pool.spec.disruption.budgets
        states += (_state(pool.name, budgets, reason, count, now) for reason in REASONS)
    return tuple(states)


def _state(
    pool: str, budgets: Sequence[Budget], reason: DisruptionReason, count: Count, now: datetime
) -> BudgetState:
    allowed = allowance(budgets, reason, count.total, now)
    return BudgetState(
        node_pool=pool,
        reason=reason,
        total=count.total,
        disrupting=count.disrupting,
        allowed=remaining(allowed.nodes, count.disrupting),
        next_change=next_change_of(budgets, now),
        binding=allowed.binding,
        error=allowed.error,
    )


def fleet_states(
    budgets: Sequence[Budget], nodes: Iterable[StateNode], now: datetime
) -> tuple[BudgetState, ...]:
    """Return what the budgets of the whole fleet say by reason; nothing where there are none.

    They count as those of a NodePool do, over all nodes; ``node_pool`` is empty.
    """
    if not budgets:
        return ()
    by_pool = counts(nodes).values()
    total, disrupting = sum(c.total for c in by_pool), sum(c.disrupting for c in by_pool)
    return tuple(_state("", budgets, reason, Count(total, disrupting), now) for reason in REASONS)


class Guard(Protocol):
    """A guard beside the budgets (``guards.Cap`` is one)."""

    @property
    def left(self) -> int: ...
    @property
    def hold(self) -> Hold: ...
    def covers(self, node_pool: str, reason: DisruptionReason) -> bool: ...
    def less(self, node_pool: str, reason: DisruptionReason) -> Guard: ...


class BudgetLedger:
    """What is left of the budgets while a pass takes nodes; one node counts for every reason.

    ``fleet`` are the states of the whole fleet's budgets, which hold beside each pool's; ``held``
    are pools and reasons for which nothing may go, whatever is left. ``caps`` are the guards that
    count over time: only what a voluntary command takes counts for them.

    A node that is not ready counts against its budget before it is taken and once more then: the
    strict reading, under which a pass never takes more nodes than a budget allowed at its start.
    """

    def __init__(
        self,
        states: Iterable[BudgetState],
        fleet: Iterable[BudgetState] = (),
        held: Collection[tuple[str, DisruptionReason]] = (),
        caps: Sequence[Guard] = (),
    ) -> None:
        self._left = {(s.node_pool, s.reason): s.allowed for s in states}
        self._fleet = {s.reason: s.allowed for s in fleet}
        self._held = held
        self._caps = tuple(caps)

    def left(self, node_pool: str, reason: DisruptionReason) -> int:
        """Return how many more nodes of the pool may go; 0 for a pool that is not known."""
        if (node_pool, reason) in self._held:
            return 0
        of_pool = self.left_of_pool(node_pool, reason)
        capped = (cap.left for cap in self._caps if cap.covers(node_pool, reason))
        return min(of_pool, self.left_of_fleet(reason, of_pool), *capped)

    def left_of_pool(self, node_pool: str, reason: DisruptionReason) -> int:
        """Return what the pool's own budgets leave."""
        return self._left.get((node_pool, reason), 0)

    def left_of_fleet(self, reason: DisruptionReason, default: int = 1) -> int:
        """Return what the budgets of the whole fleet leave, ``default`` where there are none."""
        return self._fleet.get(reason, default)

    def spent(self, node_pool: str, reason: DisruptionReason) -> Guard | None:
        """Return the first guard that has nothing left."""
        return next((c for c in self._caps if c.left == 0 and c.covers(node_pool, reason)), None)

    def copy(self) -> BudgetLedger:
        """Return a ledger to try on what a command of several nodes would take."""
        trial = BudgetLedger((), (), self._held, self._caps)
        trial._left, trial._fleet = dict(self._left), dict(self._fleet)
        return trial

    def take(self, node_pool: str, gate: DisruptionReason | None) -> None:
        """Count one node of the pool that a command takes; ``gate`` is None where it is forced."""
        if gate is not None:
            self._caps = tuple(cap.less(node_pool, gate) for cap in self._caps)
        for reason in REASONS:
            key = (node_pool, reason)
            if key in self._left:
                self._left[key] = max(self._left[key] - 1, 0)
            if reason in self._fleet:
                self._fleet[reason] = max(self._fleet[reason] - 1, 0)
