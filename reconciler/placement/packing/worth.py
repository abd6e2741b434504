"""What a unit of each lot is worth in dollars: the guide of the greedy packing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from reconciler.placement.packing.filling import Filler, PaperNode
from reconciler.placement.packing.greedy import shelves_of
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import Market
from reconciler.placement.packing.simplex import Program

_LOTS_MAX = 48
"""With more lots the program would cost more than it brings."""
_ROUNDS = 12
_NODES_A_ROUND = 8
_LEAST_SHARE = 0.02
_LITTLE = 1e-6


Values = Mapping[Lot, tuple[float, float]]
"""What a unit of each lot is thought to be worth, and what it probably costs at least."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What units are worth, and what all nodes for them probably cost at least.

    ``columns`` are nodes that several lots share, with how many of each solve the relaxation.
    """

    values: Values
    least_cost: float = 0.0
    columns: Sequence[tuple[PaperNode, float]] = ()


def shares(lots: Iterable[Lot], market: Market) -> Worth:
    """Value each unit by its share of the cheapest node that it could fill alone."""
    for lot in lots:
        lot.share = min(
            market.least_cost(shelf.template, shelf.space, lot.requests)
            for shelves in lot.shelves
            for shelf in shelves
        )
    return Worth({lot: (lot.share, 0.0) for lot in lots})


def duals(filler: Filler, work_max: int) -> Worth | None:
    """Value each unit by its dual price over whole nodes; None if there are too many lots.

    After ``work_max`` the prices are taken as they are then, and nothing is known of the least
    cost.

    The program has a row for each node that was worth more than it costs when it was filled by the
    prices before (Gilmore and Gomory's columns, found by the filler instead of exactly). A unit
    of which there is plenty of room beside others is worth nothing there; it keeps a small part
    of its share, so that it is still packed by size.
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
    """Yield what a unit of each lot costs at least on a node that takes no other lot."""
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
    """Yield nodes that would hold more than they cost."""
    for shelf in shelves_of(filler.order, 0):
        for row in shelf.rows:
            node = filler.filled(shelf, row)
            if node.floor > node.cost * (1 + _LITTLE):
                yield node
            if filler.holds_all(node):
                break
