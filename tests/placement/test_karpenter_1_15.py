"""The results of Karpenter 1.15 on scheduling, recorded from its test suites."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.model.settings import MinValuesPolicy
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Placement, Question
from reconciler.placement.topology.defaultspread import DefaultSpread, with_default_spread
from reconciler.placement.topology.peers import owners_of
from tests.placement.builders import (
    CAPACITY_TYPE,
    NOW,
    ZONE,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    a_type,
    apart,
    on,
    placed,
    rule,
    wanted,
)
from tests.tables import fixture_cases

RELEASE = "karpenter-1.15"
RESERVATION = "cr-1"
GROUPS = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "Job": "batch/v1"}


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "scheduling", "reserved"))
def test_reservations_are_used_as_in_karpenter(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    reserved = {
        "zone": "zone-a",
        "capacityType": "reserved",
        "price": 0.000001,
        "available": given.get("available", True),
        "reservationId": RESERVATION,
        "reservationCapacity": given["capacity"],
    }
    pool = a_pool("first", wanted(CAPACITY_TYPE, "In", *given["types"]), weight=100)
    other = [a_pool("other", wanted(CAPACITY_TYPE, "In", "on-demand"), weight=1)]
    affinity = {"affinity": apart(rule("kubernetes.io/hostname"))} if given.get("apart") else {}
    pods = [a_pod(f"app-{n}", labels={"app": "app"}, **affinity) for n in range(given["pods"])]
    scheduler, cluster = a_scheduler(
        [pool, *(other if given.get("fallbackPool") else []), *pods],
        types=[a_type("reserved-type", 4, 0.2, offerings=[reserved])],
        gates={"ReservedCapacity": True},
    )

    placement = scheduler.place(
        Question(
            pods=pods_to_place(cluster, NOW),
            strict_reservations=given["strict"],
            freed_reservation=RESERVATION if given.get("freed") else None,
        )
    )

    assert len(placement.claims) == expect["claims"]
    if "capacityType" in expect:
        (claim,) = placement.claims
        if given.get("freed"):  # nothing can be launched before the slot is free
            assert claim.requirements.requirement_on(CAPACITY_TYPE).has(expect["capacityType"])
        else:
            assert claim.launch[1].capacity_type == expect["capacityType"]
    waiting = len(pods) - sum(len(claim.pods) for claim in placement.claims)
    assert waiting == expect.get("unplaced", len(pods) - expect["claims"])


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "scheduling", "min_values"))
def test_min_values_count_as_in_karpenter(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    several = wanted(given["key"], "Exists", min_values=given["minValues"])
    pod = a_pod("p", affinity=on([wanted(ZONE, "In", *given["zones"])]))

    placement = placed(
        [a_pool("default", several), pod], min_values_policy=MinValuesPolicy(given["policy"])
    )

    assert len(placement.claims) == expect["claims"]
    for claim in placement.claims if "minValues" in expect else ():
        assert claim.requirements[given["key"]].min_values == expect["minValues"]


def _owner(row: dict[str, Any]) -> dict[str, Any]:
    """Return the object that owns pods, or a Service that selects them."""
    metadata = {"name": row.get("name", "service"), "namespace": row.get("namespace", "default")}
    selector = {"selector": row["selector"]} if row["selector"] is not None else {}
    version = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1"}.get(row["kind"], "v1")
    return {"apiVersion": version, "kind": row["kind"], "metadata": metadata, "spec": selector}


def _pods(group: dict[str, Any]) -> list[Any]:
    """Return the pods of a workload, those that run with their nodes."""
    spec = {"topologySpreadConstraints": [group["own"]]} if "own" in group else {}
    objects: list[Any] = []
    prefix = f"{group['name']}-{group.get('prefix', 'p')}"
    objects += [
        _owned(a_pod(f"{prefix}{n}", labels=group["labels"], **spec), group)
        for n in range(group["count"])
    ]
    for zone, count in group.get("running", {}).items():
        node = f"node-{zone}"
        objects += a_node(node, zone=zone, cpu="2")
        for n in range(count):
            pod = a_pod(f"{group['name']}-r{n}", node=node, labels=group["labels"])
            objects.append(_owned(pod, group))
    return objects


def _owned(pod: Any, group: dict[str, Any]) -> Any:
    kind = group["owner"]
    version = GROUPS.get(kind, "v1")
    reference = {"apiVersion": version, "kind": kind, "name": group["name"], "controller": True}
    pod["metadata"]["ownerReferences"] = [] if kind is None else [reference]
    return pod


def _per_zone(placement: Placement) -> list[int]:
    found: Counter[str] = Counter()
    for claim in placement.claims:
        zones = claim.requirements.requirement_on(ZONE).values
        found[",".join(sorted(zones))] += len(claim.pods)
    return sorted(found.values())


@pytest.mark.parametrize("case", fixture_cases(RELEASE, "scheduling", "default_spread"))
def test_pods_are_spread_by_default_as_in_karpenter(case: dict[str, Any]) -> None:
    given, expect = case["input"], case["expect"]
    config = {"podTopologySpread": {"defaultConstraints": given["defaults"]}}
    defaults = resolve(config, {}).settings.default_constraints
    zones = given.get("zones", ["zone-a", "zone-b", "zone-c"])
    pool = a_pool("default", wanted(ZONE, "In", *zones))
    pods = [item for group in given["groups"] for item in _pods(group)]

    _, cluster = a_scheduler([pool, *map(_owner, given["objects"]), *pods])
    owners = owners_of(cluster.services, cluster.scalables, cluster.replication_controllers)
    spread = with_default_spread(cluster, DefaultSpread(defaults, owners))
    scheduler, _ = a_scheduler([pool], cluster=spread)

    placement = scheduler.place(Question(pods=pods_to_place(spread, NOW)))

    assert len(placement.unschedulable) == expect.get("unplaced", 0)
    if "perNode" in expect:
        assert sorted(len(claim.pods) for claim in placement.claims) == expect["perNode"]
    if "perZone" in expect:
        assert _per_zone(placement) == expect["perZone"]
