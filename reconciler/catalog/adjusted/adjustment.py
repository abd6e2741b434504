"""A catalog in which some prices, availabilities and capacities differ from another one.

The adjustments come from unavailable offerings, simulated prices, NodeOverlays and commitments.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from functools import cached_property
from hashlib import sha256
from types import MappingProxyType
from typing import TypeVar

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns
from reconciler.model.karpenter.instancetype import InstanceType, Offering, PriceOrigin
from reconciler.model.karpenter.labels import SPOT
from reconciler.model.resources import Resources

T = TypeVar("T")


class Changes(msgspec.Struct, frozen=True):
    """The changes: by the position of an offering, and capacities by the index of a type.

    ``origins`` returns the source of a changed price; without it, the source does not change.
    """

    prices: Mapping[int, float] = {}
    available: Mapping[int, bool] = {}
    capacities: Mapping[int, Resources] = {}
    origins: Callable[[int, Offering], PriceOrigin] | None = None


Rule = Callable[[Columns], Changes]
"""Returns the changes to a catalog; called when the first type or column is requested."""


class AdjustedCatalog(Catalog):
    """A catalog under a rule, with a ``digest_key`` that identifies the rule.

    A rule that ``survives_resolving`` refers to types by name, so it is applied again to the types
    that are resolved for a node class. Any other rule refers to positions of resolved types.
    ``newly_priced`` types lacked only a price, and have one now. A price that is ``set_by_user``
    (an overlay, a commitment) is no longer the listed one.
    """

    def __init__(
        self,
        base: Catalog,
        rule: Rule,
        digest_key: str,
        *,
        survives_resolving: bool = False,
        note: str = "",
        price_overlaid: frozenset[str] = frozenset(),
        capacity_overlaid: frozenset[str] = frozenset(),
        newly_priced: frozenset[str] = frozenset(),
        set_by_user: bool = False,
    ) -> None:
        traits = base.traits()
        traits["price_overlaid"] |= price_overlaid
        traits["capacity_overlaid"] |= capacity_overlaid
        traits["notes"] = (*base.notes, note) if note else base.notes
        digest = sha256(f"{base.digest} {digest_key}".encode()).hexdigest()
        super().__init__(AdjustedRows(base, rule), **traits, digest=digest)
        self._base, self._rule, self._digest_key, self._note = base, rule, digest_key, note
        self._survives_resolving = survives_resolving
        self._newly_priced = newly_priced
        self._set_by_user = set_by_user

    @property
    def listed(self) -> Catalog:
        """The catalog at the prices before overlays and commitments."""
        return self._base.listed if self._set_by_user else self

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return the types resolved for a node class, under the same rule."""
        if not self._survives_resolving:
            return self
        return AdjustedCatalog(
            self._base.for_node_class(facts),
            self._rule,
            self._digest_key,
            survives_resolving=True,
            note=self._note,
        )

    def launch_rejection(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        return None if name in self._newly_priced else self._base.launch_rejection(name)


class AdjustedRows:
    """The rows of a catalog under a rule."""

    def __init__(self, base: Catalog, rule: Rule) -> None:
        self._base = base
        self._rule = rule
        self.names = base.names

    @cached_property
    def _changes(self) -> Changes:
        return self._rule(self._base.columns)

    @cached_property
    def _first_positions(self) -> list[int]:
        """The position of each type's first offering."""
        kinds = self._base.columns.offerings.type
        first = [0] * len(self.names)
        for position in range(len(kinds) - 1, -1, -1):
            first[kinds[position]] = position
        return first

    def instance_type(self, index: int) -> InstanceType:
        """Return the type at ``index``, the base's own object where nothing differs."""
        kind = self._base.types[index]
        first = self._first_positions[index]
        offerings = tuple(
            self._adjusted_offering(first + i, o) for i, o in enumerate(kind.offerings)
        )
        extra = self._changes.capacities.get(index)
        if extra is None and all(map(_is_same, offerings, kind.offerings)):
            return kind
        capacity = {**kind.capacity, **extra} if extra else kind.capacity
        return replace(kind, capacity=capacity, offerings=offerings)

    def _adjusted_offering(self, position: int, offering: Offering) -> Offering:
        changes = self._changes
        price = changes.prices.get(position)
        available = changes.available.get(position, offering.available)
        if price is None:
            if available is offering.available:
                return offering
            return replace(offering, available=available)
        origin = changes.origins(position, offering) if changes.origins else offering.origin
        return replace(offering, price=price, available=available, origin=origin)

    def columns(self) -> Columns:
        """Return the types by column."""
        base, changes = self._base.columns, self._changes
        rows = base.offerings
        special = {
            at: self._adjusted_offering(at, offering) for at, offering in rows.special.items()
        }
        allocatable, capacity = dict(base.allocatable), dict(base.capacity)
        for index in changes.capacities:
            kind = self.instance_type(index)
            self._set(allocatable, base.allocatable, index, kind.allocatable)
            self._set(capacity, base.capacity, index, kind.capacity)
        offerings = msgspec.structs.replace(
            rows,
            price=_replace_values(rows.price, changes.prices),
            available=_replace_values(rows.available, changes.available),
            special=special,
        )
        return msgspec.structs.replace(
            base, allocatable=allocatable, capacity=capacity, offerings=offerings
        )

    def _set(
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


def _is_same(first: object, second: object) -> bool:
    return first is second


def _replace_values(column: list[T], changes: Mapping[int, T]) -> list[T]:
    """Return the column with the changes, or the column itself if there are none."""
    if not changes:
        return column
    changed = list(column)
    for position, value in changes.items():
        changed[position] = value
    return changed


OfferingKey = tuple[str, str, str]
"""Instance type, zone, capacity type."""

RefusedOffering = tuple[str, str, str, str]
"""Instance type, zone, capacity type, and the id of one reservation; empty for every offering."""

Factor = Callable[[str, str, str], float]
"""The price factor of an offering of (instance type, zone, capacity type)."""


def without_unavailable(catalog: Catalog, unavailable: Collection[RefusedOffering]) -> Catalog:
    """Return the catalog without the offerings that EC2 recently rejected (the ICE cache).

    They remain listed as not available. A node that runs on one keeps its price, and «no capacity»
    can be distinguished from «no such type».
    """
    listed = frozenset(key for key in unavailable if key[0] in catalog)
    if not listed:
        return catalog
    types = {key[0] for key in listed}

    def mark_unavailable(columns: Columns) -> Changes:
        names, rows = columns.names, columns.offerings
        affected = [name in types for name in names]
        found = dict[int, bool]()
        for at, index in enumerate(rows.type):
            if not affected[index]:
                continue
            pool = (names[index], rows.zone[at], rows.capacity_type[at])
            special = rows.special.get(at)
            reservation = (special and special.reservation_id) or ""
            if (*pool, "") in listed or (*pool, reservation) in listed:
                found[at] = False
        return Changes(available=found)

    return AdjustedCatalog(
        catalog,
        mark_unavailable,
        f"refused {sorted(listed)}",
        survives_resolving=True,
        note=f"{len(listed)} unavailable offerings (insufficient capacity) are excluded",
    )


def spot_prices(catalog: Catalog) -> dict[str, dict[str, float]]:
    """Return the prices of available spot offerings by type and zone; no estimates."""
    found: dict[str, dict[str, float]] = {}
    if catalog.spot_is_estimated:
        return found
    names, rows = catalog.columns.names, catalog.columns.offerings
    for at, capacity_type in enumerate(rows.capacity_type):
        if capacity_type == SPOT and rows.available[at]:
            found.setdefault(names[rows.type[at]], {})[rows.zone[at]] = rows.price[at]
    return found


def with_quoted_prices(catalog: Catalog, prices: Mapping[OfferingKey, float], name: str) -> Catalog:
    """Return the catalog with these prices in USD an hour; ``name`` identifies them."""

    def quote(columns: Columns) -> Changes:
        names, rows = columns.names, columns.offerings
        keys = zip(rows.type, rows.zone, rows.capacity_type, strict=True)
        found = (prices.get((names[index], zone, kind)) for index, zone, kind in keys)
        return Changes({at: price for at, price in enumerate(found) if price is not None})

    return AdjustedCatalog(catalog, quote, f"quoted {name}", survives_resolving=True)


def with_price_factors(catalog: Catalog, factor: Factor, name: str) -> Catalog:
    """Return the catalog with prices multiplied by ``factor``; ``name`` identifies the factor."""

    def multiply(columns: Columns) -> Changes:
        names, rows = columns.names, columns.offerings
        factors = (
            factor(names[index], zone, capacity_type)
            for index, zone, capacity_type in zip(
                rows.type, rows.zone, rows.capacity_type, strict=True
            )
        )
        known = zip(rows.price, factors, strict=True)
        return Changes({at: price * by for at, (price, by) in enumerate(known) if by != 1.0})

    return AdjustedCatalog(catalog, multiply, f"repriced {name}", survives_resolving=True)


def with_overlaid_values(
    catalog: Catalog,
    prices: Mapping[int, float],
    capacities: Mapping[int, Resources],
    newly_priced: frozenset[int] = frozenset(),
    paid: Mapping[int, str] = MappingProxyType({}),
) -> Catalog:
    """Return a resolved catalog with prices by offering position, capacities by type index.

    Offerings at the positions ``newly_priced`` lacked only a price, and have one now. ``paid``
    names, by position, the commitment that set the price instead of an overlay.
    """
    names, kinds = catalog.names, catalog.columns.offerings.type

    def origin(position: int, offering: Offering) -> PriceOrigin:
        note = paid.get(position, "")
        source, before = "commitment" if note else "overlay", offering.origin
        if before is None or not offering.available:
            return PriceOrigin(source, note=note)
        return PriceOrigin(source, before.at, before.source, note or before.note)

    changes = Changes(prices, dict.fromkeys(newly_priced, True), capacities, origin)
    key = f"{sorted(prices.items())} {sorted(capacities.items())}"
    if paid:
        key += f" {sorted(paid.items())}"
    return AdjustedCatalog(
        catalog,
        lambda _: changes,
        key,
        price_overlaid=frozenset(names[kinds[position]] for position in prices),
        capacity_overlaid=frozenset(names[index] for index in capacities),
        newly_priced=frozenset(names[kinds[position]] for position in newly_priced),
        set_by_user=True,
    )
