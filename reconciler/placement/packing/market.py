"""The nodes that can be bought: for each NodePool and demand, types with their price and room.

A type is dropped if another one has a lower price and at least as much room for every resource. If
the NodePool requires flexibility (``minValues``), a type is kept only if enough others hold as
much.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Generic, TypeVar

from reconciler.catalog.table import TypeTable, indices
from reconciler.model.resources import NODES, Resources
from reconciler.model.resources import pod_amount as one
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate, RemainingLimits, min_values_shortfalls
from reconciler.placement.packing.goal import Goal
from reconciler.placement.pods.cohort import Cohort
from reconciler.placement.solve import PlacementPass

_ANSWERS_MAX: Final = 512
"""The maximum number of answers of one kind that are kept for one catalog."""
_CATALOGS_MAX: Final = 16

T = TypeVar("T")


class AnswerCache(Generic[T]):
    """A cache of answers by question; it is cleared when it is full."""

    def __init__(self, size_max: int = _ANSWERS_MAX) -> None:
        self._known: dict[Hashable, T] = {}
        self._most = size_max

    def __len__(self) -> int:
        return len(self._known)

    def get_or_compute(self, question: Hashable, compute: Callable[[], T]) -> T:
        """Return the known answer, or compute it."""
        try:
            return self._known[question]
        except KeyError:
            found = compute()
            self.store(question, found)
            return found

    def find(self, question: Hashable) -> T | None:
        """Return the known answer, or None."""
        return self._known.get(question)

    def store(self, question: Hashable, answer: T) -> None:
        """Remember an answer."""
        if len(self._known) >= self._most:
            self._known.clear()
        self._known[question] = answer


@lru_cache(maxsize=_CATALOGS_MAX)
def answer_cache(subject: str, tables: tuple[TypeTable, ...]) -> AnswerCache[object]:
    """Return the cache of answers about a subject that depend on these tables."""
    del subject, tables
    return AnswerCache()


def type_tables(templates: Iterable[PoolTemplate]) -> tuple[TypeTable, ...]:
    """Return the tables of NodePools, in their order."""
    return tuple(template.table for template in templates)


def daemons_key(template: PoolTemplate) -> Hashable:
    """Return the daemons of a NodePool's nodes as part of a cache key; ports are left out."""
    return tuple((g.mask, tuple(sorted(g.requests.items()))) for g in template.daemon_groups)


_UNLIMITED = float("inf")

Charge = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One type that a node may become: its cost in USD an hour, and its room besides daemons.

    ``room`` follows the market's list of resources; ``charge`` is what it uses of its NodePool's
    limits, in their order.
    """

    index: int
    cost: float
    room: tuple[int, ...]
    charge: Charge = ()


class PricedRows:
    """Rows, cheapest first, and the lowest share of their cost that some amounts use."""

    __slots__ = ("rows", "shares")

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.shares: AnswerCache[float] = AnswerCache()


class PoolOffers:
    """The rows of a NodePool within a space, cheapest first.

    ``content`` is equal for equal rows within equal spaces of one table of types.
    """

    __slots__ = ("_shares", "content", "rows", "space", "template")

    def __init__(
        self, template: PoolTemplate, space: Space, rows: PricedRows, content: Hashable
    ) -> None:
        self.template = template
        self.space = space
        self.rows = rows.rows
        self.content = content
        self._shares = rows.shares

    def least_cost(self, wanted: tuple[int, ...]) -> float:
        """Return the lowest share of a node's cost that these amounts use, if it is divisible."""

        def find() -> float:
            needs = [(i, amount) for i, amount in enumerate(wanted) if amount > 0]
            return min((_share(row, needs) for row in self.rows), default=_UNLIMITED)

        return self._shares.get_or_compute(wanted, find)


