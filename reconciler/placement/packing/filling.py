"""Fill draft nodes: which lots a node of one type takes, and the value of those lots.

A draft node tracks room, demands, host rules and ports with the same functions as real claims.
Whether it is possible is decided when the draft is placed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import lt

from reconciler.placement.nodes.ports import UsedPorts
from reconciler.placement.nodes.space import Space
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.packing.goal import Effort
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import Charge, PackingMarket, PoolOffers, Row
from reconciler.placement.topology.groups import Group

Needs = Sequence[tuple[int, int]]
"""The requests of a unit: amounts by resource index, without zeros."""

_ORDERS_MAX = 12
_LOTS_TO_REORDER = 100
_GAIN = 1e-9
_ROUGH_DIVISOR = 32
_STATES_MAX = 128
"""The number of states for which fillings are cached: many starts lead to the same states."""


class Site:
    """A NodePool within a space, and the result of adding each lot: None if it does not fit.

    ``extra`` is what a node costs on top of its price.
    """

    __slots__ = ("extra", "prices", "sites_with_lot", "space", "template")

    def __init__(self, template: PoolTemplate, space: Space, extra: float) -> None:
        self.template = template
        self.space = space
        self.prices = template.table.prices(space.offers)
        self.extra = extra
        self.sites_with_lot: dict[Lot, Site | None] = {}

    def holds(self, index: int, cost: float) -> bool:
        """Return whether a type is available here for no more than ``cost``."""
        price = self.prices.get(index)
        affordable = price is not None and price + self.extra <= cost
        return affordable and bool(self.space.mask >> index & 1)


class DraftNode:
    """A node with the number of units that it takes of each lot."""

    __slots__ = ("cost", "counts", "disks", "index", "ports", "room", "row", "site", "taken")

    def __init__(self, site: Site, row: Row) -> None:
        self.site = site
        self.row = row
        self.index = row.index
        self.cost = row.cost
        self.room = list(row.room)
        self.taken: dict[Lot, int] = {}
        self.counts: dict[Group, int] = {}
        self.ports: UsedPorts | None = None
        self.disks: frozenset[str] = frozenset()

    @property
    def template(self) -> PoolTemplate:
        return self.site.template

    def take(self, lot: Lot, needs: Needs, limit: int, sites: Sites) -> int:
        """Take as many units of a lot as fit, up to ``limit``; return the number."""
        room = self.room
        for resource, amount in needs:
            count = room[resource] // amount
            if count < limit:
                if count <= 0:
                    return 0
                limit = count
        return self.join(lot, needs, limit, sites)

    def join(self, lot: Lot, needs: Needs, limit: int, sites: Sites) -> int:
        """Take up to ``limit`` units of a lot, already known to have room; return the number."""
        site = self.site
        try:
            after = site.sites_with_lot[lot]
        except KeyError:
            after = sites.site_with_lot(site, lot)
        if after is not site and (after is None or not after.holds(self.index, self.cost)):
            return 0
        if lot.is_ruled:
            limit = self._room_by_rules(lot, limit)
            if limit <= 0:
                return 0
        room = self.room
        for resource, amount in needs:
            room[resource] -= amount * limit
        self.site = after
        self.taken[lot] = self.taken.get(lot, 0) + limit
        return limit

    def _room_by_rules(self, lot: Lot, limit: int) -> int:
        """Return how many units the rules about hosts and ports allow, and count them."""
        if lot.ports:
            taken = self.ports is not None and self.ports.conflict(lot.ports)
            limit = 0 if taken else min(limit, 1)
        if lot.disks and not self._can_attach(lot):
            return 0
        for rule, selects_itself in lot.by_host:
            count = self.counts.get(rule.group, 0)
            limit = min(limit, rule.room_beside(count, selects_itself))
        if limit > 0:
            if lot.ports:
                self.ports = self.ports or UsedPorts()
                self.ports.add(lot.ports)
            self.disks |= lot.disks
            for group in lot.counted:
                self.counts[group] = self.counts.get(group, 0) + limit
        return limit

    def _can_attach(self, lot: Lot) -> bool:
        """Return whether the volumes of a lot can be attached beside those of the others."""
        most = self.template.volume_limit(1 << self.index)
        return most is None or len(self.disks | lot.disks) <= most

    def has_room(self, needs: Needs) -> bool:
        """Return whether there is room for a unit, ignoring rules."""
        room = self.room
        return all(room[resource] >= amount for resource, amount in needs)

    def may_take(self, lot: Lot, needs: Needs, sites: Sites) -> bool:
        """Return whether a unit would fit, ignoring rules; if not, it never does later either."""
        if not self.has_room(needs):
            return False
        after = (
            self.site.sites_with_lot[lot]
            if lot in self.site.sites_with_lot
            else sites.site_with_lot(self.site, lot)
        )
        return after is self.site or (after is not None and after.holds(self.index, self.cost))

    @property
    def content(self) -> object:
        """A key that is equal for nodes with the same room and contents."""
        taken = tuple(sorted((lot.number, count) for lot, count in self.taken.items()))
        return self.template.name, self.index, self.cost, taken

    @property
    def floor(self) -> float:
        """The estimated minimum cost of nodes for its units."""
        return sum(lot.floor * count for lot, count in self.taken.items())

    def copy(self) -> DraftNode:
        """Return a copy of this node."""
        copied = DraftNode(self.site, self.row)
        copied.room = list(self.room)
        copied.taken = dict(self.taken)
        copied.ports = self.ports.copy() if self.ports is not None else None
        copied.disks = self.disks
        copied.counts = dict(self.counts)
        return copied

    @property
    def value(self) -> float:
        return sum(lot.value * count for lot, count in self.taken.items())

    @property
    def is_requested(self) -> bool:
        """Whether some lot would open its own node here; otherwise another NodePool comes first."""
        name = self.site.template.name
        return any(name in lot.node_pools for lot in self.taken)


class Sites:
    """The sites of a market, one object for each NodePool and space."""

    def __init__(self, market: PackingMarket) -> None:
        self._market = market
        self._known: dict[tuple[str, Space], Site] = {}

    def site_for(self, template: PoolTemplate, space: Space) -> Site:
        """Return the site of a NodePool within a space."""
        known = self._known.get((template.name, space))
        if known is None:
            extra = self._market.extra_cost(template)
            known = self._known[template.name, space] = Site(template, space, extra)
        return known

    def site_with_lot(self, site: Site, lot: Lot) -> Site | None:
        """Return, and cache, the site that results from adding a unit of a lot."""
        space: Space | None = site.space if lot.suits(site.template) else None
        for demand in lot.demands:
            space = space.narrow(demand) if space is not None else None
        found = site.sites_with_lot[lot] = (
            self.site_for(site.template, space) if space is not None else None
        )
        return found


_FULL, _ROUGH, _BEST = range(3)
"""The ways to fill a node."""
_Fillings = dict[tuple[int, int, PoolOffers], tuple[DraftNode, int]]
"""Filled nodes of one state of the lots, by way, type and shelf, with the work that each took."""


class Filler:
    """Fills nodes from the remaining lots, the most valuable units first.

    Nodes that it returns are shared: a node to which something is added is copied before.
    ``least`` is the least amount of each resource that a unit requests.
    """

    def __init__(self, market: PackingMarket, lots: Iterable[Lot], effort: Effort) -> None:
        self.market = market
        self.effort = effort
        self.sites = Sites(market)
        self.left = {lot: lot.units for lot in lots}
        self.needs = {
            lot: [(i, a) for i, a in enumerate(market.amounts(lot.requests)) if a > 0]
            for lot in self.left
        }
        amounts = [market.amounts(lot.requests) for lot in self.left]
        self.least = tuple(min(column) for column in zip(*amounts, strict=True))
        self._states: dict[object, _Fillings] = {}
        self._rank()
        self._limits: dict[str, list[int]] = {}

    def set_values(self, values: Mapping[Lot, tuple[float, float]]) -> None:
        """Set the value and the minimum cost of units, and sort by value."""
        for lot, (value, floor) in values.items():
            lot.value, lot.floor = value, floor
        self._rank()

    def _rank(self) -> None:
        self._all = sorted(self.left, key=lambda lot: (-lot.value, lot.number))
        self.order = self._all
        self._states.clear()
        self._here: _Fillings | None = None

    def affords(self, template: PoolTemplate, row: Row) -> bool:
        """Return whether the remaining limits of the NodePool allow such a node."""
        if not row.charge:
            return True
        left = self._remaining_limits(template)
        return all(c <= have for c, have in zip(row.charge, left, strict=True))

    def _remaining_limits(self, template: PoolTemplate) -> list[int]:
        left = self._limits.get(template.name)
        if left is None:
            left = self._limits[template.name] = list(self.market.limits(template))
        return left

    def fill(self, shelf: PoolOffers, row: Row, *, roughly: bool = False) -> DraftNode:
        """Return a node filled from the remaining lots, the most valuable first.

        Nothing is taken from the lots yet. ``roughly`` stops when the node is nearly full.
        """
        kind = _ROUGH if roughly else _FULL
        return self._cached_filling(
            kind, shelf, row, lambda: self.fill_in_order(shelf, row, self.order, kind)
        )

    def _cached_filling(
        self, kind: int, shelf: PoolOffers, row: Row, fill: Callable[[], DraftNode]
    ) -> DraftNode:
        """Return a filling of the current state; a cached one counts as the same work."""
        here = self._here
        if here is None:
            here = self._here = self._fillings()
        known = here.get((kind, row.index, shelf))
        if known is None:
            before = self.effort.done
            node = fill()
            here[kind, row.index, shelf] = (node, self.effort.done - before)
            return node
        self.effort.spend(known[1])
        return known[0]

    def _fillings(self) -> _Fillings:
        """Return the cached fillings of the remaining lots."""
        if len(self._states) >= _STATES_MAX:
            self._states.clear()
        state = tuple(self.left.values()), tuple([lot.number for lot in self.order])
        return self._states.setdefault(state, {})

    def fill_in_order(
        self, shelf: PoolOffers, row: Row, order: Sequence[Lot], kind: int = 0
    ) -> DraftNode:
        """Return a node filled from the remaining lots in an order of them."""
        node = DraftNode(self.sites.site_for(shelf.template, shelf.space), row)
        left, needs, sites = self.left, self.needs, self.sites
        room, least = node.room, self.least
        if kind == _ROUGH:
            least = tuple(
                max(a, amount // _ROUGH_DIVISOR) for a, amount in zip(least, room, strict=True)
            )
        seen = 0
        for lot in order:
            seen += lot.checks
            most = left[lot]
            if not most:
                continue
            its_needs = needs[lot]
            for resource, amount in its_needs:
                held = room[resource] // amount
                if held < most:
                    if held <= 0:
                        break
                    most = held
            else:
                if node.join(lot, its_needs, most, sites) and any(map(lt, room, least)):
                    break
        self.effort.spend(seen)
        return node

    def holds_all(self, node: DraftNode) -> bool:
        """Return whether a node takes everything that is left."""
        return all(node.taken.get(lot) == count for lot, count in self.left.items() if count)

    def least_cost(self) -> float:
        """Return the minimum cost of nodes for all that is left, or 0.0 if it is unknown."""
        return sum(lot.floor * self.left[lot] for lot in self.order)

    def fill_best(self, shelf: PoolOffers, row: Row) -> DraftNode:
        """Return the most valuable filling over several orders: each lot first or last."""
        return self._cached_filling(_BEST, shelf, row, lambda: self._find_best_filling(shelf, row))

    def _find_best_filling(self, shelf: PoolOffers, row: Row) -> DraftNode:
        before = self.effort.done
        best = self.fill(shelf, row)
        seen = self.effort.done - before
        if len(self.order) > _LOTS_TO_REORDER:
            return best
        best_value, empty = (
            best.value,
            DraftNode(self.sites.site_for(shelf.template, shelf.space), row),
        )
        for number, lot in enumerate(self.order[:_ORDERS_MAX]):
            if not empty.may_take(lot, self.needs[lot], self.sites):
                if number:  # the same filling as before, which reads the lot as well
                    self.effort.spend(seen + (number >= seen))
                continue
            others = [*self.order[:number], *self.order[number + 1 :]]
            orders = [[lot, *others]] if number else []
            if lot in best.taken:
                orders.append([*others, lot])
            for order in orders:
                node = self.fill_in_order(shelf, row, order)
                if node.value > best_value + _GAIN:
                    best, best_value = node, node.value
        return best

    def book(self, node: DraftNode, times: int = 1) -> None:
        """Take the units of ``times`` such nodes from the lots; a negative number returns them."""
        for lot, count in node.taken.items():
            self.left[lot] -= count * times
        self._here = None
        self.charge(node, times)

    def limits(self) -> tuple[tuple[str, Charge], ...]:
        """Return what is left of the NodePools' limits, for ``restore_limits``."""
        return tuple((name, tuple(left)) for name, left in sorted(self._limits.items()))

    def restore_limits(self, limits: Iterable[tuple[str, Charge]]) -> None:
        """Restore what is left of the limits."""
        self._limits = {name: list(left) for name, left in limits}

    def charge(self, node: DraftNode, times: int) -> None:
        """Charge nodes to the limits of their NodePool; a negative number refunds them."""
        if node.row.charge:
            left = self._remaining_limits(node.template)
            for i, amount in enumerate(node.row.charge):
                left[i] -= amount * times

    def repeat_count(self, node: DraftNode) -> int:
        """Return how many such nodes the remaining lots fill and the limits allow."""
        times = min(self.left[lot] // count for lot, count in node.taken.items())
        if node.row.charge:
            left = self._remaining_limits(node.template)
            for amount, have in zip(node.row.charge, left, strict=True):
                if amount:
                    times = min(times, have // amount)
        return times

    def drop_empty_lots(self) -> None:
        """Drop lots of which nothing is left."""
        self.order = [lot for lot in self.order if self.left[lot]]
        self._here = None

    def restart(self) -> None:
        """Restore all lots and limits to their initial state."""
        self._limits = {}
        self.reset({lot: lot.units for lot in self.left})

    def reset(self, left: Mapping[Lot, int]) -> None:
        """Set what is left of each lot; lots that are not given have nothing left."""
        for lot in self.left:
            self.left[lot] = left.get(lot, 0)
        self.order = [lot for lot in self._all if self.left[lot]]
        self._here = None
