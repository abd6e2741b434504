"""A packing on paper: drafted by what units are worth, then made cheaper."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.greedy import Greedy
from reconciler.placement.packing.improving import Improving, best_of_beginnings
from reconciler.placement.packing.lots import Sorted
from reconciler.placement.packing.worth import Worth

_BEGINNINGS = 12
"""With how many different first nodes a packing of everything is begun."""
_ALMOST = 1e-6
_CLOSE = 1.001
"""A packing that costs so much of what it probably costs at least is good enough."""


@dataclass(frozen=True, slots=True)
class Paper:
    """The nodes of a packing, how many units have none, and what they were worth to it."""

    found: Sorted
    filler: Filler
    worth: Worth
    nodes: list[PaperNode]
    over: int

    @property
    def cost(self) -> float:
        """Dollars an hour."""
        return sum(node.cost for node in self.nodes)

    @property
    def loss(self) -> tuple[int, float]:
        """Less is better: units without a node, then dollars an hour."""
        return self.over, self.cost

    def improved(self, work_max: int) -> Paper:
        """Return a packing of the same units that costs no more."""
        if self.cost <= self.worth.least_cost * _CLOSE:
            return self
        self.filler.value(self.worth.values)
        self.filler.restart()
        nodes = Improving(Greedy(self.filler, work_max), self.nodes).run()
        return replace(self, nodes=nodes)


def drafted(found: Sorted, filler: Filler, worth: Worth, work_max: int) -> Paper:
    """Return the cheapest of a few packings; columns of ``worth`` are bought first, as wholes."""
    filler.value(worth.values)
    filler.restart()
    nodes = _bought(filler, worth.columns)
    left = {lot: count for lot, count in filler.left.items() if count}
    if left:
        rest = best_of_beginnings(Greedy(filler, work_max), left, _BEGINNINGS)
        assert rest is not None
        nodes += rest.nodes
        left = dict(rest.over)
    return Paper(found, filler, worth, nodes, sum(left.values()))


def _bought(filler: Filler, columns: Iterable[tuple[PaperNode, float]]) -> list[PaperNode]:
    """Buy as many of each node as limits and units allow, parts of a node left out."""
    nodes: list[PaperNode] = []
    for node, times in columns:
        whole = min(int(times + _ALMOST), filler.repeatable(node))
        if whole > 0:
            filler.book(node, whole)
            nodes += (node.copied() for _ in range(whole))
    return nodes
