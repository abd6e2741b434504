"""A catalogue without the offerings that EC2 refused of late; everything else is the original's.

They stay listed, as not available: a node that runs on one keeps its price, and «no capacity» can
be told from «no such type».
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from hashlib import sha256

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns
from reconciler.model.instancetype import InstanceType, Offering

OfferingKey = tuple[str, str, str]
"""Instance type, zone, capacity type."""


def without_refused(catalog: Catalog, refused: Collection[OfferingKey]) -> Catalog:
    """Return the catalogue with the ``refused`` offerings marked as not available."""
    known = frozenset(key for key in refused if key[0] in catalog)
    return RefusedCatalog(catalog, known) if known else catalog


class RefusedCatalog(Catalog):
    """A catalogue in which some offerings cannot be had now."""

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
        """Return the types as a node class resolves them, less the refused offerings."""
        return RefusedCatalog(self.base.for_node_class(facts), self.refused)

    def why_not(self, name: str) -> str | None:
        """Return why a type cannot be launched whatever is asked for, or None."""
        return self.base.why_not(name)


class RefusedRows:
    """The rows of a catalogue with some offerings not available."""

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