class PackingMarket:
    """Everything that can be bought, computed on first use.

    ``resources`` are the names that any pod requests, in a fixed order; ``templates`` are the
    NodePools.
    """

    def __init__(
        self,
        resources: Sequence[str],
        limits: RemainingLimits,
        goal: Goal,
        templates: Sequence[PoolTemplate],
    ) -> None:
        self.resources = tuple(resources)
        self.templates = templates
        self._limits = limits
        self._goal = goal
        self._rooms: dict[str, dict[int, tuple[int, ...]]] = {}
        self._shelves: dict[tuple[str, Space], PoolOffers] = {}

    @classmethod
    def from_cohorts(
        cls, cohorts: Iterable[Cohort], placement_pass: PlacementPass, goal: Goal
    ) -> PackingMarket:
        """Return the market for the pods of a pass that has not launched anything yet."""
        names = {name for c in cohorts for name in c.shape.requests}
        groups = [group for t in placement_pass.templates for group in t.daemon_groups]
        names.update(name for group in groups for name in group.requests)
        return cls(sorted(names), placement_pass.limits, goal, placement_pass.templates)

    def amounts(self, requests: Resources) -> tuple[int, ...]:
        """Return requests in the market's order."""
        return tuple(requests.get(name, 0) for name in self.resources)

    def rooms(self, template: PoolTemplate) -> dict[int, tuple[int, ...]]:
        """Return the room of each type of a NodePool beside its daemons, by the type's index."""
        known = self._rooms.get(template.name)
        if known is None:
            known = self._rooms[template.name] = dict(_rooms(template, self.resources))
        return known

    def extra_cost(self, template: PoolTemplate) -> float:
        """Return what a node of a NodePool costs on top of its price, in USD an hour."""
        return self._goal.cost_of_node(template)

    def shelf(self, template: PoolTemplate, space: Space) -> PoolOffers:
        """Return what can be bought from a NodePool within a space."""
        known = self._shelves.get((template.name, space))
        if known is None:
            content = self._shelf_content(template, space)
            rows: AnswerCache[PricedRows] = answer_cache("rows", (template.table,))  # type: ignore[assignment]
            found = rows.get_or_compute(content, lambda: self._find_rows(template, space))
            known = PoolOffers(template, space, found, content)
            self._shelves[template.name, space] = known
        return known

    def least_cost(self, template: PoolTemplate, space: Space, requests: Resources) -> float:
        """Return the lowest share of a node's cost that a pod uses, if nodes are divisible."""
        return self.shelf(template, space).least_cost(self.amounts(requests))

    def limits(self, template: PoolTemplate) -> Charge:
        """Return what is left of the NodePool's limits, in their order; empty without limits."""
        return tuple((self._limits.remaining(template) or {}).values())

    def _charge(self, template: PoolTemplate, index: int) -> Charge:
        left = self._limits.remaining(template)
        if left is None:
            return ()
        mask = 1 << index
        return tuple(
            one(1) if name == NODES else template.table.most_capacity(name, mask) for name in left
        )

    def _shelf_content(self, template: PoolTemplate, space: Space) -> Hashable:
        """Return everything that the rows of a NodePool depend on besides its table."""
        return (
            space.requirements,
            self._allowed_types(template, space),
            daemons_key(template),
            self.resources,
            self._goal.cost_of_node(template),
            tuple(self._limits.remaining(template) or ()),
        )

    def _allowed_types(self, template: PoolTemplate, space: Space) -> int:
        return space.mask & self._limits.allowed_types(template)

    def _find_rows(self, template: PoolTemplate, space: Space) -> PricedRows:
        mask = self._allowed_types(template, space)
        rooms, prices = self.rooms(template), template.table.prices(space.offers)
        extra = self.extra_cost(template)
        found = [
            Row(index, prices[index] + extra, rooms[index], self._charge(template, index))
            for index in indices(mask)
            if index in rooms and index in prices
        ]
        found.sort(key=lambda r: (r.cost, [-amount for amount in r.room], r.index))
        retained: list[Row] = []
        cheaper = 0
        for row in found:
            covering = template.fitting_types(
                mask, dict(zip(self.resources, row.room, strict=True)), ()
            )
            if not covering & cheaper and not (
                space.has_min_values and min_values_shortfalls(template.table, covering, space)
            ):
                retained.append(row)
                cheaper |= 1 << row.index
        return PricedRows(retained)


def _share(row: Row, needs: Iterable[tuple[int, int]]) -> float:
    """Return the cost of the largest share of a node that any requested resource uses."""
    share = 0.0
    for resource, amount in needs:
        room = row.room[resource]
        if amount > room:
            return _UNLIMITED
        if amount > share * room:
            share = amount / room
    return row.cost * share


def _rooms(template: PoolTemplate, resources: Sequence[str]) -> list[tuple[int, tuple[int, ...]]]:
    columns = [template.table.allocatable(name) for name in resources]
    found: list[tuple[int, tuple[int, ...]]] = []
    for group in template.daemon_groups:
        daemon_requests = [group.requests.get(name, 0) for name in resources]
        for index in indices(group.mask):
            room = tuple(c[index] - t for c, t in zip(columns, daemon_requests, strict=True))
            if min(room, default=0) >= 0:
                found.append((index, room))
    return found
