"""Where pods run on the nodes of a fleet in memory, after a plan.

The planner provides capacity, but kube-scheduler decides how to use it: it may leave a node empty
that was launched for a pod, and evict a pod for a more important one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import UNSCHEDULABLE, Pod
from reconciler.model.kubernetes.profile import Profile
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.binding.devices import DeviceClaims
from reconciler.placement.binding.preemption import EVICTION_ROUNDS_MAX
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo, node_infos
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.topology.peers import owners_of

_PAIRS_MAX: Final = 1_000_000
"""From this many pairs of a pod and a node on, pods run where the planner intended if they pass the
scheduler's filters there: evaluating each pair would take longer than the plan."""
_RETRIES_MAX: Final = 10_000_000
"""From this many checks on, the same: every kind of waiting pod is tried on all nodes whenever a
node joins, and the author of pods can make each a kind of its own."""


@dataclass(frozen=True)
class WaitingPods:
    """The pods that need a node: those that wait for one, and those that are evicted later.

    ``joining`` are the new nodes in the order in which they join. ``intended`` is where the planner
    places pods.
    """

    waiting: Sequence[Pod]
    evicted: Sequence[Pod]
    joining: Sequence[str]
    intended: Mapping[str, str]


@dataclass(frozen=True)
class BoundPods:
    """The node of each bound pod, and the volumes then; other pods stay pending.

    ``preempted`` are the pods that made room for more important ones, by key: pending now, unless
    they are among the bound ones.
    """

    nodes: dict[str, str]
    volumes: Volumes
    preempted: Mapping[str, Pod] = field(default_factory=dict)


class RestBinder:
    """The scheduler that binds the pods of one transition after another.

    It is kept, also for other courses of the same fleet, since the next transition finds nearly all
    nodes and pods as they were. Every transition begins as with a new scheduler. ``profiles`` are
    those of the schedulers by name; kube-scheduler's defaults apply without them.
    """

    def __init__(self, profiles: Mapping[str, Profile] | None = None) -> None:
        self.profiles = profiles
        self._known: tuple[object, NodeBinder] | None = None

    def restart(
        self, cluster: ClusterState, infos: Iterable[NodeInfo], volumes: Volumes, seed: int
    ) -> NodeBinder:
        """Return the scheduler of a cluster with these nodes."""
        owners = owners_of(cluster.services, cluster.scalables, cluster.replication_controllers)
        rules = (cluster.namespaces, owners)
        if self._known is None or self._known[0] != rules:
            binder = NodeBinder(
                namespaces=cluster.namespaces, owners=owners, profiles=self.profiles
            )
            self._known = (rules, binder)
        binder = self._known[1]
        binder.restart(infos, volumes, cluster.pod_disruption_budgets, seed=seed)
        return binder


def bind_pods(
    cluster: ClusterState,
    nodes: Sequence[StateNode],
    queue: WaitingPods,
    seed: int,
    rest_binder: RestBinder,
) -> BoundPods:
    """Return where pods run on these nodes.

    Waiting pods are bound as each new node joins, and evicted ones once all of them have.
    """
    devices = DeviceClaims(cluster) if cluster.device_classes else None
    volumes = Volumes(
        cluster.volume_claims,
        cluster.volumes,
        cluster.storage_classes,
        {},
        cluster.csi_nodes,
        devices,
    )
    pods = [p for p in (*queue.waiting, *queue.evicted) if not p.spec.scheduling_gates]
    if not pods:
        return BoundPods({}, volumes)
    joined = {node.name: _visible_node(node) for node in nodes if node.node is not None}
    on = {joined[n.name].name: n.pods for n in nodes if n.node is not None}
    infos = {info.node.name: info for info in node_infos(joined.values(), on)}
    later = [infos.pop(joined[name].name) for name in queue.joining]
    binder = rest_binder.restart(cluster, infos.values(), volumes, seed)
    tries = len(joined) * len(later)
    if len(pods) * len(joined) > _PAIRS_MAX or _has_many_retries(tries, queue.waiting, binder):
        for info in later:
            binder.join(info)
        return BoundPods(_bind_as_intended(pods, queue.intended, joined, binder), volumes)
    course = _Course(binder)
    course.bind(queue.waiting)
    for info in later:
        binder.join(info)
        course.bind(queue.waiting)
    course.bind(pods)
    names = {node.name: name for name, node in joined.items()}
    bound = {key: names[node.name] for key, node in course.bound.items()}
    return BoundPods(bound, volumes, course.preempted)


def _bind_as_intended(
    pods: Iterable[Pod], intended: Mapping[str, str], joined: Mapping[str, Node], binder: NodeBinder
) -> dict[str, str]:
    """Bind pods to the nodes where they were planned, if they fit; return their nodes."""
    targets = ((pod, intended.get(pod.key, "")) for pod in pods)
    return {
        pod.key: name
        for pod, name in targets
        if name in joined and binder.place(pod, joined[name].name)
    }


def _has_many_retries(tries: int, waiting: Sequence[Pod], binder: NodeBinder) -> bool:
    """Return whether trying each kind of pod so often takes too long."""
    if tries * len(waiting) <= _RETRIES_MAX:
        return False
    return tries * binder.count_kinds(waiting) > _RETRIES_MAX


def has_more_important_pending(cluster: ClusterState) -> bool:
    """Return whether a pod waits that is more important than one that runs."""
    waiting = [pod.spec.priority or 0 for pod in cluster.pending if not pod.spec.scheduling_gates]
    if not waiting:
        return False
    highest = max(waiting)
    running = (pod for node in cluster.nodes for pod in node.pods)
    return any((pod.spec.priority or 0) < highest for pod in running)


class _Course:
    """Pods that are bound and preempted, one attempt after another."""

    def __init__(self, binder: NodeBinder) -> None:
        self._binder = binder
        self.bound: dict[str, Node] = {}
        self.preempted: dict[str, Pod] = {}

    def bind(self, pods: Sequence[Pod]) -> None:
        """Bind the pods that are not bound yet, and the preempted ones, where they fit."""
        for _ in range(EVICTION_ROUNDS_MAX):
            self._attempt(pods)
            victims = self._binder.evict_victims()
            if not victims:
                return
            for pod in victims:
                self.bound.pop(pod.key, None)
                self.preempted[pod.key] = as_pending(pod)

    def _attempt(self, pods: Sequence[Pod]) -> None:
        again = (pod for pod in self.preempted.values() if pod.is_reschedulable)
        wanted = {pod.key: pod for pod in (*pods, *again) if pod.key not in self.bound}
        self.bound |= self._binder.bind(list(wanted.values()))


def _visible_node(node: StateNode) -> Node:
    """Return the Node as the scheduler sees it: cordoned while it is being removed."""
    assert node.node is not None, "it has joined"
    if not node.is_deleting:
        return node.node
    return replace(node.node, spec=replace(node.node.spec, unschedulable=True))


def as_pending(pod: Pod) -> Pod:
    """Return the pod as pending; a pending pod is unchanged."""
    if not pod.spec.node_name:
        return pod
    return replace(pod, spec=replace(pod.spec, node_name=""), status=UNSCHEDULABLE)
