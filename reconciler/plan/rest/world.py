"""The cluster in memory, and the effect of one plan on it.

Disrupted nodes are removed, launched nodes are ready, and pods run where Kubernetes schedules them.
A pod that cannot be evicted keeps its node, which never finishes draining.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime
from itertools import chain
from operator import attrgetter

from msgspec.structs import replace

from reconciler.diff.nodeclass import LiveInstance
from reconciler.disruption.gates.draining import drains_of
from reconciler.model.chance import Chance
from reconciler.model.grouping import group_by, group_pairs
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    PodDisruptionBudget,
    PodDisruptionBudgetStatus,
)
from reconciler.model.kubernetes.devices import ResourceSlice
from reconciler.model.kubernetes.eviction import disruptions_allowed
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import CSINode
from reconciler.model.kubernetes.pod import Pod, PodStatus
from reconciler.model.kubernetes.profile import Profile
from reconciler.observed.fingerprint import Pods
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.binding import scheduler
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo
from reconciler.plan.rest.binding import BoundPods, RestBinder, WaitingPods, as_pending, bind_pods
from reconciler.plan.rest.nodes import LaunchedNode, start_node


def with_workloads(
    cluster: ClusterState,
    target: ClusterState,
    now: datetime,
    profiles: Mapping[str, Profile] | None = None,
) -> ClusterState:
    """Return the nodes of ``cluster`` with the workloads of ``target``.

    ``profiles`` are those of the schedulers, which start its daemons.

    A pod that both have, with the same spec, labels and annotations, stays where it is. Mirror pods
    stay as well, and so do daemons unless their DaemonSet has changed.
    """
    fresh = {p.key: as_pending(p) for p in target.pods if not (p.is_daemon or p.is_mirror)}
    changed = _changed_daemon_sets(cluster, target)

    def is_kept(pod: Pod) -> bool:
        return _daemon_set_of(pod) not in changed and _stays(pod, fresh.get(pod.key))

    kept = {node.name: list(filter(is_kept, node.pods)) for node in cluster.nodes}
    _start_daemons(cluster.nodes, kept, changed, target, now, profiles)
    nodes: list[StateNode] = []
    running: dict[str, Pod] = {}
    for node in cluster.nodes:
        now_there = tuple(kept[node.name])
        running.update((pod.key, pod) for pod in now_there)
        nodes.append(node if now_there == node.pods else _with_pod_event(node, now_there, now))
    pods = [running.pop(key, pod) for key, pod in fresh.items()]
    pods += running.values()
    return with_fields(
        target,
        nodes=tuple(nodes),
        unlaunched=cluster.unlaunched,
        pods=tuple(pods),
        csi_nodes={**cluster.csi_nodes, **target.csi_nodes},
        resource_slices=cluster.resource_slices or target.resource_slices,
        pod_disruption_budgets=_counted_again(target.pod_disruption_budgets, pods),
    )


def without_nodes(cluster: ClusterState) -> tuple[ClusterState, tuple[Pod, ...]]:
    """Return the cluster without the nodes of NodePools, and its pods that need a node then.

    These pods wait in the cluster that is returned.
    """
    by_owner = group_by(cluster.nodes, lambda node: node.is_managed)
    nodes = tuple(by_owner.get(False, ()))
    leaving = list(chain.from_iterable(node.pods for node in by_owner.get(True, ())))
    moved = {pod.key: as_pending(pod) for pod in leaving if pod.is_reschedulable}
    gone = {pod.key for pod in leaving}
    kept = (p for p in cluster.pods if p.key in moved or p.key not in gone)
    pods = tuple(moved.get(pod.key, pod) for pod in kept)
    empty = with_fields(cluster, nodes=nodes, unlaunched=(), pods=pods)
    return empty, (*moved.values(), *cluster.pending)


def _stays(pod: Pod, target: Pod | None) -> bool:
    if pod.is_daemon or pod.is_mirror:
        return True
    if target is None:
        return False
    own, other = pod.metadata, target.metadata
    alike = (own.labels, own.annotations) == (other.labels, other.annotations)
    return alike and replace(pod.spec, node_name="") == target.spec


def _changed_daemon_sets(cluster: ClusterState, target: ClusterState) -> dict[str, DaemonSet]:
    """Return the DaemonSets whose daemons are removed or started; removed ones as they were."""
    before, after = (
        {scheduler.daemon_set_key(daemon): daemon for daemon in state.daemon_sets}
        for state in (cluster, target)
    )
    every = before | after
    return {key: every[key] for key in every if before.get(key) != after.get(key)}


def _daemon_set_of(pod: Pod) -> str:
    """Return ``namespace/name`` of the DaemonSet of a pod, empty if it has none."""
    owners = pod.metadata.owner_references if pod.is_daemon else ()
    return f"{pod.namespace}/{owners[0].name}" if owners else ""


def _start_daemons(
    nodes: Iterable[StateNode],
    pods: Mapping[str, list[Pod]],
    changed: Mapping[str, DaemonSet],
    target: ClusterState,
    now: datetime,
    profiles: Mapping[str, Profile] | None,
) -> None:
    """Add the daemons that fit to the ``pods`` of each node, and remove those that make room."""
    wanted = {scheduler.daemon_set_key(daemon) for daemon in target.daemon_sets}
    starting = [daemon for key, daemon in changed.items() if key in wanted]
    joined = {node.name: node.node for node in nodes if node.node is not None} if starting else {}
    infos = [NodeInfo(node, pods[name]) for name, node in joined.items()]
    present = [pod for info in infos for pod in info.pods]
    budgets = _counted_again(target.pod_disruption_budgets, present)
    binder = NodeBinder(infos, target.namespaces, budgets=budgets, profiles=profiles)
    for name, node in joined.items():
        here = pods[name]
        for daemon in starting:
            pod = scheduler.daemon_pod(daemon, node)
            has_room = binder.place(pod, node.name)
            if not has_room and (victims := binder.make_room(pod, node.name)):
                gone = {victim.key for victim in victims}
                here[:] = [other for other in here if other.key not in gone]
                binder.join(NodeInfo(node, here))
                has_room = binder.place(pod, node.name)
            if has_room:
                here.append(_running_pod(pod, name, now))


def _with_pod_event(node: StateNode, pods: tuple[Pod, ...], now: datetime) -> StateNode:
    claim = node.claim
    if claim is not None:
        claim = replace(claim, status=replace(claim.status, last_pod_event_time=now))
    return with_fields(node, pods=pods, claim=claim)


def with_daemons(
    node: StateNode,
    sets: Iterable[DaemonSet],
    now: datetime,
    profiles: Mapping[str, Profile] | None = None,
) -> StateNode:
    """Return a node that has just joined with the daemons that fit on it."""
    assert node.node is not None, "it has joined"
    binder = NodeBinder([NodeInfo(node.node, node.pods)], profiles=profiles)
    daemons = (scheduler.daemon_pod(daemon, node.node) for daemon in sets)
    running = [_running_pod(p, node.name, now) for p in daemons if binder.place(p, node.node.name)]
    return with_fields(node, pods=(*node.pods, *running))


def _running_pod(pod: Pod, node: str, now: datetime) -> Pod:
    """Return the pod as it runs on a node from ``now`` on."""
    status = PodStatus(
        phase="Running",
        conditions=(Condition("PodScheduled", "True"), Condition("Ready", "True")),
        start_time=now,
    )
    return replace(pod, spec=replace(pod.spec, node_name=node), status=status)


@dataclass(frozen=True)
class RestingFleet:
    """A fleet between two plans.

    ``prices`` are what each NodeClaim's node has cost since it was launched or first seen, USD an
    hour, without unknown prices. ``instances`` are the instances in EC2, by provider id.
    """

    cluster: ClusterState
    prices: Mapping[str, float] = field(default_factory=dict)
    instances: Mapping[str, LiveInstance] = field(default_factory=dict)

    @property
    def node_prices(self) -> dict[str, float]:
        """The price of each managed node, by NodeClaim; 0 if there is none."""
        names = (node.claim.name for node in self.cluster.nodes if node.claim is not None)
        return {name: self.prices.get(name, 0.0) for name in names}


@dataclass(frozen=True)
class FleetTransition:
    """What a plan changes.

    ``removed`` are the names of removed nodes, ``placed_on`` the intended node of each pod,
    ``launched`` the new nodes, and ``started_claims`` the NodeClaims that got their instance.
    ``bounded`` are the removed nodes whose command ends the drain. The nodes in ``rebooted`` are
    healthy afterwards.
    """

    removed: frozenset[str] = frozenset()
    placed_on: Mapping[str, str] = field(default_factory=dict)
    launched: Sequence[LaunchedNode] = ()
    started_claims: frozenset[str] = frozenset()
    bounded: frozenset[str] = frozenset()
    rebooted: frozenset[str] = frozenset()

    @property
    def resource_slices(self) -> list[ResourceSlice]:
        """The devices of the new nodes."""
        return [item for node in self.launched for item in node.resource_slices]


def _claim_name(launched: LaunchedNode) -> str:
    assert launched.node.claim is not None
    return launched.node.claim.name


def start_nodes(world: RestingFleet, now: datetime) -> RestingFleet:
    """Return the world as the planner observes it: starting nodes have started."""
    nodes = tuple(start_node(node, now) for node in world.cluster.nodes)
    return with_fields(world, cluster=with_fields(world.cluster, nodes=nodes))


def apply_transition(
    world: RestingFleet,
    moves: FleetTransition,
    now: datetime,
    chance: Chance,
    binder: RestBinder | None = None,
) -> RestingFleet:
    """Return the world after a plan has been applied, at ``now``.

    ``chance`` decides what is undetermined: in which order nodes join, and ties of the scheduler.
    ``binder`` is that of earlier transitions, which saves time.
    """
    return with_fields(
        world,
        cluster=_cluster_after(
            world.cluster, moves, now, chance, len(world.instances), binder or RestBinder()
        ),
        prices={**world.prices} | {_claim_name(n): n.price for n in moves.launched},
        instances={**world.instances} | {n.node.provider_id: n.instance for n in moves.launched},
    )


def _cluster_after(
    cluster: ClusterState,
    moves: FleetTransition,
    now: datetime,
    chance: Chance,
    launched: int,
    binder: RestBinder,
) -> ClusterState:
    """Return the cluster after the moves; ``launched`` is the number of instances before them.

    It makes the draws of every transition different ones. The time does not: the same fleet has the
    same future at any second.
    """
    leaving = drains_of(cluster, moves.removed, moves.bounded, now)
    ended, displaced = _displaced_pods(cluster, leaving)
    fresh = [
        with_daemons(n.node, cluster.daemon_sets, now, binder.profiles) for n in moves.launched
    ]
    kept_nodes = _kept_nodes(cluster, moves.rebooted, leaving, now)
    nodes = sorted([*kept_nodes, *fresh], key=attrgetter("name"))
    waiting, evicted = (
        sorted(pods, key=lambda pod: chance.share("creation", pod.key, str(launched)))
        for pods in (cluster.pending, displaced)
    )
    joining = sorted((n.name for n in fresh), key=lambda name: chance.share("joining", name))
    cluster = with_fields(
        cluster,
        csi_nodes=_csi_nodes_after(cluster, moves.launched),
        resource_slices=(*cluster.resource_slices, *moves.resource_slices),
    )
    queue = WaitingPods(waiting, evicted, joining, moves.placed_on)
    found = bind_pods(cluster, nodes, queue, chance.seed, binder)
    ended |= {key for key, pod in found.preempted.items() if not pod.is_reschedulable}
    changed = _changed_pods((*displaced, *cluster.pending), found, now)
    arriving = group_pairs(
        (pod.spec.node_name, pod) for pod in changed.values() if pod.spec.node_name
    )
    kept = (changed.get(pod.key, pod) for pod in cluster.pods if pod.key not in ended)
    fresh_pods = chain.from_iterable(node.pods for node in fresh)
    pods = Pods.index_after((*kept, *fresh_pods), Pods.from_tuple(cluster.pods))
    started = [changed[pod.key] for pod in cluster.pending if pod.key in found.nodes]
    claims, made = found.volumes.objects()
    return with_fields(
        cluster,
        nodes=tuple(
            _with_pods(_without_pods(node, found.preempted), arriving.get(node.name, ()), now)
            for node in nodes
        ),
        pods=pods,
        unlaunched=tuple(c for c in cluster.unlaunched if c.name not in moves.started_claims),
        pod_disruption_budgets=_refresh_budgets(cluster, started, pods),
        volume_claims={claim.key: claim for claim in claims},
        volumes={volume.metadata.name: volume for volume in made},
    )


def _kept_nodes(
    cluster: ClusterState,
    rebooted: Collection[str],
    leaving: Mapping[str, list[Pod]],
    now: datetime,
) -> Iterator[StateNode]:
    """Yield the nodes that are not removed, booted again or without the pods that have left."""
    for node in cluster.nodes:
        booted = _after_reboot(node, now) if node.name in rebooted else node
        kept = _remaining_node(booted, leaving.get(node.name), now)
        if kept is not None:
            yield kept


def _changed_pods(moving: Iterable[Pod], found: BoundPods, now: datetime) -> dict[str, Pod]:
    """Return pods that had no node, and preempted ones, as they run now or wait, by key."""
    again = (pod for pod in found.preempted.values() if pod.is_reschedulable)
    return {
        key: _running_pod(pod, found.nodes[key], now) if key in found.nodes else pod
        for key, pod in {pod.key: pod for pod in (*moving, *again)}.items()
    }


def _csi_nodes_after(
    cluster: ClusterState, launched: Iterable[LaunchedNode]
) -> Mapping[str, CSINode]:
    """Return the attachment limits with those of new nodes, if any pod has a volume."""
    if not cluster.volume_claims:
        return cluster.csi_nodes
    found = (node.csi_node for node in launched)
    return {**cluster.csi_nodes, **{n.metadata.name: n for n in found if n is not None}}


def _displaced_pods(
    cluster: ClusterState, leaving: Mapping[str, list[Pod]]
) -> tuple[frozenset[str], list[Pod]]:
    """Return the pods that end with their nodes, and those that need another one."""
    ended: set[str] = set()
    displaced: list[Pod] = []
    for node in cluster.nodes:
        blocking = leaving.get(node.name)
        if blocking is None:
            continue
        remaining = {pod.key for pod in blocking}
        for pod in node.pods:
            if pod.key in remaining:
                continue
            if pod.is_reschedulable:
                displaced.append(as_pending(pod))
            else:
                ended.add(pod.key)
    return frozenset(ended), displaced


def _remaining_node(node: StateNode, blocking: list[Pod] | None, now: datetime) -> StateNode | None:
    """Return the node while ``blocking`` pods prevent its drain; None if it is gone."""
    if blocking is None:
        return node
    if not blocking:
        return None
    claim = node.claim
    if claim is not None and claim.metadata.deletion_timestamp is None:
        claim = replace(claim, metadata=replace(claim.metadata, deletion_timestamp=now))
    return with_fields(node, pods=tuple(blocking), claim=claim)


def _after_reboot(node: StateNode, now: datetime) -> StateNode:
    """Return the node after a reboot: ready, and without what made it unhealthy."""
    seen = node.node
    assert seen is not None, "only a node that has joined is rebooted"
    ready = Condition("Ready", "True", "KubeletReady", last_transition_time=now)
    return with_fields(node, node=replace(seen, status=replace(seen.status, conditions=(ready,))))


def _without_pods(node: StateNode, gone: Mapping[str, Pod]) -> StateNode:
    """Return the node without pods that made room there for more important ones."""
    if not gone:
        return node
    return with_fields(node, pods=tuple(pod for pod in node.pods if pod.key not in gone))


def _with_pods(node: StateNode, arriving: Sequence[Pod], now: datetime) -> StateNode:
    """Return the node with more pods, which restart its ``consolidateAfter``."""
    if not arriving:
        return node
    claim = node.claim
    if claim is not None:
        claim = replace(claim, status=replace(claim.status, last_pod_event_time=now))
    return with_fields(node, pods=(*node.pods, *arriving), claim=claim)


def _refresh_budgets(
    cluster: ClusterState, started: Sequence[Pod], pods: Sequence[Pod]
) -> tuple[PodDisruptionBudget, ...]:
    """Return the budgets; those that select a started pod are counted again.

    Moved pods are as healthy as before, so the budgets still allow the same.
    """
    if not started or not cluster.pod_disruption_budgets:
        return cluster.pod_disruption_budgets
    newest = group_by(started, lambda pod: pod.namespace)
    changed = {
        b.key
        for b in cluster.pod_disruption_budgets
        if any(b.selects(pod) for pod in newest.get(b.namespace, ()))
    }
    counted = _counted_again((b for b in cluster.pod_disruption_budgets if b.key in changed), pods)
    again = {b.key: b for b in counted}
    return tuple(again.get(b.key, b) for b in cluster.pod_disruption_budgets)


def _counted_again(
    budgets: Iterable[PodDisruptionBudget], pods: Iterable[Pod]
) -> tuple[PodDisruptionBudget, ...]:
    """Return budgets with the evictions that they allow, each compared with its namespace only."""
    own = group_by(pods, lambda pod: pod.namespace)
    return tuple(
        replace(
            b,
            status=PodDisruptionBudgetStatus(disruptions_allowed(b, own.get(b.namespace, ()))),
        )
        for b in budgets
    )
