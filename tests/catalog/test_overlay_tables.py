"""NodeOverlays tested with Karpenter's own cases: arithmetic, precedence, conflicts, admission."""

import json
from typing import Any

import msgspec
import pytest

from reconciler.catalog.adjusted.overlay import (
    AWS_RESOURCES,
    OverlayPool,
    OverlayVerdict,
    adjusted_price,
    evaluate_overlays,
    overlay_problems,
)
from reconciler.catalog.file import read_catalog
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from tests.tables import cases


def overlay(spec: dict[str, Any]) -> NodeOverlay:
    fields = {key: value for key, value in spec.items() if key != "name"}
    return msgspec.convert(
        {"metadata": {"name": spec.get("name", "overlay")}, "spec": fields}, NodeOverlay
    )


@pytest.mark.parametrize("case", cases("overlay_price"))
def test_prices_are_adjusted_as_in_karpenter(case: Any) -> None:
    given, expected = case["input"], case["expect"]
    change = {given["field"]: given["change"]}
    price = adjusted_price(given["base_price"], change.get("price"), change.get("priceAdjustment"))
    assert price == pytest.approx(expected["price"], rel=0, abs=expected["tolerance"])


@pytest.mark.parametrize("case", cases("overlay_validation"))
def test_overlays_accepted_by_the_api_are_checked_again(case: Any) -> None:
    expected = case["expect"]
    try:
        fields = [path for path, _ in overlay_problems(overlay(case["input"]["overlay"]))]
    except msgspec.ValidationError as error:  # an unknown operator is rejected when decoding
        fields = [str(error).rpartition("`$.")[2].rstrip("`")]
    assert sorted(set(fields)) == expected.get("runtime_fields", [])


def catalog_of(types: list[Any]) -> Any:
    for kind in types:
        kind["offerings"] = [
            {
                "capacityType": o["capacity_type"],
                **{k: o[k] for k in ("zone", "price", "available")},
            }
            for o in kind["offerings"]
        ]
    return read_catalog(json.dumps(types).encode(), "table")


@pytest.mark.parametrize("case", cases("overlay_store"))
def test_overlays_are_accepted_and_rejected_as_in_karpenter(case: Any) -> None:
    given, expected = case["input"], case["expect"]
    catalog = catalog_of(given["instance_types"])
    failing = given.get("instance_type_errors", {})
    pools = [
        OverlayPool(pool["name"], pool["labels"], catalog)
        for pool in given["nodepools"]
        if pool["name"] not in failing
    ]

    resources = AWS_RESOURCES.union(given.get("extra_well_known_resources", ()))
    evaluation = evaluate_overlays(pools, map(overlay, given["overlays"]), resources)

    for finding in evaluation.findings:
        status = expected["overlay_status"][finding.name]
        assert (finding.verdict is OverlayVerdict.ACCEPTED) == (
            status["ValidationSucceeded"] == "True"
        )
        assert finding.verdict is OverlayVerdict.ACCEPTED or finding.verdict == status["reason"]
    assert len(evaluation.findings) == len(expected["overlay_status"])
    for pool, types in expected["nodepools"].items():
        if "error" in types:
            assert pool not in evaluation.catalogs
            continue
        adjusted = evaluation.catalogs[pool]
        assert set(adjusted.names) == set(types)
        for name, wanted in types.items():
            kind, before = adjusted.get(name), catalog.get(name)
            prices = [(o.capacity_type, o.zone, o.price) for o in kind.offerings]
            assert prices == [
                (o["capacity_type"], o["zone"], pytest.approx(o["price"], rel=1e-12))
                for o in wanted["offerings"]
            ]
            overlaid = any(o["overlaid"] for o in wanted["offerings"])
            assert (name in adjusted.price_overlaid) == overlaid
            assert (name in adjusted.capacity_overlaid) == wanted["capacity_overlaid"]
            extra = {k: v for k, v in kind.capacity.items() if before.capacity.get(k) != v}
            assert extra == overlay({"capacity": wanted["extra_capacity"]}).capacity()
