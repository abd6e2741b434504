"""The prices of a catalog while commitments have room."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.catalog.adjusted.offerings import overlaid
from reconciler.catalog.adjusted.overlay import OverlayPool, selected_offerings
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.commitments.coverage import Cover
from reconciler.model.karpenter.nodepool import requirements_of


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
    return overlaid(catalog, prices, {}, paid=notes)
