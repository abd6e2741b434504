"""The Balanced policy: the savings of a move must be in proportion to its disruption.

Savings are a share of the pool's cost, disruption a share of the disruption cost of the complete
pool. A move is accepted if the first is at least half of the second
(``designs/balanced-consolidation.md``; the arithmetic is that of ``balanced.go``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from reconciler.disruption.candidates import BASE_COST, Candidate
from reconciler.model.karpenter.nodepool import BALANCED
from reconciler.observed.state import StateNode, eviction_costs

K: Final = 2
"""How many units of disruption one unit of savings is worth."""


@dataclass(frozen=True, slots=True)
class Totals:
    """The cost of a pool in USD an hour, and the disruption cost of all its nodes."""

    cost: float = 0.0
    disruption: float = 0.0


@dataclass(frozen=True, slots=True)
class BalanceScore:
    """Savings against disruption, each as a share of its pool."""

    savings: float
    disruption: float
    k: int = K

    @property
    def value(self) -> float:
        if self.savings <= 0:
            return 0.0
        return inf if self.disruption == 0 else self.savings / self.disruption

    @property
    def threshold(self) -> float:
        return 1.0 / self.k

    @property
    def approved(self) -> bool:
        return self.value >= self.threshold

    def __str__(self) -> str:
        sign = ">=" if self.approved else "<"
        return (
            f"score {self.value:.2f} {sign} threshold {self.threshold:.2f} (k: {self.k}, "
            f"savings {self.savings * 100:.1f}%, disruption {self.disruption * 100:.1f}%)"
        )


def score_move(savings: float, disruption: float, totals: Totals, k: int = K) -> BalanceScore:
    """Return the score of a move; 0 if the pool has no cost or no disruption cost."""
    if totals.cost <= 0 or totals.disruption <= 0:
        return BalanceScore(0.0, 0.0, k)
    return BalanceScore(savings / totals.cost, disruption / totals.disruption, k)


def attribute_savings(savings: float, cost_by_pool: Mapping[str, float]) -> dict[str, float]:
    """Return the savings of a move by pool, in proportion to the price of its nodes there."""
    total = sum(cost_by_pool.values())
    if len(cost_by_pool) <= 1 or total <= 0:
        return dict.fromkeys(cost_by_pool, savings)
    return {pool: savings * (cost / total) for pool, cost in cost_by_pool.items()}


def pool_totals(
    nodes: Iterable[StateNode],
    candidates: Iterable[Candidate],
    price_of: Callable[[StateNode], float],
) -> dict[str, Totals]:
    """Return the totals of every pool that has a candidate.

    All nodes of the pool count, including those that cannot be disrupted. ``price_of`` is what a
    node costs in USD an hour, 0 if unknown.
    """
    known = {candidate.name: candidate for candidate in candidates}
    pools = {candidate.pool.name for candidate in known.values()}
    cost: dict[str, float] = dict.fromkeys(pools, 0.0)
    disruption: dict[str, float] = dict.fromkeys(pools, 0.0)
    for node in nodes:
        name = node.node_pool
        if name not in pools:
            continue
        candidate = known.get(node.name)
        cost[name] += price_of(node) if candidate is None else candidate.price
        disruption[name] += _non_candidate_cost(node) if candidate is None else candidate.cost
    return {name: Totals(cost[name], disruption[name]) for name in sorted(pools)}


def _non_candidate_cost(node: StateNode) -> float:
    """Return the disruption cost of a node that is not a candidate, ignoring DaemonSet pods."""
    pods = (pod for pod in node.pods if not pod.is_daemon and not pod.is_terminal)
    return BASE_COST + eviction_costs(pods)


def score_by_pool(
    candidates: Sequence[Candidate], savings: float, totals: Mapping[str, Totals]
) -> dict[str, BalanceScore]:
    """Return the score of a move for each Balanced pool that it affects."""
    prices: dict[str, float] = {}
    costs: dict[str, float] = {}
    balanced: set[str] = set()
    for candidate in candidates:
        name = candidate.pool.name
        prices[name] = prices.get(name, 0.0) + candidate.price
        costs[name] = costs.get(name, 0.0) + candidate.cost
        if is_balanced(candidate):
            balanced.add(name)
    shares = attribute_savings(savings, prices)
    return {
        name: score_move(shares[name], costs[name], totals.get(name, Totals()))
        for name in sorted(balanced)
    }


def is_balanced(candidate: Candidate) -> bool:
    """Return whether the policy of the node's pool is Balanced."""
    return candidate.pool.spec.disruption.consolidation_policy == BALANCED


def may_pass(price: float, cost: float, totals: Totals | None) -> bool:
    """Return whether deleting the node could pass; no replacement saves more than that."""
    if totals is None or totals.cost <= 0:
        return True
    return score_move(price, cost, totals).approved
