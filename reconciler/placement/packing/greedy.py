"""Greedy packing by value density: repeatedly buy the node with the most value for its cost.

The value of a unit is its share of the cheapest node that it could fill alone, or its dual price in
the relaxation. The density of a node only changes as lots run out, so it is recomputed only when
the node comes to the front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import PackingMarket, PoolOffers, Row
from reconciler.placement.packing.simplex import Program

# The value of a unit of each lot, in USD an hour: it guides the greedy packing.


_LOTS_MAX = 48
"""With more lots the program would cost more than it saves."""
_ROUNDS = 12
_NODES_A_ROUND = 8
_LEAST_SHARE = 0.02
_LITTLE = 1e-6


Values = Mapping[Lot, tuple[float, float]]
"""The estimated value of a unit of each lot, and its estimated minimum cost."""


@dataclass(frozen=True, slots=True)
class Worth:
    """The values of units, and the estimated minimum cost of all nodes for them.

    ``columns`` are nodes that several lots share, with their quantities in the relaxation's
    solution.
    """

    values: Values
    least_cost: float = 0.0
    columns: Sequence[tuple[PaperNode, float]] = ()


def shares(lots: Iterable[Lot], market: PackingMarket) -> Worth:
    """Value each unit by its share of the cheapest node that it could fill alone."""
    for lot in lots:
        lot.share = min(
            market.least_cost(shelf.template, shelf.space, lot.requests)
            for shelves in lot.shelves
            for shelf in shelves
        )
    return Worth({lot: (lot.share, 0.0) for lot in lots})


def duals(filler: Filler, work_max: int) -> Worth | None:
    """Value each unit by its dual price over complete nodes; None if there are too many lots.

    After ``work_max`` checks the current prices are used and the minimum cost is unknown.

    The program has a row for each node whose value exceeded its cost when it was filled by the
    previous prices (Gilmore and Gomory's columns, found by the filler instead of exactly). A unit
    that fits into spare room beside others has no value there. It keeps a small part of its share,
    so that it is still packed by size.
    """
    lots = list(filler.left)
    if len(lots) > _LOTS_MAX:
        return None
    filler.restart()
    until = filler.effort.done + work_max
    program = Program([float(lot.units) for lot in lots])
    for number, cost in enumerate(_alone(filler, lots)):
        program.add([1.0 if i == number else 0.0 for i in range(len(lots))], cost)
    columns: dict[object, PaperNode] = {}
    optimum = program.solved()
    least_cost = None
    for _ in range(_ROUNDS):
        if filler.effort.done > until:
            least_cost = 0.0
            break
        filler.value(_valued(lots, optimum.variables))
        found = {node.content: node for node in _worthwhile(filler)}
        nodes = [node for content, node in found.items() if content not in columns]
        if not nodes:
            break
        nodes.sort(key=lambda node: node.cost / node.floor)
        for node in nodes[:_NODES_A_ROUND]:
            columns[node.content] = node
            program.add([float(node.taken.get(lot, 0)) for lot in lots], node.cost)
        optimum = program.solved()
    used = zip(columns.values(), optimum.prices[len(lots) :], strict=True)
    return Worth(
        _valued(lots, optimum.variables),
        optimum.value if least_cost is None else least_cost,
        [(node, times) for node, times in used if times > _LITTLE],
    )


def _valued(lots: Sequence[Lot], prices: Sequence[float]) -> Values:
    return {
        lot: (max(price, _LEAST_SHARE * lot.share), price)
        for lot, price in zip(lots, prices, strict=True)
    }


def _alone(filler: Filler, lots: Iterable[Lot]) -> Iterator[float]:
    """Yield the minimum cost of a unit of each lot on a node that takes no other lot."""
    for lot in lots:
        costs = [
            node.cost / count
            for shelves in lot.shelves[:1]
            for shelf in shelves
            for row in shelf.rows
            for node in (filler.filled(shelf, row, [lot]),)
            if (count := node.taken.get(lot, 0))
        ]
        yield min(costs, default=lot.share)


def _worthwhile(filler: Filler) -> Iterator[PaperNode]:
    """Yield nodes whose value would exceed their cost."""
    for shelf in shelves_of(filler.order, 0):
        for row in shelf.rows:
            node = filler.filled(shelf, row)
            if node.floor > node.cost * (1 + _LITTLE):
                yield node
            if filler.holds_all(node):
                break


_SLACK = 1e-9
_WHOLE = 12
_LOTS_TO_FILL_EXACTLY = 40
_NEVER = float("inf")


def shelves_of(lots: Iterable[Lot], tier: int) -> list[PoolOffers]:
    """Return every shelf from which some lot may open its own node, without duplicates.

    ``tier`` counts by the weight of NodePools from 0.
    """
    found: dict[PoolOffers, None] = {}
    for lot in lots:
        if tier < len(lot.shelves):
            found.update(dict.fromkeys(lot.shelves[tier]))
    return list(found)


Opening = tuple[float, int, int, PoolOffers, Row]
"""A node that may be bought, with its density and its position among shelves and rows."""


@dataclass(slots=True)
class _Bill:
    """The nodes bought in one packing, and whether they are likely to cost too much."""

    ceiling: float
    nodes: list[PaperNode] = field(default_factory=list)
    cost: float = 0.0
    is_too_high: bool = False

    def add(self, bought: Sequence[PaperNode]) -> None:
        self.nodes += bought
        self.cost += sum(node.cost for node in bought)


class Greedy:
    """The greedy packing over a filler's remaining lots; its work is limited.

    ``work_max`` is the number of checks of a lot against a node after which no further run begins.
    A run that has begun may exceed it, so that the first one always finishes.
    """

    def __init__(self, filler: Filler, work_max: int) -> None:
        self.filler = filler
        self._effort = filler.effort
        self._enough = filler.effort.done + work_max
        self._roughly = len(filler.order) > _LOTS_TO_FILL_EXACTLY
        self._too_much = filler.effort.done + filler.effort.most * _WHOLE

    @property
    def exhausted(self) -> bool:
        """Whether no further run may begin."""
        return self._effort.done >= self._enough

    def packed(
        self, openings: Sequence[Opening], first: int = 0, ceiling: float = _NEVER
    ) -> list[PaperNode] | None:
        """Return nodes for what is left, from the available NodePools of greatest weight.

        The first node bought is opening number ``first``. Lots may be left over if there is no node
        for them or no work left. The result is None as soon as the nodes are likely to cost
        ``ceiling`` or more, given the ``floor`` of the remaining lots. Units booked until then stay
        booked.
        """
        bill = _Bill(ceiling)
        self._run(openings, first, bill)
        tier = 1
        while not bill.is_too_high and any(tier < len(lot.shelves) for lot in self.filler.order):
            self._run(self.openings(tier), 0, bill)
            tier += 1
        return None if bill.is_too_high else bill.nodes

    def openings(self, tier: int = 0) -> list[Opening]:
        """Return every node that would take something now, highest density first."""
        found: list[Opening] = []
        for s, shelf in enumerate(shelves_of(self.filler.order, tier)):
            for r, row in enumerate(shelf.rows):
                if not self.filler.affords(shelf.template, row):
                    continue
                node = self.filler.filled(shelf, row, roughly=self._roughly)
                density = _density(node)
                if density != _NEVER:
                    found.append((density, s, r, shelf, row))
                if self.filler.holds_all(node):
                    break  # all later ones cost more for the same value
        found.sort(key=lambda o: o[:3])
        return found

    def _run(self, openings: Sequence[Opening], first: int, bill: _Bill) -> None:
        heap = [o for i, o in enumerate(openings) if i != first]
        heapify(heap)
        following: Opening | None = openings[first] if openings else None
        forced = first > 0
        while following is not None and self._effort.done < self._too_much:
            _, s, r, shelf, row = following
            node = self.filler.filled(shelf, row, roughly=self._roughly)
            density = _density(node)
            if density != _NEVER and self.filler.affords(shelf.template, row):
                if forced or not heap or density <= heap[0][0] + _SLACK:
                    node = self.filler.best_filled(shelf, row)
                    bill.add(self._bought(node, once=forced))
                    forced = False
                    bill.is_too_high = bill.cost + self.filler.least_cost() >= bill.ceiling
                    if bill.is_too_high:
                        return
                heappush(heap, (density, s, r, shelf, row))
            following = heappop(heap) if heap else None

    def _bought(self, node: PaperNode, *, once: bool) -> list[PaperNode]:
        """Buy a node as many times as the lots fill it in the same way."""
        times = 1 if once else self.filler.repeatable(node)
        self.filler.book(node, times)
        self.filler.tidy()
        return [node, *(node.copied() for _ in range(times - 1))]


def _density(node: PaperNode) -> float:
    """Return the cost of a node for each dollar of value that it takes."""
    value = node.value
    return node.cost / value if value > 0 and node.is_asked_for else _NEVER
