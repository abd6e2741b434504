"""Packings of equal units that were found before, in this pass or in earlier ones.

When a pod comes or goes, most sets of nodes are evaluated with pods that were packed together
before, and an improvement repacks the same few of them again and again. A packing is known by the
content of its lots, never by the pods in them. It is used only if the work that it took is left:
then it is what packing them again would find.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from typing import Final, NamedTuple

from reconciler.catalog.table import TypeTable
from reconciler.placement.packing.filling import DraftNode, Filler
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import AnswerCache, PackingMarket, PoolOffers, type_tables

_PACKINGS_MAX: Final = 4096
"""The maximum number of packings, and of different lots, that are known for one catalog."""
_CATALOGS_MAX: Final = 4

_Taken = tuple[tuple[int, int], ...]
"""The number of units of lots, by their positions."""


class _KnownNode(NamedTuple):
    """A node: the positions of its shelf and of its row there, and its units in order."""

    shelf: int
    row: int
    taken: _Taken


class _KnownPacking(NamedTuple):
    """The nodes of a packing, None if none was found, the units that are left, and its work."""

    nodes: tuple[_KnownNode, ...] | None
    unplaced: _Taken
    work: int


class KnownAnswer(NamedTuple):
    """The nodes of a known packing, None if there is none, and the units that are left over."""

    nodes: list[DraftNode] | None
    unplaced: Mapping[Lot, int]


class _PackingCache:
    """The packings of one catalog; each kind of lot has a number that no other one gets."""

    def __init__(self) -> None:
        self.packings: AnswerCache[_KnownPacking] = AnswerCache(_PACKINGS_MAX)
        self._numbers: AnswerCache[int] = AnswerCache(_PACKINGS_MAX)
        self._next = count()

    def number_of(self, content: Hashable) -> int:
        """Return the number of lots with this content; it is not reused for others."""
        return self._numbers.get_or_compute(content, lambda: next(self._next))


@lru_cache(maxsize=_CATALOGS_MAX)
def packing_cache(tables: tuple[TypeTable, ...]) -> _PackingCache:
    """Return the cache of what depends on these tables."""
    del tables
    return _PackingCache()


class KnownPackings:
    """The known packings of the lots of one filler.

    Lots with rules about other pods, and those of NodePools with limits, have none: what is left
    of these changes with each node.
    """

    def __init__(self, filler: Filler) -> None:
        self._filler = filler
        self._cache = packing_cache(type_tables(filler.market.templates))
        self._numbers: dict[Lot, int | None] = {}

    def question(self, *settings: Hashable) -> PackingQuestion | None:
        """Return the question how the remaining lots are packed; None if none is known for it.

        ``settings`` is everything that it depends on besides the filler.
        """
        filler = self._filler
        rows: list[tuple[int, int, float, float]] = []
        for lot in filler.order:
            if lot not in self._numbers:
                self._numbers[lot] = self._number_of(lot)
            number = self._numbers[lot]
            if number is None:
                return None
            rows.append((number, filler.left[lot], lot.value, lot.floor))
        content = settings, filler.least, tuple(rows)
        return PackingQuestion(self._cache.packings, content, filler)

    def _number_of(self, lot: Lot) -> int | None:
        market = self._filler.market
        shelves = [shelf for tier in lot.shelves for shelf in tier]
        if lot.is_ruled or any(market.limits(shelf.template) for shelf in shelves):
            return None
        return self._cache.number_of(_content(lot, market))


class PackingQuestion:
    """What is left of the lots of a filler, whose packing may be known.

    ``content`` is everything that the packing depends on.
    """

    def __init__(
        self, known: AnswerCache[_KnownPacking], content: Hashable, filler: Filler
    ) -> None:
        self._known = known
        self.content = content
        self._filler = filler
        self._lots = filler.order

    def answer(self, work_max: int) -> KnownAnswer | None:
        """Return the known packing, which counts as the work that it took.

        None if none is known, or if it took ``work_max`` or more.
        """
        known = self._known.find(self.content)
        if known is None or known.work >= work_max:
            return None
        self._filler.effort.spend(known.work)
        unplaced = {self._lots[position]: units for position, units in known.unplaced}
        if known.nodes is None:
            return KnownAnswer(None, unplaced)
        shelves = _distinct_shelves(self._lots)
        return KnownAnswer([self._node(node, shelves) for node in known.nodes], unplaced)

    def keep(
        self, nodes: Iterable[DraftNode] | None, unplaced: Mapping[Lot, int], work: int
    ) -> None:
        """Remember the answer."""
        position = {lot: number for number, lot in enumerate(self._lots)}
        found: tuple[_KnownNode, ...] | None = None
        if nodes is not None:
            places = {
                (id(shelf.template), id(row)): (s, r)
                for s, shelf in enumerate(_distinct_shelves(self._lots))
                for r, row in enumerate(shelf.rows)
            }
            found = tuple(
                _KnownNode(
                    *places[id(node.template), id(node.row)],
                    tuple((position[lot], units) for lot, units in node.taken.items()),
                )
                for node in nodes
            )
        left = tuple((position[lot], units) for lot, units in unplaced.items())
        self._known.store(self.content, _KnownPacking(found, left, work))

    def _node(self, known: _KnownNode, shelves: Sequence[PoolOffers]) -> DraftNode:
        """Return a node that is filled again, without searching for what fits."""
        filler, shelf = self._filler, shelves[known.shelf]
        node = DraftNode(filler.sites.site_for(shelf.template, shelf.space), shelf.rows[known.row])
        for position, units in known.taken:
            lot = self._lots[position]
            node.join(lot, filler.needs[lot], units, filler.sites)
        return node


def _distinct_shelves(lots: Iterable[Lot]) -> list[PoolOffers]:
    every = (shelf for lot in lots for tier in lot.shelves for shelf in tier)
    return list(dict.fromkeys(every))


def _content(lot: Lot, market: PackingMarket) -> Hashable:
    """Return everything that a packing reads of a lot, besides its number of units and its value.

    NodePools are named by their position, which is that of their table.
    """
    positions = {template.name: number for number, template in enumerate(market.templates)}
    return (
        tuple(sorted(lot.requests.items())),
        tuple(demand.requirements for demand in lot.demands),
        tuple(lot.suits(template) for template in market.templates),
        tuple(
            tuple((positions[shelf.template.name], shelf.content) for shelf in tier)
            for tier in lot.shelves
        ),
    )
