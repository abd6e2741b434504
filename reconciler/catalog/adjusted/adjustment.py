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
from reconciler.model.resources import Resources

T = TypeVar("T")


class Changes(msgspec.Struct, frozen=True):
    """What differs: by the position of an offering, and capacities by the index of a type.

    ``origins`` gives the source of a changed price, which without it stays as it is.
    """

    prices: Mapping[int, float] = {}
    available: Mapping[int, bool] = {}
    capacities: Mapping[int, Resources] = {}
    origins: Callable[[int, Offering], PriceOrigin] | None = None


Rule = Callable[[Columns], Changes]
"""Finds what differs in a catalog; called when the first type or column is asked for."""


class AdjustedCatalog(Catalog):
    """A catalog under a rule, with a ``digest_key`` that identifies the rule.

    A rule that ``survives_resolving`` goes by the names of types, so it is applied again to the
    types that are resolved for a node class; another one goes by positions of resolved types.
    ``opened`` types lacked only a price, and have one now. A price that is ``set_by_user`` (an
    overlay, a commitment) is no longer the listed one.
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
        opened: frozenset[str] = frozenset(),
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
        self._opened = opened
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

    def why_not(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        return None if name in self._opened else self._base.why_not(name)


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
    def _first(self) -> list[int]:
        """The position of each type's first offering."""
        kinds = self._base.columns.offerings.type
        first = [0] * len(self.names)
        for position in range(len(kinds) - 1, -1, -1):
            first[kinds[position]] = position
        return first

    def instance_type(self, index: int) -> InstanceType:
        """Return the type at ``index``, the base's own object where nothing differs."""
        kind = self._base.types[index]
        first = self._first[index]
        offerings = tuple(self._changed(first + i, o) for i, o in enumerate(kind.offerings))
        extra = self._changes.capacities.get(index)
        if extra is None and all(map(_is, offerings, kind.offerings)):
            return kind
        capacity = {**kind.capacity, **extra} if extra else kind.capacity
        return replace(kind, capacity=capacity, offerings=offerings)

    def _changed(self, position: int, offering: Offering) -> Offering:
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
        special = {at: self._changed(at, offering) for at, offering in rows.special.items()}
        allocatable, capacity = dict(base.allocatable), dict(base.capacity)
        for index in changes.capacities:
            kind = self.instance_type(index)
            self._set(allocatable, base.allocatable, index, kind.allocatable)
            self._set(capacity, base.capacity, index, kind.capacity)
        offerings = msgspec.structs.replace(
            rows,
            price=_with(rows.price, changes.prices),
            available=_with(rows.available, changes.available),
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


def _is(one: object, other: object) -> bool:
    return one is other


def _with(column: list[T], changes: Mapping[int, T]) -> list[T]:
    """Return the column with the changes, itself where there are none."""
    if not changes:
        return column
    changed = list(column)
    for position, value in changes.items():
        changed[position] = value
    return changed


OfferingKey = tuple[str, str, str]
"""Instance type, zone, capacity type."""

Factor = Callable[[str, str, str], float]
"""The price factor of an offering of (instance type, zone, capacity type)."""


def without_refused(catalog: Catalog, refused: Collection[OfferingKey]) -> Catalog:
    """Return the catalog without the offerings that EC2 recently rejected (the ICE cache).

    They remain listed as not available. A node that runs on one keeps its price, and «no capacity»
    can be distinguished from «no such type».
    """
    known = frozenset(key for key in refused if key[0] in catalog)
    if not known:
        return catalog
    types = {name for name, _, _ in known}

    def marked(columns: Columns) -> Changes:
        names, rows = columns.names, columns.offerings
        concerned = [name in types for name in names]
        return Changes(
            available={
                at: False
                for at, index in enumerate(rows.type)
                if concerned[index]
                and (names[index], rows.zone[at], rows.capacity_type[at]) in known
            }
        )

    return AdjustedCatalog(
        catalog,
        marked,
        f"refused {sorted(known)}",
        survives_resolving=True,
        note=f"{len(known)} unavailable offerings (insufficient capacity) are excluded",
    )


def repriced(catalog: Catalog, factor: Factor, name: str) -> Catalog:
    """Return the catalog with prices multiplied by ``factor``; ``name`` identifies the factor."""

    def priced(columns: Columns) -> Changes:
        names, rows = columns.names, columns.offerings
        factors = (
            factor(names[index], zone, capacity_type)
            for index, zone, capacity_type in zip(
                rows.type, rows.zone, rows.capacity_type, strict=True
            )
        )
        known = zip(rows.price, factors, strict=True)
        return Changes({at: price * by for at, (price, by) in enumerate(known) if by != 1.0})

    return AdjustedCatalog(catalog, priced, f"repriced {name}", survives_resolving=True)


def overlaid(
    catalog: Catalog,
    prices: Mapping[int, float],
    capacities: Mapping[int, Resources],
    opened: frozenset[int] = frozenset(),
    paid: Mapping[int, str] = MappingProxyType({}),
) -> Catalog:
    """Return a resolved catalog with prices by offering position, capacities by type index.

    Offerings at the positions ``opened`` lacked only a price, and have one now. ``paid`` names, by
    position, the commitment that set the price instead of an overlay.
    """
    names, kinds = catalog.names, catalog.columns.offerings.type

    def origin(position: int, offering: Offering) -> PriceOrigin:
        note = paid.get(position, "")
        source, before = "commitment" if note else "overlay", offering.origin
        if before is None or not offering.available:
            return PriceOrigin(source, note=note)
        return PriceOrigin(source, before.at, before.source, note or before.note)

    changes = Changes(prices, dict.fromkeys(opened, True), capacities, origin)
    key = f"{sorted(prices.items())} {sorted(capacities.items())}"
    if paid:
        key += f" {sorted(paid.items())}"
    return AdjustedCatalog(
        catalog,
        lambda _: changes,
        key,
        price_overlaid=frozenset(names[kinds[position]] for position in prices),
        capacity_overlaid=frozenset(names[index] for index in capacities),
        opened=frozenset(names[kinds[position]] for position in opened),
        set_by_user=True,
    )
