"""What this plan and those that follow it lead to, where this plan alone is not the result.

A plan is one pass. Pods that wait for a zone to be decided are placed by a later pass, a node
whose drain never ends stays and costs, and new nodes far above the lower bound are consolidated.
Readers are interested in the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace as with_fields
from datetime import datetime
from itertools import chain
from typing import Final, NamedTuple

from msgspec.structs import replace

from reconciler.desired.objects import node_pools
from reconciler.disruption.command import Command
from reconciler.disruption.gates.consolidatable import consolidatable_at, is_consolidatable
from reconciler.disruption.gates.draining import pods_blocking_drain
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.chance import Chance
from reconciler.model.decision.waiting import DeferredClaim, WaitsFor
from reconciler.model.history import History
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Packing
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_hourly, format_monthly
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.make.pools import STATIC_CODE
from reconciler.plan.rest.continuation import RestResult, SharedWork, Work, continue_fleet
from reconciler.plan.rest.difference import named_alike, resting_side, stuck_nodes, waiting_pods
from reconciler.plan.rest.world import RestingFleet
from reconciler.plan.value.costs import SteadyState
from reconciler.plan.value.plan import Plan
from reconciler.plan.value.ranges import (
    SEEDS_MIN,
    CostDifference,
    FleetAtRest,
    cost_difference,
    fleet_range,
    mean_fleet,
)

_OPENED_LATER: Final = frozenset(
    {"PodAffinity", "PodAntiAffinity", "TopologySpread", "ReservedCapacityTaken", STATIC_CODE}
)
"""Reasons that a later pass may remove: once a node is there, its domain is decided, and the
node of a static NodePool has room."""
_WORK: Final = 500_000
"""The work limit, in evaluated nodes: a fleet of a thousand nodes comes to rest within it."""
_ESTIMATE_WORK: Final = 150_000
"""The work limit for all runs with new nodes alone: at most about one and a half CPU seconds."""
_PACKING_PODS_MAX: Final = 80
"""Up to this many pods, the ends of both packings are compared: at most half a CPU second."""
_ESTIMATED_FROM: Final = 0.25
"""The share above the lower bound from which new nodes are worth an estimate of their end."""


def with_prospect(plan: Plan, inputs: Inputs, cluster: ClusterState) -> Plan:
    """Return the plan with what later plans lead to, if this one is not the result.

    Nodes that wait for ``consolidateAfter`` are listed with what is decided about them once it is
    over, given what is known now. Where the end is not found, there is no steady state.
    """
    waiting = _waiting_nodes(inputs, cluster)
    is_unfinished = _is_unfinished(plan, inputs, cluster)
    if not (is_unfinished or waiting):
        return _with_estimate(plan, inputs)
    world = RestingFleet(inputs.cluster, instances=inputs.instances)
    history = inputs.history or History()
    rest = continue_fleet(inputs, world, inputs.now, history, Work(_WORK))
    deferred = (*plan.deferred, *_later_disruptions(rest, waiting))
    plan = replace(plan, deferred=tuple(sorted(deferred, key=_deferral_order)))
    if not rest.rested:
        return plan
    side = resting_side(rest)
    unplaced = [pod.pod for pod in plan.unschedulable]
    remaining = named_alike(waiting_pods(rest), unplaced, (cluster, rest.world.cluster))
    nodes = sum(pool.nodes_after for pool in plan.cost.by_node_pool.values())
    changes = (len(side.names), round(side.reached, 6)) != (nodes, round(plan.cost.after, 6))
    if not (is_unfinished or changes):
        return plan
    state = SteadyState(
        nodes=len(side.names),
        per_hour=side.reached,
        placed_later=tuple(sorted(set(unplaced) - set(remaining))),
        unschedulable=remaining,
        stuck=stuck_nodes(rest),
    )
    return replace(plan, steady_state=state)


def _with_estimate(plan: Plan, inputs: Inputs) -> Plan:
    """Return the plan of an empty cluster with the fleet that consolidation makes of its nodes.

    Chance decides the end, so it is an estimate over a few courses of events. There is none if all
    of them end with the cost of the first pass. ``simulate`` shows what happens with all latencies.
    """
    gap = plan.cost.bound_gap
    if inputs.cluster.nodes or gap is None or gap < _ESTIMATED_FROM:
        return plan
    fleets = _estimated_ends(inputs)
    if not fleets:
        return plan
    found = fleet_range(fleets)
    mean = mean_fleet(found)
    if all(format_hourly(fleet.per_hour) == format_hourly(plan.cost.after) for fleet in fleets):
        return plan
    state = SteadyState(
        nodes=mean.nodes,
        per_hour=mean.per_hour,
        range=found if found.per_hour.low != found.per_hour.high else None,
        is_estimate=True,
    )
    return replace(plan, steady_state=state)


def packing_saving(inputs: Inputs) -> CostDifference | None:
    """Return what ``packing: cheapest`` saves in steady state in USD an hour, None if unknown.

    Both ends are those of the same seeds: what the first pass saves, consolidation may save too.
    It is unknown for fleets of many pods, of which it would take seconds.
    """
    if len(inputs.cluster.pods) > _PACKING_PODS_MAX:
        return None
    packed = with_fields(inputs.settings, packing=Packing.CHEAPEST)
    sides = [_estimated_ends(i) for i in (inputs, replace(inputs, settings=packed))]
    pairs = list(zip(*sides, strict=False))
    if not pairs:
        return None
    return cost_difference([present.per_hour - cheapest.per_hour for present, cheapest in pairs])


def _estimated_ends(inputs: Inputs) -> list[FleetAtRest]:
    """Return the fleets at rest of a few seeds, as many as the work allows; nothing without any.

    Nothing either if the first run leaves pods without a node.
    """
    work, shared, history = Work(_ESTIMATE_WORK), SharedWork(), inputs.history or History()
    fleets: list[FleetAtRest] = []
    used = 0
    while len(fleets) < SEEDS_MIN and work.remaining >= used:
        world, before = RestingFleet(inputs.cluster, instances=inputs.instances), work.used
        chance = Chance(len(fleets))
        rest = continue_fleet(
            inputs, world, inputs.now, history, work, chance=chance, shared=shared
        )
        if not rest.rested or waiting_pods(rest):
            break
        side = resting_side(rest)
        fleets.append(FleetAtRest(nodes=len(side.names), per_hour=side.reached))
        used = work.used - before
    return fleets


class LaterConsolidation(NamedTuple):
    """What consolidation does with ``nodes`` nodes once the last of them no longer waits.

    ``saves`` is USD an hour.
    """

    at: datetime
    reason: str
    nodes: int
    saves: float


def later_consolidations(inputs: Inputs, work_max: int) -> tuple[LaterConsolidation, ...] | None:
    """Return what consolidation does with nodes that wait for ``consolidateAfter``, in order.

    That is what follows if nothing else changes. None if more than ``work_max`` nodes would have to
    be evaluated to know it.
    """
    waiting = _waiting_nodes(inputs, inputs.cluster)
    if not waiting:
        return ()
    world = RestingFleet(inputs.cluster, instances=inputs.instances)
    work = Work(work_max)
    rest = continue_fleet(inputs, world, inputs.now, inputs.history or History(), work)
    if not rest.rested:
        return None
    found = []
    for command in rest.later:
        times = [waiting[name][1] for name in command.node_claims if name in waiting]
        if times and command.savings is not None:
            nodes = len(command.node_claims)
            found.append(
                LaterConsolidation(max(times), command.reason.value, nodes, command.savings)
            )
    return tuple(sorted(found))


def has_waiting_nodes(nodes: Iterable[StateNode], pools: Iterable[NodePool], now: datetime) -> bool:
    """Return whether a node waits for ``consolidateAfter``."""
    by_name = {pool.name: pool for pool in pools}
    return any(_waits_until(node, by_name, now) is not None for node in nodes)


def _waits_until(node: StateNode, pools: Mapping[str, NodePool], now: datetime) -> datetime | None:
    """Return when ``consolidateAfter`` is over for a node, None if the node does not wait."""
    pool = pools.get(node.node_pool)
    if node.claim is None or node.is_deleting or pool is None:
        return None
    at = consolidatable_at(node.claim, pool)
    return None if at is None or is_consolidatable(node.claim, pool, now) else at


def _waiting_nodes(inputs: Inputs, cluster: ClusterState) -> dict[str, tuple[StateNode, datetime]]:
    """Return the nodes that wait for ``consolidateAfter``, with the time at which that is over."""
    pools = {pool.name: pool for pool in node_pools(inputs.fleet)}
    found = {}
    for node in cluster.nodes:
        at = _waits_until(node, pools, inputs.now)
        if node.claim is not None and at is not None:
            found[node.claim.name] = (node, at)
    return found


def _later_disruptions(
    rest: RestResult, waiting: Mapping[str, tuple[StateNode, datetime]]
) -> Iterator[DeferredClaim]:
    """Yield the nodes that consolidation disrupts once they no longer wait."""
    for command in rest.later:
        if command.reason != DisruptionReason.UNDERUTILIZED:
            continue
        for name in command.node_claims:
            if name in waiting:
                node, at = waiting[name]
                yield DeferredClaim(
                    node_claim=name,
                    node=node.name,
                    node_pool=node.node_pool,
                    reason=command.reason.value,
                    waits_for=WaitsFor.CONSOLIDATE_AFTER,
                    not_before=at,
                    message=_describe_disruption(command),
                )


def _describe_disruption(command: Command) -> str:
    """Return what happens to a node of a command."""
    others = len(command.node_claims) - 1
    together = f" together with {format_count(others, 'other')}" if others else ""
    kinds = ", ".join(claim.types[0].name for claim in command.replacements)
    what = f"replaced by {kinds}" if kinds else "removed: its pods fit on other nodes"
    saves = ""
    if command.savings is not None:
        saves = f"; saves {format_monthly(command.savings)}/month"
    return f"will be {what}{together}{saves}"


def _deferral_order(item: DeferredClaim) -> tuple[str, str, str, str]:
    return (item.node_pool, item.node_claim, item.reason, item.waits_for)


def _is_unfinished(plan: Plan, inputs: Inputs, cluster: ClusterState) -> bool:
    """Return whether later plans may place more pods, or a node may never leave."""
    if any(r.code in _OPENED_LATER for pod in plan.unschedulable for r in pod.reasons):
        return True
    removed = set(chain.from_iterable(c.nodes for c in plan.commands if c.removes_nodes))
    leaving = [n for n in cluster.nodes if n.is_deleting or n.name in removed]
    return bool(leaving) and _may_drain_forever(leaving, plan, inputs, cluster)


def _may_drain_forever(
    leaving: Iterable[StateNode], plan: Plan, inputs: Inputs, cluster: ClusterState
) -> bool:
    """Return whether a node has pods that cannot be evicted, or that the plan does not place."""
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    placed = {placement.pod for placement in plan.placements}
    placed |= {pod.pod for pod in plan.unschedulable}
    return any(
        pods_blocking_drain(node, budgets, inputs.now) or _has_unplaced_pods(node, placed)
        for node in leaving
    )


def _has_unplaced_pods(node: StateNode, placed: set[str]) -> bool:
    """Return whether a pod of a leaving node is not in the plan: it moves when it is evicted."""
    return any(pod.is_reschedulable and pod.key not in placed for pod in node.pods)
