"""Instance types from EC2's responses, compared with the bundled ones: both use one code path."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from typing import Any

import pytest

from reconciler.adapters.aws.facts.latest import describe_offerings, describe_types
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.catalog.aws.live import Zones, live_bundle, live_machines
from reconciler.catalog.catalog import DEFAULT_FACTS, BundledCatalog, bundled_catalog, bundled_data
from reconciler.catalog.classfacts import ClassFacts, DeviceMapping, Interface
from reconciler.model.karpenter.labels import ZONE_ID
from reconciler_embedded.ec2 import EmbeddedEC2

NOON = datetime(2026, 3, 2, 12, tzinfo=UTC)
REGION = "us-east-1"


@cache
def answers() -> tuple[list[dict[str, Any]], Zones]:
    """EC2's responses, through boto3 and page by page."""
    ec2 = EmbeddedEC2(SimulatedClock()).connect("ec2", 1)
    return describe_types(ec2), describe_offerings(ec2)


def a_catalog(
    bodies: list[dict[str, Any]], zones: Zones, facts: ClassFacts = DEFAULT_FACTS
) -> BundledCatalog:
    machines = live_machines(bodies, bundled_data()[1])
    header, bundle = live_bundle(REGION, machines, zones, NOON, bundled_data())
    return BundledCatalog(header, bundle, REGION, facts)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "facts",
    [
        ClassFacts(),
        ClassFacts(family="Bottlerocket", max_pods=50, reserved_enis=1),
        ClassFacts(family="Windows2022", volumes=(DeviceMapping("/dev/sda1", 10**14),)),
        ClassFacts(raid0=True, interfaces=(Interface(0, 0), Interface(0, 1, efa_only=True))),
    ],
    ids=["default", "bottlerocket", "windows", "raid-and-efa"],
)
def test_labels_and_amounts_are_those_of_the_bundle_for_the_same_facts(facts: ClassFacts) -> None:
    """The bundle's own facts of a few machines are older; those cannot be compared."""
    live, home = a_catalog(*answers(), facts), bundled_catalog(REGION, facts)
    known = frozenset(bundled_data()[1].machines)
    alike = [m.name for m in live.data[1].machines if m in known and m.name in home]
    assert len(alike) > 1250
    for name in alike:
        mine, theirs = live.get(name), home.get(name)
        assert mine is not None
        assert theirs is not None
        assert mine.capacity == theirs.capacity, name
        assert mine.allocatable == theirs.allocatable, name
        labels = {k: r for k, r in mine.requirements.items() if k != ZONE_ID}
        assert labels == {k: r for k, r in theirs.requirements.items() if k != ZONE_ID}, name


def test_a_type_missing_from_the_bundle_lacks_what_ec2_does_not_report() -> None:
    bodies, zones = answers()
    fresh = {**next(b for b in bodies if b["InstanceType"] == "m7i.large")}
    fresh["InstanceType"] = "m99i.large"
    offered = {zone: names | {"m99i.large"} for zone, names in zones.items()}
    kind = a_catalog([*bodies, fresh], offered).get("m99i.large")
    assert kind is not None
    assert kind.requirements.requirement_on("karpenter.k8s.aws/instance-generation").has("99")
    assert "vpc.amazonaws.com/pod-eni" not in kind.capacity
    assert not any(o.available for o in kind.offerings), "nobody has a price for it"


def test_a_type_that_ec2_no_longer_lists_keeps_its_price_and_is_not_launched() -> None:
    bodies, zones = answers()
    rest = [b for b in bodies if b["InstanceType"] != "m5.large"]
    offered = {zone: names - {"m5.large"} for zone, names in zones.items()}
    catalog = a_catalog(rest, offered)
    kind = catalog.get("m5.large")
    assert kind is not None
    assert catalog.launch_rejection("m5.large") == "EC2 no longer offers it"
    assert kind.price_of("us-east-1a", "on-demand") == 0.096
    assert not any(o.available for o in kind.offerings)


def test_an_invalid_body_is_replaced_by_the_bundled_machine_or_dropped() -> None:
    bodies, _ = answers()
    broken = [{**b, "NetworkInfo": {}} if b["InstanceType"] == "m5.large" else b for b in bodies]
    odd = {**next(b for b in bodies if b["InstanceType"] == "m5.large"), "InstanceType": "q1.odd"}
    odd["VCpuInfo"] = {}
    machines = {m.name: m for m in live_machines([*broken, odd], bundled_data()[1])}
    assert machines["m5.large"] in bundled_data()[1].machines
    assert "q1.odd" not in machines


def test_an_account_may_see_more_than_eight_zones() -> None:
    bodies, _ = answers()
    zones = {f"us-east-1-local-{n:02}a": frozenset({"m5.large"}) for n in range(12)}
    kind = a_catalog(bodies, zones).get("m5.large")
    assert kind is not None
    assert {o.zone for o in kind.offerings} >= zones.keys()


def test_the_time_of_the_request_is_not_part_of_the_digest() -> None:
    bodies, zones = answers()
    machines = live_machines(bodies, bundled_data()[1])
    headers = [
        live_bundle(REGION, order, zones, at, bundled_data())[0]
        for order, at in ((machines, NOON), (machines[::-1], NOON.replace(hour=13)))
    ]
    assert headers[0].digest == headers[1].digest
    assert headers[0].version != headers[1].version
