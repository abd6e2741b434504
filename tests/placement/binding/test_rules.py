"""Filters and scores of the other plugins, with values worked out from their source."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

import pytest

from reconciler.model.kubernetes.cluster import (
    ClaimSpec,
    CSISource,
    PersistentVolume,
    PersistentVolumeClaim,
    Service,
    ServiceSpec,
    StorageClass,
    VolumeSpec,
)
from reconciler.model.kubernetes.metadata import Condition, LabelSelector, Metadata, OwnerReference
from reconciler.model.kubernetes.node import (
    CSINode,
    CSINodeAllocatable,
    CSINodeDriver,
    CSINodeSpec,
    Node,
)
from reconciler.model.kubernetes.pod import (
    Affinity,
    Container,
    ContainerPort,
    NodeAffinity,
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
    PersistentVolumeClaimSource,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PreferredNodeTerm,
    SchedulingGate,
    TopologySpreadConstraint,
    Volume,
)
from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, Plugin, Profile
from reconciler.model.kubernetes.taint import Taint, Toleration
from reconciler.placement.binding.scheduler import NodeInfo
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.topology.peers import Owners
from tests.placement.binding.builders import (
    HOST,
    SOFT,
    ZONE,
    a_binder,
    a_node,
    a_pod,
    apart,
    near,
    places,
    preferring,
    selecting,
    spread,
)


def only(plugin: Plugin, **fields: object) -> Profile:
    """A profile in which one plugin scores, with weight 1."""
    return replace(DEFAULT_PROFILE, weights={plugin: 1}, **fields)


ANYTHING = a_pod("p", "", "")


# Nodes.


AVOID = Taint("old", "PreferNoSchedule")
CORDON = Taint("node.kubernetes.io/unschedulable", "NoSchedule")


def test_each_avoided_taint_that_is_not_tolerated_lowers_the_score() -> None:
    nodes = [
        a_node("none"),
        a_node("one", taints=[AVOID]),
        a_node(
            "three", taints=[AVOID, Taint("slow", "PreferNoSchedule"), Taint("x", AVOID.effect)]
        ),
    ]
    binder = a_binder(*nodes, profile=only(Plugin.TAINT_TOLERATION))
    # 100 - 100 * 1 // 3
    assert binder.scores(ANYTHING) == {"none": 100, "one": 67, "three": 0}
    tolerant = a_pod("t", tolerations=(Toleration("old", "Exists"),))
    assert binder.scores(tolerant) == {"none": 100, "one": 100, "three": 0}


def preferred(*terms: tuple[int, str]) -> Affinity:
    return Affinity(
        node_affinity=NodeAffinity(
            preferred=tuple(
                PreferredNodeTerm(
                    weight, NodeSelectorTerm((NodeSelectorExpression(ZONE, "In", (zone,)),))
                )
                for weight, zone in terms
            )
        )
    )


def test_preferred_node_affinity_is_relative_to_the_best_node() -> None:
    binder = a_binder(
        a_node("a", "a"), a_node("b", "b"), a_node("c", "c"), profile=only(Plugin.NODE_AFFINITY)
    )
    pod = a_pod("p", affinity=preferred((30, "a"), (10, "b"), (1, "a")))
    assert binder.scores(pod) == {"a": 100, "b": 32, "c": 0}, "100 * 10 // 31"


def test_added_affinity_of_the_profile_applies_to_every_pod() -> None:
    in_b = NodeSelectorTerm((NodeSelectorExpression(ZONE, "In", ("b",)),))
    profile = replace(DEFAULT_PROFILE, added_affinity=NodeAffinity(NodeSelector((in_b,))))
    binder = a_binder(a_node("a", "a"), a_node("b", "b"), profile=profile)
    assert places(binder, ANYTHING) == {"p": "b"}


@pytest.mark.parametrize(
    ("node", "spec", "is_allowed"),
    [
        pytest.param(a_node("n", unschedulable=True), {}, False, id="cordoned"),
        pytest.param(
            a_node("n", unschedulable=True, taints=[CORDON]),
            {"tolerations": (Toleration(CORDON.key, "Exists"),)},
            True,
            id="cordoned, tolerated",
        ),
        pytest.param(
            a_node("n", conditions=(Condition("Ready", "False"),)), {}, False, id="not ready"
        ),
        pytest.param(a_node("n", conditions=()), {}, False, id="never ready"),
        pytest.param(
            a_node("n", conditions=(Condition("Ready", "False"),)),
            {"tolerations": (Toleration(operator="Exists"),)},
            True,
            id="not ready, tolerated",
        ),
        pytest.param(a_node("n"), {"scheduling_gates": (SchedulingGate("x"),)}, False, id="gate"),
        pytest.param(a_node("n"), {"node_selector": {ZONE: "b"}}, False, id="selector"),
    ],
)
def test_a_node_is_allowed_by_its_own_state(
    node: Node, spec: dict[str, object], is_allowed: bool
) -> None:
    assert bool(places(a_binder(node), a_pod("p", **spec))) is is_allowed


def test_a_host_port_is_used_once_on_an_address() -> None:
    def using(name: str, ip: str, protocol: str = "TCP") -> Pod:
        ports = (ContainerPort(80, 8080, ip, protocol),)
        return a_pod(name, containers=(Container(ports=ports),))

    binder = a_binder((a_node("n"), [using("first", "10.0.0.1")]))
    pods = [using("same", "10.0.0.1"), using("all", ""), using("udp", "10.0.0.1", "UDP")]
    assert places(binder, *pods, using("other", "10.0.0.2")) == {"udp": "n", "other": "n"}


# Topology spread.


def test_preferred_spread_weighs_topologies_by_their_number_of_domains() -> None:
    """Two constraints over three hosts in two zones, with one, two and no matching pods."""
    soft = {"when_unsatisfiable": SOFT, "label_selector": selecting()}
    rules = (TopologySpreadConstraint(ZONE, 1, **soft), TopologySpreadConstraint(HOST, 2, **soft))
    nodes = [
        (a_node("x", "a"), [a_pod("1", "", "")]),
        (a_node("y", "a"), [a_pod("2", "", ""), a_pod("3", "", "")]),
        (a_node("z", "b"), []),
    ]
    binder = a_binder(*nodes, profile=only(Plugin.POD_TOPOLOGY_SPREAD))
    raw = [
        round(3 * log(2 + 2) + 0 + 1 * log(3 + 2) + 1),
        round(3 * log(2 + 2) + 0 + 2 * log(3 + 2) + 1),
        (0 + 1),
    ]
    assert raw == [7, 8, 1]
    expected = {name: 100 * (8 + 1 - score) // 8 for name, score in zip("xyz", raw, strict=True)}
    pod = a_pod("p", topology_spread_constraints=rules)
    assert binder.scores(pod) == expected == {"x": 25, "y": 12, "z": 100}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param({}, {"b"}, id="the emptier zone"),
        pytest.param({"skew": 2}, {"a", "b"}, id="a skew of two"),
        pytest.param({"label_selector": LabelSelector()}, {"a", "b"}, id="an empty selector"),
        pytest.param({"label_selector": None}, {"a", "b"}, id="no selector"),
        pytest.param({"match_label_keys": ("version",)}, {"a", "b"}, id="of its own version"),
        pytest.param({"match_label_keys": ("missing",)}, {"b"}, id="a label that it lacks"),
        pytest.param({"key": "rack"}, set(), id="a label that no node has"),
    ],
)
def test_required_spread_limits_the_difference(
    fields: dict[str, object], expected: set[str]
) -> None:
    """There is one pod in zone a, and none in b."""
    placed = [a_pod("x", "", "", labels={"version": "1"})]
    binder = a_binder((a_node("a", "a"), placed), a_node("b", "b"))
    pod = a_pod("p", "", "", labels={"version": "2"}, **spread(**fields))
    assert set(binder.scores(pod)) == expected


def test_with_too_few_domains_the_least_used_one_counts_as_empty() -> None:
    nodes = [(a_node(zone, zone), [a_pod(zone, "", "")]) for zone in "ab"]
    pod = a_pod("p", "", "", **spread(min_domains=3))
    assert not a_binder(*nodes).scores(pod)
    assert set(a_binder(*nodes, a_node("c", "c")).scores(pod)) == {"c"}
    assert set(a_binder(*nodes).scores(a_pod("q", **spread(min_domains=2)))) == {"a", "b"}


def test_pods_that_are_being_deleted_do_not_count_for_spread_but_use_their_node() -> None:
    going = [a_pod("x", "3", deleted=True)]
    binder = a_binder((a_node("a", "a"), going), a_node("b", "b"))
    assert set(binder.scores(a_pod("p", "1", **spread()))) == {"a", "b"}
    assert set(binder.scores(a_pod("q", "2", **spread()))) == {"b"}


@pytest.mark.parametrize(
    ("policy", "spec", "expected"),
    [
        pytest.param({}, {"node_selector": {ZONE: "a"}}, {"a"}, id="selected zones"),
        pytest.param(
            {"node_affinity_policy": "Ignore"},
            {"node_selector": {ZONE: "a"}},
            set(),
            id="all zones",
        ),
        pytest.param({}, {}, set(), id="zones with untolerated taints"),
        pytest.param({"node_taints_policy": "Honor"}, {}, {"a"}, id="without those"),
    ],
)
def test_policies_decide_which_nodes_count_for_spread(
    policy: dict[str, object], spec: dict[str, object], expected: set[str]
) -> None:
    """There is one pod in zone a; the empty zone b has a taint."""
    tainted = a_node("b", "b", taints=[Taint("x", "NoSchedule")])
    binder = a_binder((a_node("a", "a"), [a_pod("x", "", "")]), tainted)
    assert set(binder.scores(a_pod("p", **spread(**policy), **spec))) == expected


REPLICAS = OwnerReference("ReplicaSet", "web-1", "apps/v1", controller=True)
OWNERS = Owners(selectors={("ReplicaSet", "shop/web-1"): selecting()})


@pytest.mark.parametrize(
    ("pod", "owners", "is_spread"),
    [
        pytest.param(a_pod("p", owner=REPLICAS), OWNERS, True, id="a ReplicaSet"),
        pytest.param(a_pod("p", owner=REPLICAS), Owners(), True, id="an unknown ReplicaSet"),
        pytest.param(
            a_pod("p"),
            Owners((Service(Metadata(name="s", namespace="shop"), ServiceSpec({"app": "web"})),)),
            True,
            id="a Service",
        ),
        pytest.param(a_pod("p"), Owners(), False, id="neither"),
        pytest.param(
            a_pod("p", owner=REPLICAS, **spread("x", when_unsatisfiable=SOFT)),
            OWNERS,
            False,
            id="a constraint of its own",
        ),
    ],
)
def test_pods_with_an_owner_or_service_are_spread_by_default(
    pod: Pod, owners: Owners, is_spread: bool
) -> None:
    placed = [a_pod("x", "", "")]
    nodes = ((a_node("a", "a"), placed), a_node("b", "b"), a_node("none", None))
    binder = a_binder(*nodes, owners=owners, profile=only(Plugin.POD_TOPOLOGY_SPREAD))
    scores = binder.scores(pod)
    assert (scores["b"] > scores["a"]) is is_spread
    assert (scores["none"] > 0) is is_spread, "a node without a zone still counts by its host"


def test_default_constraints_of_the_profile_replace_those_of_the_system() -> None:
    rule = TopologySpreadConstraint(ZONE, 1, "DoNotSchedule")
    nodes = ((a_node("a", "a"), [a_pod("x", "", "")]), a_node("b", "b"))
    for constraints, expected in (((rule,), {"b"}), ((), {"a", "b"})):
        profile = replace(DEFAULT_PROFILE, default_constraints=constraints)
        binder = a_binder(*nodes, owners=OWNERS, profile=profile)
        assert set(binder.scores(a_pod("p", owner=REPLICAS))) == expected


# Affinity between pods.


def test_preferences_between_pods_add_up_in_both_directions() -> None:
    """The pod likes db and dislikes cache; a log pod likes it; queue requires it nearby."""
    log_pod = a_pod("l", "", "", app="log", affinity=Affinity(pod_affinity=preferring(weight=4)))
    nodes = [
        (a_node("a", "a"), [a_pod("d", "", "", app="db"), log_pod]),
        (a_node("b", "b"), [a_pod("q", "", "", app="queue", affinity=near())]),
        (a_node("c", "c"), [a_pod("c", "", "", app="cache")]),
    ]
    pod = a_pod(
        "p",
        affinity=Affinity(
            pod_affinity=preferring("db", weight=10),
            pod_anti_affinity=preferring("cache", weight=6),
        ),
    )
    # 14 in zone a, 1 (the weight of required affinity) in b, -6 in c; 100 * 7 / 20 is 35.
    scores = a_binder(*nodes, profile=only(Plugin.INTER_POD_AFFINITY)).scores(pod)
    assert scores == {"a": 100, "b": 35, "c": 0}
    heavy = only(Plugin.INTER_POD_AFFINITY, hard_pod_affinity_weight=14)
    assert a_binder(*nodes, profile=heavy).scores(pod) == {"a": 100, "b": 100, "c": 0}
    ignoring = only(Plugin.INTER_POD_AFFINITY, ignores_preferred_terms_of_existing_pods=True)
    assert set(a_binder(*nodes, profile=ignoring).scores(a_pod("p")).values()) == {0}


def two_terms(first: str, second: str) -> Affinity:
    terms = (
        PodAffinityTerm(ZONE, LabelSelector({first: "yes"})),
        PodAffinityTerm(HOST, LabelSelector({second: "yes"})),
    )
    return Affinity(pod_affinity=PodAffinity(required=terms))


@pytest.mark.parametrize(
    ("placed", "own", "expected"),
    [
        pytest.param([("x", {"l": "yes"}), ("y", {"r": "yes"})], {}, set(), id="two pods"),
        pytest.param([("x", {"l": "yes", "r": "yes"})], {}, {"a"}, id="one pod"),
        pytest.param([], {"l": "yes", "r": "yes"}, {"a", "b"}, id="the first of its group"),
        pytest.param([], {"l": "yes"}, set(), id="a pod that does not match itself"),
        pytest.param(
            [("x", {"l": "yes"})], {"l": "yes", "r": "yes"}, {"a", "b"}, id="half a match"
        ),
    ],
)
def test_required_affinity_needs_one_pod_that_matches_all_terms(
    placed: Sequence[tuple[str, dict[str, str]]], own: dict[str, str], expected: set[str]
) -> None:
    pods = [a_pod(name, "", "", app=name, labels=labels) for name, labels in placed]
    binder = a_binder((a_node("a", "a"), pods), a_node("b", "b"))
    pod = a_pod("p", "", "", labels=own, affinity=two_terms("l", "r"))
    assert set(binder.scores(pod)) == expected


def test_a_pod_on_a_node_without_the_label_does_not_belong_to_the_group() -> None:
    binder = a_binder((a_node("x", None), [a_pod("1")]), a_node("a", "a"))
    assert places(binder, a_pod("p", affinity=near())) == {"p": "a"}


def test_pods_on_nodes_that_are_cordoned_or_not_ready_count() -> None:
    for node in (
        a_node("x", "a", unschedulable=True),
        a_node("x", "a", conditions=(Condition("Ready", "Unknown"),)),
    ):
        binder = a_binder((node, [a_pod("1")]), a_node("a", "a"), a_node("b", "b"))
        assert set(binder.scores(a_pod("p", affinity=apart()))) == {"b"}
        assert set(binder.scores(a_pod("p", affinity=near()))) == {"a"}
        assert set(binder.scores(a_pod("p", **spread()))) == {"b"}


def test_anti_affinity_also_applies_to_pods_that_have_none() -> None:
    lonely = a_pod("l", "", "", app="lonely", affinity=apart())
    binder = a_binder((a_node("a", "a"), [lonely]), a_node("a2", "a"), a_node("b", "b"))
    assert set(binder.scores(a_pod("p"))) == {"b"}


def test_anti_affinity_applies_once_a_node_with_its_label_joins() -> None:
    """Changes on nodes without the label mean nothing; those after they got it do."""
    rack = "example.com/rack"
    plain, racked = a_node("a", "a"), a_node("b", "b", labels={rack: "1"})
    binder = a_binder(plain)
    assert places(binder, a_pod("1", "", "", affinity=apart(key=rack))) == {"1": "a"}
    assert set(binder.scores(a_pod("p"))) == {"a"}
    in_a_rack = a_node("a", "a", labels={rack: "1"})
    binder.follow([NodeInfo(in_a_rack, [a_pod("1", "", "", affinity=apart(key=rack))])])
    binder.join(NodeInfo(racked))
    binder.join(NodeInfo(a_node("c", "c")))
    assert set(binder.scores(a_pod("p"))) == {"c"}
    binder.follow([NodeInfo(in_a_rack), NodeInfo(racked)])
    assert set(binder.scores(a_pod("p"))) == {"a", "b"}


def test_a_pod_that_waits_for_another_one_is_bound_after_it() -> None:
    follower = a_pod("first", affinity=near("db"))
    bound = places(a_binder(a_node("a", "a"), a_node("b", "b")), follower, a_pod("db", app="db"))
    assert bound["first"] == bound["db"]


# Volumes.


GP3 = StorageClass(Metadata(name="gp3"), "ebs.csi.aws.com", "WaitForFirstConsumer")


def a_claim(name: str, volume: str = "", *, mode: str = "ReadWriteOnce") -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        Metadata(name=name, namespace="shop"), ClaimSpec("gp3", volume, (mode,))
    )


def a_volume(name: str, zone: str = "") -> PersistentVolume:
    labels = {ZONE: zone} if zone else {}
    return PersistentVolume(
        Metadata(name=name, labels=labels), VolumeSpec(csi=CSISource(GP3.provisioner))
    )


def volumes(
    *objects: PersistentVolumeClaim | PersistentVolume, limits: dict[str, int] | None = None
) -> Volumes:
    drivers = {
        node: CSINode(
            Metadata(name=node),
            CSINodeSpec((CSINodeDriver(GP3.provisioner, CSINodeAllocatable(count)),)),
        )
        for node, count in (limits or {}).items()
    }
    return Volumes(
        {o.key: o for o in objects if isinstance(o, PersistentVolumeClaim)},
        {o.metadata.name: o for o in objects if isinstance(o, PersistentVolume)},
        {"gp3": GP3},
        {},
        drivers,
    )


def using(name: str, *claims: str) -> Pod:
    sources = (Volume(c, persistent_volume_claim=PersistentVolumeClaimSource(c)) for c in claims)
    return a_pod(name, "", "", volumes=tuple(sources))


def test_a_node_attaches_as_many_volumes_as_its_driver_allows() -> None:
    claims = [a_claim("x", "v"), a_claim("y"), a_claim("z")]
    known = volumes(*claims, a_volume("v"), limits={"n": 2})
    binder = a_binder((a_node("n"), [using("1", "x")]), volumes=known)
    assert not places(binder, using("p", "y", "z"))
    assert places(binder, using("q", "x", "y")) == {"q": "n"}, "x is attached already"


def test_volumes_whose_driver_has_no_limit_are_not_counted() -> None:
    claims = [a_claim(name) for name in "xyz"]
    assert places(a_binder(a_node("n"), volumes=volumes(*claims)), using("p", *"xyz"))


def test_a_claim_for_one_pod_is_used_by_one_pod() -> None:
    known = volumes(a_claim("x", mode="ReadWriteOncePod"))
    binder = a_binder(a_node("a"), a_node("b"), volumes=known)
    assert list(places(binder, using("p", "x"), using("q", "x"))) == ["p"]


def test_a_volume_with_a_zone_label_is_used_in_its_zone() -> None:
    known = volumes(a_claim("x", "v"), a_volume("v", "b__c"))
    binder = a_binder(a_node("a", "a"), a_node("b", "b"), a_node("n", None), volumes=known)
    assert places(binder, using("p", "x"))["p"] in ("b", "n")


def test_pods_that_share_a_new_volume_run_in_the_zone_of_the_first() -> None:
    nodes = [a_node(name, zone) for name, zone in (("a", "a"), ("b", "b"), ("c", "c"))]
    binder = a_binder(*nodes, volumes=volumes(a_claim("x")))
    bound = places(binder, *(using(f"p{n}", "x") for n in range(4)))
    assert len(bound) == 4
    assert len(set(bound.values())) == 1
