"""Pods are bound by Kubernetes' rules, implemented independently of the planner."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as with_fields

from reconciler.model.chance import Chance
from reconciler.model.kubernetes.cluster import (
    ClaimSpec,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    TopologyExpression,
    TopologyTerm,
    VolumeNodeAffinity,
    VolumeSpec,
)
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
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
    TopologySpreadConstraint,
    Volume,
)
from reconciler.model.kubernetes.profile import (
    DEFAULT_PROFILE,
    DEFAULT_SCHEDULER,
    ScoringStrategy,
    Strategy,
)
from reconciler.model.resources import CPU
from tests.adapters.simulated.builders import (
    Sandbox,
    a_budget,
    a_daemon,
    a_pod,
    a_sandbox,
    pods,
)
from tests.examples import examples

ZONE, HOST = "topology.kubernetes.io/zone", "kubernetes.io/hostname"
WEB = LabelSelector({"app": "web"})


def in_zone(*zones: str) -> NodeSelector:
    expression = NodeSelectorExpression(ZONE, "In", zones)
    return NodeSelector((NodeSelectorTerm((expression,)),))


def required(key: str, operator: str, *values: str) -> Affinity:
    term = NodeSelectorTerm((NodeSelectorExpression(key, operator, values),))
    return Affinity(node_affinity=NodeAffinity(required=NodeSelector((term,))))


def spread(key: str = ZONE, skew: int = 1, **fields: object) -> dict[str, object]:
    rule = TopologySpreadConstraint(key, skew, label_selector=WEB, **fields)
    return {"topology_spread_constraints": (rule,)}


def near(key: str = HOST, app: str = "web", **fields: object) -> PodAffinity:
    return PodAffinity(required=(PodAffinityTerm(key, LabelSelector({"app": app}), **fields),))


def test_pods_are_bound_in_the_order_of_creation_to_the_node_with_most_left() -> None:
    sandbox = a_sandbox(a_pod("a", "1"), a_pod("b", "3"), a_pod("c", "2"), a_pod("d", "2"), nodes=2)
    places = sandbox.places()
    assert places["a"] == places["c"] != places["b"], "the small pod comes first, as kube-scheduler"
    assert places["d"] == "", "largest first would have found a place for each"


def test_a_profile_decides_between_the_nodes_with_most_and_with_least_left() -> None:
    sandbox = a_sandbox(*pods(2), nodes=2)
    profile = replace(DEFAULT_PROFILE, scoring=ScoringStrategy(Strategy.MOST_ALLOCATED))
    sandbox.cluster.schedule_with({DEFAULT_SCHEDULER: profile})
    assert len(set(sandbox.places().values())) == 1
    sandbox = a_sandbox(*pods(2), nodes=2)
    assert len(set(sandbox.places().values())) == 2


def add_urgent_pod(sandbox: Sandbox, **spec: object) -> None:
    """Create a pod of a high priority, which needs two of the four cores of a node."""
    fresh = (*sandbox.workloads.pods, a_pod("urgent", "2", priority=100, **spec))
    sandbox.workloads = replace(sandbox.workloads, pods=fresh)


def test_a_pod_of_a_lower_priority_makes_room() -> None:
    sandbox = a_sandbox(a_pod("low", "3"), a_pod("same", "3", priority=100), nodes=2)
    before = sandbox.places()
    add_urgent_pod(sandbox)
    assert sandbox.places() == {"low": "", "same": before["same"], "urgent": before["low"]}


def test_no_pod_makes_room_for_one_that_is_polite_or_in_vain() -> None:
    for spec in ({"preemption_policy": "Never"}, {"affinity": required(ZONE, "In", "mars")}):
        sandbox = a_sandbox(a_pod("low", "3"), nodes=1)
        before = sandbox.places()
        add_urgent_pod(sandbox, **spec)
        assert sandbox.places() == {**before, "urgent": ""}


def test_a_pod_waits_on_its_node_while_others_make_room() -> None:
    """It is no reason for another node, which kube-scheduler states by its nomination."""
    sandbox = a_sandbox(a_pod("low", "3"), nodes=1, leaving_s=30.0)
    before = sandbox.places()
    add_urgent_pod(sandbox)
    for _ in range(2):
        sandbox.restart()
        assert sandbox.places() == {**before, "urgent": ""}
        found = {pod.metadata.name: pod for pod in sandbox.observe().pods}
        assert found["urgent"].status.nominated_node_name == before["low"]
        assert not found["urgent"].is_provisionable
        assert found["low"].is_terminating
        sandbox.clock.advance(10)
    sandbox.clock.advance(20)
    assert sandbox.places() == {"low": "", "urgent": before["low"]}


def test_a_nomination_ends_with_its_node() -> None:
    sandbox = a_sandbox(a_pod("low", "3"), nodes=1, leaving_s=30.0)
    sandbox.places()
    add_urgent_pod(sandbox)
    sandbox.places()
    sandbox.instances.clear()
    assert all(pod.is_provisionable for pod in sandbox.observe().pods)


def test_budgets_decide_whose_pods_make_room() -> None:
    low = a_pod("low", "3", priority=50, preemption_policy="Never")
    kept = a_pod("kept", "3", app="db", priority=1)
    budget = a_budget("db", "db", max_unavailable=0)
    for budgets, leaves in (((), "kept"), ((budget,), "low")):
        sandbox = a_sandbox(kept, low, nodes=2, pod_disruption_budgets=budgets)
        before = sandbox.places()
        add_urgent_pod(sandbox)
        assert sandbox.places() == {**before, leaves: "", "urgent": before[leaves]}


@pytest.mark.parametrize("leaving", [0.0, 30.0])
def test_pods_make_room_for_a_new_daemon_of_a_higher_priority(leaving: float) -> None:
    sandbox = a_sandbox(a_pod("low", "3"), a_pod("same", "4", priority=100), nodes=2,
                        leaving_s=leaving)  # fmt: skip
    before = sandbox.places()
    daemons = tuple(
        a_daemon(name, "1500m", priority=priority)
        for name, priority in (("agent", 100), ("log", 0))
    )
    sandbox.workloads = replace(sandbox.workloads, daemon_sets=daemons)
    for _ in range(3):
        after = sandbox.places()
        sandbox.clock.advance(30)
    assert after == {"low": "", "same": before["same"]}
    running = [pod for pod in sandbox.observe().pods if pod.is_daemon]
    assert sorted(pod.metadata.owner_references[0].name for pod in running) == ["agent", "log"]
    assert {pod.spec.node_name for pod in running} == {before["low"]}


def test_a_daemon_of_a_lower_priority_leaves_the_room_that_others_made() -> None:
    for leaving in (0.0, 30.0):
        sandbox = a_sandbox(a_pod("low", "3"), nodes=1, leaving_s=leaving)
        before = sandbox.places()
        daemons = (a_daemon("log", "2500m"),)
        sandbox.workloads = replace(sandbox.workloads, daemon_sets=daemons)
        add_urgent_pod(sandbox)
        for _ in range(2):
            after = sandbox.places()
            sandbox.clock.advance(31)
        assert after == {"low": "", "urgent": before["low"]}
        assert not any(pod.is_daemon for pod in sandbox.observe().pods)


PRIORITIES = st.integers(0, 3)
SIZES = st.sampled_from(["500m", "1", "2", "3"])


@given(
    leaving=st.sampled_from([0.0, 30.0]),
    chance=st.sampled_from([None, Chance(1)]),
    daemons=st.lists(st.tuples(SIZES, PRIORITIES), max_size=2),
    steps=st.lists(st.lists(st.tuples(SIZES, PRIORITIES, st.booleans()), max_size=5), max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_whatever_priorities_pods_have_nodes_are_never_overfull_and_binding_ends(
    leaving: float,
    chance: Chance | None,
    daemons: list[tuple[str, int]],
    steps: list[list[tuple[str, int, bool]]],
) -> None:
    sandbox = a_sandbox(nodes=2, leaving_s=leaving, chance=chance)
    sets = tuple(a_daemon(f"d{n}", cpu, priority=p) for n, (cpu, p) in enumerate(daemons))
    for number, rows in enumerate(steps):
        fresh = tuple(
            a_pod(f"p{number}-{n}", cpu, priority=priority,
                  **({"affinity": Affinity(pod_anti_affinity=near())} if apart else {}))
            for n, (cpu, priority, apart) in enumerate(rows)
        )  # fmt: skip
        kept = sandbox.workloads.pods[number % 2 :]
        sandbox.workloads = replace(sandbox.workloads, pods=(*kept, *fresh), daemon_sets=sets)
        for _ in range(3):
            observed = sandbox.observe_registered()
            used: Counter[str] = Counter()
            for pod in observed.pods:
                used[pod.spec.node_name] += pod.requests()["cpu"] if pod.spec.node_name else 0
            assert all(milli <= 4000 for milli in used.values()), used
            sandbox.clock.advance(31)
        assert sandbox.places() == sandbox.places()


def test_a_daemon_with_another_template_needs_room_again() -> None:
    sandbox = a_sandbox(a_pod("low", "3"), nodes=1)
    sizes = []
    for cpu in ("100m", "1500m", "200m"):
        daemon = a_daemon("agent", cpu)
        sandbox.workloads = replace(sandbox.workloads, daemon_sets=(daemon,))
        running = [pod for pod in sandbox.observe_registered().pods if pod.is_daemon]
        sizes.append([pod.requests()[CPU] for pod in running])
    assert sizes == [[100], [], [200]]


def test_the_pod_with_higher_priority_is_bound_first() -> None:
    sandbox = a_sandbox(a_pod("a", "3"), a_pod("b", "3", priority=10), nodes=1)
    assert sandbox.places() == {"a": "", "b": "n0.internal"}


def test_pods_that_do_not_fit_stay_pending() -> None:
    sandbox = a_sandbox(a_pod("big", "5"), *pods(11, "100m"), nodes=1)
    places = sandbox.places()
    assert places.pop("big") == ""
    assert sorted(places.values()).count("n0.internal") == 10, "ten pods is the type's limit"


def test_node_selectors_and_affinity_are_respected() -> None:
    sandbox = a_sandbox(
        a_pod("selector", node_selector={ZONE: "us-east-1b"}),
        a_pod("in", affinity=required(ZONE, "In", "us-east-1b")),
        a_pod("not-in", affinity=required(ZONE, "NotIn", "us-east-1a")),
        a_pod("exists", affinity=required("gpu", "Exists")),
        a_pod("missing", affinity=required("gpu", "DoesNotExist"), node_selector={ZONE: "x"}),
        a_pod("gt", affinity=required("size", "Gt", "3")),
        nodes=2,
    )
    assert sandbox.places() == {
        "selector": "n1.internal",
        "in": "n1.internal",
        "not-in": "n1.internal",
        "exists": "",
        "missing": "",
        "gt": "",
    }


def test_a_host_port_is_used_once_per_node() -> None:
    ports = (Container(ports=(ContainerPort(80, 8080),)),)
    places = a_sandbox(*pods(3, containers=ports), nodes=2).places()
    assert sorted(places.values()) == ["", "n0.internal", "n1.internal"]


def test_pods_are_spread_over_zones() -> None:
    places = a_sandbox(*pods(6, "500m", **spread()), nodes=3).places()
    assert sorted(places.values()) == sorted([f"n{n}.internal" for n in range(3)] * 2)


def test_a_pod_that_would_violate_the_spread_stays_pending() -> None:
    places = a_sandbox(*pods(8, "2", **spread()), nodes=2).places()
    assert sorted(places.values()).count("") == 4
    wanting = a_sandbox(*pods(2, **spread(min_domains=2)), nodes=1).places()
    assert sorted(wanting.values()) == ["", "n0.internal"]


def test_spread_counts_only_the_zones_that_the_pod_may_use() -> None:
    only_a = {"node_selector": {ZONE: "us-east-1a"}}
    places = a_sandbox(*pods(3, **spread(), **only_a), nodes=3).places()
    assert set(places.values()) == {"n0.internal"}
    ignoring = spread(node_affinity_policy="Ignore")
    held = a_sandbox(*pods(3, **ignoring, **only_a), nodes=3).places()
    assert sorted(held.values()) == ["", "", "n0.internal"]


def test_a_soft_spread_does_not_block_binding() -> None:
    soft = spread(when_unsatisfiable="ScheduleAnyway")
    places = a_sandbox(*pods(4, **soft), nodes=2).places()
    assert len(places) == 4
    assert "" not in places.values()


def test_anti_affinity_keeps_pods_apart_both_ways() -> None:
    shy = Affinity(pod_anti_affinity=near())
    places = a_sandbox(*pods(3, affinity=shy), nodes=2).places()
    assert sorted(places.values()) == ["", "n0.internal", "n1.internal"]
    lonely = a_pod("a-lonely", "2", app="lonely", affinity=Affinity(pod_anti_affinity=near()))
    assert a_sandbox(lonely, a_pod("web"), nodes=1).places() == {
        "a-lonely": "n0.internal",
        "web": "",
    }


def test_affinity_groups_pods_and_the_first_pod_may_start_a_group() -> None:
    together = Affinity(pod_affinity=near(ZONE))
    places = a_sandbox(*pods(4, affinity=together), nodes=3).places()
    assert len(set(places.values())) == 1
    alone = a_pod("x", app="other", affinity=Affinity(pod_affinity=near(app="db")))
    assert a_sandbox(alone, nodes=1).places() == {"x": ""}


def test_affinity_applies_to_the_namespaces_that_it_names() -> None:
    db = a_pod("db", "3", app="db")
    other = Pod(with_fields(db.metadata, namespace="data"), db.spec)
    for fields, placed in (
        ({}, False),
        ({"namespaces": ("data",)}, True),
        ({"namespace_selector": LabelSelector({"team": "data"})}, True),
        ({"namespace_selector": LabelSelector({"team": "web"})}, False),
    ):
        web = a_pod("web", affinity=Affinity(pod_affinity=near(app="db", **fields)))
        spaces = (Namespace(Metadata(name="data", labels={"team": "data"})),)
        sandbox = a_sandbox(web, other, nodes=2, namespaces=spaces)
        assert bool(sandbox.places()["web"]) is placed, fields


def with_volume(name: str, claim: str = "data", **spec: object) -> Pod:
    source = PersistentVolumeClaimSource(claim)
    return a_pod(name, volumes=(Volume("data", persistent_volume_claim=source),), **spec)


def a_claim_for(volume: str = "", kind: str = "gp3") -> PersistentVolumeClaim:
    return PersistentVolumeClaim(
        Metadata(name="data", namespace="default"), ClaimSpec(kind, volume)
    )


LATE = StorageClass(Metadata(name="gp3"), "ebs.csi.aws.com", "WaitForFirstConsumer")


def test_a_bound_volume_restricts_its_pod_to_its_zone() -> None:
    volume = PersistentVolume(
        Metadata(name="vol"), VolumeSpec(VolumeNodeAffinity(in_zone("us-east-1b")))
    )
    sandbox = a_sandbox(
        with_volume("db"), nodes=2, volume_claims=(a_claim_for("vol"),), volumes=(volume,)
    )
    assert sandbox.places() == {"db": "n1.internal"}


def test_a_new_volume_is_created_in_the_zone_of_its_pod() -> None:
    sandbox = a_sandbox(
        with_volume("db", node_selector={ZONE: "us-east-1a"}),
        nodes=2,
        volume_claims=(a_claim_for(),),
        storage_classes=(LATE,),
    )
    assert sandbox.places() == {"db": "n0.internal"}
    seen = sandbox.observe()
    (claim,), (volume,) = seen.volume_claims, seen.volumes
    assert (claim.status.phase, claim.spec.volume_name) == ("Bound", volume.metadata.name)
    assert volume.spec.node_affinity == VolumeNodeAffinity(in_zone("us-east-1a"))
    sandbox.cluster.taint("n0.internal")
    sandbox.cluster.drain("n0.internal", None, sandbox.now)
    assert sandbox.places() == {"db": ""}
    sandbox.cluster.untaint("n0.internal")
    assert sandbox.places() == {"db": "n0.internal"}


def test_a_storage_class_can_restrict_zones() -> None:
    term = TopologyTerm((TopologyExpression("topology.ebs.csi.aws.com/zone", ("us-east-1b",)),))
    kind = with_fields(LATE, allowed_topologies=(term,))
    sandbox = a_sandbox(
        with_volume("db"), nodes=2, volume_claims=(a_claim_for(),), storage_classes=(kind,)
    )
    assert sandbox.places() == {"db": "n1.internal"}


def test_a_pod_with_a_missing_volume_claim_stays_pending() -> None:
    assert a_sandbox(with_volume("db"), nodes=1).places() == {"db": ""}


@given(
    groups=st.lists(
        st.tuples(
            st.integers(1, 5),
            st.sampled_from(["100m", "900m", "2", "3500m"]),
            st.sampled_from([None, "zone", "host", "apart"]),
        ),
        max_size=4,
    ),
    nodes=st.integers(1, 4),
)
@settings(max_examples=examples(300), deadline=None)
def test_no_node_is_overbooked_and_order_does_not_matter(
    groups: list[tuple[int, str, str | None]], nodes: int
) -> None:
    def rules(app: str, rule: str | None) -> dict[str, object]:
        own = LabelSelector({"app": app})
        if rule == "apart":
            return {"affinity": Affinity(pod_anti_affinity=near(app=app))}
        if rule is None:
            return {}
        key = ZONE if rule == "zone" else HOST
        return {"topology_spread_constraints": (TopologySpreadConstraint(key, label_selector=own),)}

    every = [
        pod
        for number, (count, cpu, rule) in enumerate(groups)
        for pod in pods(count, cpu, f"app{number}", **rules(f"app{number}", rule))
    ]
    sandbox = a_sandbox(*every, nodes=nodes)
    places = sandbox.places()
    for name in {place for place in places.values() if place}:
        here = [pod for pod in every if places[pod.metadata.name] == name]
        assert sum(pod.requests()["cpu"] for pod in here) <= 4000
        for number, (_, _, rule) in enumerate(groups):
            alike = [pod for pod in here if pod.metadata.labels["app"] == f"app{number}"]
            assert rule != "apart" or len(alike) <= 1
    again = a_sandbox(*every, nodes=nodes)
    again.instances.reverse()
    assert again.places() == places
