"""Draft a packing greedily by value density, then reduce its cost.

The node with the most value for its cost is bought again and again. The value of a unit is its
share of the cheapest node that it could fill alone, or its dual price in the relaxation. The
density of a node only changes as lots run out, so it is recomputed only when the node comes to the
front.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from itertools import combinations
from typing import NamedTuple

from reconciler.placement.packing.filling import DraftNode, Filler
from reconciler.placement.packing.known import KnownPackings
from reconciler.placement.packing.lots import Lot, SortedLots
from reconciler.placement.packing.market import PackingMarket, PoolOffers, Row
from reconciler.placement.packing.simplex import Program

_LOTS_MAX = 48
"""With more lots the program would cost more than it saves."""
_ROUNDS = 12
_NODES_PER_ROUND = 8
_LEAST_SHARE = 0.02
_SMALL_AMOUNT = 1e-6


Values = Mapping[Lot, tuple[float, float]]
"""The estimated value of a unit of each lot, and its estimated minimum cost."""


@dataclass(frozen=True, slots=True)
class UnitValues:
    """The values of units, and the estimated minimum cost of all nodes for them.

    ``columns`` are nodes that several lots share, with their quantities in the relaxation's
    solution.
    """

    values: Values
    least_cost: float = 0.0
    columns: Sequence[tuple[DraftNode, float]] = ()


def value_by_share(lots: Iterable[Lot], market: PackingMarket) -> UnitValues:
    """Value each unit by its share of the cheapest node that it could fill alone."""
    for lot in lots:
        lot.share = min(
            market.least_cost(shelf.template, shelf.space, lot.requests)
            for shelves in lot.shelves
            for shelf in shelves
        )
    return UnitValues({lot: (lot.share, 0.0) for lot in lots})


def value_by_dual(filler: Filler, work_max: int) -> UnitValues | None:
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
    program = Program(
        [float(lot.units) for lot in lots],
        [
            ([1.0 if i == number else 0.0 for i in range(len(lots))], cost)
            for number, cost in enumerate(_single_lot_costs(filler, lots))
        ],
    )
    columns: dict[object, DraftNode] = {}
    optimum = program.solve()
    least_cost = None
    for _ in range(_ROUNDS):
        if filler.effort.done > until:
            least_cost = 0.0
            break
        filler.set_values(_values_by_lot(lots, optimum.variables))
        found = {node.content: node for node in _profitable_nodes(filler)}
        nodes = [node for content, node in found.items() if content not in columns]
        if not nodes:
            break
        nodes.sort(key=lambda node: node.cost / node.floor)
        for node in nodes[:_NODES_PER_ROUND]:
            columns[node.content] = node
            program.add([float(node.taken.get(lot, 0)) for lot in lots], node.cost)
        optimum = program.solve()
    used = zip(columns.values(), optimum.prices[len(lots) :], strict=True)
    return UnitValues(
        _values_by_lot(lots, optimum.variables),
        optimum.value if least_cost is None else least_cost,
        [(node, times) for node, times in used if times > _SMALL_AMOUNT],
    )


def _values_by_lot(lots: Sequence[Lot], prices: Sequence[float]) -> Values:
    return {
        lot: (max(price, _LEAST_SHARE * lot.share), price)
        for lot, price in zip(lots, prices, strict=True)
    }


def _single_lot_costs(filler: Filler, lots: Iterable[Lot]) -> Iterator[float]:
    """Yield the minimum cost of a unit of each lot on a node that takes no other lot."""
    for lot in lots:
        costs = [
            node.cost / count
            for shelves in lot.shelves[:1]
            for shelf in shelves
            for row in shelf.rows
            for node in (filler.fill_in_order(shelf, row, [lot]),)
            if (count := node.taken.get(lot, 0))
        ]
        yield min(costs, default=lot.share)


def _profitable_nodes(filler: Filler) -> Iterator[DraftNode]:
    """Yield nodes whose value would exceed their cost."""
    for shelf in shelves_of(filler.order, 0):
        for row in shelf.rows:
            node = filler.fill(shelf, row)
            if node.floor > node.cost * (1 + _SMALL_AMOUNT):
                yield node
            if filler.holds_all(node):
                break


_SLACK = 1e-9
_WORK_FACTOR_MAX = 12
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
    nodes: list[DraftNode] = field(default_factory=list)
    cost: float = 0.0
    is_too_high: bool = False

    def add(self, bought: Sequence[DraftNode]) -> None:
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
        self.roughly = len(filler.order) > _LOTS_TO_FILL_EXACTLY
        self._too_much = filler.effort.done + filler.effort.most * _WORK_FACTOR_MAX
        self.known = KnownPackings(filler)

    @property
    def left(self) -> int:
        """The work after which no further run may begin."""
        return self._enough - self._effort.done

    @property
    def is_exhausted(self) -> bool:
        """Whether no further run may begin."""
        return self.left <= 0

    def pack(
        self, openings: Sequence[Opening], first: int = 0, ceiling: float = _NEVER
    ) -> list[DraftNode] | None:
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
                node = self.filler.fill(shelf, row, roughly=self.roughly)
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
            node = self.filler.fill(shelf, row, roughly=self.roughly)
            density = _density(node)
            if density != _NEVER and self.filler.affords(shelf.template, row):
                if forced or not heap or density <= heap[0][0] + _SLACK:
                    node = self.filler.fill_best(shelf, row)
                    bill.add(self._buy(node, once=forced))
                    forced = False
                    bill.is_too_high = bill.cost + self.filler.least_cost() >= bill.ceiling
                    if bill.is_too_high:
                        return
                heappush(heap, (density, s, r, shelf, row))
            following = heappop(heap) if heap else None

    def _buy(self, node: DraftNode, *, once: bool) -> list[DraftNode]:
        """Buy a node as many times as the lots fill it in the same way."""
        times = 1 if once else self.filler.repeat_count(node)
        self.filler.book(node, times)
        self.filler.drop_empty_lots()
        return [node, *(node.copy() for _ in range(times - 1))]


def _density(node: DraftNode) -> float:
    """Return the cost of a node for each dollar of value that it takes."""
    value = node.value
    return node.cost / value if value > 0 and node.is_requested else _NEVER


# Improving a draft: remove a few nodes and repack their pods.
#
# The nodes with the most waste are removed first, one, two or three at a time. Their pods move into
# the room of the other nodes, or onto new nodes, starting with each of several dense ones. The
# change is kept if it costs less. An attempt is abandoned early if the estimated minimum cost of
# its units shows that it cannot cost less, and no set is tried twice. The work is counted and
# limited, never timed.


_WORST_NODES_MAX = 10
_FIRST_NODES_MAX = 6
_GAIN = 1e-9
_UNLIMITED = float("inf")


class PackedNodes(NamedTuple):
    """Nodes for some units, their cost, and the units that did not fit."""

    cost: float
    nodes: list[DraftNode]
    unplaced: Mapping[Lot, int]


def best_packing(
    greedy: Greedy,
    left: Mapping[Lot, int],
    beginnings: int = _FIRST_NODES_MAX,
    ceiling: float = _UNLIMITED,
) -> PackedNodes | None:
    """Return the cheapest packing of what is left; None if none costs less than ``ceiling``."""
    filler = greedy.filler
    filler.reset(left)
    question = greedy.known.question(greedy.roughly, beginnings, ceiling)
    if question is None:
        return _find_best_packing(greedy, left, beginnings, ceiling)
    answer = question.answer(greedy.left)
    if answer is not None:
        return None if answer.nodes is None else _packed(answer.nodes, answer.unplaced)
    before = filler.effort.done
    found = _find_best_packing(greedy, left, beginnings, ceiling)
    if not greedy.is_exhausted:
        nodes, unplaced = (None, {}) if found is None else (found.nodes, found.unplaced)
        question.keep(nodes, unplaced, filler.effort.done - before)
    return found


def _find_best_packing(
    greedy: Greedy, left: Mapping[Lot, int], beginnings: int, ceiling: float
) -> PackedNodes | None:
    """Try several nodes as the first one, and return the cheapest packing."""
    filler = greedy.filler
    openings = greedy.openings()
    best: PackedNodes | None = None
    for first in range(max(1, min(beginnings, len(openings)))):
        filler.reset(left)
        below = best.cost if best is not None and not best.unplaced else ceiling
        before = filler.limits()
        nodes = greedy.pack(openings, first, below - _GAIN)
        if nodes is not None:
            over = {lot: count for lot, count in filler.left.items() if count}
            found = _packed(nodes, over)
            if best is None or _packing_loss(found) < _packing_loss(best):
                best = found
        filler.restore_limits(before)
        if greedy.is_exhausted:
            break
    return best


def _packed(nodes: list[DraftNode], unplaced: Mapping[Lot, int]) -> PackedNodes:
    return PackedNodes(sum(node.cost for node in nodes), nodes, unplaced)


def _packing_loss(packed: PackedNodes) -> tuple[int, float]:
    return sum(packed.unplaced.values()), packed.cost


class DraftImprovement:
    """A draft whose cost is being reduced; its pods stay the same."""

    def __init__(self, greedy: Greedy, nodes: list[DraftNode]) -> None:
        self._greedy = greedy
        self._filler = greedy.filler
        self._nodes = nodes
        self._known: dict[object, tuple[float, PackedNodes | None]] = {}

    def run(self) -> list[DraftNode]:
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
        order = order[:_WORST_NODES_MAX]
        kinds = {i: nodes[i].content for i in order}
        seen: set[object] = set()
        for size in (1, 2, 3):
            for chosen in combinations(order, size):
                if self._greedy.is_exhausted:
                    return
                alike = frozenset(Counter(kinds[i] for i in chosen).items())
                if alike not in seen:
                    seen.add(alike)
                    yield list(chosen)

    def _repack(self, chosen: Sequence[int]) -> bool:
        """Repack the pods of the chosen nodes; return whether that reduced the cost."""
        removed = [self._nodes[i] for i in chosen]
        saved = sum(node.cost for node in removed)
        if saved - sum(node.floor for node in removed) <= _GAIN:
            return False
        rest = [node for i, node in enumerate(self._nodes) if i not in chosen]
        for node in removed:
            self._filler.charge(node, -1)
        retained, remaining = self._move_units(rest, removed)
        bought = self._buy_nodes(remaining, saved)
        for node in removed if bought is None else bought:
            self._filler.charge(node, 1)
        if bought is not None:
            self._nodes = [*retained, *bought]
        return bought is not None

    def _move_units(
        self, rest: Iterable[DraftNode], removed: Iterable[DraftNode]
    ) -> tuple[list[DraftNode], dict[Lot, int]]:
        """Return the rest with the units that they take in, and the units that need new nodes."""
        filler = self._filler
        left = Counter[Lot]()
        for node in removed:
            left.update(node.taken)
        order = sorted(left, key=lambda lot: (-lot.value, lot.number))
        retained: list[DraftNode] = []
        for node in rest:
            grown = node
            filler.effort.spend(sum(lot.checks for lot in order))
            for lot in order:
                if left[lot] and grown.has_room(filler.needs[lot]):
                    if grown is node:
                        grown = node.copy()
                    left[lot] -= grown.take(lot, filler.needs[lot], left[lot], filler.sites)
            retained.append(grown)
        return retained, {lot: count for lot, count in left.items() if count}

    def _buy_nodes(self, left: Mapping[Lot, int], ceiling: float) -> list[DraftNode] | None:
        """Return new nodes for what is left that cost less than ``ceiling``, or None."""
        if not left:
            return []
        if sum(lot.floor * count for lot, count in left.items()) >= ceiling - _GAIN:
            return None
        counts = sorted((lot.number, count) for lot, count in left.items())
        key = (tuple(counts), self._filler.limits())
        tried, found = self._known.get(key, (0.0, None))
        if found is None and tried < ceiling:
            found = best_packing(self._greedy, left, ceiling=ceiling)
            self._known[key] = (ceiling, found)
        if found is None or found.unplaced or found.cost >= ceiling - _GAIN:
            return None
        return [node.copy() for node in found.nodes]


_DRAFT_FIRST_NODES_MAX = 12
"""Number of different first nodes to try when everything is packed."""
_TOLERANCE = 1e-6
_GOOD_ENOUGH_FACTOR = 1.001
"""A draft whose cost is within this factor of its estimated minimum is good enough."""


@dataclass(frozen=True, slots=True)
class DraftPacking:
    """The nodes of a draft, the number of unplaced units, and the values it was built with."""

    found: SortedLots
    filler: Filler
    unit_values: UnitValues
    nodes: list[DraftNode]
    unplaced: int

    @property
    def cost(self) -> float:
        """The cost in USD an hour."""
        return sum(node.cost for node in self.nodes)

    @property
    def loss(self) -> tuple[int, float]:
        """Lower is better: unplaced units, then cost in USD an hour."""
        return self.unplaced, self.cost

    def improve(self, work_max: int) -> DraftPacking:
        """Return a draft of the same units that costs no more."""
        if self.cost <= self.unit_values.least_cost * _GOOD_ENOUGH_FACTOR:
            return self
        self.filler.set_values(self.unit_values.values)
        self.filler.restart()
        nodes = DraftImprovement(Greedy(self.filler, work_max), self.nodes).run()
        return replace(self, nodes=nodes)


def make_draft(
    found: SortedLots, filler: Filler, unit_values: UnitValues, work_max: int
) -> DraftPacking:
    """Return the cheapest of a few drafts; the columns of ``unit_values`` are bought first."""
    filler.set_values(unit_values.values)
    filler.restart()
    nodes = _buy_columns(filler, unit_values.columns)
    left = {lot: count for lot, count in filler.left.items() if count}
    if left:
        rest = best_packing(Greedy(filler, work_max), left, _DRAFT_FIRST_NODES_MAX)
        assert rest is not None
        nodes += rest.nodes
        left = dict(rest.unplaced)
    return DraftPacking(found, filler, unit_values, nodes, sum(left.values()))


def _buy_columns(filler: Filler, columns: Iterable[tuple[DraftNode, float]]) -> list[DraftNode]:
    """Buy as many of each node as limits and units allow, dropping fractions of nodes."""
    nodes: list[DraftNode] = []
    for node, times in columns:
        whole = min(int(times + _TOLERANCE), filler.repeat_count(node))
        if whole > 0:
            filler.book(node, whole)
            nodes += (node.copy() for _ in range(whole))
    return nodes
