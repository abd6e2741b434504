"""Greedy by price density: buy the node that gives most value for its dollars, then the next.

What a unit is worth is its share of the cheapest node that it could fill alone, or its dual price
in the relaxation. A node's density changes only as lots run out, so it is worked out again only
when it comes to the front.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import Market, Row, Shelf

_SLACK = 1e-9


def shelves_of(lots: list[Lot], market: Market) -> list[Shelf]:
    """Return every shelf from which some lot may buy its own node, once."""
    found: dict[int, Shelf] = {}
    for lot in lots:
        for template, space in lot.shelves:
            shelf = market.shelf(template, space)
            found.setdefault(id(shelf), shelf)
    return list(found.values())


def value_alone(lot: Lot, market: Market) -> float:
    """Return the least that a unit costs on nodes filled with nothing else, fractions allowed."""
    wanted = market.amounts(lot.requests)
    least = float("inf")
    for template, space in lot.shelves:
        for row in market.shelf(template, space).rows:
            if all(w <= r for w, r in zip(wanted, row.room, strict=True)):
                share = max(w / r for w, r in zip(wanted, row.room, strict=True) if w)
                least = min(least, row.cost * share)
    return least


class Greedy:
    """One run of the greedy packing over what a filler has left."""

    def __init__(self, filler: Filler, shelves: list[Shelf], work_max: int) -> None:
        self._filler = filler
        self._shelves = shelves
        self._work_max = filler.work + work_max
        self._heap: list[tuple[float, int, int, Shelf, Row]] = []

    def run(self) -> list[PaperNode]:
        """Return the nodes bought; the work is limited, and lots may be left over."""
        nodes: list[PaperNode] = []
        self._open()
        heap = self._heap
        while heap and self._filler.work < self._work_max:
            _, s, r, shelf, row = heappop(heap)
            node = self._filler.filled(shelf, row)
            density = _density(node)
            if density == float("inf"):
                continue
            if heap and density > heap[0][0] + _SLACK:
                heappush(heap, (density, s, r, shelf, row))
                continue
            times = self._filler.repeatable(node)
            self._filler.book(node, times)
            nodes += [node, *(_copy(node, shelf, row) for _ in range(times - 1))]
            self._filler.tidy()
            heappush(heap, (density, s, r, shelf, row))
        return nodes

    def _open(self) -> None:
        for s, shelf in enumerate(self._shelves):
            for r, row in enumerate(shelf.rows):
                node = self._filler.filled(shelf, row)
                density = _density(node)
                if density != float("inf"):
                    self._heap.append((density, s, r, shelf, row))
        heapify(self._heap)


def _density(node: PaperNode) -> float:
    """Return the dollars of a node for each dollar of value that it takes."""
    value = node.value
    return node.cost / value if value > 0 and node.is_asked_for else float("inf")


def _copy(node: PaperNode, shelf: Shelf, row: Row) -> PaperNode:
    made = PaperNode(shelf.template, node.space, row)
    made.room = list(node.room)
    made.taken = dict(node.taken)
    made.hosts = {g: type(c)(c.rule, dict(c.counts)) for g, c in node.hosts.items()}
    made.ports = node.ports
    return made
