"""A catalogue with some prices and capacities changed; everything else is the original's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns
from reconciler.model.instancetype import InstanceType
from reconciler.model.resources import Resources


class OverlaidCatalog(Catalog):
    """A catalogue under NodeOverlays: new prices by offering position, amounts by type index."""

    def __init__(
        self, base: Catalog, prices: Mapping[int, float], capacities: Mapping[int, Resources]
    ) -> None:
        rows = OverlaidRows(base, prices, capacities)
        key = f"{base.digest} {sorted(prices.items())} {sorted(capacities.items())}"
        kinds = base.columns.offerings.type
        super().__init__(
            rows,
            version=base.version,
            digest=sha256(key.encode()).hexdigest(),
            source=base.source,
            region=base.region,
            well_known=base.well_known,
            spot_is_estimated=base.spot_is_estimated,
            notes=base.notes,
            price_overlaid=frozenset(base.names[kinds[position]] for position in prices),
            capacity_overlaid=frozenset(base.names[index] for index in capacities),
        )
        self.base = base

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return itself: overlays apply to types that a class has resolved."""
        del facts
        return self

    def why_not(self, name: str) -> str | None:
        """Return why a type cannot be launched whatever is asked for, or None."""
        return self.base.why_not(name)


class OverlaidRows:
    """The rows of a catalogue with prices by offering position and capacities by type index."""

    def __init__(
        self, base: Catalog, prices: Mapping[int, float], capacities: Mapping[int, Resources]
    ) -> None:
        self._base = base
        self._prices = prices
        self._capacities = capacities
        self.names = base.names
        self._first = _first_positions(base.columns)

    def instance_type(self, index: int) -> InstanceType:
        kind = self._base.types[index]
        first = self._first[index]
        offerings = tuple(
            replace(offering, price=self._prices[first + i])
            if first + i in self._prices
            else offering
            for i, offering in enumerate(kind.offerings)
        )
        extra = self._capacities.get(index)
        if extra is None and offerings == kind.offerings:
            return kind
        capacity = {**kind.capacity, **extra} if extra else kind.capacity
        return replace(kind, capacity=capacity, offerings=offerings)

    def columns(self) -> Columns:
        """Return the types by column."""
        base = self._base.columns
        price, special = list(base.offerings.price), dict(base.offerings.special)
        for position, amount in self._prices.items():
            price[position] = amount
            if position in special:
                special[position] = replace(special[position], price=amount)
        allocatable = dict(base.allocatable)
        for index in self._capacities:
            for name, amount in self.instance_type(index).allocatable.items():
                column = allocatable.get(name)
                if column is None or column is base.allocatable.get(name):
                    column = allocatable[name] = list(column or [0] * len(self.names))
                column[index] = amount
        offerings = msgspec.structs.replace(base.offerings, price=price, special=special)
        return msgspec.structs.replace(base, allocatable=allocatable, offerings=offerings)


def _first_positions(columns: Columns) -> list[int]:
    """Return for each type the position of its first offering."""
    first = [0] * len(columns.names)
    for position in range(len(columns.offerings.type) - 1, -1, -1):
        first[columns.offerings.type[position]] = position
    return first
