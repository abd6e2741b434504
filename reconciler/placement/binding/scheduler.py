"""Binds pending pods to nodes as kube-scheduler does, with the DaemonSets' pods of a node.

A plan makes room for pods but does not decide where they run: kube-scheduler takes pods by priority
and in the order of their creation, and gives each the node with the highest score.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from reconciler.model.kubernetes.cluster import DaemonSet, PodDisruptionBudget
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Container, Pod, ResourceRequirements
from reconciler.model.kubernetes.profile import Plugin, Profile
from reconciler.model.kubernetes.taint import Toleration
from reconciler.placement.binding.cycle import KubeScheduler
from reconciler.placement.binding.host import HostNode
from reconciler.placement.binding.preemption import (
    Preemption,
    find_preemption,
    is_waiting_for_victims,
    victims_on,
)
from reconciler.placement.binding.queue import PodQueue, SchedulerPace
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.topology.peers import Owners
from reconciler.placement.topology.rules import node_terms

_ALWAYS_TOLERATED: Final = tuple(
    Toleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect=effect)
    for name, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""Tolerations that the DaemonSet controller adds to its pods."""

_HELPED_BY_PODS: Final = frozenset({Plugin.POD_TOPOLOGY_SPREAD, Plugin.INTER_POD_AFFINITY})
"""Plugins that may accept a pod once another one was bound."""


def daemon_set_key(daemon: DaemonSet) -> str:
    """Return ``namespace/name``."""
    return f"{daemon.metadata.namespace or 'default'}/{daemon.metadata.name}"


def daemon_pod(daemon: DaemonSet, node: Node) -> Pod:
    """Return the pod that a DaemonSet creates for a node, without its status.

    A part of its template that cannot be read is left out, as in ``placement.nodes.daemons``.
    """
    pod = _readable_pod(daemon.pod())
    name = f"{daemon.metadata.name}-{node.name}"
    owner = OwnerReference(
        kind="DaemonSet",
        name=daemon.metadata.name,
        api_version="apps/v1",
        uid=daemon.metadata.uid or daemon_set_key(daemon),
        controller=True,
    )
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(
            pod.metadata, name=name, uid=f"{pod.namespace}/{name}", owner_references=(owner,)
        ),
        spec=msgspec.structs.replace(
            pod.spec, tolerations=(*pod.spec.tolerations, *_ALWAYS_TOLERATED)
        ),
    )


def _readable_pod(pod: Pod) -> Pod:
    spec = pod.spec
    try:
        node_terms(spec)
    except ValueError:
        spec = msgspec.structs.replace(spec, affinity=None)
    try:
        pod.requests()
    except ValueError:
        spec = msgspec.structs.replace(
            spec,
            containers=tuple(map(_without_resources, spec.containers)),
            init_containers=tuple(map(_without_resources, spec.init_containers)),
            resources=None,
            overhead={},
        )
    return pod if spec is pod.spec else msgspec.structs.replace(pod, spec=spec)


def _without_resources(container: Container) -> Container:
    return msgspec.structs.replace(container, resources=ResourceRequirements())


@dataclass
class NodeInfo:
    """A node and the pods that are bound to it."""

    node: Node
    pods: Sequence[Pod] = ()


@dataclass(frozen=True, slots=True)
class JoiningNodes:
    """Nodes that join while pods are being bound.

    ``after`` is how many seconds after the first pod is tried; ``join`` adds them to the binder.
    """

    after: float
    join: Callable[[], None]


