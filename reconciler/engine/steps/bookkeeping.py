"""What a pass records about nodes: drifted or blocked since when, at what price, and how full."""

from __future__ import annotations

from math import isnan
from typing import Final

from reconciler.disruption.methods.drift import DRIFT_SEEN
from reconciler.engine.desired import Desired
from reconciler.engine.observation import Complete, Observation
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.history import Obstacle
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.resources import CPU, MEMORY
from reconciler.model.settings import Settings
from reconciler.observed.allocation import WorkloadCost, abridge, allocate, node_cost
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.make.findings import OverdueClaim, overdue_claims
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import FleetUsage, NodeUsage
from reconciler.ports.progress import EventKind

OVERDUE: Final = "ProgressDeadlineExceeded"
"""Condition of a recorded claim that was reported; Kubernetes' name for Deployments."""


def record_drift(world: World, seen: Observation, plan: Plan, settings: Settings) -> None:
    """Record the drift in a plan on the claims themselves, and report what is overdue.

    It is reported again when another reason blocks the claim, or after progress in between.
    """
    claims = {claim.name: claim for claim in seen.claims}
    drifted = {item.node_claim: item.reason for item in plan.drift}
    late = {
        item.node_claim: item
        for item in overdue_claims(
            plan.drift, plan.commands, plan.blocked, plan.deferred, claims, settings, seen.at
        )
    }
    changed = []
    for claim in seen.claims:
        fresh = _with_drift_conditions(claim, drifted.get(claim.name), late.get(claim.name), seen)
        if fresh == claim:
            continue
        changed.append(fresh)
        late_now = fresh.condition(OVERDUE)
        if late_now is not None and late_now != claim.condition(OVERDUE):
            text = str(late[claim.name])
            world.notify(
                EventKind.PROGRESS_DEADLINE_EXCEEDED,
                text,
                node_claim=claim.name,
                node_pool=claim.node_pool,
            )
    if changed:
        world.store.put_node_claims(changed)


def record_obstacles(world: World, seen: Observation, plan: Plan) -> None:
    """Record since when blockers exist, where they have changed."""
    found = tuple(
        Obstacle(b.kind, b.name, b.since or seen.at, b.forgone)
        for b in sorted(plan.blockers, key=lambda b: (b.kind, b.name))
    )
    if found != seen.history.obstacles:
        world.store.put_obstacles(found)


def _with_drift_conditions(
    claim: NodeClaim, reason: str | None, late: OverdueClaim | None, seen: Observation
) -> NodeClaim:
    if reason is None or claim.is_deleting:
        return lifecycle.without_condition(lifecycle.without_condition(claim, DRIFT_SEEN), OVERDUE)
    claim = lifecycle.with_condition(claim, DRIFT_SEEN, "True", seen.at, reason)
    if late is None:
        return lifecycle.without_condition(claim, OVERDUE)
    return lifecycle.with_condition(claim, OVERDUE, "True", seen.at, OVERDUE, late.why)


_RESOURCES: Final = (CPU, MEMORY)


def record_usage(world: World, seen: Complete, desired: Desired) -> None:
    """Pass the usage of all nodes to its store."""
    if world.keep_usage is not None:
        world.keep_usage(fleet_usage(seen, desired))


def fleet_usage(seen: Observation, desired: Desired) -> FleetUsage:
    """Return the usage of all nodes, and what each workload costs."""
    state = seen.state()
    nodes = {n.claim.name: node_usage(n, desired) for n in state.nodes if n.claim is not None}
    return FleetUsage(seen.at, nodes, abridge(workload_costs(state, desired)))


def workload_costs(state: ClusterState, desired: Desired) -> tuple[WorkloadCost, ...]:
    """Return what each workload costs, at the prices of the nodes that it runs on."""
    return allocate(
        node_cost(node, node_price(node, desired)) for node in state.nodes if node.is_managed
    )


def node_usage(node: StateNode, desired: Desired) -> NodeUsage:
    """Return the price and the usage of a node."""
    return NodeUsage(
        node_price(node, desired),
        len(node.reschedulable),
        {name: node.used.get(name, 0) for name in _RESOURCES},
        {name: node.allocatable.get(name, 0) for name in _RESOURCES},
    )


def node_price(node: StateNode, desired: Desired) -> float | None:
    """Return the price of a node in USD an hour, None if it is unknown."""
    labels = node.labels
    kind = desired.instance_type(node.node_pool, labels.get(INSTANCE_TYPE, ""))
    if kind is None:
        return None
    price = kind.price_of(labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, ""))
    return None if price is None or isnan(price) else price
