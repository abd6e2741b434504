"""Price sources and their precedence: the bundle, AWS's quotes, and the user's price book."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.catalog.adjusted.overlay import OverlayPool, evaluate_overlays
from reconciler.catalog.aws.offerings import NO_PRICE
from reconciler.catalog.aws.prices import OnDemandQuotes, Pricing, SpotQuotes
from reconciler.catalog.catalog import DEFAULT_FACTS, BundledCatalog, bundled_catalog, bundled_data
from reconciler.catalog.columns import columns_of
from reconciler.model.billing import PriceBook, PriceRule
from reconciler.model.karpenter.instancetype import Offering, PriceOrigin
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.nodeoverlay import NodeOverlay, NodeOverlaySpec
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
REGION = "us-east-1"


def a_catalog(**pricing: object) -> BundledCatalog:
    header, bundle = bundled_data()
    return BundledCatalog(header, bundle, REGION, DEFAULT_FACTS, pricing=Pricing(**pricing))


def an_offering(
    catalog: BundledCatalog, name: str, capacity_type: str = "on-demand", zone: str = "us-east-1a"
) -> Offering:
    kind = catalog.get(name)
    assert kind is not None
    return next(o for o in kind.offerings if (o.zone, o.capacity_type) == (zone, capacity_type))


def an_unpriced_type() -> str:
    catalog = bundled_catalog(REGION)
    return next(n for n in catalog.names if catalog.launch_rejection(n) == NO_PRICE)


def quotes(**prices: float) -> OnDemandQuotes:
    named = {name.replace("_", "."): price for name, price in prices.items()}
    return OnDemandQuotes(named, PriceOrigin("live", NOON))


def spot(prices: dict[str, dict[str, float]]) -> SpotQuotes:
    return SpotQuotes(prices, PriceOrigin("spot-history", NOON))


def test_bundled_prices_have_their_source() -> None:
    catalog = bundled_catalog(REGION)
    assert an_offering(catalog, "m5.large").origin == PriceOrigin(
        "bundled", datetime(2026, 7, 20, tzinfo=UTC)
    )
    assert an_offering(catalog, "m5.large", "spot").origin == PriceOrigin("estimate")


def test_an_estimate_from_another_region_is_replaced_by_a_quote() -> None:
    header, bundle = bundled_data()

    def origin(pricing: Pricing | None) -> PriceOrigin:
        catalog = BundledCatalog(header, bundle, "eu-west-1", DEFAULT_FACTS, pricing=pricing)
        return an_offering(catalog, "c8a.large", zone="eu-west-1a").origin

    other = Pricing(on_demand=quotes(m5_large=0.5))
    assert {origin(None), origin(other)} == {PriceOrigin("estimate")}
    assert origin(Pricing(on_demand=quotes(c8a_large=0.5))) == PriceOrigin("live", NOON)


def test_a_quote_overrides_the_bundled_price_and_missing_ones_stay_bundled() -> None:
    catalog = a_catalog(on_demand=quotes(m5_large=0.5))
    quoted, missing = an_offering(catalog, "m5.large"), an_offering(catalog, "m5.xlarge")
    assert (quoted.price, quoted.origin) == (0.5, PriceOrigin("live", NOON))
    assert missing.origin is not None
    assert (missing.price, missing.origin.source) == (0.192, "bundled")


def test_a_type_without_a_bundled_price_is_available_once_quoted() -> None:
    name = an_unpriced_type()
    catalog = a_catalog(on_demand=OnDemandQuotes({name: 3.0}, PriceOrigin("live", NOON)))
    kind = catalog.get(name)
    assert kind is not None
    sold = [o for o in kind.offerings if o.capacity_type == "on-demand" and o.available]
    assert sold
    assert {o.price for o in sold} == {3.0}
    assert catalog.launch_rejection(name) is None


def test_spot_without_a_quote_is_unavailable_and_never_free() -> None:
    catalog = a_catalog(spot=spot({"m5.large": {"us-east-1a": 0.04}}))
    here = an_offering(catalog, "m5.large", "spot")
    there = an_offering(catalog, "m5.large", "spot", "us-east-1b")
    other = an_offering(catalog, "m5.xlarge", "spot")
    assert (here.price, here.available, here.estimated) == (0.04, True, False)
    assert not there.available
    assert not other.available
    assert there.price > 0.0
    assert there.origin == PriceOrigin("estimate")
    assert other.price > 0.0


def test_columns_and_objects_have_the_same_prices() -> None:
    book = PriceBook((PriceRule(families=("m5",), discount_percent=10.0),), 2.0)
    catalog = a_catalog(
        on_demand=quotes(m5_large=0.5), spot=spot({"m5.large": {"us-east-1a": 0.04}}), book=book
    )
    every = columns_of(list(catalog.types)).offerings
    assert catalog.columns.offerings == every


def test_the_time_of_a_quote_is_not_part_of_the_digest() -> None:
    first = a_catalog(on_demand=OnDemandQuotes({"m5.large": 0.5}, PriceOrigin("live", NOON)))
    later = PriceOrigin("live", NOON + timedelta(hours=1))
    second = a_catalog(on_demand=OnDemandQuotes({"m5.large": 0.5}, later))
    third = a_catalog(on_demand=OnDemandQuotes({"m5.large": 0.6}, later))
    assert first.digest == second.digest
    assert first.digest not in (third.digest, bundled_catalog(REGION).digest)


@pytest.mark.parametrize(
    ("name", "capacity_type", "price", "origin"),
    [
        ("m5.large", "on-demand", 0.0768, PriceOrigin("book", NOON, "live")),
        ("c5.large", "on-demand", 0.075, PriceOrigin("book")),
        ("r5.large", "on-demand", 0.12, PriceOrigin("book", NOON, "live")),
        ("m5.large", "spot", 0.0384, PriceOrigin("book", NOON, "spot-history")),
        ("t3.large", "on-demand", 0.08, PriceOrigin("book", NOON, "live")),
    ],
)
def test_the_first_matching_rule_applies_plus_the_flat_discount(
    name: str, capacity_type: str, price: float, origin: PriceOrigin
) -> None:
    """m5: 20 % by its rule and 4 % flat, to the billionth; a fixed price is not discounted."""
    book = PriceBook(
        (
            PriceRule(families=("m5",), capacity_types=("on-demand",), discount_percent=20.0),
            PriceRule(families=("m5", "r5"), regions=("eu-west-1",), discount_percent=90.0),
            PriceRule(instance_types=("c5.large",), capacity_types=("on-demand",), price=0.075),
            PriceRule(instance_types=("t3.large",), discount_percent=-0.0),
        ),
        4.0,
    )
    listed = quotes(m5_large=0.1, c5_large=0.2, r5_large=0.125, t3_large=0.08 / 0.96)
    catalog = a_catalog(on_demand=listed, spot=spot({"m5.large": {"us-east-1a": 0.04}}), book=book)
    found = an_offering(catalog, name, capacity_type)
    assert found.price == pytest.approx(price, abs=1e-9)
    assert found.origin == origin


def test_a_fixed_price_makes_an_unpriced_type_available() -> None:
    name = an_unpriced_type()
    rule = PriceRule(instance_types=(name,), capacity_types=("on-demand",), price=2.5)
    catalog = a_catalog(book=PriceBook((rule,)))
    kind = catalog.get(name)
    assert kind is not None
    assert {(o.price, o.available) for o in kind.offerings if o.capacity_type == "on-demand"} == {
        (2.5, True)
    }


def test_an_overlay_adjusts_the_price_of_the_book() -> None:
    book = PriceBook(discount_percent=50.0)
    catalog = a_catalog(on_demand=quotes(m5_large=0.1), book=book)
    wanted = NodeSelectorRequirement(INSTANCE_TYPE, Operator.IN, ("m5.large",))
    overlay = NodeOverlay(
        Metadata(name="more-expensive"),
        NodeOverlaySpec(requirements=(wanted,), price_adjustment="+10%"),
    )
    evaluation = evaluate_overlays([OverlayPool("web", {}, catalog)], [overlay])
    kind = evaluation.catalogs["web"].get("m5.large")
    assert kind is not None
    found = next(o for o in kind.offerings if o.capacity_type == "on-demand")
    assert found.price == pytest.approx(0.055)
    assert found.origin == PriceOrigin("overlay", NOON, "book")


percents = st.floats(-1000, 99.9)


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(
    base=st.none() | st.floats(1e-4, 1e3),
    rule=percents | st.none(),
    flat=percents,
    capacity_type=st.sampled_from(["on-demand", "spot", "reserved"]),
)
def test_a_price_book_neither_creates_nor_removes_a_price(
    base: float | None, rule: float | None, flat: float, capacity_type: str
) -> None:
    rules = (PriceRule(discount_percent=rule),) if rule is not None else ()
    found = PriceBook(rules, flat).price("m5.large", REGION, capacity_type, base)
    assert (found is None) == (base is None)
    assert found is None or found > 0
    assert capacity_type != "reserved" or found == base
