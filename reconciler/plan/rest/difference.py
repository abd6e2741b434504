"""The difference between two fleets at rest: its bounds, and the nodes that cannot come to rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Final

import msgspec

from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.gates.draining import describe_endless_drain, pods_blocking_drain
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.duration import iso_duration
from reconciler.model.grouping import Grouping
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import Resources, fits
from reconciler.observed.allocation import WorkloadCost, allocate, group_costs, node_cost
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.automode import left_to_auto_mode
from reconciler.plan.make.assemble import unplaced_pods
from reconciler.plan.make.costs import sum_dollars
from reconciler.plan.rest.continuation import RestResult
from reconciler.plan.rest.world import without_nodes
from reconciler.plan.value.costs import (
    DRAINING,
    AtRest,
    PoolAtRest,
    PoolChange,
    StuckNode,
    UnscheduledPods,
    count_offerings,
    group_unscheduled_pods,
)
from reconciler.plan.value.nodes import deciding_reason
from reconciler.plan.value.ranges import FleetAtRest
from reconciler.plan.value.shares import CostShares, ShareChange

_AT_REST: Final = frozenset({DisruptionReason.UNDERUTILIZED.value, DisruptionReason.EMPTY.value})
"""A node that is merely not consolidated is at rest nevertheless."""


def difference_of(before: RestResult, after: RestResult) -> AtRest:
    """Return the difference of two fleets that began with the same seed."""
    old, new = resting_side(before), resting_side(after)
    limited = after.ended or (before.ended and after.world is not before.world)
    change = new.estimate - old.estimate
    waiting, clusters = waiting_pods(before), (before.world.cluster, after.world.cluster)
    return AtRest(
        before=FleetAtRest(nodes=len(old.names), per_hour=old.estimate),
        after=FleetAtRest(nodes=len(new.names), per_hour=new.estimate),
        per_hour=sum_dollars([change]),
        per_month=sum_dollars([change * HOURS_A_MONTH]),
        bounds=change_bounds(before, old, after, new, change) if limited else None,
        unschedulable=named_alike(waiting_pods(after), waiting, clusters),
        replaced=min(len(old.names - new.names), len(new.names - old.names)),
        rollout=_rollout_duration(after),
        stuck=stuck_nodes(after),
        by_node_pool=_pools_of(before, after),
        unschedulable_before=waiting,
        unschedulable_reasons=_waiting_reasons(after),
        shares=None if limited else _shares_of(before, after),
    )


def _shares_of(before: RestResult, after: RestResult) -> CostShares:
    """Return who costs what in both fleets."""
    return cost_shares(after.inputs.cost_by, *(_workload_costs(side) for side in (before, after)))


def _workload_costs(rest: RestResult) -> tuple[WorkloadCost, ...]:
    prices = rest.node_prices()
    return allocate(
        node_cost(node, prices[node.claim.name])
        for node in rest.world.cluster.nodes
        if node.claim is not None and node.claim.name in prices
    )


def cost_shares(
    by: Grouping, before: Iterable[WorkloadCost], after: Iterable[WorkloadCost]
) -> CostShares:
    """Return the cost of each group in two fleets."""
    old, new = ({g.name: g.per_hour for g in group_costs(side, by)} for side in (before, after))
    return CostShares(
        by=str(by),
        groups={
            name: ShareChange(before=old.get(name, 0.0), after=new.get(name, 0.0))
            for name in sorted(old.keys() | new.keys())
        },
    )


def _pools_of(before: RestResult, after: RestResult) -> dict[str, PoolChange]:
    """Return both fleets by NodePool."""
    old, new = _pool_sides(before), _pool_sides(after)
    return {
        name: PoolChange(before=old.get(name, PoolAtRest()), after=new.get(name, PoolAtRest()))
        for name in sorted(old.keys() | new.keys())
    }


def _pool_sides(rest: RestResult) -> dict[str, PoolAtRest]:
    prices = rest.node_prices()
    nodes: dict[str, list[StateNode]] = {}
    for node in rest.world.cluster.nodes:
        if node.claim is not None and node.claim.name in prices:
            nodes.setdefault(node.node_pool, []).append(node)
    return {
        name: PoolAtRest(
            nodes=len(members),
            per_hour=sum_dollars([prices[n.claim.name] for n in members if n.claim is not None]),
            types=count_offerings(
                (n.labels.get(INSTANCE_TYPE, ""), n.labels.get(CAPACITY_TYPE, "")) for n in members
            ),
        )
        for name, members in nodes.items()
    }


def waiting_pods(rest: RestResult) -> tuple[str, ...]:
    """Return the pods that are still unschedulable at the end."""
    placement = rest.decisions.placement
    pending = rest.world.cluster.pending
    waiting = {pod.key for pod in pending} - left_to_auto_mode(pending, rest.facts.pools)
    return tuple(sorted(waiting & unplaced_pods(placement)))


def _waiting_reasons(rest: RestResult) -> tuple[UnscheduledPods, ...]:
    """Return why pods are still unschedulable at the end."""
    placement = rest.decisions.placement
    rejections = placement.unschedulable if placement is not None else {}
    return group_unscheduled_pods(
        (pod, deciding_reason(rejections[pod])) for pod in waiting_pods(rest) if pod in rejections
    )


def named_alike(
    waiting: Sequence[str], known: Sequence[str], clusters: Iterable[ClusterState]
) -> tuple[str, ...]:
    """Return the waiting pods, named as those of ``known`` where they are replicas of the same.

    kube-scheduler binds whichever replica it tries first, so which of a workload's pods wait is
    chance; only their number is not. Without this, a pod that waits in both cases would count as
    placed in one of them, because another one waits there.
    """
    owners = {pod.key: _interchangeable(pod) for cluster in clusters for pod in cluster.pods}
    left = Counter(owners.get(pod, pod) for pod in waiting)
    named: list[str] = []
    for pod in dict.fromkeys((*known, *waiting)):
        owner = owners.get(pod, pod)
        if left[owner]:
            left[owner] -= 1
            named.append(pod)
    return tuple(sorted(named))


def _interchangeable(pod: Pod) -> str:
    """Return a key that is equal for the replicas of which it does not matter which one waits."""
    owner = pod.metadata.controller
    if owner is None or owner.kind == "StatefulSet":
        return pod.key
    return f"{pod.namespace}/{owner.kind}/{owner.name}"


def _rollout_duration(rest: RestResult) -> str | None:
    """Return the time from the first moment to the end of the last action, in ISO 8601."""
    if not rest.rested:
        return None
    return iso_duration(rest.last - rest.began if rest.last is not None else timedelta())


# The bounds of the true value if the work limit ended a search. Consolidation only saves, so a
# fleet that is not at rest yet costs at most its present cost plus the additional cost of its
# outstanding replacements. It costs at least the minimum cost of nodes for its pods
# (``placement.bound``).


class RestingSide(msgspec.Struct, frozen=True):
    """One of the two fleets: its NodeClaims, their present cost and their final cost.

    Both are USD an hour; they differ only if the work limit left replacements outstanding.
    """

    names: frozenset[str]
    reached: float
    estimate: float


def resting_side(rest: RestResult) -> RestingSide:
    """Return a fleet for the comparison."""
    owned = rest.node_prices()
    reached = sum_dollars(owned.values())
    return RestingSide(frozenset(owned), reached, _estimated_cost(rest, reached))


def _estimated_cost(rest: RestResult, reached: float) -> float:
    """Return the cost with outstanding replacements counted like completed ones."""
    left = len(_outstanding_replacements(rest))
    done = rest.drifted_first - left
    if not rest.ended or not left or done <= 0:
        return reached
    share = (reached - rest.cost_first) / done
    return sum_dollars([max(0.0, reached + share * left)])


def change_bounds(
    before: RestResult, old: RestingSide, after: RestResult, new: RestingSide, change: float
) -> tuple[float, float]:
    """Return the minimum and the maximum cost of the change, USD an hour."""
    old_low, old_high = _cost_bounds(before, old)
    new_low, new_high = _cost_bounds(after, new)
    low, high = new_low - old_high, new_high - old_low
    return sum_dollars([min(low, change)]), sum_dollars([max(high, change)])


def _cost_bounds(rest: RestResult, side: RestingSide) -> tuple[float, float]:
    if not rest.ended:
        return side.reached, side.reached
    owned, left = rest.node_prices(), _outstanding_replacements(rest)
    pools = rest.facts.types.by_name
    names = {node.node_pool for node in left} & pools.keys()
    prices = {name: _launch_prices(pools[name]) for name in names}
    extra = (
        max(0.0, price - owned[node.claim.name])
        for node in left
        if node.claim is not None
        and (price := _replacement_price(node, prices.get(node.node_pool, ()))) is not None
    )
    return min(_minimum_cost(rest), side.reached), sum_dollars([side.reached, *extra])


def _outstanding_replacements(rest: RestResult) -> list[StateNode]:
    """Return the nodes that are drifted and not blocked: they will be replaced."""
    drifted = {drift.node_claim for drift in rest.facts.drift}
    blocked = {
        block.node for block in rest.decisions.blocked if block.reason == DisruptionReason.DRIFTED
    }
    return [
        node
        for node in rest.world.cluster.nodes
        if node.claim is not None and node.claim.name in drifted and node.name not in blocked
    ]


def _launch_prices(pool: LaunchPool) -> list[tuple[float, Resources]]:
    """Return the price and the allocatable resources of each type of a pool, cheapest first."""
    requirements = pool.node_pool.requirements()
    found = [
        (offering.price, kind.allocatable)
        for kind in pool.types.types
        if kind.requirements.intersects(requirements)
        if (offering := kind.cheapest_offering(requirements)) is not None
    ]
    return sorted(found, key=lambda row: row[0])


def _replacement_price(node: StateNode, prices: Sequence[tuple[float, Resources]]) -> float | None:
    """Return the price of the cheapest node of its pool that takes all pods of this one."""
    return next((price for price, room in prices if fits(node.used, room)), None)


def _minimum_cost(rest: RestResult) -> float:
    """Return the minimum cost of nodes for all pods of the fleet."""
    empty, pods = without_nodes(rest.world.cluster)
    scheduler = Scheduler(
        rest.facts.types.ready, empty, rest.inputs.settings, rest.at, memory=rest.schedulers
    )
    return scheduler.lower_bound(pods).cost


# The nodes of a fleet at rest that should be disrupted, and what blocks that.


def stuck_nodes(rest: RestResult) -> tuple[StuckNode, ...]:
    """Return the nodes that cannot come to rest, by NodeClaim, each with one reason."""
    found: dict[str, StuckNode] = {}
    for node in (*_stuck_draining(rest), *_stuck_deferred(rest), *_stuck_blocked(rest)):
        found.setdefault(node.node_claim, node)
    return tuple(found[name] for name in sorted(found))


def _stuck_draining(rest: RestResult) -> list[StuckNode]:
    cluster, found = rest.world.cluster, []
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    for node in cluster.nodes:
        blocking = pods_blocking_drain(node, budgets, rest.at) if node.is_deleting else []
        if blocking:
            text = describe_endless_drain(blocking, budgets, rest.at)
            found.append(_stuck_node(node, DRAINING, text))
    return found


def _stuck_deferred(rest: RestResult) -> list[StuckNode]:
    """Return what waits for a budget that never opens, an approval, or beyond the horizon."""
    by_claim = {n.claim.name: n for n in rest.world.cluster.nodes if n.claim is not None}
    return [
        _stuck_node(by_claim[d.node_claim], d.reason, d.message)
        for d in rest.decisions.deferred
        if d.node_claim in by_claim
        and d.reason not in _AT_REST
        and (_never_ends(rest, d.not_before is None) or d.waits_for is WaitsFor.APPROVAL)
    ]


def _never_ends(rest: RestResult, unknown: bool) -> bool:
    """Return whether a wait has no end: if the work limit ended the search, none is known."""
    return not rest.ended and (unknown or not rest.rested)


def _stuck_blocked(rest: RestResult) -> list[StuckNode]:
    drifted = {drift.node_claim for drift in rest.facts.drift}
    by_name = rest.world.cluster.by_name
    found = []
    for block in rest.decisions.blocked:
        node = by_name.get(block.node)
        if node is None or node.claim is None:
            continue
        must_be_replaced = block.reason == DisruptionReason.DRIFTED and node.claim.name in drifted
        if must_be_replaced or block.reason in set(ForcefulReason):
            found.append(_stuck_node(node, block.reason, block.message))
    return found


def _stuck_node(node: StateNode, reason: str, message: str) -> StuckNode:
    assert node.claim is not None
    return StuckNode(
        node_claim=node.claim.name,
        node=node.name,
        node_pool=node.node_pool,
        reason=str(reason),
        message=message,
    )
