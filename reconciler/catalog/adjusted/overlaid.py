"""A catalog with some prices and capacities replaced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from types import MappingProxyType

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns
from reconciler.model.karpenter.instancetype import InstanceType, Offering, PriceOrigin
from reconciler.model.resources import Resources


class OverlaidCatalog(Catalog):
    """A catalog under NodeOverlays: prices by offering position, capacities by type index.

    Offerings at the positions ``opened`` lacked only a price, and have one now. ``paid`` names, by
    position, the commitment that set the price instead of an overlay.
    """

    def __init__(
        self,
        base: Catalog,
        prices: Mapping[int, float],
        capacities: Mapping[int, Resources],
        opened: frozenset[int] = frozenset(),
        paid: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        rows = OverlaidRows(base, prices, capacities, opened, paid)
        key = f"{base.digest} {sorted(prices.items())} {sorted(capacities.items())}"
        if paid:
            key += f" {sorted(paid.items())}"
        traits = base.traits()
        priced = frozenset(base.names[base.columns.offerings.type[at]] for at in prices)
        traits["price_overlaid"] |= priced
        traits["capacity_overlaid"] |= frozenset(base.names[index] for index in capacities)
        super().__init__(rows, **traits, digest=sha256(key.encode()).hexdigest())
        self.base = base
        kinds = base.columns.offerings.type
        self._opened_names = frozenset(base.names[kinds[position]] for position in opened)

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return itself: overlays apply to types that are already resolved for a class."""
        del facts
        return self

    def why_not(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        return None if name in self._opened_names else self.base.why_not(name)


class OverlaidRows:
    """The rows of a catalog with prices by offering position and capacities by type index."""

    def __init__(
        self,
        base: Catalog,
        prices: Mapping[int, float],
        capacities: Mapping[int, Resources],
        opened: frozenset[int],
        paid: Mapping[int, str] = MappingProxyType({}),
    ) -> None:
        self._base = base
        self._opened = opened
        self._paid = paid
        self._prices = prices
        self._capacities = capacities
        self.names = base.names
        self._first = _first_positions(base.columns)

    def instance_type(self, index: int) -> InstanceType:
        kind = self._base.types[index]
        first = self._first[index]
        offerings = tuple(self._offering(first + i, o) for i, o in enumerate(kind.offerings))
        extra = self._capacities.get(index)
        if extra is None and offerings == kind.offerings:
            return kind
        capacity = {**kind.capacity, **extra} if extra else kind.capacity
        return replace(kind, capacity=capacity, offerings=offerings)

    def _offering(self, position: int, offering: Offering) -> Offering:
        price = self._prices.get(position)
        if price is None:
            return offering
        available = offering.available or position in self._opened
        origin = _origin(offering, self._paid.get(position, ""))
        return replace(offering, price=price, available=available, origin=origin)

    def columns(self) -> Columns:
        """Return the types by column."""
        base = self._base.columns
        price, available = list(base.offerings.price), list(base.offerings.available)
        special = dict(base.offerings.special)
        for position, amount in self._prices.items():
            price[position] = amount
            available[position] = available[position] or position in self._opened
            if position in special:
                special[position] = self._offering(position, special[position])
        allocatable, capacity = dict(base.allocatable), dict(base.capacity)
        for index in self._capacities:
            kind = self.instance_type(index)
            self._overlay(allocatable, base.allocatable, index, kind.allocatable)
            self._overlay(capacity, base.capacity, index, kind.capacity)
        offerings = msgspec.structs.replace(
            base.offerings, price=price, available=available, special=special
        )
        return msgspec.structs.replace(
            base, allocatable=allocatable, capacity=capacity, offerings=offerings
        )

    def _overlay(
        self,
        columns: dict[str, list[int]],
        base: Mapping[str, list[int]],
        index: int,
        amounts: Resources,
    ) -> None:
        """Set the amounts of one type in ``columns``; a column is copied before it is changed."""
        for name, amount in amounts.items():
            column = columns.get(name)
            if column is None or column is base.get(name):
                column = columns[name] = list(column or [0] * len(self.names))
            column[index] = amount


def _origin(offering: Offering, paid: str) -> PriceOrigin:
    source, before = "commitment" if paid else "overlay", offering.origin
    if before is None or not offering.available:
        return PriceOrigin(source, note=paid)
    return PriceOrigin(source, before.at, before.source, paid or before.note)


def _first_positions(columns: Columns) -> list[int]:
    """Return for each type the position of its first offering."""
    first = [0] * len(columns.names)
    for position in range(len(columns.offerings.type) - 1, -1, -1):
        first[columns.offerings.type[position]] = position
    return first
