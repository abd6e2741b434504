"""What this plan and those that follow it lead to, where this plan alone is not the result.

A plan is one pass. Pods that wait for a zone to be decided are placed by a later pass, and a node
whose drain never ends stays and costs. Readers are interested in the result.
"""

from __future__ import annotations

from typing import Final

from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.history import History
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.continuation import Work, continue_fleet
from reconciler.plan.rest.difference import resting_side, stuck_nodes, waiting_pods
from reconciler.plan.rest.world import RestingFleet, pods_blocking_drain
from reconciler.plan.value.costs import SteadyState
from reconciler.plan.value.plan import Plan

_OPENED_LATER: Final = frozenset(
    {"PodAffinity", "PodAntiAffinity", "TopologySpread", "ReservedCapacityTaken"}
)
"""Reasons that a later pass may remove: once a node is there, its domain is decided."""
_WORK: Final = 500_000
"""The work limit, in evaluated nodes: a fleet of a thousand nodes comes to rest within it."""


def steady_state_of(plan: Plan, inputs: Inputs, cluster: ClusterState) -> SteadyState | None:
    """Return what later plans lead to; None if this plan is the result, or the end is not found."""
    if not _is_unfinished(plan, inputs, cluster):
        return None
    world = RestingFleet(inputs.cluster, instances=inputs.instances)
    history = inputs.history or History()
    rest = continue_fleet(inputs, world, inputs.now, history, Work(_WORK))
    if not rest.rested:
        return None
    side, waiting = resting_side(rest), waiting_pods(rest)
    unplaced = {pod.pod for pod in plan.unschedulable}
    return SteadyState(
        nodes=len(side.names),
        per_hour=side.reached,
        placed_later=tuple(sorted(unplaced - set(waiting))),
        unschedulable=waiting,
        stuck=stuck_nodes(rest),
    )


def _is_unfinished(plan: Plan, inputs: Inputs, cluster: ClusterState) -> bool:
    """Return whether later plans may place more pods, or a node may never leave."""
    if any(r.code in _OPENED_LATER for pod in plan.unschedulable for r in pod.reasons):
        return True
    removed = {name for command in plan.commands for name in command.nodes}
    leaving = [n for n in cluster.nodes if n.is_deleting or n.name in removed]
    if not leaving:
        return False
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
