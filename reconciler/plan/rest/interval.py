"""Between which bounds the truth lies where the limit of work ended a search.

Consolidation only saves, so a fleet that is not at rest yet costs at most what it costs now and
what its outstanding replacements may cost more. It costs at least what any nodes for its pods cost
(``placement.bound``).
"""

from __future__ import annotations

from dataclasses import replace

import msgspec

from reconciler.model.resources import Resources, fits
from reconciler.observed.state import StateNode
from reconciler.placement.problem import LaunchPool
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.costs import money
from reconciler.plan.rest.carry import Rest


class Side(msgspec.Struct, frozen=True):
    """One of the two fleets: its NodeClaims, what they cost, and what they will come to.

    Both are USD an hour; they differ only where the limit of work left replacements undone.
    """

    names: frozenset[str]
    reached: float
    estimate: float


def side_of(rest: Rest) -> Side:
    """Return a fleet as it is compared."""
    owned = rest.owned()
    reached = money(owned.values())
    return Side(frozenset(owned), reached, _estimate(rest, reached))


def _estimate(rest: Rest, reached: float) -> float:
    """Return the cost with what is outstanding counted like what has been replaced so far."""
    left = len(_outstanding(rest))
    done = rest.drifted_first - left
    if not rest.ended or not left or done <= 0:
        return reached
    share = (reached - rest.cost_first) / done
    return money([max(0.0, reached + share * left)])


def interval(before: Rest, old: Side, after: Rest, new: Side, change: float) -> tuple[float, float]:
    """Return the least and the most that the change may come to, USD an hour."""
    old_low, old_high = _range(before, old)
    new_low, new_high = _range(after, new)
    low, high = new_low - old_high, new_high - old_low
    return money([min(low, change)]), money([max(high, change)])


def _range(rest: Rest, side: Side) -> tuple[float, float]:
    if not rest.ended:
        return side.reached, side.reached
    owned = rest.owned()
    dearer = (
        max(0.0, price - owned[node.claim.name])
        for node in _outstanding(rest)
        if node.claim is not None
        and (price := _alone(node, rest.facts.types.by_name.get(node.node_pool))) is not None
    )
    return min(_least(rest), side.reached), money([side.reached, *dearer])


def _outstanding(rest: Rest) -> list[StateNode]:
    """Return the nodes that are drifted and not blocked: they will be replaced."""
    drifted = {drift.node_claim for drift in rest.drift}
    blocked = {block.node for block in rest.decisions.blocked if block.reason == "Drifted"}
    return [
        node
        for node in rest.world.cluster.nodes
        if node.claim is not None and node.claim.name in drifted and node.name not in blocked
    ]


def _alone(node: StateNode, pool: LaunchPool | None) -> float | None:
    """Return the price of the cheapest node of the pool that takes all pods of this one."""
    if pool is None:
        return None
    wanted: Resources = node.used
    requirements = pool.node_pool.requirements()
    prices = (
        offering.price
        for kind in pool.types.types
        if kind.requirements.intersects(requirements) and fits(wanted, kind.allocatable)
        if (offering := kind.cheapest(requirements)) is not None
    )
    return min(prices, default=None)


def _least(rest: Rest) -> float:
    """Return what nodes for all pods of the fleet cost at least."""
    cluster = rest.world.cluster
    managed = (node for node in cluster.nodes if node.is_managed)
    pods = [pod for node in managed for pod in node.pods if pod.is_reschedulable]
    empty = replace(cluster, nodes=tuple(n for n in cluster.nodes if not n.is_managed))
    scheduler = Scheduler(rest.facts.types.ready, empty, rest.inputs.settings, rest.at)
    return scheduler.bound([*pods, *cluster.pending]).cost
