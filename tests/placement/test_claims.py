"""New nodes: how pods share them, their possible types, and how they count towards a limit."""

from __future__ import annotations

import re

import pytest

from reconciler.model.settings import FeatureGate, MinValuesPolicy
from reconciler.placement.answer import claim_name, distinct_name
from tests.placement.builders import (
    ARCH,
    CAPACITY_TYPE,
    TYPES,
    ZONE,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_type,
    groups,
    on,
    placed,
    pods,
    spread,
    wanted,
)


def test_pods_that_fit_one_node_get_one_and_the_cheapest_type_comes_first() -> None:
    placement = placed([a_pool(), *pods(3)])
    assert groups(placement) == [["app-00", "app-01", "app-02"]]
    (claim,) = placement.claims
    assert [kind.name for kind in claim.types] == ["medium", "arm", "large", "huge", "gpu"]
    kind, offering = claim.launch
    assert (kind.name, offering.capacity_type) == ("medium", "spot")


def test_capacity_types_are_narrowed_to_what_the_types_are_offered_in() -> None:
    spotless = a_type("medium", 4, 0.2)
    spotless["offerings"] = [o for o in spotless["offerings"] if o["capacityType"] != "spot"]
    (claim,) = placed([a_pool(), *pods(1)], types=[spotless]).claims
    assert claim.requirements[CAPACITY_TYPE].values == {"on-demand"}


def test_the_node_with_the_fewest_pods_takes_the_next_pod() -> None:
    """Karpenter offers a pod to the node with the fewest pods, not to the fullest that fits."""
    big = [a_pod("big-0", "9"), a_pod("big-1", "9")]
    placement = placed([a_pool(), *big, *pods(4, cpu="1")])
    assert [len(members) for members in groups(placement)] == [3, 3]


def test_each_added_pod_narrows_the_node() -> None:
    spot = a_pod("spot-0", nodeSelector={CAPACITY_TYPE: "spot"})
    zonal = a_pod("zonal-0", nodeSelector={ZONE: "zone-b"})
    (claim,) = placed([a_pool(), spot, zonal]).claims
    _, offering = claim.launch
    assert (offering.zone, offering.capacity_type) == ("zone-b", "spot")


def test_pools_are_tried_by_weight_then_in_reverse_order_of_name() -> None:
    placement = placed([a_pool("a"), a_pool("b"), *pods(1)])
    assert [c.node_pool.name for c in placement.claims] == ["b"]
    placement = placed([a_pool("a", weight=1), a_pool("b"), *pods(1)])
    assert [c.node_pool.name for c in placement.claims] == ["a"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("status", {"conditions": [{"type": "Ready", "status": "False"}]}),
        ("metadata", {"name": "default", "deletionTimestamp": "2026-03-01T11:00:00Z"}),
    ],
)
def test_a_pool_that_is_not_ready_or_being_deleted_launches_nothing(
    field: str, value: object
) -> None:
    placement = placed([{**a_pool(), field: value}, *pods(1)])
    assert [r.code for r in placement.unschedulable["default/app-00"]] == ["NoNodePools"]


def test_a_limit_is_not_exceeded_whichever_type_is_launched() -> None:
    """Both pods fit nodes of 8 CPUs, but either may become one of 16, so the second has to wait."""
    apart = [a_pod(f"p-{i}", "7", nodeSelector={ARCH: "amd64"}, ports=[8080]) for i in range(2)]
    assert len(placed([a_pool(limits={"cpu": "32"}), *apart]).claims) == 2
    placement = placed([a_pool(limits={"cpu": "20"}), *apart])
    [claim] = placement.claims
    assert {"large", "huge"} <= {kind.name for kind in claim.types}
    assert [r.code for r in placement.unschedulable["default/p-1"]] == ["LimitReached"]


def test_one_pass_keeps_the_limit_on_nodes_which_karpenter_lets_it_exceed() -> None:
    big = pods(4, cpu="10")
    placement = placed([a_pool(limits={"nodes": "2"}), *big])
    assert (len(placement.claims), len(placement.unschedulable)) == (2, 2)
    reason = placement.unschedulable["default/app-02"][0]
    assert (reason.code, reason.node_pool) == ("NodeLimitReached", "default")


def test_running_nodes_count_for_a_limit_and_deleting_nodes_do_not() -> None:
    full = [a_pod("old-0", "4", node="n1")]
    world = [a_pool(limits={"nodes": "1"}), *full, *pods(1)]
    assert placed([*world, *a_node("n1")]).claims == ()
    assert len(placed([*world, *a_node("n1", deleting=True)]).claims) == 1


def test_min_values_keep_a_node_open_for_several_types() -> None:
    several = wanted("node.kubernetes.io/instance-type", "Exists", min_values=3)
    placement = placed([a_pool("default", several), *pods(2, cpu="5")])
    assert len(placement.claims) == 2
    assert all(len(claim.types) >= 3 for claim in placement.claims)


@pytest.mark.parametrize(("zones", "fits"), [(("zone-a", "zone-b"), True), (("zone-a",), False)])
def test_min_values_count_only_values_that_the_pods_allow(
    zones: tuple[str, ...], fits: bool
) -> None:
    """The types are in more zones than the pod can use."""
    several = wanted(ZONE, "Exists", min_values=2)
    pod = a_pod("p", affinity=on([wanted(ZONE, "In", *zones)]))

    placement = placed([a_pool("default", several), pod])

    assert bool(placement.claims) is fits
    if not fits:
        assert [r.code for r in placement.unschedulable["default/p"]] == ["MinValuesUnmet"]


