"""Makes a packing on paper cheaper: takes a few nodes away and packs their pods anew.

Nodes that waste most go first, one, two or three at a time. Their pods go into what room the
others have left, or on new nodes, begun with each of several that are dense; if that costs less,
it stays. The work is counted and limited, never timed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from reconciler.placement.packing.filling import PaperNode
from reconciler.placement.packing.greedy import Greedy
from reconciler.placement.packing.lots import Lot

_WORST = 10
_BEGINNINGS = 6
_GAIN = 1e-9


def best_of_beginnings(
    greedy: Greedy, left: dict[Lot, int], beginnings: int = _BEGINNINGS
) -> tuple[float, list[PaperNode], dict[Lot, int]]:
    """Return the cheapest packing of what is left, with its cost and what it leaves over."""
    filler = greedy.filler
    filler.reset(left)
    openings = greedy.openings()
    best: tuple[tuple[int, float], list[PaperNode], dict[Lot, int]] | None = None
    for first in range(max(1, min(beginnings, len(openings)))):
        filler.reset(left)
        nodes = greedy.packed(openings, first)
        over = {lot: count for lot, count in filler.left.items() if count}
        for node in nodes:
            filler.charge(node, -1)
        reached = (sum(over.values()), sum(node.cost for node in nodes))
        if best is None or reached < best[0]:
            best = (reached, nodes, over)
        if greedy.exhausted:
            break
    assert best is not None
    return best[0][1], best[1], best[2]


def improved(greedy: Greedy, nodes: list[PaperNode]) -> list[PaperNode]:
    """Return a packing of the same pods that costs no more."""
    for node in nodes:
        greedy.filler.charge(node, 1)
    again = True
    while again and not greedy.exhausted:
        again = False
        for chosen in _choices(nodes):
            better = _repacked(greedy, nodes, chosen)
            if better is not None:
                nodes, again = better, True
                break
            if greedy.exhausted:
                break
    return nodes


def _choices(nodes: Sequence[PaperNode]) -> Iterator[tuple[int, ...]]:
    """Yield which nodes to take away together, those with most waste first."""
    order = sorted(range(len(nodes)), key=lambda i: (nodes[i].value - nodes[i].cost, i))[:_WORST]
    for size in (1, 2, 3):
        yield from combinations(order, size)


def _repacked(
    greedy: Greedy, nodes: Sequence[PaperNode], chosen: Sequence[int]
) -> list[PaperNode] | None:
    """Return the packing without the chosen nodes, their pods elsewhere, if it is cheaper."""
    gone = [nodes[i] for i in chosen]
    for node in gone:
        greedy.filler.charge(node, -1)
    rest = [node for i, node in enumerate(nodes) if i not in chosen]
    left: dict[Lot, int] = {}
    for node in gone:
        for lot, count in node.taken.items():
            left[lot] = left.get(lot, 0) + count
    filler = greedy.filler
    kept: list[PaperNode] = []
    for node in rest:
        copy = node.copied()
        for lot in sorted(left, key=lambda lot: (-lot.value, lot.number)):
            filler.work += 1
            if left[lot]:
                left[lot] -= copy.take(lot, filler.needs[lot], left[lot], filler.market)
        kept.append(copy)
    left = {lot: count for lot, count in left.items() if count}
    made: list[PaperNode] = []
    if left:
        cost, made, over = best_of_beginnings(greedy, left)
        if over or cost >= sum(node.cost for node in gone) - _GAIN:
            made = gone
    for node in made:
        filler.charge(node, 1)
    return None if made is gone else [*kept, *made]
