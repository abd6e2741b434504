"""A catalogue at other prices, as a simulation lets them change; all else is the original's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import ClassFacts
from reconciler.catalog.columns import Columns
from reconciler.model.instancetype import InstanceType, Offering

Factor = Callable[[str, str, str], float]
"""How many times its price an offering of (instance type, zone, capacity type) costs."""


class RepricedCatalog(Catalog):
    """A catalogue whose offerings cost ``factor`` times as much; ``name`` tells factors apart."""

    def __init__(self, base: Catalog, factor: Factor, name: str) -> None:
        super().__init__(
            _RepricedRows(base, factor),
            **base.traits(),
            digest=sha256(f"{base.digest} repriced {name}".encode()).hexdigest(),
        )
        self._base, self._factor, self._name = base, factor, name

    def for_node_class(self, facts: ClassFacts) -> Catalog:
        """Return the types as a node class resolves them, at these prices."""
        return RepricedCatalog(self._base.for_node_class(facts), self._factor, self._name)

    def why_not(self, name: str) -> str | None:
        """Return why a type cannot be launched whatever is asked for, or None."""
        return self._base.why_not(name)


class _RepricedRows:
    """The rows of a catalogue at other prices."""

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
