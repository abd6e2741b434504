"""Draft a packing by the value of units, then reduce its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.greedy import Greedy, Worth
from reconciler.placement.packing.lots import Lot, Sorted

# Improving a draft: remove a few nodes and repack their pods.
#
# The nodes with the most waste are removed first, one, two or three at a time. Their pods move into
# the room of the other nodes, or onto new nodes, starting with each of several dense ones. The
# change is kept if it costs less. An attempt is abandoned early if the estimated minimum cost of
# its units shows that it cannot cost less, and no set is tried twice. The work is counted and
# limited, never timed.


_WORST = 10
_BEGINNINGS = 6
_GAIN = 1e-9
_FAR = float("inf")


class Packed(NamedTuple):
    """Nodes for some units, their cost, and the units that did not fit."""

    cost: float
    nodes: list[PaperNode]
    over: Mapping[Lot, int]


def best_of_beginnings(
    greedy: Greedy, left: Mapping[Lot, int], beginnings: int = _BEGINNINGS, ceiling: float = _FAR
) -> Packed | None:
    """Return the cheapest packing of what is left; None if none costs less than ``ceiling``."""
    filler = greedy.filler
    filler.reset(left)
    openings = greedy.openings()
    best: Packed | None = None
    for first in range(max(1, min(beginnings, len(openings)))):
        filler.reset(left)
        below = best.cost if best is not None and not best.over else ceiling
        before = filler.limits()
        nodes = greedy.packed(openings, first, below - _GAIN)
        if nodes is not None:
            over = {lot: count for lot, count in filler.left.items() if count}
            found = Packed(sum(node.cost for node in nodes), nodes, over)
            if best is None or _loss(found) < _loss(best):
                best = found
        filler.restore_limits(before)
        if greedy.exhausted:
            break
    return best


def _loss(packed: Packed) -> tuple[int, float]:
    return sum(packed.over.values()), packed.cost


class Improving:
    """A draft whose cost is being reduced; its pods stay the same."""

    def __init__(self, greedy: Greedy, nodes: list[PaperNode]) -> None:
        self._greedy = greedy
        self._filler = greedy.filler
        self._nodes = nodes
        self._known: dict[object, tuple[float, Packed | None]] = {}

    def run(self) -> list[PaperNode]:
        """Return a packing that costs no more."""
        for node in self._nodes:
            self._filler.charge(node, 1)
        while any(map(self._repack, self._choices())):
            pass
        return self._nodes

    def _choices(self) -> Iterator[list[int]]:
        """Yield sets of nodes to remove together, most waste first, without duplicates."""
        nodes = self._nodes
        order = sorted(range(len(nodes)), key=lambda i: (nodes[i].value - nodes[i].cost, i))
        order = order[:_WORST]
        kinds = {i: nodes[i].content for i in order}
        seen: set[object] = set()
        for size in (1, 2, 3):
            for chosen in combinations(order, size):
                if self._greedy.exhausted:
                    return
                alike = frozenset(Counter(kinds[i] for i in chosen).items())
                if alike not in seen:
                    seen.add(alike)
                    yield list(chosen)

    def _repack(self, chosen: Sequence[int]) -> bool:
        """Repack the pods of the chosen nodes; return whether that reduced the cost."""
        gone = [self._nodes[i] for i in chosen]
        saved = sum(node.cost for node in gone)
        if saved - sum(node.floor for node in gone) <= _GAIN:
            return False
        rest = [node for i, node in enumerate(self._nodes) if i not in chosen]
        for node in gone:
            self._filler.charge(node, -1)
        kept, left = self._moved(rest, gone)
        made = self._bought(left, saved)
        for node in gone if made is None else made:
            self._filler.charge(node, 1)
        if made is not None:
            self._nodes = [*kept, *made]
        return made is not None

    def _moved(
        self, rest: Iterable[PaperNode], gone: Iterable[PaperNode]
    ) -> tuple[list[PaperNode], dict[Lot, int]]:
        """Return the rest with the units that they take in, and the units that need new nodes."""
        filler = self._filler
        left = Counter[Lot]()
        for node in gone:
            left.update(node.taken)
        order = sorted(left, key=lambda lot: (-lot.value, lot.number))
        kept: list[PaperNode] = []
        for node in rest:
            grown = node
            filler.effort.done += len(order)
            for lot in order:
                if left[lot] and grown.has_room(filler.needs[lot]):
                    if grown is node:
                        grown = node.copied()
                    left[lot] -= grown.take(lot, filler.needs[lot], left[lot], filler.sites)
            kept.append(grown)
        return kept, {lot: count for lot, count in left.items() if count}

    def _bought(self, left: Mapping[Lot, int], ceiling: float) -> list[PaperNode] | None:
        """Return new nodes for what is left that cost less than ``ceiling``, or None."""
        if not left:
            return []
        if sum(lot.floor * count for lot, count in left.items()) >= ceiling - _GAIN:
            return None
        counts = sorted((lot.number, count) for lot, count in left.items())
        key = (tuple(counts), self._filler.limits())
        tried, found = self._known.get(key, (0.0, None))
        if found is None and tried < ceiling:
            found = best_of_beginnings(self._greedy, left, ceiling=ceiling)
            self._known[key] = (ceiling, found)
        if found is None or found.over or found.cost >= ceiling - _GAIN:
            return None
        return [node.copied() for node in found.nodes]


_BEGINNINGS_PAPER = 12
"""Number of different first nodes to try when everything is packed."""
_ALMOST = 1e-6
_CLOSE = 1.001
"""A draft whose cost is within this factor of its estimated minimum is good enough."""


@dataclass(frozen=True, slots=True)
class DraftPacking:
    """The nodes of a draft, the number of unplaced units, and the values it was built with."""

    found: Sorted
    filler: Filler
    worth: Worth
    nodes: list[PaperNode]
    over: int

    @property
    def cost(self) -> float:
        """The cost in USD an hour."""
        return sum(node.cost for node in self.nodes)

    @property
    def loss(self) -> tuple[int, float]:
        """Lower is better: unplaced units, then cost in USD an hour."""
        return self.over, self.cost

    def improved(self, work_max: int) -> DraftPacking:
        """Return a draft of the same units that costs no more."""
        if self.cost <= self.worth.least_cost * _CLOSE:
            return self
        self.filler.value(self.worth.values)
        self.filler.restart()
        nodes = Improving(Greedy(self.filler, work_max), self.nodes).run()
        return replace(self, nodes=nodes)


def drafted(found: Sorted, filler: Filler, worth: Worth, work_max: int) -> DraftPacking:
    """Return the cheapest of a few drafts; the whole columns of ``worth`` are bought first."""
    filler.value(worth.values)
    filler.restart()
    nodes = _bought(filler, worth.columns)
    left = {lot: count for lot, count in filler.left.items() if count}
    if left:
        rest = best_of_beginnings(Greedy(filler, work_max), left, _BEGINNINGS_PAPER)
        assert rest is not None
        nodes += rest.nodes
        left = dict(rest.over)
    return DraftPacking(found, filler, worth, nodes, sum(left.values()))


def _bought(filler: Filler, columns: Iterable[tuple[PaperNode, float]]) -> list[PaperNode]:
    """Buy as many of each node as limits and units allow, dropping fractions of nodes."""
    nodes: list[PaperNode] = []
    for node, times in columns:
        whole = min(int(times + _ALMOST), filler.repeatable(node))
        if whole > 0:
            filler.book(node, whole)
            nodes += (node.copied() for _ in range(whole))
    return nodes
