"""A catalogue whose covered offerings cost no more than what commitments leave to be paid."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.coverage import Cover
from reconciler.catalog.overlaid import OverlaidCatalog
from reconciler.catalog.overlay import OverlayPool, selected_offerings
from reconciler.model.nodepool import requirements_of


def committed(catalog: Catalog, covers: Sequence[Cover]) -> Catalog:
    """Return the catalogue under commitments, of which the first that fits an offering counts.

    What they cover they reach as a NodeOverlay of the same requirements would, and as there
    several never add up: an offering is paid for once.
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
