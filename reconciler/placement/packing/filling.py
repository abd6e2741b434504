"""Nodes on paper: which lots a node of one type takes, and what that is worth.

A node on paper keeps room, demands, host rules and ports, each by the same functions that decide
about real claims. Whether it can be had is decided when it is carried out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import lt

from reconciler.model.hostport import HostPort
from reconciler.placement.packing.lots import Lot
from reconciler.placement.packing.market import Charge, Market, Row, Shelf
from reconciler.placement.space import Space
from reconciler.placement.template import Template, clash
from reconciler.placement.topology import Group

Needs = Sequence[tuple[int, int]]
"""What a unit asks for: amounts by the number of the resource, none of them zero."""

_HOST = "this"
_ORDERS_MAX = 12
_LOTS_TO_REORDER = 100
_GAIN = 1e-9
_ROUGHLY = 32


class PaperNode:
    """A node with the units that it takes of each lot."""

    __slots__ = ("cost", "hosts", "index", "ports", "room", "row", "space", "taken", "template")

    def __init__(self, template: Template, space: Space, row: Row) -> None:
        self.template = template
        self.space = space
        self.row = row
        self.index = row.index
        self.cost = row.cost
        self.room = list(row.room)
        self.taken: dict[Lot, int] = {}
        self.hosts: dict[Group, Group] = {}
        self.ports: tuple[HostPort, ...] = ()

    def take(self, lot: Lot, needs: Needs, most: int, market: Market) -> int:
        """Take up to ``most`` units of a lot, as many as fit; return how many."""
        room = self.room
        for resource, amount in needs:
            held = room[resource] // amount
            if held < most:
                if held <= 0:
                    return 0
                most = held
        return self.join(lot, needs, most, market)

    def join(self, lot: Lot, needs: Needs, most: int, market: Market) -> int:
        """Take up to ``most`` units of a lot, for which there is room; return how many."""
        space = self._space_with(lot, market)
        if space is None:
            return 0
        if lot.by_host or lot.counted:
            most = self._room_by_rules(lot, most)
        if lot.ports:
            most = min(most, 1) if not clash(lot.ports, self.ports) else 0
        if most <= 0:
            return 0
        room = self.room
        for resource, amount in needs:
            room[resource] -= amount * most
        self.space = space
        self.taken[lot] = self.taken.get(lot, 0) + most
        self.ports += lot.ports
        return most

    def _space_with(self, lot: Lot, market: Market) -> Space | None:
        """Return what the node's space becomes with a lot; None if it cannot, or costs more."""
        space = lot.joined(self.space)
        if space is None or not lot.suits(self.template):
            return None
        if space is not self.space:
            cost = market.costs(self.template, space).get(self.index)
            if cost is None or cost > self.cost or not space.mask >> self.index & 1:
                return None
        return space

    def _room_by_rules(self, lot: Lot, most: int) -> int:
        """Return how many units the rules about hosts let in, and count them."""
        for group, selects_itself in lot.by_host:
            counting = self.hosts.get(group)
            if counting is None:
                counting = self.hosts[group] = Group(group.rule, {})
            most = min(most, counting.room_on_host(_HOST, selects_itself, None))
        if most > 0:
            for group in lot.counted:
                counting = self.hosts.get(group)
                if counting is None:
                    counting = self.hosts[group] = Group(group.rule, {})
                counting.record(_HOST, most)
        return most

    def has_room(self, needs: Needs) -> bool:
        """Return whether there is room for a unit, whatever rules say."""
        room = self.room
        return all(room[resource] >= amount for resource, amount in needs)

    @property
    def content(self) -> object:
        """Something that is equal where nodes have the same to offer and to lose."""
        taken = tuple(sorted((lot.number, count) for lot, count in self.taken.items()))
        return self.template.name, self.index, self.cost, taken

    @property
    def floor(self) -> float:
        """What nodes for its units cost at least."""
        return sum(lot.floor * count for lot, count in self.taken.items())

    def copied(self) -> PaperNode:
        """Return another node like it."""
        made = PaperNode(self.template, self.space, self.row)
        made.room = list(self.room)
        made.taken = dict(self.taken)
        made.ports = self.ports
        for group, counting in self.hosts.items():
            made.hosts[group] = Group(counting.rule, dict(counting.counts))
        return made

    @property
    def value(self) -> float:
        return sum(lot.value * count for lot, count in self.taken.items())

    @property
    def is_asked_for(self) -> bool:
        """Whether some lot would have its own node here; else another NodePool comes first."""
        return any(
            self.template is shelf.template
            for lot in self.taken
            for shelves in lot.shelves
            for shelf in shelves
        )