class NodeBinder:
    """Binds pods to the nodes of a cluster, one after another.

    It can be kept while the cluster changes: ``follow`` compares the nodes and pods with those it
    knows, and pods that failed are tried again in the order in which they did. ``owners`` are the
    Services and controllers that default spreading depends on. ``seed`` decides between nodes with
    equal scores, and ``profiles`` are those of the schedulers by name.

    ``preemptions`` are those that the last ``bind`` asks for: the caller evicts their ``victims``.
    The pod is bound by a later call, once they are gone.
    """

    def __init__(
        self,
        nodes: Iterable[NodeInfo] = (),
        namespaces: Mapping[str, Mapping[str, str]] | None = None,
        *,
        volumes: Volumes | None = None,
        budgets: Sequence[PodDisruptionBudget] = (),
        owners: Owners | None = None,
        profiles: Mapping[str, Profile] | None = None,
        seed: int = 0,
    ) -> None:
        self._scheduler = KubeScheduler(
            profiles=profiles,
            seed=seed,
            namespaces=namespaces if namespaces is not None else {},
            owners=owners if owners is not None else Owners(),
            volumes=volumes,
        )
        self._seed = seed
        self._queue = PodQueue()
        self._nominations: dict[str, str] = {}
        self.preemptions: list[Preemption] = []
        self.follow(nodes, volumes, budgets)

    def follow(
        self,
        nodes: Iterable[NodeInfo],
        volumes: Volumes | None = None,
        budgets: Sequence[PodDisruptionBudget] = (),
        *,
        sets_aside: bool = False,
    ) -> None:
        """Take over the nodes, the pods on them, volumes and budgets as they are now.

        Cheap for what has not changed: nodes and pods that are the same objects as before. With
        ``sets_aside`` the other nodes are not gone, but no pod is tried on them for now.
        """
        scheduler = self._scheduler
        scheduler.volumes = volumes
        self._budgets = budgets
        others = dict(scheduler.hosts)
        for info in nodes:
            others.pop(info.node.name, None)
            self.join(info)
        for name in others if sets_aside else (*others, *scheduler.aside):
            if sets_aside:
                scheduler.set_aside(name)
            else:
                scheduler.drop_node(name)

    def restart(
        self,
        nodes: Iterable[NodeInfo],
        volumes: Volumes | None = None,
        budgets: Sequence[PodDisruptionBudget] = (),
        *,
        seed: int = 0,
    ) -> None:
        """Begin again with these nodes, as a new binder would; namespaces and owners are the same.

        It takes less time the more of the nodes and pods are those that it knows.
        """
        infos = list(nodes)
        self._seed = seed
        self._queue = PodQueue()
        self._nominations.clear()
        self.preemptions = []
        self.follow(infos, volumes, budgets)
        self._scheduler.restart(seed, [info.node.name for info in infos])

    def join(self, info: NodeInfo) -> None:
        """Take over one node and the pods on it; the others stay as they are."""
        scheduler = self._scheduler
        host = scheduler.put_node(info.node)
        pods = tuple(info.pods)
        if host.followed == pods:  # nearly always, and quick for the same objects
            return
        present = {pod.key: pod for pod in pods if not pod.is_terminal}
        for key in [key for key in host.pods if key not in present]:
            scheduler.drop_pod(key, host)
        for key, pod in present.items():
            known = host.pods.get(key)
            if known is None or known[0] is not pod:
                scheduler.put_pod(pod, host)
        host.followed = pods

    def bind(self, pending: Sequence[Pod], joining: Sequence[JoiningNodes] = ()) -> dict[str, Node]:
        """Return the node of each bound pod, by ``namespace/name``; the others stay pending.

        ``pending`` is in the order of creation. A pod that waited for another one is tried again
        once that is bound. Nodes that arrive meanwhile are there for the pods that are tried later,
        and every pod that has failed until then is tried again.
        """
        bound: dict[str, Node] = {}
        self.preemptions = []
        unbound = {pod.key: pod for pod in pending if not pod.spec.scheduling_gates}
        self.keep_nominations(unbound.values())
        queue = deque(self._queue.take(list(unbound.values())))
        coming, pace = deque(joining), SchedulerPace(self._seed)
        waiting: list[Pod] = []
        has_bound = False
        while queue or coming or (has_bound and waiting):
            is_idle = not queue and not (has_bound and waiting)
            if coming and (is_idle or coming[0].after <= pace.now):
                pace.wait_until(coming[0].after)
                coming.popleft().join()
                queue, waiting = deque(self._queue.take(list(unbound.values()))), []
            elif queue:
                pod = queue.popleft()
                host = self._bind_one(pod, waiting)
                pace.take_turn()
                if host is not None:
                    bound[pod.key] = host.node
                    del unbound[pod.key]
                    has_bound = True
            else:
                queue, waiting, has_bound = deque(waiting), [], False
        return bound

    def _bind_one(self, pod: Pod, waiting: list[Pod]) -> HostNode | None:
        """Bind a pod and return its node, or record why it waits."""
        nominated = self._nominations.get(pod.key, "")
        result = self._scheduler.attempt(pod, nominated)
        if result.host is not None:
            self._nominate(pod, "")
            self._scheduler.bind(pod, result.host)
            self._queue.remove(pod)
            return result.host
        self._queue.fail(pod)
        if result.rejected_by & _HELPED_BY_PODS:
            waiting.append(pod)
        target = self._scheduler.hosts.get(nominated)
        if target is None or not is_waiting_for_victims(pod, target):
            self._preempt(pod)
        return None

    def count_kinds(self, pods: Iterable[Pod]) -> int:
        """Return how many kinds of pods there are: those of one kind fail as one."""
        return len({self._scheduler.shapes.of(pod) for pod in pods})

    def make_room(self, pod: Pod, node: str) -> tuple[Pod, ...]:
        """Return the pods to be evicted from a node for a daemon that is not accepted there.

        There are none if that does not help, or while others leave.
        """
        host = self._scheduler.hosts.get(node)
        return victims_on(self._scheduler, pod, host, self._budgets) if host is not None else ()

    def victims(self) -> list[tuple[Pod, str]]:
        """Return the pods that have to be evicted now, each once, and their nodes."""
        pairs = ((pod, found.node) for found in self.preemptions for pod in found.victims)
        return list({pod.key: (pod, node) for pod, node in pairs}.values())

    def evict_victims(self) -> list[Pod]:
        """Remove these pods from their nodes at once, and return them."""
        found = self.victims()
        for pod, node in found:
            self._scheduler.drop_pod(pod.key, self._scheduler.hosts[node])
        return [pod for pod, _ in found]

    def _preempt(self, pod: Pod) -> None:
        """Ask for the eviction of other pods, if that makes room for this one."""
        if any(known.pod.key == pod.key for known in self.preemptions):
            return
        found = find_preemption(self._scheduler, pod, self._budgets, self._seed)
        self._nominate(pod, found.node if found is not None else "")
        if found is not None:
            self.preemptions.append(found)

    def _nominate(self, pod: Pod, node: str) -> None:
        """Nominate a pod for a node, for none if empty; those less important lose the node."""
        before = self._nominations.pop(pod.key, "")
        if before:
            self._scheduler.withdraw(pod, before)
        if node:
            priority = pod.spec.priority or 0
            for other in self._scheduler.nominated_pods(node):
                if (other.spec.priority or 0) < priority:
                    self._nominate(other, "")
            self._nominations[pod.key] = node
            self._scheduler.nominate(pod, node)

    def keep_nominations(self, pending: Iterable[Pod]) -> None:
        """Leave the room on their nodes to pods that are nominated, until they are bound.

        Nominations of pods that do not wait any more, and for nodes that are gone, are forgotten.
        Those that another binder has made are in the status of the pods.
        """
        waiting, hosts = {pod.key: pod for pod in pending}, self._scheduler.hosts
        for name in set(self._nominations.values()):
            for pod in self._scheduler.nominated_pods(name):
                if pod.key not in waiting or name not in hosts:
                    self._nominate(pod, "")
        for key, pod in waiting.items():
            name = pod.status.nominated_node_name
            if name in hosts and key not in self._nominations:
                self._nominate(pod, name)

    @property
    def nominations(self) -> Mapping[str, str]:
        """The nodes where others make room for pods, by ``namespace/name`` of these pods."""
        return self._nominations

    def scores(self, pod: Pod) -> dict[str, int]:
        """Return the final score of each node that passes the filters for a pod now."""
        return self._scheduler.scores_by_node(pod)

    def place(self, pod: Pod, node: str) -> bool:
        """Bind a pod to the node of that name if it passes the filters; return whether it does."""
        host = self._scheduler.hosts.get(node)
        if host is None or not self._scheduler.accepts(pod, host):
            return False
        self._scheduler.bind(pod, host)
        return True


def node_infos(nodes: Iterable[Node], pods_on: Mapping[str, Sequence[Pod]]) -> list[NodeInfo]:
    """Return the nodes with their pods, by name.

    Nodes that are cordoned or not ready are included: their pods count for affinity and spreading,
    and their taints keep other pods off.
    """
    return [
        NodeInfo(node, pods_on.get(node.name, ())) for node in sorted(nodes, key=lambda n: n.name)
    ]


ready_nodes = node_infos
"""The name by which recorded decisions are run against the binder."""