def test_best_effort_lowers_min_values_and_reports_it() -> None:
    several = wanted("node.kubernetes.io/instance-type", "Exists", min_values=3)
    world = [a_pool("default", several), *pods(1, cpu="10")]
    assert [r.code for r in placed(world).unschedulable["default/app-00"]] == ["MinValuesUnmet"]
    (claim,) = placed(world, min_values_policy=MinValuesPolicy.BEST_EFFORT).claims
    assert claim.min_values_relaxed
    assert claim.requirements["node.kubernetes.io/instance-type"].min_values == 1


def test_custom_requirements_become_labels_and_well_known_ones_do_not() -> None:
    team = wanted("example.org/team", "In", "red", "blue")
    world = [a_pool("default", team, wanted(ARCH, "In", "amd64")), *pods(1)]
    (claim,) = placed(world).claims
    assert claim.labels["example.org/team"] == "blue"
    assert ARCH not in claim.labels
    assert "karpenter.sh/registered" not in claim.requirements


def test_daemon_set_requests_are_reserved_before_pods() -> None:
    plain = placed([a_pool(), *pods(1, cpu="1500m")])
    beside = placed([a_pool(), a_daemon_set("agent", "500m"), *pods(1, cpu="1500m")])
    assert plain.claims[0].types[0].name == "small"
    assert beside.claims[0].types[0].name == "medium"
    assert beside.claims[0].requests["cpu"] == 2000


def test_a_daemon_set_counts_only_on_the_types_that_it_runs_on() -> None:
    only_large = on([wanted("example.com/size", "In", "16")])
    world = [a_pool(), a_daemon_set("agent", "15", affinity=only_large), *pods(1)]
    (claim,) = placed(world).claims
    assert "huge" not in {kind.name for kind in claim.types}
    assert claim.requests["cpu"] == 1000


def test_each_alternative_of_a_daemon_sets_affinity_counts_for_every_type() -> None:
    """Karpenter drops an alternative for good once one type does not match it."""
    either = on([wanted("example.com/size", "In", "16")], [wanted("example.com/size", "In", "2")])
    world = [a_pool(), a_daemon_set("agent", "1500m", affinity=either), *pods(1)]
    (claim,) = placed(world).claims
    assert {kind.name for kind in claim.types} == {"medium", "large", "huge", "arm", "gpu"}


def test_startup_taints_do_not_repel_pods_from_a_new_node() -> None:
    taint = {"key": "example.com/starting", "effect": "NoSchedule"}
    assert len(placed([a_pool(startupTaints=[taint]), *pods(1)]).claims) == 1
    assert len(placed([a_pool(taints=[taint]), *pods(1)]).claims) == 0


def test_pods_with_the_same_host_port_need_separate_nodes() -> None:
    assert len(placed([a_pool(), *pods(3, ports=[8080])]).claims) == 3


def test_names_are_stable_and_differ_with_the_pods() -> None:
    once, again = placed([a_pool(), *pods(2)]), placed([a_pool(), *reversed(pods(2))])
    assert once.claims[0].name == again.claims[0].name
    assert once.claims[0].name != placed([a_pool(), *pods(3)]).claims[0].name


RESERVED = a_type(
    "kept",
    8,
    0.4,
    offerings=[
        {
            "zone": "zone-a",
            "capacityType": "reserved",
            "price": 0.0001,
            "reservationId": "cr-1",
            "reservationCapacity": 1,
        }
    ],
)


def test_reserved_capacity_is_taken_first_and_a_second_node_waits_for_it() -> None:
    placement = placed([a_pool(), *pods(2, cpu="6")], types=[*TYPES, RESERVED])
    (claim,) = placement.claims
    assert claim.launch[1].capacity_type == "reserved"
    assert claim.requirements[CAPACITY_TYPE].values == {"reserved"}
    assert [r.code for r in placement.deferred["default/app-01"]] == ["ReservedCapacityTaken"]
    assert placement.unschedulable == {}


def test_without_the_gate_reserved_offerings_delay_no_pod() -> None:
    world = [a_pool(), *pods(2, cpu="6")]
    off = placed(world, types=[*TYPES, RESERVED], gates={FeatureGate.RESERVED_CAPACITY: False})
    assert (len(off.claims), off.deferred) == (1, {})


def test_unconstrained_pods_join_nodes_of_spread_pods() -> None:
    sixteen = [a_type("sixteen", 16, 1.0)]
    large = pods(2, "large", cpu="7500m", memory="2Gi")
    apart_in_zones = pods(3, cpu="7", topologySpreadConstraints=[spread(ZONE)])
    placement = placed([a_pool(), *large, *apart_in_zones], types=sixteen)
    # served largest first, the large ones fill nodes of their own and there would be four
    assert sorted(len(c.pods) for c in placement.claims) == [1, 2, 2]


def test_names_of_claims_differ_although_a_tenant_finds_pods_with_the_same_short_hash() -> None:
    seen: dict[str, str] = {}
    for number in range(1_000_000):
        second = f"default/app-{number}"
        first = seen.setdefault(claim_name("web", (second,)), second)
        if first != second:
            break
    name = distinct_name("web", (first,), ())
    other = distinct_name("web", (second,), {name})
    assert claim_name("web", (second,)) == name != other
    assert all(re.fullmatch(r"web-[0-9a-f]{8,32}", one) for one in (name, other))
    assert len(distinct_name("a" * 70, (second,), {claim_name("a" * 70, (second,))})) == 63
    assert len(claim_name("a" * 70, (second,))) == 63