class Filler:
    """Fills nodes from what is left of the lots, the most valuable units first."""

    def __init__(self, market: Market, lots: Iterable[Lot]) -> None:
        self.market = market
        self.left = {lot: lot.units for lot in lots}
        self.needs = {
            lot: [(i, a) for i, a in enumerate(market.amounts(lot.requests)) if a > 0]
            for lot in self.left
        }
        amounts = [market.amounts(lot.requests) for lot in self.left]
        self._least = [min(column) for column in zip(*amounts, strict=True)]
        self._all = sorted(self.left, key=lambda lot: (-lot.value, lot.number))
        self.order = self._all
        self.work = 0
        self._limits: dict[str, list[int]] = {}

    def affords(self, template: Template, row: Row) -> bool:
        """Return whether the limits of the NodePool still allow such a node."""
        if not row.charge:
            return True
        left = self._left_of_limits(template)
        return all(c <= have for c, have in zip(row.charge, left, strict=True))

    def _left_of_limits(self, template: Template) -> list[int]:
        left = self._limits.get(template.name)
        if left is None:
            left = self._limits[template.name] = list(self.market.limits(template))
        return left

    def filled(
        self,
        shelf: Shelf,
        row: Row,
        order: Sequence[Lot] | None = None,
        *,
        roughly: bool = False,
    ) -> PaperNode:
        """Return a node with what it would take now; nothing is taken from the lots yet.

        ``order`` says which lots come first, by default the most valuable. ``roughly`` stops when
        the node is nearly full.
        """
        node = PaperNode(shelf.template, shelf.space, row)
        left, needs, market = self.left, self.needs, self.market
        if order is None:
            order = self.order
        room, least = node.room, self._least
        if roughly:
            least = [max(a, amount // _ROUGHLY) for a, amount in zip(least, room, strict=True)]
        for lot in order:
            self.work += 1
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
                if node.join(lot, its_needs, most, market) and any(map(lt, room, least)):
                    break
        return node

    def holds_all(self, node: PaperNode) -> bool:
        """Return whether a node takes everything that is left."""
        return all(node.taken.get(lot) == count for lot, count in self.left.items() if count)

    def least_cost(self) -> float:
        """Return what nodes for all that is left cost at least, 0.0 if nothing is known."""
        return sum(lot.floor * self.left[lot] for lot in self.order)

    def best_filled(self, shelf: Shelf, row: Row) -> PaperNode:
        """Return a node filled in the most valuable of several orders: each lot first or last."""
        best = self.filled(shelf, row)
        if len(self.order) > _LOTS_TO_REORDER:
            return best
        worth = best.value
        for number, lot in enumerate(self.order[:_ORDERS_MAX]):
            others = [*self.order[:number], *self.order[number + 1 :]]
            orders = [[lot, *others]] if number else []
            if lot in best.taken:
                orders.append([*others, lot])
            for order in orders:
                node = self.filled(shelf, row, order)
                if node.value > worth + _GAIN:
                    best, worth = node, node.value
        return best

    def book(self, node: PaperNode, times: int = 1) -> None:
        """Take the units of ``times`` such nodes from the lots; below zero gives them back."""
        for lot, count in node.taken.items():
            self.left[lot] -= count * times
        self.charge(node, times)

    def limits(self) -> tuple[tuple[str, Charge], ...]:
        """Return what is left of the limits of NodePools, for ``restore_limits``."""
        return tuple((name, tuple(left)) for name, left in sorted(self._limits.items()))

    def restore_limits(self, limits: Iterable[tuple[str, Charge]]) -> None:
        """Set what is left of the limits back."""
        self._limits = {name: list(left) for name, left in limits}

    def charge(self, node: PaperNode, times: int) -> None:
        """Take nodes from the limits of their NodePool; below zero gives them back."""
        if node.row.charge:
            left = self._left_of_limits(node.template)
            for i, amount in enumerate(node.row.charge):
                left[i] -= amount * times

    def repeatable(self, node: PaperNode) -> int:
        """Return how many such nodes the lots still fill and limits allow."""
        times = min(self.left[lot] // count for lot, count in node.taken.items())
        if node.row.charge:
            left = self._left_of_limits(node.template)
            for amount, have in zip(node.row.charge, left, strict=True):
                if amount:
                    times = min(times, have // amount)
        return times

    def tidy(self) -> None:
        """Pass over lots of which nothing is left."""
        self.order = [lot for lot in self.order if self.left[lot]]

    def reset(self, left: Mapping[Lot, int]) -> None:
        """Have so much left of each lot, and nothing of others."""
        for lot in self.left:
            self.left[lot] = left.get(lot, 0)
        self.order = [lot for lot in self._all if self.left[lot]]
