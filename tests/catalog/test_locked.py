"""A catalog written to a lock file and read back."""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from reconciler.catalog.aws.bundle import live_bundle
from reconciler.catalog.aws.prices import OnDemandQuotes, Pricing, SpotQuotes
from reconciler.catalog.catalog import DEFAULT_FACTS, BundledCatalog, bundled_data
from reconciler.catalog.locked import (
    allowed_types,
    locked_catalog,
    locked_data,
    locked_pricing,
    locked_types,
)
from reconciler.desired.lock import FactSource, Lock, encode, read_lock
from reconciler.model.billing import PriceBook
from reconciler.model.karpenter.instancetype import PriceOrigin
from reconciler.model.karpenter.nodepool import NodePool, NodeSelectorRequirement
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.metadata import Metadata

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
REGION = "us-east-1"
NAMES = ("m7g.large", "m7g.xlarge", "m99.large")


def a_live_catalog() -> BundledCatalog:
    """A catalog with a type that the release does not contain, and one that has left a zone."""
    header, bundle = bundled_data()
    machines = {m.name: m for m in bundle.machines if m.name in NAMES}
    machines["m99.large"] = msgspec.structs.replace(machines["m7g.large"], name="m99.large")
    zones = {"us-east-1a": frozenset(NAMES), "us-east-1b": frozenset({"m7g.large"})}
    live = live_bundle(REGION, machines.values(), zones, NOON, (header, bundle))
    pricing = Pricing(
        OnDemandQuotes({"m7g.large": 0.07, "m99.large": 0.2}, PriceOrigin("live", NOON)),
        SpotQuotes({"m7g.large": {"us-east-1b": 0.02}}, PriceOrigin("spot-history", NOON)),
    )
    return BundledCatalog(*live, REGION, DEFAULT_FACTS, pricing=pricing)


def a_lock(catalog: BundledCatalog) -> Lock:
    header, bundle = bundled_data()
    made = Lock(
        locked_at=NOON,
        region=REGION,
        catalog=locked_catalog(catalog, FactSource(source="live", at=NOON), header),
        types=locked_types(catalog, NAMES, bundle),
    )
    read = read_lock(encode(made))
    assert isinstance(read, Lock)
    return read


def reopened(lock: Lock, book: PriceBook | None = None) -> BundledCatalog:
    header, bundle = locked_data(lock, bundled_data())
    return BundledCatalog(header, bundle, REGION, DEFAULT_FACTS, pricing=locked_pricing(lock, book))


def test_types_zones_prices_and_their_origins_come_back_as_they_were() -> None:
    before = a_live_catalog()
    after = reopened(a_lock(before))
    for name in NAMES:
        old, new = before.get(name), after.get(name)
        assert old is not None
        assert new is not None
        assert new.allocatable == old.allocatable
        then = [(o.zone, o.capacity_type, o.price, o.available, o.origin) for o in old.offerings]
        assert [
            (o.zone, o.capacity_type, o.price, o.available, o.origin) for o in new.offerings
        ] == then


def test_an_unchanged_type_has_only_prices_in_the_lock() -> None:
    types = a_lock(a_live_catalog()).types
    assert types["m7g.large"].machine is None
    assert types["m99.large"].machine is not None
    assert types["m7g.xlarge"].zones == ("us-east-1a",)


def test_the_book_applies_to_locked_prices() -> None:
    kind = reopened(a_lock(a_live_catalog()), PriceBook(discount_percent=50.0)).get("m7g.large")
    assert kind is not None
    price = next(o for o in kind.offerings if o.capacity_type == "on-demand")
    assert (price.price, price.origin) == (0.035, PriceOrigin("book", NOON, "live"))


def test_a_type_that_is_not_locked_is_as_bundled() -> None:
    kind = reopened(a_lock(a_live_catalog())).get("c7g.large")
    assert kind is not None
    origins = {o.capacity_type: o.origin for o in kind.offerings}
    assert origins["on-demand"] == PriceOrigin("bundled", datetime(2026, 7, 20, tzinfo=UTC))
    assert origins["spot"] == PriceOrigin("estimate")
    assert any(o.available for o in kind.offerings if o.capacity_type == "spot")


def test_types_that_any_pool_allows_are_locked() -> None:
    wanted = (
        NodeSelectorRequirement(
            "node.kubernetes.io/instance-type", Operator.IN, ("m7g.large", "q1.none")
        ),
    )
    pool = NodePool(Metadata(name="web"))
    spec = msgspec.structs.replace(pool.spec.template.spec, requirements=wanted)
    template = msgspec.structs.replace(pool.spec.template, spec=spec)
    pool = msgspec.structs.replace(pool, spec=msgspec.structs.replace(pool.spec, template=template))
    assert allowed_types([pool], a_live_catalog()) == ("m7g.large",)
