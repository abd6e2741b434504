"""Devices that several nodes reach: consumed once, by pods on nodes that exist and on new ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.settings import KarpenterVersion
from reconciler.placement.question import Placement, Question
from tests.examples import examples
from tests.placement.builders import (
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pool,
    a_scheduler,
    placed,
    wanted,
    zones,
)
from tests.placement.devices import (
    a_claim,
    a_claim_template,
    a_claiming_pod,
    a_class,
    a_device,
    a_gpu_type,
    a_request,
    a_slice,
    a_template,
    gpus,
)

V1_15 = KarpenterVersion.V1_15
ONE = a_gpu_type("g-one", 8, 1.0, a_template(gpus(1)))
SHARED: dict[str, Any] = {"allowMultipleAllocations": True}


def selecting(key: str, *values: str) -> Object:
    """Return a node selector."""
    return {"nodeSelectorTerms": [{"matchExpressions": [wanted(key, "In", *values)]}]}


def a_network_slice(devices: Sequence[Object], name: str = "fabric", **spec: Any) -> Object:
    """Return a slice whose devices several nodes reach, by default all of them."""
    made = a_slice("", devices, name=name, pool={"name": name, **spec.pop("pool", {})})
    del made["metadata"]["ownerReferences"], made["spec"]["nodeName"]
    made["spec"] |= spec or {"allNodes": True}
    return made


def _placed(*objects: Object, **more: Any) -> Placement:
    more.setdefault("types", TYPES)
    return placed([a_pool(), a_class(), *objects], karpenter=V1_15, **more)


def _pods(count: int) -> list[Object]:
    return [a_claim_template(), *(a_claiming_pod(f"app-{i}", "one-gpu") for i in range(count))]


def test_a_device_for_all_nodes_is_consumed_once_by_new_nodes() -> None:
    placement = _placed(a_network_slice(gpus(2)), *_pods(3))

    assert sum(len(claim.pods) for claim in placement.claims) == 2
    assert list(placement.unschedulable) == ["default/app-2"]


def test_a_device_for_all_nodes_is_consumed_once_by_running_and_new_nodes() -> None:
    pods = _pods(3)[1:]
    for pod in pods:
        pod["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "3"}}

    placement = _placed(
        *a_node("n-1", cpu="4"), a_network_slice(gpus(2)), a_claim_template(), *pods
    )

    assert dict(placement.on_nodes) == {"default/app-0": "n-1"}
    assert [claim.pods for claim in placement.claims] == [("default/app-1",)]
    assert list(placement.unschedulable) == ["default/app-2"]


@pytest.mark.parametrize("is_per_device", [False, True])
def test_a_new_node_is_launched_where_it_reaches_the_device(is_per_device: bool) -> None:
    reach: Object = {"nodeSelector": selecting(ZONE, "zone-b")}
    slice_ = (
        a_network_slice(gpus(1, **reach), perDeviceNodeSelection=True)
        if is_per_device
        else a_network_slice(gpus(1), **reach)
    )

    placement = _placed(slice_, *_pods(2))

    assert zones(placement) == ["zone-b"]
    assert list(placement.unschedulable) == ["default/app-1"]


def test_running_nodes_take_the_pod_only_if_their_labels_are_selected() -> None:
    reach: dict[str, Any] = {"nodeSelector": selecting(ZONE, "zone-b")}
    nodes = [*a_node("n-1", zone="zone-a"), *a_node("n-2", zone="zone-b")]

    placement = _placed(*nodes, a_network_slice(gpus(1), **reach), *_pods(1))

    assert dict(placement.on_nodes) == {"default/app-0": "n-2"}


def test_a_device_that_only_a_named_node_reaches_is_not_for_new_nodes() -> None:
    field = {"key": "metadata.name", "operator": "In", "values": ["n-2"]}
    reach: dict[str, Any] = {"nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]}}
    slice_ = a_network_slice(gpus(2), **reach)

    placement = _placed(*a_node("n-1"), *a_node("n-2"), slice_, *_pods(3))

    assert dict(placement.on_nodes) == {"default/app-0": "n-2", "default/app-1": "n-2"}
    assert list(placement.unschedulable) == ["default/app-2"]


def test_devices_of_two_zones_are_not_combined_on_one_node() -> None:
    parts = [
        a_network_slice(gpus(1), zone, nodeSelector=selecting(ZONE, zone))
        for zone in ("zone-a", "zone-b")
    ]
    both = a_claim_template("both", a_request("gpu", 2))

    placement = _placed(*parts, both, a_claiming_pod("app-0", "both"))

    assert placement.claims == ()
    assert list(placement.unschedulable) == ["default/app-0"]


def test_the_search_goes_back_if_the_first_device_leads_to_the_wrong_zone() -> None:
    lone = a_network_slice(gpus(1), "a", nodeSelector=selecting(ZONE, "zone-a"))
    pair = a_network_slice(gpus(2), "b", nodeSelector=selecting(ZONE, "zone-b"))
    both = a_claim_template("both", a_request("gpu", 2))

    assert zones(_placed(lone, pair, both, a_claiming_pod("app-0", "both"))) == ["zone-b"]


def test_a_claim_that_pods_name_is_used_from_several_nodes() -> None:
    claim = a_claim("fabric")
    pods = [a_claiming_pod(f"app-{i}", claims=["fabric"], cpu="14") for i in range(3)]

    placement = _placed(
        a_network_slice(gpus(1), nodeSelector=selecting(ZONE, "zone-b")), claim, *pods
    )

    assert zones(placement) == ["zone-b"] * 3
    assert not placement.unschedulable


def test_a_claim_with_a_device_of_the_node_stays_on_that_node() -> None:
    nic = 'device.driver == "nic.example.com"'
    claim = a_claim("pair", a_request("gpu"), a_request("nic", 1, deviceClassName="nic"))
    fabric = a_network_slice([a_device("nic-0")], driver="nic.example.com", allNodes=True)
    pods = [a_claiming_pod(f"app-{i}", claims=["pair"], cpu="7") for i in range(2)]

    placement = _placed(a_class("nic", nic), fabric, claim, *pods, types=(*TYPES, ONE))

    assert [claim.pods for claim in placement.claims] == [("default/app-0",)]
    assert list(placement.unschedulable) == ["default/app-1"]


def test_capacity_that_claims_share_is_consumed_across_nodes() -> None:
    link = a_device("link", capacity={"bandwidth": "10"}, **SHARED)
    part = a_request("gpu", capacity={"requests": {"bandwidth": "4"}})
    pods = [a_claiming_pod(f"app-{i}", "part", cpu="14") for i in range(3)]

    placement = _placed(a_network_slice([link]), a_claim_template("part", part), *pods)

    assert len(placement.claims) == 2
    assert list(placement.unschedulable) == ["default/app-2"]


def test_types_that_take_different_devices_block_both_until_one_is_chosen() -> None:
    """A node with a GPU of its own needs none of the network; one without takes it."""
    small = a_gpu_type("a-own", 8, 2.0, a_template(gpus(1)))
    plain = {**TYPES[0], "name": "b-plain"}
    request = a_claim_template("any", a_request("gpu"))

    placement = _placed(
        a_network_slice(gpus(1)), request, *(a_claiming_pod(f"app-{i}", "any") for i in range(2)),
        types=(small, plain),
    )  # fmt: skip

    assert not placement.unschedulable
    names = [[kind.name for kind in claim.types] for claim in placement.claims]
    assert names in ([["b-plain"], ["a-own"]], [["a-own"]], [["b-plain", "a-own"], ["a-own"]])


def _allocated(claim: str, pods: list[str], device: str = "gpu-0") -> Object:
    result = {"request": "gpu", "driver": "gpu.example.com", "pool": "fabric", "device": device}
    consumers = [{"resource": "pods", "name": pod, "uid": pod} for pod in pods]
    return a_claim(
        claim, status={"allocation": {"devices": {"results": [result]}}, "reservedFor": consumers}
    )


def test_a_device_that_a_claim_has_is_in_use_for_every_node() -> None:
    user = a_claiming_pod("user-0", claims=["own"], node="n-1")
    objects = [*a_node("n-1"), a_network_slice(gpus(2)), _allocated("own", ["user-0"]), user]

    placement = _placed(*objects, *_pods(2))

    assert list(placement.unschedulable) == ["default/app-1"]


def test_a_pod_that_moves_gives_back_its_device_and_gets_one_again() -> None:
    user = a_claiming_pod("user-0", claims=["own"], node="n-1")
    user["metadata"]["uid"] = "user-0"
    nodes = [*a_node("n-1"), *a_node("n-2")]
    objects = [a_pool(), a_class(), *nodes, a_network_slice(gpus(1)), user]
    scheduler, cluster = a_scheduler(
        [*objects, _allocated("own", ["user-0"])], types=TYPES, karpenter=V1_15
    )

    moving = scheduler.place(Question(pods=cluster.pods, without=frozenset({"n-1"})))

    assert dict(moving.on_nodes) == {"default/user-0": "n-2"}


def test_a_pool_with_missing_slices_gives_no_device() -> None:
    slice_ = a_network_slice(gpus(1), pool={"resourceSliceCount": 2})

    assert list(_placed(slice_, *_pods(1)).unschedulable) == ["default/app-0"]


def test_all_devices_are_those_that_the_node_reaches() -> None:
    parts = [
        a_network_slice(gpus(n), zone, nodeSelector=selecting(ZONE, zone))
        for n, zone in ((1, "zone-a"), (3, "zone-b"))
    ]
    every = a_claim_template("all", a_request("gpu", allocationMode="All"))
    nodes = [*a_node("n-2", zone="zone-b")]

    placement = _placed(*nodes, *parts, every, a_claiming_pod("all-0", "all", cpu="2"), *_pods(2))

    assert dict(placement.on_nodes) == {"default/all-0": "n-2"}
    assert zones(placement) == ["zone-a"]
    assert len(placement.unschedulable) == 1


def _reason(placement: Placement, pod: str = "app-1") -> str:
    return "; ".join(r.message for r in placement.unschedulable[f"default/{pod}"])


def test_a_rejection_counts_the_devices_of_the_network_that_are_in_use() -> None:
    reason = _reason(_placed(a_network_slice(gpus(1)), *_pods(2)))

    assert "request gpu of ResourceClaim one-gpu cannot be satisfied" in reason
    assert "the devices that match are in use (0 of 1 are free)" in reason


def test_a_rejection_names_the_nodes_from_which_devices_can_be_used() -> None:
    rack = a_network_slice(gpus(1), nodeSelector=selecting("example.com/rack", "r1"))

    reason = _reason(_placed(rack, *_pods(1)), "app-0")

    assert "only from nodes with example.com/rack in [r1]" in reason.replace("In", "in")


ZONES = ("zone-a", "zone-b")


@st.composite
def _worlds(draw: st.DrawFn) -> tuple[list[Object], list[tuple[str, ...]]]:
    """Return slices and nodes, and the zones or the node from which each device can be used."""
    objects: list[Object] = []
    reaches: list[tuple[str, ...]] = []
    for number in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 3))
        reach = draw(st.sampled_from([ZONES, ZONES[:1], ZONES[1:]]))
        spec = {"allNodes": True} if reach == ZONES else {"nodeSelector": selecting(ZONE, *reach)}
        objects.append(a_network_slice(gpus(count), f"pool-{number}", **spec))
        reaches += [reach] * count
    for number in range(draw(st.integers(0, 2))):
        objects += a_node(f"n-{number}", cpu="2", zone=draw(st.sampled_from(ZONES)))
    return objects, reaches


def _can_be_matched(zones_of_pods: list[str], reaches: list[tuple[str, ...]]) -> bool:
    """Return whether every pod gets a device of its own, by trying each one."""
    if not zones_of_pods:
        return True
    first, *rest = zones_of_pods
    return any(
        _can_be_matched(rest, [*reaches[:i], *reaches[i + 1 :]])
        for i in {reaches.index(reach) for reach in reaches if first in reach}
    )


@settings(max_examples=examples(60), deadline=None)
@given(_worlds(), st.integers(1, 6))
def test_every_placed_pod_reaches_a_device_of_its_own(
    world: tuple[list[Object], list[tuple[str, ...]]], count: int
) -> None:
    objects, reaches = world
    where = {
        item["metadata"]["name"]: item["metadata"]["labels"][ZONE]
        for item in objects
        if item["kind"] == "Node"
    }

    placement = _placed(*objects, *_pods(count))

    found = [where[name] for name in placement.on_nodes.values()]
    for claim in placement.claims:
        found += [claim.launch[1].zone] * len(claim.pods)
    assert len(found) + len(placement.unschedulable) == count
    assert _can_be_matched(found, reaches)
    assert bool(found)
