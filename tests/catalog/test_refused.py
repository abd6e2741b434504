from __future__ import annotations

import pytest

from reconciler.catalog.adjusted.adjustment import without_unavailable
from reconciler.catalog.catalog import bundled_catalog
from reconciler.catalog.classfacts import ClassFacts, Reservation
from reconciler.model.karpenter.labels import RESERVED

POOL = ("m7g.large", "us-east-1a", "spot", "")


def test_an_unavailable_offering_stays_listed() -> None:
    limited = without_unavailable(bundled_catalog(), [POOL])
    kind = limited.get("m7g.large")
    assert kind is not None
    refused = [o for o in kind.offerings if not o.available]
    assert ("us-east-1a", "spot") in [(o.zone, o.capacity_type) for o in refused]
    assert kind.price_of("us-east-1a", "spot") is not None
    assert any(o.available for o in kind.offerings)


def test_columns_equal_the_types() -> None:
    limited = without_unavailable(bundled_catalog(), [POOL])
    rows = limited.columns.offerings
    by_column = [
        rows.available[position]
        for position, index in enumerate(rows.type)
        if limited.names[index] == "m7g.large"
    ]
    kind = limited.get("m7g.large")
    assert kind is not None
    assert by_column == [o.available for o in kind.offerings]


def test_an_unknown_offering_changes_nothing() -> None:
    assert (
        without_unavailable(bundled_catalog(), [("x1.none", "us-east-1a", "spot", "")])
        is bundled_catalog()
    )


def test_other_unavailable_offerings_give_another_digest() -> None:
    assert without_unavailable(bundled_catalog(), [POOL]).digest != bundled_catalog().digest


@pytest.mark.parametrize(
    ("refused", "left"),
    [("cr-1", ["cr-2", "cr-3"]), ("", ["cr-3"]), ("cr-9", ["cr-1", "cr-2", "cr-3"])],
)
def test_a_refused_reservation_does_not_exclude_the_others_of_its_zone(
    refused: str, left: list[str]
) -> None:
    reservations = (
        Reservation("cr-1", "m5.large", "us-east-1a", remaining=2),
        Reservation("cr-2", "m5.large", "us-east-1a", remaining=2),
        Reservation("cr-3", "m5.large", "us-east-1b", remaining=2),
    )
    catalog = bundled_catalog("us-east-1", ClassFacts(reservations=reservations))
    limited = without_unavailable(catalog, [("m5.large", "us-east-1a", RESERVED, refused)])
    kind = limited.get("m5.large")
    assert kind is not None
    offerings = [o for o in kind.offerings if o.available]
    assert [o.reservation_id for o in offerings if o.capacity_type == RESERVED] == left
    assert any(o.zone == "us-east-1a" for o in offerings if o.capacity_type != RESERVED)
