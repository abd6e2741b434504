"""A small pod scheduler: binds pending pods to nodes that are ready for them.

A plan makes exactly the room its pods need, and the pods must find it without knowing the plan.
Several orders and packings are therefore tried, and the first that leaves the fewest pods pending
is used. Any of them is a valid result under the scheduler's rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from reconciler.model.kubernetes.cluster import DaemonSet
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodSpec, port_conflict
from reconciler.model.kubernetes.taint import Toleration
from reconciler.model.resources import (
    CPU,
    MEMORY,
    Resources,
    fits,
    parse_resources,
    subtract_resources,
)
from reconciler.placement.binding.selection import matches_node, untolerated_taints
from reconciler.placement.binding.topology import Neighbourhood

# DaemonSets: one pod on every eligible node.


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


def daemon_set_key(daemon: DaemonSet) -> str:
    """Return ``namespace/name``."""
    return f"{daemon.metadata.namespace or 'default'}/{daemon.metadata.name}"


def daemon_pod(daemon: DaemonSet, node: Node) -> Pod:
    """Return the pod that a DaemonSet creates for a node, without its status."""
    pod = daemon.pod()
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


def matches_daemon_set(pod: Pod, node: Node) -> bool:
    """Return whether the DaemonSet controller would create a pod for a node."""
    return matches_node(pod.spec, node) and not untolerated_taints(
        node.spec.taints, pod.spec.tolerations
    )


@dataclass
class NodeInfo:
    """A ready node, its allocatable resources, and the resources left for pods."""

    node: Node
    total: Resources
    left: Resources
    pods: list[Pod] = field(default_factory=list)

    def bind(self, pod: Pod, requests: Resources) -> None:
        """Bind a pod that requests ``requests`` to this node."""
        self.left = subtract_resources(self.left, requests)
        self.pods.append(pod)

    def copy(self) -> NodeInfo:
        """Return an independent copy of the node and its pods."""
        return NodeInfo(self.node, self.total, self.left, list(self.pods))


Order = Callable[[Resources], tuple[int, ...]]
"""Sort key of a pod, from its requests."""

Fit = Callable[[Resources, Resources], tuple[int, ...]]
"""Sort key of a node for a pod, from the resources that would be left and the node's total."""

_ORDERS: Final[tuple[Order, ...]] = (
    lambda wanted: (-wanted.get(CPU, 0), -wanted.get(MEMORY, 0)),
    lambda wanted: (-wanted.get(MEMORY, 0), -wanted.get(CPU, 0)),
)


def _cpu_left_key(left: Resources, _: Resources) -> tuple[int, ...]:
    return (left.get(CPU, 0), left.get(MEMORY, 0))


def _memory_left_key(left: Resources, _: Resources) -> tuple[int, ...]:
    return (left.get(MEMORY, 0), left.get(CPU, 0))


def _balance_key(left: Resources, total: Resources) -> tuple[int, ...]:
    """Prefer the node where CPU and memory would be used most evenly, in millionths of each."""
    cpu = left.get(CPU, 0) * 10**6 // max(total.get(CPU, 0), 1)
    memory = left.get(MEMORY, 0) * 10**6 // max(total.get(MEMORY, 0), 1)
    return (abs(cpu - memory), cpu + memory)


_RETRIED_PAIRS_MAX: Final = 50_000
"""Maximum number of pod and node pairs for which other packings are tried."""

_FITS: Final[tuple[Fit, ...]] = (_cpu_left_key, _balance_key, _memory_left_key)


