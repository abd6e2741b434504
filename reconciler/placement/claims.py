"""Nodes that this pass will ask for, and the order in which pods try them.

Karpenter offers each pod to the claim with the fewest pods first. The order is kept, not sorted
anew: a stable sort would put a claim that takes a pod in front of those with one pod more, and a
new one behind those with one.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping

from reconciler.model.hostport import HostPort
from reconciler.model.pod import Pod
from reconciler.model.resources import CPU, MEMORY, Resources
from reconciler.placement.reservations import NONE_HELD, Held
from reconciler.placement.shape import Shape
from reconciler.placement.space import Space
from reconciler.placement.template import Template

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

    @property
    def price(self) -> float:
        """What its cheapest launch costs, USD an hour."""
        offers = self.space.offers
        if self.held:
            offers = tuple(o for o in offers if o.reservation_id in self.held)
        return self.template.table.cheapest_price(offers, self.mask)

    def __lt__(self, other: OpenClaim) -> bool:
        return self.sequence < other.sequence

    def with_more(self, shape: Shape, count: int) -> Resources:
        """Return what its pods would request with ``count`` more of a shape."""
        total = dict(self.requests)
        for name, amount in shape.requests.items():
            total[name] = total.get(name, 0) + amount * count
        return total

    def add(
        self, shape: Shape, pods: list[Pod], space: Space, mask: int, requests: Resources
    ) -> None:
        """Put pods of a shape on it, by which it becomes what ``space`` and ``mask`` say.

        ``requests`` are those of all its pods then.
        """
        self.requests = requests
        self.members.append((shape, pods))
        self.count += len(pods)
        self.space = space
        self.mask = mask
        if shape.ports:
            self.ports += shape.ports
        self.cpu_room -= shape.cpu * len(pods)
        self.memory_room -= shape.memory * len(pods)

    def tighten(self) -> None:
        """Work out anew how much room it has, for its types may have become fewer."""
        table, template, mask = self.template.table, self.template, self.mask
        self.cpu_room = table.most(CPU, mask) - template.least_cpu - self.requests.get(CPU, 0)
        self.memory_room = (
            table.most(MEMORY, mask) - template.least_memory - self.requests.get(MEMORY, 0)
        )


class Order:
    """Claims, fewest pods first.

    Of claims with equally many pods, one that has just taken a pod comes first where
    ``to_front``, else last.
    """

    __slots__ = ("_back", "_front", "entries", "to_front")

    def __init__(self, *, to_front: bool = True) -> None:
        self.to_front = to_front
        self.entries: list[Entry] = []
        self._front = 0
        self._back = 0

    def next_sequence(self, *, is_new: bool) -> int:
        """Return the number that puts a claim where it belongs among those with as many pods."""
        if is_new or not self.to_front:
            self._back += 1
            return self._back
        self._front -= 1
        return self._front

    def ahead(self, count: int, other: int) -> int:
        """Return how many pods a claim with ``count`` takes before one with ``other`` is ahead."""
        return other - count + 1 if self.to_front else max(1, other - count)

    def settle(self, moved: Mapping[OpenClaim, Entry], opened: Iterable[OpenClaim]) -> None:
        """Put claims that have taken pods, and new ones, where they now belong.

        ``moved`` are the entries that they had before.
        """
        entries = self.entries
        if len(moved) > len(entries) // 4 + 8:
            entries[:] = [entry for entry in entries if entry[2] not in moved]
            entries += [claim.entry for claim in moved]
            entries.sort()
        else:
            for claim, old in moved.items():
                index = bisect_left(entries, old)
                assert entries[index][2] is claim, "the order has lost a claim"
                del entries[index]
                insort(entries, claim.entry)
        for claim in opened:
            insort(entries, claim.entry)
