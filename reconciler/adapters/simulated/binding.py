"""A small scheduler: gives pending pods to nodes that are ready for them.

It packs: of the nodes that may take a pod, the one with the least left over gets it, so that the
pods of a plan find the room that the plan made for them. Large pods go first, as the plan's own
order is, and ties go to the first name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from reconciler.adapters.simulated.selection import matches_node, repelling
from reconciler.adapters.simulated.topology import Neighbourhood, Placed
from reconciler.model.hostport import conflict
from reconciler.model.node import Node
from reconciler.model.pod import Pod
from reconciler.model.resources import (
    CPU,
    MEMORY,
    Resources,
    fits,
    parse_resources,
    subtract,
)


@dataclass
class Seat:
    """A ready node with what is left on it."""

    node: Node
    left: Resources
    pods: list[Pod] = field(default_factory=list)

    def take(self, pod: Pod, wanted: Resources) -> None:
        """Let a pod run here that asks for ``wanted``."""
        self.left = subtract(self.left, wanted)
        self.pods.append(pod)


@dataclass
class Seats:
    """All places of a cluster; ``suits`` is a further rule, such as that of a pod's volumes."""

    seats: list[Seat]
    namespaces: Mapping[str, Mapping[str, str]]
    suits: Callable[[Pod, Node], bool]
    _wanted: dict[int, Resources] = field(default_factory=dict)

    def bind(self, pending: Iterable[Pod]) -> dict[str, Node]:
        """Return the nodes that the pods get, by ``namespace/name``; others stay pending."""
        bound: dict[str, Node] = {}
        hopeless: set[tuple[int, int]] = set()
        ordered = sorted(((_urgency(p, self.wanted(p)), p) for p in pending), key=lambda r: r[0])
        for _, pod in ordered:
            kind = (id(pod.spec), id(pod.metadata.labels))
            seat = None if kind in hopeless else self._best(pod)
            if seat is None:
                hopeless.add(kind)
                continue
            seat.take(pod, self.wanted(pod))
            bound[pod.key] = seat.node
            hopeless.clear()
        return bound

    def wanted(self, pod: Pod) -> Resources:
        """Return what a pod requests; pods of one workload share the sum."""
        if id(pod.spec) not in self._wanted:
            self._wanted[id(pod.spec)] = pod.requests()
        return self._wanted[id(pod.spec)]

    def has_room(self, seat: Seat, pod: Pod) -> bool:
        """Return whether a pod may run on a node, leaving aside how it stands to others."""
        return (
            fits(self.wanted(pod), seat.left)
            and not repelling(seat.node.spec.taints, pod.spec.tolerations)
            and matches_node(pod.spec, seat.node)
            and not _ports_taken(seat.pods, pod)
            and self.suits(pod, seat.node)
        )

    def _best(self, pod: Pod) -> Seat | None:
        able = [seat for seat in self.seats if self.has_room(seat, pod)]
        if not able:
            return None
        around = Neighbourhood(
            [seat.node for seat in self.seats],
            [Placed(other, seat.node) for seat in self.seats for other in seat.pods],
            self.namespaces,
        )
        ranked = [
            (crowding, seat.left.get(CPU, 0), seat.left.get(MEMORY, 0), seat.node.name, seat)
            for seat in able
            if (crowding := around.crowding(pod, seat.node)) is not None
        ]
        return min(ranked, key=lambda row: row[:4])[4] if ranked else None


def seats_of(nodes: Sequence[Node], pods_on: Mapping[str, Sequence[Pod]]) -> list[Seat]:
    """Return the ready nodes with what their pods leave, by name."""
    seats = []
    for node in sorted(nodes, key=lambda n: n.name):
        if node.is_ready and not node.spec.unschedulable:
            seat = Seat(node, parse_resources(node.status.allocatable))
            for pod in pods_on.get(node.name, ()):
                seat.take(pod, pod.requests())
            seats.append(seat)
    return seats


def _urgency(pod: Pod, wanted: Resources) -> tuple[int, int, int, str]:
    return (-(pod.spec.priority or 0), -wanted.get(CPU, 0), -wanted.get(MEMORY, 0), pod.key)


def _ports_taken(others: Iterable[Pod], pod: Pod) -> bool:
    wanted = pod.host_ports()
    if not wanted:
        return False
    return conflict({o.key: o.host_ports() for o in others}, pod.key, wanted) is not None
