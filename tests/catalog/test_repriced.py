"""A derived catalog equals its base except for what was changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from reconciler.catalog.adjusted import adjustment
from reconciler.catalog.catalog import Catalog, bundled_catalog
from reconciler.catalog.columns import OfferingColumns, append_offerings


def twice(*_: str) -> float:
    return 2.0


def traits_of(catalog: Catalog) -> dict[str, object]:
    return {key: value for key, value in catalog.traits().items() if "overlaid" not in key}


def test_overlaid_types_are_retained_by_derived_catalogs() -> None:
    base = bundled_catalog("us-east-1")
    first, second = base.names[0], base.names[1]
    overlaid = adjustment.with_overlaid_values(base, {0: 1.5}, {1: {"example.com/card": 1000}})
    repriced = adjustment.with_price_factors(overlaid, twice, "twice")
    again = adjustment.with_overlaid_values(repriced, {}, {2: {"example.com/card": 1000}})
    for catalog in (overlaid, repriced, again):
        assert first in catalog.price_overlaid
        assert second in catalog.capacity_overlaid
        assert traits_of(catalog) == traits_of(base)
    assert base.names[2] in again.capacity_overlaid
    assert len({c.digest for c in (base, overlaid, repriced, again)}) == 4
    assert repriced.types[0].offerings[0].price == 3.0


ADJUSTMENTS: dict[str, Callable[[Catalog], Catalog]] = {
    "refused": lambda c: adjustment.without_unavailable(
        c, [(c.names[3], "us-east-1a", "on-demand")]
    ),
    "repriced": lambda c: adjustment.with_price_factors(c, twice, "twice"),
    "overlaid": lambda c: adjustment.with_overlaid_values(
        c, {5: 1.5}, {1: {"example.com/card": 1000}}
    ),
    "paid": lambda c: adjustment.with_overlaid_values(c, {5: 0.0}, {}, paid={5: "savings plan"}),
}


@pytest.mark.parametrize("second", ADJUSTMENTS)
@pytest.mark.parametrize("first", ADJUSTMENTS)
def test_an_adjusted_catalog_has_the_same_offerings_by_type_and_by_column(
    first: str, second: str
) -> None:
    catalog = ADJUSTMENTS[second](ADJUSTMENTS[first](bundled_catalog("us-east-1")))
    by_type = OfferingColumns([], [], [], [], [], [], {})
    for index in range(8):
        append_offerings(by_type, index, catalog.types[index].offerings)
    count, rows = len(by_type.type), catalog.columns.offerings
    assert rows.price[:count] == by_type.price
    assert rows.available[:count] == by_type.available


def test_derived_catalogs_inherit_all_fields() -> None:
    """This also covers fields that are added later."""
    base = bundled_catalog("us-east-1")
    own = {"rows", "types", "names", "digest", "columns"}
    attributes = {name for name in vars(base) if not name.startswith("_")} - own - {"pricing"}
    assert attributes == base.traits().keys()
