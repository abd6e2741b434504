"""Topology rules: spread, affinity, anti-affinity, and the preferences that a pod drops."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from reconciler.model.decode import decode
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.settings import PreferencePolicy
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Question
from reconciler.placement.topology.rules import Selector
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    NOW,
    PREFERRED,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    a_type,
    apart,
    groups,
    near,
    on,
    placed,
    pods,
    rule,
    spread,
    wanted,
    zones,
)


def test_a_spread_evens_out_over_zones_that_are_still_empty() -> None:
    placement = placed([a_pool(), *pods(6, topologySpreadConstraints=[spread(ZONE)])])
    assert zones(placement) == ["zone-a", "zone-b", "zone-c"]
    assert [len(members) for members in groups(placement)] == [2, 2, 2]


def test_running_pods_count_and_a_zone_outside_the_pool_counts_as_empty() -> None:
    """The minimum is taken over all known zones, so the third pod is unschedulable."""
    pool = a_pool("default", wanted(ZONE, "In", "zone-a", "zone-b"))
    old = [a_pod("app-old", node="n1", labels={"app": "app"})]
    world = [pool, *a_node("n1", cpu="1", zone="zone-c"), *old]
    placement = placed([*world, *pods(5, topologySpreadConstraints=[spread(ZONE)])])
    assert len(placement.unschedulable) == 1
    assert {r.code for r in placement.unschedulable["default/app-04"]} == {"TopologySpread"}


def test_a_spread_by_host_ignores_the_minimum() -> None:
    placement = placed([a_pool(), *pods(4, topologySpreadConstraints=[spread(HOST, skew=2)])])
    assert [len(members) for members in groups(placement)] == [2, 2]


def test_min_domains_delay_pods_until_there_are_enough_domains() -> None:
    pool = a_pool("default", wanted(ZONE, "In", "zone-a", "zone-b"))
    rule_ = spread(ZONE, minDomains=3)
    placement = placed([pool, *pods(3, topologySpreadConstraints=[rule_])])
    assert len(placement.unschedulable) == 1


def test_a_pod_outside_its_own_spread_selector_does_not_count() -> None:
    placement = placed([a_pool(), *pods(4, topologySpreadConstraints=[spread(HOST, app="other")])])
    assert len(placement.claims) == 1


def test_match_label_keys_spread_each_revision_separately() -> None:
    keyed = spread(ZONE, matchLabelKeys=["rev"])
    world = [
        a_pod(f"{rev}-{i}", labels={"app": "app", "rev": rev}, topologySpreadConstraints=[keyed])
        for rev in ("one", "two")
        for i in range(3)
    ]
    placement = placed([a_pool(), *world])
    assert placement.unschedulable == {}
    assert [len(members) for members in groups(placement)] == [2, 2, 2]


def test_domains_behind_a_taint_count_unless_the_spread_honours_taints() -> None:
    zone_c = a_pool(
        "tainted",
        wanted(ZONE, "In", "zone-c"),
        taints=[{"key": "example.com/own", "effect": "NoSchedule"}],
    )
    pool = a_pool("default", wanted(ZONE, "In", "zone-a", "zone-b"))
    types = [
        a_type("ab", 8, 0.4, zones=("zone-a", "zone-b")),
        a_type("c", 8, 0.4, zones=("zone-c",)),
    ]
    pool["spec"]["template"]["spec"]["requirements"].append(
        wanted("node.kubernetes.io/instance-type", "In", "ab")
    )
    ignoring = [pool, zone_c, *pods(4, topologySpreadConstraints=[spread(ZONE)])]
    honouring = [
        pool,
        zone_c,
        *pods(4, topologySpreadConstraints=[spread(ZONE, nodeTaintsPolicy="Honor")]),
    ]
    assert len(placed(ignoring, types=types).unschedulable) == 2
    assert placed(honouring, types=types).unschedulable == {}


@pytest.mark.parametrize(("policy", "in_its_zone"), [("Honor", 2), ("Ignore", 1)])
def test_a_pod_on_a_node_whose_taint_a_spread_honours_does_not_count(
    policy: str, in_its_zone: int
) -> None:
    """It is placed in the same pass, on a node that pods with the spread cannot use."""
    taint = {"key": "example.com/own", "effect": "NoSchedule"}
    bound = {"tolerations": [{"operator": "Exists"}], "nodeSelector": {"own": "yes"}}
    first = a_pod("first-0", "3", labels={"app": "app"}, **bound)
    pool = a_pool("default", wanted(ZONE, "In", "zone-a", "zone-b"))
    rest = pods(3, topologySpreadConstraints=[spread(ZONE, nodeTaintsPolicy=policy)])
    node = a_node("n1", cpu="8", zone="zone-a", taints=[taint], labels={"own": "yes"})
    found = placed([pool, *node, first, *rest])
    assert found.on_nodes == {"default/first-0": "n1"}
    in_zone_a = [c for c in found.claims if c.requirements.fixed_labels()[ZONE] == "zone-a"]
    assert sum(len(claim.pods) for claim in in_zone_a) == in_its_zone


def test_pods_with_host_anti_affinity_use_separate_hosts() -> None:
    placement = placed([a_pool(), *pods(3, affinity=apart(rule(HOST)))])
    assert groups(placement) == [["app-00"], ["app-01"], ["app-02"]]


def test_required_anti_affinity_applies_to_pods_without_rules() -> None:
    guard = a_pod("guard-0", "3", affinity=apart(rule(HOST, app="app")))
    assert len(placed([a_pool(), guard, *pods(1)]).claims) == 2
    running = a_pod("guard-0", "1", node="n1", affinity=apart(rule(HOST, app="app")))
    placement = placed([a_pool(), *a_node("n1"), running, *pods(1)])
    assert (placement.on_nodes, len(placement.claims)) == ({}, 1)


def test_a_pod_placed_on_an_existing_node_repels_those_that_follow() -> None:
    """Its rule is about others, and the larger pod is placed first."""
    guard = a_pod("guard-0", "2", labels={"app": "guard"}, affinity=apart(rule(HOST)))
    placement = placed([a_pool(), *a_node("n1", cpu="8"), guard, *pods(1, cpu="1")])
    assert placement.on_nodes == {"default/guard-0": "n1"}
    assert groups(placement) == [["app-00"]]


def test_a_pod_that_no_new_node_can_run_repels_no_pods_there() -> None:
    """Karpenter has no domain for its rule then, so the pods that it selects are never placed."""
    tainted = a_pool(taints=[{"key": "team", "value": "data", "effect": "NoSchedule"}])
    outside = a_pod("outside", affinity=apart(rule(ZONE, app="app")))
    tolerated = pods(1, tolerations=[{"key": "team", "operator": "Exists"}])
    placement = placed([tainted, outside, *tolerated])
    assert groups(placement) == [["app-00"]]
    assert list(placement.unschedulable) == ["default/outside"]


def test_an_undecided_zone_blocks_every_zone_for_repelled_pods() -> None:
    first = a_pod("first-0", "3", labels={"app": "app"})
    opponent = a_pod("second-0", "1", affinity=apart(rule(ZONE, app="app")))
    placement = placed([a_pool(), first, opponent])
    assert [r.code for r in placement.unschedulable["default/second-0"]] == ["PodAntiAffinity"]


def test_pods_with_zone_affinity_share_a_zone_on_several_nodes() -> None:
    placement = placed([a_pool(), *pods(4, cpu="10", affinity=near(rule(ZONE)))])
    assert len(placement.claims) == 4
    assert len(set(zones(placement))) == 1


def test_a_chain_of_affinities_is_resolved_whatever_the_order() -> None:
    """Each pod waits for the one before; the largest is served first and is last in the chain."""
    zonal = a_pod("db-0", "1", labels={"app": "db"}, nodeSelector={ZONE: "zone-b"})
    web = a_pod("web-0", "2", labels={"app": "web"}, affinity=near(rule(ZONE, app="db")))
    ui = a_pod("ui-0", "3", labels={"app": "ui"}, affinity=near(rule(ZONE, app="web")))
    placement = placed([a_pool(), ui, web, zonal])
    assert placement.unschedulable == {}
    assert {claim.launch[1].zone for claim in placement.claims} == {"zone-b"}


def test_an_affinity_without_matching_pods_is_unschedulable_and_names_the_rule() -> None:
    placement = placed([a_pool(), *pods(1, affinity=near(rule(ZONE, app="nobody")))])
    assert [r.code for r in placement.unschedulable["default/app-00"]] == ["PodAffinity"]


def test_terms_select_their_own_namespace_by_default() -> None:
    other: Object = {"kind": "Namespace", "metadata": {"name": "other"}}
    db = a_pod("db-0", labels={"app": "db"}, nodeSelector={ZONE: "zone-a"})
    db["metadata"]["namespace"] = "other"
    own = a_pod("own-0", "500m", affinity=near(rule(ZONE, app="db")))
    every = a_pod("every-0", "500m", affinity=near(rule(ZONE, app="db", namespaceSelector={})))
    placement = placed([a_pool(), other, db, own, every])
    assert list(placement.unschedulable) == ["default/own-0"]


@pytest.mark.parametrize("selected", [{"team": "none"}, {"team": "data"}])
def test_a_namespace_selector_replaces_the_own_namespace(selected: dict[str, str]) -> None:
    """One that selects no namespace selects no pods, also not those of the own namespace."""
    data: Object = {"kind": "Namespace", "metadata": {"name": "data", "labels": {"team": "data"}}}
    db = a_pod("db-0", labels={"app": "db"}, nodeSelector={ZONE: "zone-a"})
    term = rule(ZONE, app="db", namespaceSelector={"matchLabels": selected})
    placement = placed([a_pool(), data, db, a_pod("web-0", "500m", affinity=near(term))])
    assert list(placement.unschedulable) == ["default/web-0"]


@pytest.mark.parametrize(
    ("operator", "values", "selected"),
    [
        ("In", ["db"], ["db"]),
        ("NotIn", ["db"], ["web", "none"]),
        ("Exists", [], ["db", "web"]),
        ("DoesNotExist", [], ["none"]),
    ],
)
def test_a_missing_label_is_not_in_any_set(
    operator: str, values: list[str], selected: list[str]
) -> None:
    expression = {"key": "app", "operator": operator, "values": values}
    selector = Selector.from_label_selector(
        decode({"matchExpressions": [expression]}, LabelSelector)
    )
    known = {"db": {"app": "db"}, "web": {"app": "web"}, "none": {"other": "db"}}
    assert [name for name, labels in known.items() if selector.matches(labels)] == selected


def test_a_namespace_without_an_object_has_its_name_label() -> None:
    db = a_pod("db-0", labels={"app": "db"}, nodeSelector={ZONE: "zone-a"})
    db["metadata"]["namespace"] = "data"
    named = {"matchLabels": {"kubernetes.io/metadata.name": "data"}}
    web = a_pod("web-0", "500m", affinity=near(rule(ZONE, app="db", namespaceSelector=named)))
    assert placed([a_pool(), db, web]).unschedulable == {}


def _prefers(zone: str, weight: int = 1) -> Object:
    return {"weight": weight, "preference": {"matchExpressions": [wanted(ZONE, "In", zone)]}}


def test_the_heaviest_preference_applies_and_a_conflicting_one_is_dropped() -> None:
    both = {"nodeAffinity": {PREFERRED: [_prefers("zone-a"), _prefers("zone-b", 9)]}}
    assert zones(placed([a_pool(), *pods(1, affinity=both)])) == ["zone-b"]
    nowhere = {"nodeAffinity": {PREFERRED: [_prefers("zone-a"), _prefers("mars", 9)]}}
    placement = placed([a_pool(), *pods(1, affinity=nowhere)])
    assert zones(placement) == ["zone-a"]
    assert placement.relaxed == {"default/app-00": (f"preferred node affinity ({ZONE} In [mars])",)}


def test_alternatives_are_tried_in_order_and_the_last_is_required() -> None:
    either = on([wanted(ZONE, "In", "mars")], [wanted(ZONE, "In", "zone-b")])
    assert zones(placed([a_pool(), *pods(1, affinity=either)])) == ["zone-b"]
    neither = on([wanted(ZONE, "In", "mars")], [wanted(ZONE, "In", "venus")])
    assert placed([a_pool(), *pods(1, affinity=neither)]).claims == ()


def test_a_soft_spread_is_hard_until_it_has_to_be_dropped() -> None:
    soft = [spread(CAPACITY_TYPE, soft=True)]
    pool = a_pool("default", wanted(CAPACITY_TYPE, "In", "spot"))
    world = [pool, a_pool("other", wanted(CAPACITY_TYPE, "In", "on-demand"), limits={"cpu": "0"})]
    placement = placed([*world, *pods(3, topologySpreadConstraints=soft)])
    assert placement.unschedulable == {}
    assert Counter(len(steps) for steps in placement.relaxed.values()) == {1: 2}


def test_ignoring_preferences_packs_as_if_there_were_none() -> None:
    lonely = {"podAntiAffinity": {PREFERRED: [{"weight": 1, "podAffinityTerm": rule(HOST)}]}}
    world = [a_pool(), *pods(3, affinity=lonely)]
    assert len(placed(world).claims) == 3
    assert len(placed(world, preference_policy=PreferencePolicy.IGNORE).claims) == 1


@pytest.mark.parametrize("effect", ["PreferNoSchedule", "NoSchedule"])
def test_a_soft_taint_is_tolerated_only_without_another_pool(
    effect: str,
) -> None:
    tainted = a_pool("tainted", weight=9, taints=[{"key": "example.com/own", "effect": effect}])
    assert placed([tainted, a_pool(), *pods(1)]).claims[0].node_pool.name == "default"
    alone = placed([tainted, *pods(1)])
    assert len(alone.claims) == (effect == "PreferNoSchedule")


def a_crowd(count: int, rule_of: Callable[[int], dict[str, Any]]) -> list[Object]:
    return [
        a_pool(),
        *(
            a_pod(f"p{i}", labels={"app": f"a{i}", "n": str(i)}, affinity=apart(rule_of(i)))
            for i in range(count)
        ),
    ]


CROWDS: dict[str, Callable[[int], dict[str, Any]]] = {
    "everybody but one": lambda i: {
        "topologyKey": HOST,
        "labelSelector": {
            "matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"z{i}"]}]
        },
    },
    "those with a label but one": lambda i: {
        "topologyKey": HOST,
        "labelSelector": {
            "matchExpressions": [
                {"key": "app", "operator": "Exists"},
                {"key": "n", "operator": "NotIn", "values": [str(i)]},
            ]
        },
    },
}


@pytest.mark.parametrize("rule_of", CROWDS.values(), ids=CROWDS.keys())
def test_pods_that_repel_each_other_by_rules_of_their_own_take_quadratic_time(
    rule_of: Callable[[int], dict[str, Any]],
) -> None:
    def calls(count: int) -> int:
        """Return how many functions are called to place ``count`` pods."""
        made = 0

        def count_call(_: object, event: str, __: object) -> None:
            nonlocal made
            made += event in ("call", "c_call")

        objects = a_crowd(count, rule_of)
        scheduler, cluster = a_scheduler(objects)
        question = Question(pods=pods_to_place(cluster, NOW))
        sys.setprofile(count_call)
        try:
            found = scheduler.place(question)
        finally:
            sys.setprofile(None)
        assert len(found.claims) == count
        return made

    assert calls(80) < 5 * calls(40), "twice as many pods take eight times as many calls"
