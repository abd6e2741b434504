"""The adjustments of a catalog: unavailable offerings, simulated prices, overlays, commitments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType

from reconciler.catalog.adjusted.adjustment import AdjustedCatalog, Changes
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.columns import Columns
from reconciler.model.karpenter.instancetype import Offering, PriceOrigin
from reconciler.model.karpenter.labels import SPOT
from reconciler.model.resources import Resources

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


def quoted(catalog: Catalog, prices: Mapping[OfferingKey, float], name: str) -> Catalog:
    """Return the catalog with these prices in USD an hour; ``name`` identifies them."""

    def priced(columns: Columns) -> Changes:
        names, rows = columns.names, columns.offerings
        keys = zip(rows.type, rows.zone, rows.capacity_type, strict=True)
        found = (prices.get((names[index], zone, kind)) for index, zone, kind in keys)
        return Changes({at: price for at, price in enumerate(found) if price is not None})

    return AdjustedCatalog(catalog, priced, f"quoted {name}", survives_resolving=True)


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
