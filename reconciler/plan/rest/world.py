"""The cluster in memory: what one answer of the planner makes of it.

Nodes that go are gone, nodes that were launched are ready, and pods run where the answer puts
them. A pod that nobody may evict keeps its node, which then drains for ever.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from reconciler.disruption.pdb import PodDisruptionBudgets
from reconciler.model.cluster import PodDisruptionBudget, PodDisruptionBudgetStatus
from reconciler.model.evictions import disruptions_allowed
from reconciler.model.metadata import Condition
from reconciler.model.pod import Pod, PodStatus
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.rest.nodes import Launched, started

if TYPE_CHECKING:
    from reconciler.diff.nodeclass import Instance

_WAITING: Final = PodStatus(
    phase="Pending", conditions=(Condition("PodScheduled", "False", "Unschedulable"),)
)


@dataclass(frozen=True)
class World:
    """A fleet between two answers.

    ``prices`` are what each NodeClaim's node has cost since it was launched or first seen, USD an
    hour; those without a price are not in it. ``instances`` are what EC2 says of each, by provider
    id.
    """

    cluster: ClusterState
    prices: Mapping[str, float] = field(default_factory=dict)
    instances: Mapping[str, Instance] = field(default_factory=dict)

    @property
    def owned(self) -> dict[str, float]:
        """The price of each node that is managed, by NodeClaim; 0 where there is none."""
        names = (node.claim.name for node in self.cluster.nodes if node.claim is not None)
        return {name: self.prices.get(name, 0.0) for name in names}


@dataclass(frozen=True)
class Moves:
    """What an answer changes.

    ``gone`` are the names of nodes that go, ``seats`` the node that each pod gets, ``launched``
    the nodes that come, and ``made`` the NodeClaims that no longer wait for an instance.
    """

    gone: frozenset[str] = frozenset()
    seats: Mapping[str, str] = field(default_factory=dict)
    launched: Sequence[Launched] = ()
    made: frozenset[str] = frozenset()


def _name(one: Launched) -> str:
    assert one.node.claim is not None
    return one.node.claim.name


def opened(world: World, now: datetime) -> World:
    """Return the world as the answers find it: what starts up has started."""
    nodes = tuple(started(node, now) for node in world.cluster.nodes)
    return with_fields(world, cluster=with_fields(world.cluster, nodes=nodes))


def moved(world: World, moves: Moves, now: datetime) -> World:
    """Return the world once an answer has been carried out, at ``now``."""
    return with_fields(
        world,
        cluster=_settled(world.cluster, moves, now),
        prices={**world.prices} | {_name(one): one.price for one in moves.launched},
        instances={**world.instances}
        | {one.node.provider_id: one.instance for one in moves.launched},
    )


def holders(node: StateNode, budgets: PodDisruptionBudgets, now: datetime) -> list[Pod]:
    """Return the pods that a drain of the node waits for, none where a grace period ends it."""
    if node.claim is not None and node.claim.termination_grace_period is not None:
        return []
    return [
        pod
        for pod in node.pods
        if not pod.is_daemon
        and pod.is_active
        and pod.is_drainable(now)
        and (not pod.is_evictable(now) or budgets.is_fully_blocked(pod, now))
    ]


def _settled(cluster: ClusterState, moves: Moves, now: datetime) -> ClusterState:
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    leaving = {
        node.name: holders(node, budgets, now)
        for node in cluster.nodes
        if node.name in moves.gone or node.is_deleting
    }
    arriving: dict[str, list[Pod]] = {}
    changed: dict[str, Pod | None] = {}
    woken: list[Pod] = []
    for pod in _movable(cluster, leaving):
        seat = moves.seats.get(pod.key)
        if seat is not None:
            changed[pod.key] = running = _on(pod, seat, now)
            arriving.setdefault(seat, []).append(running)
            if not pod.spec.node_name:
                woken.append(running)
        elif pod.spec.node_name:
            changed[pod.key] = waiting(pod) if pod.is_reschedulable else None
    kept = (_kept(node, leaving, arriving.get(node.name, ()), now) for node in cluster.nodes)
    fresh = (_with_pods(one.node, arriving.get(one.node.name, ()), now) for one in moves.launched)
    nodes = sorted([*(n for n in kept if n is not None), *fresh], key=lambda n: n.name)
    pods = _pods_of(cluster.pods, changed)
    return with_fields(
        cluster,
        nodes=tuple(nodes),
        pods=pods,
        unlaunched=tuple(c for c in cluster.unlaunched if c.name not in moves.made),
        pod_disruption_budgets=_refreshed(cluster, woken, pods),
    )


def _movable(cluster: ClusterState, leaving: Mapping[str, list[Pod]]) -> Iterable[Pod]:
    """Yield the pods that wait, and those that leave a node."""
    for node in cluster.nodes:
        held = leaving.get(node.name)
        if held is not None:
            kept = {pod.key for pod in held}
            yield from (pod for pod in node.pods if pod.key not in kept)
    yield from cluster.pending


def _kept(
    node: StateNode, leaving: Mapping[str, list[Pod]], arriving: Sequence[Pod], now: datetime
) -> StateNode | None:
    """Return the node as it stays, None if it is gone."""
    held = leaving.get(node.name)
    if held is None:
        return _with_pods(node, (*node.pods, *arriving), now) if arriving else node
    if not held:
        return None
    claim = node.claim
    if claim is not None and claim.metadata.deletion_timestamp is None:
        claim = replace(claim, metadata=replace(claim.metadata, deletion_timestamp=now))
    return with_fields(node, pods=tuple(held), claim=claim)


def _with_pods(node: StateNode, pods: Sequence[Pod], now: datetime) -> StateNode:
    """Return the node with other pods, which begins its quiet time anew."""
    claim = node.claim
    if claim is not None and pods:
        claim = replace(claim, status=replace(claim.status, last_pod_event_time=now))
    return with_fields(node, pods=tuple(pods), claim=claim)


def _on(pod: Pod, node: str, now: datetime) -> Pod:
    """Return the pod as it runs on a node from ``now`` on."""
    status = PodStatus(
        phase="Running",
        conditions=(Condition("PodScheduled", "True"), Condition("Ready", "True")),
        start_time=now,
    )
    return replace(pod, spec=replace(pod.spec, node_name=node), status=status)


def waiting(pod: Pod) -> Pod:
    """Return the pod as it waits for a node; one that waits already stays as it is."""
    if not pod.spec.node_name:
        return pod
    return replace(pod, spec=replace(pod.spec, node_name=""), status=_WAITING)


def _pods_of(pods: Iterable[Pod], changed: Mapping[str, Pod | None]) -> tuple[Pod, ...]:
    """Return the pods of the cluster in their order, less those that have ended."""
    if not changed:
        return tuple(pods)
    now = ((changed.get(pod.key, pod)) for pod in pods)
    return tuple(pod for pod in now if pod is not None)


def _refreshed(
    cluster: ClusterState, woken: Sequence[Pod], pods: Sequence[Pod]
) -> tuple[PodDisruptionBudget, ...]:
    """Return the budgets; those that select a pod that has started count anew.

    Pods that move are as healthy as before, so what they allow stays.
    """
    if not woken or not cluster.pod_disruption_budgets:
        return cluster.pod_disruption_budgets
    return tuple(
        replace(b, status=PodDisruptionBudgetStatus(disruptions_allowed(b, pods)))
        if any(b.selects(pod) for pod in woken)
        else b
        for b in cluster.pod_disruption_budgets
    )