@dataclass
class NodeBinder:
    """Binds pods to the nodes of a cluster; ``suits`` is an additional rule, as for volumes."""

    nodes: list[NodeInfo]
    namespaces: Mapping[str, Mapping[str, str]]
    suits: Callable[[Pod, Node], bool]
    _requests: dict[int, tuple[PodSpec, Resources]] = field(default_factory=dict)
    _usable: dict[int | str, list[int]] = field(default_factory=dict)
    _with_room: dict[int | str, list[int]] = field(default_factory=dict)

    def bind(self, pending: Sequence[Pod]) -> dict[str, Node]:
        """Return the node of each bound pod, by ``namespace/name``; the others stay pending."""
        if not pending:
            return {}
        self._with_room = {}
        placeable = [pod for pod in pending if self._nodes_with_room(pod)]
        bound_pods = self._bound_pods() if placeable else None
        best: dict[str, Node] | None = None
        for order in _ORDERS:
            for fit in _FITS:
                bound = (
                    self._try_assignment(placeable, order, fit, bound_pods.copy())
                    if bound_pods
                    else {}
                )
                if best is None or len(bound) > len(best):
                    best = bound
                if (
                    len(best) == len(placeable)
                    or len(pending) * len(self.nodes) > _RETRIED_PAIRS_MAX
                ):
                    return best
        return best or {}

    def _nodes_with_room(self, pod: Pod) -> Sequence[int]:
        """Return the nodes with room for a pod now; room only shrinks as pods are bound."""
        key = self._constraints_key(pod)
        if key not in self._with_room:
            eligible = self._eligible_nodes(pod)
            self._with_room[key] = [n for n in eligible if self._has_resources(self.nodes[n], pod)]
        return self._with_room[key]

    def _bound_pods(self) -> Neighbourhood:
        """Return the pods that are bound already."""
        bound_pods = Neighbourhood([info.node for info in self.nodes], self.namespaces)
        for info in self.nodes:
            for pod in info.pods:
                bound_pods.add(pod, info.node)
        return bound_pods

    def requests_of(self, pod: Pod) -> Resources:
        """Return the requests of a pod; pods of one workload share the result."""
        known = self._requests.get(id(pod.spec))
        if known is None:
            known = self._requests[id(pod.spec)] = (pod.spec, pod.requests())
        return known[1]

    def has_room(self, info: NodeInfo, pod: Pod) -> bool:
        """Return whether a pod fits a node, ignoring rules about other pods."""
        return self._has_resources(info, pod) and self._may_use(info, pod)

    def _has_resources(self, info: NodeInfo, pod: Pod) -> bool:
        """Return whether a node has enough left; this changes with every pod bound to it."""
        return fits(self.requests_of(pod), info.left) and not _has_port_conflict(info.pods, pod)

    def _may_use(self, info: NodeInfo, pod: Pod) -> bool:
        """Return whether the pod's node constraints allow the node; this does not change."""
        return (
            not untolerated_taints(info.node.spec.taints, pod.spec.tolerations)
            and matches_node(pod.spec, info.node)
            and self.suits(pod, info.node)
        )

    def _eligible_nodes(self, pod: Pod) -> Sequence[int]:
        """Return the indexes of the nodes that a pod may use; pods with volumes have their own."""
        key = self._constraints_key(pod)
        if key not in self._usable:
            self._usable[key] = [n for n, s in enumerate(self.nodes) if self._may_use(s, pod)]
        return self._usable[key]

    def _constraints_key(self, pod: Pod) -> int | str:
        """Return a key that is equal for pods with the same eligible nodes."""
        return pod.key if pod.spec.volumes else id(pod.spec)

    def _try_assignment(
        self, pending: Sequence[Pod], order: Order, fit: Fit, bound_pods: Neighbourhood
    ) -> dict[str, Node]:
        """Return the assignment that one order and packing yields, without binding any pod.

        ``bound_pods`` are those that are already bound; the pods of this assignment are added.
        """

        def urgency(pod: Pod) -> tuple[int, tuple[int, ...], str]:
            return (-(pod.spec.priority or 0), order(self.requests_of(pod)), pod.key)

        nodes = [info.copy() for info in self.nodes]
        bound: dict[str, Node] = {}
        full: set[int] = set()
        roomy: dict[int | str, Sequence[int]] = {}
        for pod in sorted(pending, key=urgency):
            if id(pod.spec) in full:
                continue
            key = self._constraints_key(pod)
            earlier = roomy.get(key) or self._nodes_with_room(pod)
            usable = roomy[key] = [n for n in earlier if self._has_resources(nodes[n], pod)]
            if not usable:
                full.add(id(pod.spec))
                continue
            best = self._best_node(pod, [nodes[n] for n in usable], bound_pods, fit)
            if best is not None:
                best.bind(pod, self.requests_of(pod))
                bound_pods.add(pod, best.node)
                bound[pod.key] = best.node
        return bound

    def _best_node(
        self, pod: Pod, usable: Sequence[NodeInfo], bound_pods: Neighbourhood, fit: Fit
    ) -> NodeInfo | None:
        eligibility, requests = bound_pods.eligibility(pod), self.requests_of(pod)
        ranked = [
            (
                crowding,
                fit(subtract_resources(info.left, requests), info.total),
                info.node.name,
                info,
            )
            for info in usable
            if (crowding := eligibility.matching_pods(info.node)) is not None
        ]
        return min(ranked, key=lambda row: row[:3])[3] if ranked else None


def ready_nodes(nodes: Sequence[Node], pods_on: Mapping[str, Sequence[Pod]]) -> list[NodeInfo]:
    """Return the ready nodes with the resources that their pods leave, by name."""
    infos = []
    for node in sorted(nodes, key=lambda n: n.name):
        if node.is_ready and not node.spec.unschedulable:
            total = parse_resources(node.status.allocatable)
            info = NodeInfo(node, total, total)
            for pod in pods_on.get(node.name, ()):
                info.bind(pod, pod.requests())
            infos.append(info)
    return infos


def _has_port_conflict(others: Iterable[Pod], pod: Pod) -> bool:
    ports = pod.host_ports()
    if not ports:
        return False
    return port_conflict({o.key: o.host_ports() for o in others}, pod.key, ports) is not None
