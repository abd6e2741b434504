"""A derived catalog equals its base except for what was changed."""

from __future__ import annotations

from reconciler.catalog.adjusted.offerings import RepricedCatalog
from reconciler.catalog.adjusted.overlaid import OverlaidCatalog
from reconciler.catalog.catalog import Catalog, bundled


def twice(*_: str) -> float:
    return 2.0


def told(catalog: Catalog) -> dict[str, object]:
    return {key: value for key, value in catalog.traits().items() if "overlaid" not in key}


def test_overlaid_types_are_retained_by_derived_catalogs() -> None:
    base = bundled("us-east-1")
    first, second = base.names[0], base.names[1]
    overlaid = OverlaidCatalog(base, {0: 1.5}, {1: {"example.com/card": 1000}})
    repriced = RepricedCatalog(overlaid, twice, "twice")
    again = OverlaidCatalog(repriced, {}, {2: {"example.com/card": 1000}})
    for catalog in (overlaid, repriced, again):
        assert first in catalog.price_overlaid
        assert second in catalog.capacity_overlaid
        assert told(catalog) == told(base)
    assert base.names[2] in again.capacity_overlaid
    assert len({c.digest for c in (base, overlaid, repriced, again)}) == 4
    assert repriced.types[0].offerings[0].price == 3.0


def test_derived_catalogs_inherit_all_fields() -> None:
    """This also covers fields that are added later."""
    base = bundled("us-east-1")
    own = {"rows", "types", "names", "digest", "columns"}
    said = {name for name in vars(base) if not name.startswith("_")} - own - {"pricing"}
    assert said == base.traits().keys()
