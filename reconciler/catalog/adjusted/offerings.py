"""Adjust a catalog's offerings: unavailable ones, simulated prices, and commitments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from hashlib import sha256

import msgspec

from reconciler.catalog.adjusted.overlaid import OverlaidCatalog
from reconciler.catalog.adjusted.overlay import OverlayPool, selected_offerings
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns
from reconciler.catalog.commitments.coverage import Cover
from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.nodepool import requirements_of

# Unavailable offerings (the ICE cache): a catalog without those that EC2 recently rejected.
#
# They remain listed as not available. A node that runs on one keeps its price, and «no capacity»
# can be distinguished from «no such type».


OfferingKey = tuple[str, str, str]
"""Instance type, zone, capacity type."""


def without_refused(catalog: Catalog, refused: Collection[OfferingKey]) -> Catalog:
    """Return the catalog with the ``refused`` offerings marked as not available."""
    known = frozenset(key for key in refused if key[0] in catalog)
    return RefusedCatalog(catalog, known) if known else catalog


class RefusedCatalog(Catalog):
    """A catalog in which some offerings are currently not available."""

    def __init__(self, base: Catalog, refused: frozenset[OfferingKey]) -> None:
        key = f"{base.digest} refused {sorted(refused)}"
        super().__init__(
            RefusedRows(base, refused),
            version=base.version,
            digest=sha256(key.encode()).hexdigest(),
            source=base.source,
            region=base.region,
            well_known=base.well_known,
            spot_is_estimated=base.spot_is_estimated,
            notes=(
                *base.notes,
                f"{len(refused)} unavailable offerings (insufficient capacity) are excluded",
            ),
        )
        self.base, self.refused = base, refused

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return the types resolved for a node class, without the refused offerings."""
        return RefusedCatalog(self.base.for_node_class(facts), self.refused)

    def why_not(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        return self.base.why_not(name)


class RefusedRows:
    """The rows of a catalog with some offerings not available."""

    def __init__(self, base: Catalog, refused: frozenset[OfferingKey]) -> None:
        self._base = base
        self._refused = refused
        self._types = frozenset(name for name, _, _ in refused)
        self.names = base.names

    def instance_type(self, index: int) -> InstanceType:
        kind = self._base.types[index]
        if kind.name not in self._types:
            return kind
        return replace(kind, offerings=tuple(self._marked(kind.name, o) for o in kind.offerings))

    def _marked(self, name: str, offering: Offering) -> Offering:
        if (name, offering.zone, offering.capacity_type) not in self._refused:
            return offering
        return replace(offering, available=False)

    def columns(self) -> Columns:
        """Return the types by column."""
        base = self._base.columns
        rows = base.offerings
        available, special = list(rows.available), dict(rows.special)
        doomed = {i for i, name in enumerate(self.names) if name in self._types}
        for position, index in enumerate(rows.type):
            if index not in doomed:
                continue
            key = (self.names[index], rows.zone[position], rows.capacity_type[position])
            if key in self._refused:
                available[position] = False
                if position in special:
                    special[position] = replace(special[position], available=False)
        offerings = msgspec.structs.replace(rows, available=available, special=special)
        return msgspec.structs.replace(base, offerings=offerings)


# Simulated prices: a catalog whose prices a simulation changes.


Factor = Callable[[str, str, str], float]
"""The price factor of an offering of (instance type, zone, capacity type)."""


class RepricedCatalog(Catalog):
    """A catalog whose prices are multiplied by ``factor``; ``name`` identifies the factor."""

    def __init__(self, base: Catalog, factor: Factor, name: str) -> None:
        super().__init__(
            _RepricedRows(base, factor),
            **base.traits(),
            digest=sha256(f"{base.digest} repriced {name}".encode()).hexdigest(),
        )
        self._base, self._factor, self._name = base, factor, name

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return the types resolved for a node class, at these prices."""
        return RepricedCatalog(self._base.for_node_class(facts), self._factor, self._name)

    def why_not(self, name: str) -> str | None:
        """Return why a type can never be launched, or None."""
        return self._base.why_not(name)


class _RepricedRows:
    """The rows of a catalog at other prices."""

    def __init__(self, base: Catalog, factor: Factor) -> None:
        self._base = base
        self._factor = factor
        self.names = base.names

    def instance_type(self, index: int) -> InstanceType:
        kind = self._base.types[index]
        return replace(kind, offerings=tuple(self._priced(kind.name, o) for o in kind.offerings))

    def _priced(self, name: str, offering: Offering) -> Offering:
        factor = self._factor(name, offering.zone, offering.capacity_type)
        return offering if factor == 1.0 else replace(offering, price=offering.price * factor)

    def columns(self) -> Columns:
        """Return the types by column."""
        base = self._base.columns
        rows = base.offerings
        names = [self.names[index] for index in rows.type]
        offers = zip(rows.price, names, rows.zone, rows.capacity_type, strict=True)
        price = [known * self._factor(*offer) for known, *offer in offers]
        special = {at: self._priced(names[at], o) for at, o in rows.special.items()}
        offerings = msgspec.structs.replace(rows, price=price, special=special)
        return msgspec.structs.replace(base, offerings=offerings)


def committed(catalog: Catalog, covers: Sequence[Cover]) -> Catalog:
    """Return the catalog with commitments applied; the first that fits an offering counts.

    They match offerings as a NodeOverlay with the same requirements would, and they never add up:
    an offering is paid for once.
    """
    pool = OverlayPool("", {}, catalog)
    base = catalog.columns.offerings.price
    prices: dict[int, float] = {}
    notes: dict[int, str] = {}
    for cover in covers:
        for position in selected_offerings(pool, requirements_of(cover.decision.requirements)):
            if position not in prices:
                prices[position] = cover.price(base[position])
                notes[position] = cover.note
    if not prices:
        return catalog
    return OverlaidCatalog(catalog, prices, {}, paid=notes)
