"""NodeOverlays on the bundled catalog: cases that Karpenter's tables do not cover."""

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.catalog.adjusted.overlay import (
    OverlayFinding,
    OverlayPool,
    OverlayVerdict,
    evaluate_overlays,
)
from reconciler.catalog.catalog import Catalog, bundled_catalog
from reconciler.catalog.columns import columns_of
from reconciler.model.karpenter.labels import INSTANCE_TYPE, ON_DEMAND
from reconciler.model.karpenter.nodeoverlay import NodeOverlay

CATALOG = bundled_catalog()
FAMILY = "karpenter.k8s.aws/instance-family"


def an_overlay(name: str = "overlay", **spec: Any) -> NodeOverlay:
    spec = {"requirements": [in_("m5", key=FAMILY)], "weight": 1, **spec}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, NodeOverlay)


def in_(*values: str, key: str = INSTANCE_TYPE) -> dict[str, Any]:
    return {"key": key, "operator": "In", "values": values}


def a_pool(name: str = "general", catalog: Catalog = CATALOG, **labels: str) -> OverlayPool:
    return OverlayPool(name, labels, catalog)


def price(catalog: Catalog, name: str) -> float | None:
    kind = catalog.get(name)
    assert kind is not None
    return kind.price_of("us-east-1a", ON_DEMAND)


def test_columns_and_objects_of_an_overlaid_catalog_are_equal() -> None:
    overlays = [
        an_overlay("prices", priceAdjustment="-10%"),
        an_overlay("devices", capacity={"example.com/fuse": "3", "hugepages-2Mi": "1Gi"}),
    ]
    evaluation = evaluate_overlays([a_pool()], overlays)
    catalog = evaluation.catalogs["general"]
    objects = columns_of(list(catalog.types))
    assert dict(catalog.columns.requirements) == objects.requirements
    assert catalog.columns.allocatable == objects.allocatable
    assert catalog.columns.offerings == objects.offerings
    assert catalog.price_overlaid == catalog.capacity_overlaid
    assert "m5.large" in catalog.price_overlaid
    kind, before = catalog.get("m5.large"), CATALOG.get("m5.large")
    assert kind is not None
    assert before is not None
    assert kind.allocatable["memory"] == before.allocatable["memory"] - 2**30 * 1000
    assert price(catalog, "m5.large") == pytest.approx(0.0864)


def test_nothing_is_changed_in_place() -> None:
    evaluate_overlays([a_pool()], [an_overlay(price="7", capacity={"example.com/fuse": "3"})])
    assert price(CATALOG, "m5.large") == 0.096
    assert "example.com/fuse" not in CATALOG.columns.allocatable
    assert not CATALOG.price_overlaid


def test_an_overlay_without_effect_returns_the_same_catalog() -> None:
    evaluation = evaluate_overlays(
        [a_pool()], [an_overlay(requirements=[in_("no-such.type")], price="1")]
    )
    assert evaluation.catalogs["general"] is CATALOG
    assert evaluation.findings == (OverlayFinding("overlay", OverlayVerdict.ACCEPTED),)


def test_a_conflict_names_the_other_overlay_and_what_to_do() -> None:
    overlays = [an_overlay("first", price="1"), an_overlay("second", price="1")]
    first, second = evaluate_overlays([a_pool()], overlays).findings
    assert first.verdict is OverlayVerdict.CONFLICT
    assert first.message == (
        "overlay second has the same weight 1 and sets a price too; give one of them another weight"
    )
    assert second.verdict is OverlayVerdict.ACCEPTED
    assert second.matches == 9


def test_a_conflict_in_one_pool_rejects_the_overlay_in_all() -> None:
    overlays = [
        an_overlay("wide", price="1"),
        an_overlay("zz-narrow", price="2", requirements=[in_("green", key="example.com/team")]),
    ]
    pools = [a_pool("blue"), a_pool("green", **{"example.com/team": "green"})]
    evaluation = evaluate_overlays(pools, overlays)
    assert price(evaluation.catalogs["blue"], "m5.large") == 0.096
    assert price(evaluation.catalogs["green"], "m5.large") == 2.0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"price": "much"}, "not a number"),
        ({"capacity": {"example.com/fuse": "x"}}, r"spec\.capacity\.example\.com/fuse"),
        ({"capacity": {"cpu": "1"}}, r"spec\.capacity: cpu comes from the provider"),
    ],
)
def test_an_invalid_overlay_is_rejected_and_reported(spec: dict[str, Any], message: str) -> None:
    [finding] = evaluate_overlays([a_pool()], [an_overlay(**spec)]).findings
    assert finding.verdict is OverlayVerdict.INVALID
    assert re.search(message, finding.message)


def test_a_type_without_a_price_is_available_once_an_overlay_prices_it() -> None:
    name = next(n for n in CATALOG.names if CATALOG.launch_rejection(n) == "no price is known")
    priced = evaluate_overlays([a_pool()], [an_overlay(requirements=[in_(name)], price="9.5")])
    catalog = priced.catalogs["general"]
    kind = catalog.get(name)
    assert kind is not None
    assert {o.price for o in kind.available_offerings()} == {9.5}
    assert catalog.launch_rejection(name) is None
    assert catalog.columns.offerings == columns_of(list(catalog.types)).offerings
    wider = [in_(name), in_("linux", key="kubernetes.io/os")]
    other = evaluate_overlays([a_pool()], [an_overlay(requirements=wider, price="9.5")])
    kind = other.catalogs["general"].get(name)
    assert kind is not None
    assert not kind.available_offerings()


def test_one_pool_can_be_evaluated_alone() -> None:
    evaluation = evaluate_overlays([OverlayPool("general", {}, CATALOG)], [an_overlay(price="0")])
    catalog = evaluation.catalogs["general"]
    assert price(catalog, "m5.large") == 0.0
    assert [f.verdict for f in evaluation.findings] == [OverlayVerdict.ACCEPTED]
    assert catalog.digest != CATALOG.digest


@given(st.permutations([("a", 1, "5"), ("b", 1, "6"), ("c", 2, "7"), ("d", 0, "8")]))
def test_the_order_of_overlays_does_not_matter(order: list[tuple[str, int, str]]) -> None:
    overlays = [an_overlay(name, weight=weight, price=text) for name, weight, text in order]
    evaluation = evaluate_overlays([a_pool()], overlays)
    assert price(evaluation.catalogs["general"], "m5.large") == 7.0
    assert [f.name for f in evaluation.findings if f.verdict is OverlayVerdict.CONFLICT] == ["a"]
