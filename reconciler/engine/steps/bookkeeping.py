"""What a pass records about nodes: drifted or blocked since when, at what price, and how full."""

from __future__ import annotations

from datetime import datetime
from math import isnan
from typing import Final

from reconciler.disruption.gates.pdb import PodDisruptionBudgets, list_budgets
from reconciler.disruption.methods.drift import DRIFT_SEEN
from reconciler.engine.observation import Complete, Observation
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.history import Obstacle
from reconciler.model.karpenter.labels import CAPACITY_TYPE, DO_NOT_DISRUPT, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import CPU, MEMORY
from reconciler.model.settings import Settings
from reconciler.observed.allocation import WorkloadCost, abridge, allocate, node_cost, workload_of
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.make.findings import OverdueClaim, overdue_claims
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import PODS_MAX, FleetUsage, NodeUsage, PodUsage
from reconciler.ports.progress import EventKind

OVERDUE: Final = "ProgressDeadlineExceeded"
"""Condition of a recorded claim that was reported; Kubernetes' name for Deployments."""

_RESOURCES: Final = (CPU, MEMORY)


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


def record_usage(world: World, seen: Complete, desired: PlannedFleet) -> None:
    """Pass the usage of all nodes to its store."""
    if world.keep_usage is not None:
        world.keep_usage(fleet_usage(seen, desired))


def fleet_usage(seen: Observation, desired: PlannedFleet) -> FleetUsage:
    """Return the usage of all nodes, and what each workload costs."""
    state = seen.state()
    nodes = {n.claim.name: node_usage(n, desired) for n in state.nodes if n.claim is not None}
    costs = abridge(workload_costs(state, desired))
    return FleetUsage(seen.at, nodes, costs, _pods_of_nodes(state, seen.at))


def _pods_of_nodes(state: ClusterState, now: datetime) -> dict[str, tuple[PodUsage, ...]]:
    """Return the pods of each node, by NodeClaim, while there are not too many in all."""
    budgets = PodDisruptionBudgets(state.pod_disruption_budgets)
    found: dict[str, tuple[PodUsage, ...]] = {}
    left = PODS_MAX
    for node in state.nodes:
        pods = [pod for pod in node.pods if pod.is_active]
        if node.claim is not None and len(pods) <= left:
            left -= len(pods)
            found[node.claim.name] = tuple(_pod_usage(pod, budgets, now) for pod in pods)
    return found


def _pod_usage(pod: Pod, budgets: PodDisruptionBudgets, now: datetime) -> PodUsage:
    requests = pod.requests()
    refusing = budgets.budgets_refusing(pod, now)
    blocker = f"PodDisruptionBudget {list_budgets(refusing)}" if refusing else ""
    return PodUsage(
        namespace=pod.namespace,
        name=pod.metadata.name,
        owner=workload_of(pod),
        cpu=requests.get(CPU, 0),
        memory=requests.get(MEMORY, 0),
        priority=pod.spec.priority,
        blocker=blocker if pod.is_disruptable(now) else DO_NOT_DISRUPT,
    )


def workload_costs(state: ClusterState, desired: PlannedFleet) -> tuple[WorkloadCost, ...]:
    """Return what each workload costs, at the prices of the nodes that it runs on."""
    return allocate(
        node_cost(node, node_price(node, desired)) for node in state.nodes if node.is_managed
    )


def node_usage(node: StateNode, desired: PlannedFleet) -> NodeUsage:
    """Return the price and the usage of a node."""
    return NodeUsage(
        node_price(node, desired),
        len(node.reschedulable),
        {name: node.used.get(name, 0) for name in _RESOURCES},
        {name: node.allocatable.get(name, 0) for name in _RESOURCES},
    )


def node_price(node: StateNode, desired: PlannedFleet) -> float | None:
    """Return the price of a node in USD an hour, None if it is unknown."""
    labels = node.labels
    kind = desired.instance_type(node.node_pool, labels.get(INSTANCE_TYPE, ""))
    if kind is None:
        return None
    price = kind.price_of(labels.get(ZONE, ""), labels.get(CAPACITY_TYPE, ""))
    return None if price is None or isnan(price) else price
