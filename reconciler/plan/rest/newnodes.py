"""A change with new nodes for all pods: what it leads to once no present node is left."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from reconciler.model.chance import Chance
from reconciler.model.history import History
from reconciler.plan.make.assemble import unschedulable_pods
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.continuation import RestResult, SharedWork, Work, continue_fleet
from reconciler.plan.rest.difference import resting_side, waiting_pods
from reconciler.plan.rest.world import RestingFleet, without_nodes
from reconciler.plan.value.nodes import limiting_pool
from reconciler.plan.value.ranges import (
    NEW_NODES_SEEDS,
    FleetAtRest,
    NewFleet,
    NewFleets,
    new_fleets,
)

_WORK: Final = 1_000_000
"""The work of all runs of both sides together, in evaluated nodes: about three CPU seconds."""
_POD: Final = 200
"""What each pod costs at least until the fleet is at rest, in evaluated nodes."""


def compare_new_nodes(inputs: Inputs, base: Inputs) -> NewFleets | None:
    """Return both sides with new nodes for all pods, None if that takes too long.

    Runs have the same seeds on both sides, and there are as many as the work allows.
    """
    sides = [
        replace(side, cluster=without_nodes(side.cluster)[0], against=None)
        for side in (base, inputs)
    ]
    if sum(len(side.cluster.pods) for side in sides) * _POD > _WORK:
        return None
    left, shared, pairs = _WORK, SharedWork(), list[tuple[NewFleet, NewFleet]]()
    while len(pairs) < NEW_NODES_SEEDS:
        work = Work(left)
        chance = Chance(len(pairs))
        ends = [_continue(side, work, chance, shared) for side in sides]
        if any(end.ended for end in ends):
            break
        pairs.append((_new_fleet(ends[0]), _new_fleet(ends[1])))
        left -= work.used
        if work.used > left:  # another pair of runs would not end within the rest
            break
    return new_fleets(pairs) if pairs else None


def _continue(side: Inputs, work: Work, chance: Chance, shared: SharedWork) -> RestResult:
    world = RestingFleet(side.cluster, instances=side.instances)
    history = side.history or History()
    return continue_fleet(side, world, side.now, history, work, chance=chance, shared=shared)


def _new_fleet(rest: RestResult) -> NewFleet:
    """Return the end of a fleet that began without nodes."""
    side, waiting = resting_side(rest), waiting_pods(rest)
    with_nodes = {node.node_pool for node in rest.world.cluster.nodes if node.is_managed}
    limited = {
        pod.pod
        for pod in unschedulable_pods(rest.decisions.placement)
        if limiting_pool(pod) in with_nodes
    }
    return NewFleet(
        fleet=FleetAtRest(nodes=len(side.names), per_hour=side.estimate),
        unschedulable=waiting,
        limited=tuple(pod for pod in waiting if pod in limited),
    )
