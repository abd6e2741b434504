"""Nodes that this pass will ask for, and the order in which pods try them.

Karpenter offers each pod to the claim with the fewest pods first. The order is kept, not sorted
anew: a claim that takes a pod moves to the front of those with one pod more, a new one to the
end of those with one, which is where a stable sort would put them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection

from reconciler.model.hostport import HostPort
from reconciler.model.pod import Pod
from reconciler.model.resources import CPU, MEMORY, Resources
from reconciler.placement.reservations import NONE_HELD, Held
from reconciler.placement.shape import Shape
from reconciler.placement.space import Space
from reconciler.placement.template import Template

_FAR = 2**31

Entry = tuple[int, int, "OpenClaim"]
"""A claim with its place in the order: number of pods, then who came first."""


class OpenClaim:
    """A node to be, as far as the pods put on it so far have narrowed it.

    ``mask`` are the types that still hold all of its pods beside their daemons. ``host`` stands
    for the name that the node will have. ``cpu_room`` and ``memory_room`` are the most that any
    of the types has left: more certainly does not fit.
    """

    __slots__ = (
        "count",
        "cpu_room",
        "held",
        "host",
        "mask",
        "members",
        "memory_room",
        "min_values_relaxed",
        "ports",
        "requests",
        "sequence",
        "space",
        "template",
    )

    def __init__(self, template: Template, host: str) -> None:
        self.template = template
        self.host = host
        self.space = template.space
        self.mask = template.types
        self.requests: Resources = {}
        self.members: list[tuple[Shape, list[Pod]]] = []
        self.count = 0
        self.sequence = 0
        self.ports: tuple[HostPort, ...] = ()
        self.held: Held = NONE_HELD
        self.min_values_relaxed = False
        self.cpu_room = 0
        self.memory_room = 0

    @property
    def entry(self) -> Entry:
        return (self.count, self.sequence, self)

    def __lt__(self, other: OpenClaim) -> bool:
        return self.sequence < other.sequence

    def with_more(self, shape: Shape, count: int) -> Resources:
        """Return what its pods would request with ``count`` more of a shape."""
        total = dict(self.requests)
        for name, amount in shape.requests.items():
            total[name] = total.get(name, 0) + amount * count
        return total

    def add(self, shape: Shape, pods: list[Pod], space: Space, mask: int) -> None:
        self.requests = self.with_more(shape, len(pods))
        self.members.append((shape, pods))
        self.count += len(pods)
        self.space = space
        self.mask = mask
        if shape.ports:
            self.ports += shape.ports
        table, template = self.template.table, self.template
        self.cpu_room = table.most(CPU, mask) - template.least_cpu - self.requests.get(CPU, 0)
        self.memory_room = (
            table.most(MEMORY, mask) - template.least_memory - self.requests.get(MEMORY, 0)
        )


class Order:
    """Claims, fewest pods first."""

    __slots__ = ("_entries",)

    def __init__(self, entries: list[Entry] | None = None) -> None:
        self._entries: list[Entry] = entries if entries is not None else []

    @property
    def entries(self) -> list[Entry]:
        return self._entries

    def insert(self, entry: Entry) -> None:
        insort(self._entries, entry)

    def ahead(self, position: int, dead: Collection[OpenClaim]) -> int:
        """Return how many pods the claim at ``position`` takes before another one is in front."""
        count = self._entries[position][0]
        for index in range(position + 1, len(self._entries)):
            other = self._entries[index]
            if other[2] not in dead:
                return other[0] - count + 1
        return _FAR

    def move(self, old: Entry, new: Entry) -> None:
        """Put a claim where its new number of pods belongs."""
        entries = self._entries
        index = bisect_left(entries, old)
        assert entries[index][2] is old[2], "the order has lost a claim"
        del entries[index]
        insort(entries, new)


class Numbers:
    """Numbers that put a claim before, or behind, all others with as many pods."""

    __slots__ = ("_back", "_front")

    def __init__(self) -> None:
        self._front = 0
        self._back = 0

    def front(self) -> int:
        self._front -= 1
        return self._front

    def back(self) -> int:
        self._back += 1
        return self._back
