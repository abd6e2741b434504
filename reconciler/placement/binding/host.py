"""A node as kube-scheduler's cache keeps it: what it offers, and the pods that use it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from hashlib import blake2b

from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.storage import claim_keys
from reconciler.model.resources import parse_resources
from reconciler.placement.binding.shape import Amounts, PodRequests, SchedulingShape
from reconciler.placement.nodes.ports import UsedPorts


@dataclass(eq=False, slots=True)
class HostNode:
    """A node and its pods; compared by identity.

    ``number`` is unique among the hosts of a scheduler: a node whose labels change becomes another
    host, so that the domains of a number remain true. ``version`` changes whenever the
    resources on it do. ``cpu``, ``memory`` and so on are requested by its pods; ``least_cpu`` and
    ``least_memory`` count containers without a request as well, for scores. ``claims`` are the
    volume claims of its pods. ``followed`` are the pods that were taken over last, None if others
    have come or gone since.
    """

    number: int
    node: Node
    total: Amounts
    salt: int
    version: int = 0
    cpu: int = 0
    memory: int = 0
    ephemeral: int = 0
    others: Counter[str] = field(default_factory=Counter)
    least_cpu: int = 0
    least_memory: int = 0
    pods: dict[str, tuple[Pod, SchedulingShape]] = field(default_factory=dict)
    shapes: Counter[SchedulingShape] = field(default_factory=Counter)
    ports: UsedPorts = field(default_factory=UsedPorts)
    claims: Counter[str] = field(default_factory=Counter)
    followed: tuple[Pod, ...] | None = None

    @classmethod
    def of(cls, number: int, node: Node) -> HostNode:
        """Return a host without pods."""
        return cls(number, node, _allocatable(node), stable_hash(node.name))

    @property
    def labels(self) -> dict[str, str]:
        return self.node.metadata.labels

    def replace_node(self, node: Node) -> None:
        """Use a newer version of the node, with the same labels."""
        self.node = node
        self.total = _allocatable(node)
        self.version += 1

    def successor(self, number: int, node: Node) -> HostNode:
        """Return the host for a newer version of the node, with the same pods."""
        return replace(self, number=number, node=node, total=_allocatable(node))

    def add(self, pod: Pod, shape: SchedulingShape) -> None:
        """Add a pod that is bound to the node, or assumed to be."""
        self.pods[pod.key] = (pod, shape)
        self.followed = None
        self.shapes[shape] += 1
        self._change(shape, 1)
        for claim in claim_keys(pod):
            self.claims[claim] += 1

    def remove(self, key: str) -> tuple[Pod, SchedulingShape]:
        """Remove a pod, and return it with its shape."""
        pod, shape = self.pods.pop(key)
        self.followed = None
        self.shapes[shape] -= 1
        if not self.shapes[shape]:
            del self.shapes[shape]
        self._change(shape, -1)
        for claim in claim_keys(pod):
            self.claims[claim] -= 1
            if not self.claims[claim]:
                del self.claims[claim]
        return pod, shape

    def _change(self, shape: SchedulingShape, sign: int) -> None:
        demand = shape.demand
        self.version += 1
        self.cpu += sign * demand.requests.cpu
        self.memory += sign * demand.requests.memory
        self.ephemeral += sign * demand.requests.ephemeral
        self.least_cpu += sign * demand.non_zero.cpu
        self.least_memory += sign * demand.non_zero.memory
        for name, amount in demand.requests.others.items():
            self.others[name] += sign * amount
        self.ports.add(shape.ports, sign)

    def used(self, name: str) -> int:
        """Return how much of a resource its pods request."""
        match name:
            case "cpu":
                return self.cpu
            case "memory":
                return self.memory
            case "ephemeral-storage":
                return self.ephemeral
        return self.others[name]

    def least_used(self, name: str) -> int:
        """Return the same, with CPU and memory of pods without requests."""
        match name:
            case "cpu":
                return self.least_cpu
            case "memory":
                return self.least_memory
        return self.used(name)

    def has_port_conflict(self, shape: SchedulingShape) -> bool:
        """Return whether a pod of the node uses a host port of ``shape``."""
        return self.ports.conflict(shape.ports)

    def offers(self, demand: PodRequests) -> bool:
        """Return whether the empty node is large enough."""
        wanted, total = demand.requests, self.total
        return (
            wanted.cpu <= total.cpu
            and wanted.memory <= total.memory
            and wanted.ephemeral <= total.ephemeral
            and all(n <= total.others.get(name, 0) for name, n in wanted.others.items())
        )


def _allocatable(node: Node) -> Amounts:
    return Amounts.of(parse_resources(node.status.allocatable))


def stable_hash(text: str) -> int:
    """Return 64 bits that depend on ``text`` alone, in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")
