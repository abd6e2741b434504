"""Which domains exist for a pod: those with nodes, and those in which a node can be launched."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.settings import DecisionRules
from tests.placement.builders import (
    ARCH,
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    a_type,
    apart,
    groups,
    near,
    placed,
    pods,
    rule,
    spread,
    wanted,
)

NARROW = a_type("narrow", 8, 0.3, zones=("zone-a", "zone-b"))
"""A type that zone-c does not have."""
TAINT = {"key": "example.com/own", "effect": "NoSchedule"}


def _left(pools: list[Object], count: int = 6, types: Any = TYPES, **spec: Any) -> int:
    """Return how many of some pods with a spread over zones stay unscheduled."""
    spec = {"topologySpreadConstraints": [spread(ZONE)], **spec}
    return len(placed([*pools, *pods(count, **spec)], types=types).unschedulable)


@pytest.mark.parametrize(
    "requirement",
    [
        wanted("node.kubernetes.io/instance-type", "In", "narrow"),
        wanted("node.kubernetes.io/instance-type", "NotIn", *(t["name"] for t in TYPES)),
        wanted(ZONE, "In", "zone-a", "zone-b", "zone-unknown"),
    ],
    ids=lambda entry: f"{entry['key']} {entry['operator']}",
)
def test_a_zone_without_a_type_of_the_pool_is_not_a_domain(requirement: Object) -> None:
    assert _left([a_pool("default", requirement)], types=(*TYPES, NARROW)) == 0


def test_a_zone_without_a_type_that_the_pod_fits_on_is_not_a_domain() -> None:
    """The pool has types in three zones, but GPUs only in one of them."""
    gpu: Object = {"more": {"example.com/gpu": "1"}}
    assert _left([a_pool()], 2, **gpu) == 0


def test_a_zone_whose_only_offerings_are_unavailable_is_not_a_domain() -> None:
    sold_out = {"zone": "zone-c", "capacityType": "on-demand", "price": 0.3, "available": False}
    kinds = (a_type("narrow", 8, 0.3, zones=("zone-a", "zone-b"), offerings=[sold_out]),)
    assert _left([a_pool()], types=kinds) == 0


@pytest.mark.parametrize(
    "selecting",
    [
        {"nodeSelector": {"team": "one"}},
        {"nodeSelector": {"karpenter.sh/nodepool": "one"}},
        {"nodeSelector": {ARCH: "amd64"}},
    ],
    ids=["label", "NodePool", "architecture"],
)
def test_domains_of_a_pool_that_the_pod_does_not_select_do_not_count(selecting: Object) -> None:
    one = a_pool("one", wanted(ZONE, "In", "zone-a", "zone-b"), labels={"team": "one"})
    other = a_pool("other", wanted(ARCH, "In", "arm64"))
    assert _left([one, other], **selecting) == 0


def test_a_spread_that_ignores_node_affinity_counts_the_domains_of_other_pools() -> None:
    """Then the pods wait for zone-c, as their spread asks."""
    one = a_pool("one", wanted(ZONE, "In", "zone-a", "zone-b"), labels={"team": "one"})
    ignoring = spread(ZONE, nodeAffinityPolicy="Ignore")
    left = _left(
        [one, a_pool("other")],
        nodeSelector={"team": "one"},
        topologySpreadConstraints=[ignoring],
    )
    assert left == 4


def test_values_of_a_custom_label_come_from_the_selected_pools() -> None:
    key = "example.com/rack"
    one = a_pool("one", wanted(key, "In", "1"), labels={"team": "one"}, taints=[TAINT])
    other = a_pool("other", wanted(key, "In", "2", "3", "4"))
    tolerations = [{"key": TAINT["key"], "operator": "Exists"}]
    left = _left(
        [one, other],
        4,
        nodeSelector={"team": "one"},
        tolerations=tolerations,
        topologySpreadConstraints=[spread(key)],
    )
    assert left == 0


def _leaving_zone(deleting: bool) -> list[Object]:
    """Return nodes in three zones; the pool no longer launches in zone-c, whose node is leaving."""
    pool = a_pool("default", wanted(ZONE, "NotIn", "zone-c"))
    world = [pool]
    for zone in ("zone-a", "zone-b", "zone-c"):
        gone = deleting and zone == "zone-c"
        world += a_node(f"node-{zone}", "2", zone=zone, deleting=gone)
        world += [
            a_pod(
                f"app-{zone[-1]}{i}",
                "500m",
                node=f"node-{zone}",
                labels={"app": "app"},
                topologySpreadConstraints=[spread(ZONE)],
            )
            for i in range(2)
        ]
    return world


def test_the_zone_of_a_leaving_node_is_not_a_domain_for_its_pods() -> None:
    placement = placed(_leaving_zone(deleting=True))
    assert placement.unschedulable == {}
    assert sorted(placement.on_nodes.values()) == ["node-zone-a", "node-zone-b"]


def test_the_zone_of_a_node_that_stays_is_a_domain() -> None:
    world = [*_leaving_zone(deleting=False), *pods(3, topologySpreadConstraints=[spread(ZONE)])]
    assert len(placed(world).unschedulable) == 0
    world += pods(6, "more", labels={"app": "app"}, topologySpreadConstraints=[spread(ZONE)])
    left = placed(world).unschedulable
    assert left
    assert {r.code for reasons in left.values() for r in reasons} == {"TopologySpread"}


def test_a_full_domain_leaves_the_others_that_the_skew_allows() -> None:
    """zone-c has a node without room and no type with a GPU; with maxSkew 2 the others remain."""
    kinds = (a_type("plain", 4, 0.1), a_type("gpu", 8, 2.0, zones=("zone-a", "zone-b")))
    kinds[1]["capacity"]["example.com/gpu"] = "8"
    world = [a_pool(), *a_node("full", "1", zone="zone-c")]
    world += pods(
        5, more={"example.com/gpu": "1"}, topologySpreadConstraints=[spread(ZONE, skew=2)]
    )
    placement = placed(world, types=kinds)
    assert len(placement.unschedulable) == 1
    assert [len(members) for members in groups(placement)] == [2, 2]


def test_a_reason_counts_only_the_domains_that_exist_for_the_pod() -> None:
    narrow = wanted("node.kubernetes.io/instance-type", "In", "narrow")
    world = [a_pool("default", narrow), *a_node("full", "1", zone="zone-b")]
    world += pods(2, cpu="20", topologySpreadConstraints=[spread(ZONE)])
    (reason, *_) = placed(world, types=(*TYPES, NARROW)).unschedulable["default/app-00"]
    assert "zone-c" not in reason.message


@pytest.mark.parametrize("rule_of", [near, apart])
def test_as_karpenter_affinity_has_no_domain_that_only_softly_tainted_pools_have(
    rule_of: Any,
) -> None:
    """Karpenter finds the domains before a pod tolerates the taint, and keeps them."""
    soft = {"key": "example.com/own", "effect": "PreferNoSchedule"}
    waiting = pods(1, labels={"app": "web"}, affinity=rule_of(rule(ZONE, app="web")))
    for taints, least in (([soft], 0), ([], 1)):
        world = [a_pool("default", taints=taints), *waiting]
        assert len(placed(world, decide=DecisionRules.KARPENTER).claims) == least
        assert len(placed(world).claims) == 1
