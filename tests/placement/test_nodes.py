"""Existing nodes: which take a pod, in which order, and how much is left on them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.placement.nodes.existing import SchedulerMemory
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Question
from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    NOW,
    REQUIRED,
    ZONE,
    Object,
    a_daemon_set,
    a_node,
    a_pod,
    a_pool,
    a_scheduler,
    apart,
    on,
    placed,
    plan_of,
    pods,
    rule,
    wanted,
)

NO_SCHEDULE = {"key": "example.com/own", "effect": "NoSchedule"}


def test_a_node_with_room_is_used_before_a_new_one() -> None:
    placement = placed([a_pool(), *a_node("n1"), *pods(5)])
    assert len(placement.on_nodes) == 4
    assert len(placement.claims) == 1


def test_nodes_are_ordered_by_initialized_then_name() -> None:
    world = [a_pool(), *a_node("a", initialized=False), *a_node("c"), *a_node("b")]
    assert placed([*world, *pods(1)]).on_nodes == {"default/app-00": "b"}


def test_a_pod_on_an_uninitialized_node_is_marked() -> None:
    placement = placed([a_pool(), *a_node("n1", initialized=False), *pods(1)])
    assert placement.uninitialized_targets == {"default/app-00"}


def test_a_missing_label_of_an_existing_node_has_no_value() -> None:
    world = [a_pool(), *a_node("n1", zone=None)]
    placement = placed([*world, *pods(1, nodeSelector={ZONE: "zone-a"})])
    assert (placement.on_nodes, len(placement.claims)) == ({}, 1)


def test_taints_count_except_those_that_a_starting_node_will_lose() -> None:
    fading = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
    starting = [a_pool(), *a_node("n1", taints=[fading], initialized=False), *pods(1)]
    running = [a_pool(), *a_node("n1", taints=[fading]), *pods(1)]
    assert placed(starting).on_nodes == {"default/app-00": "n1"}
    assert placed(running).on_nodes == {}


def test_running_pods_and_future_daemons_use_room() -> None:
    agent = a_daemon_set("agent", "1")
    bound = a_pod("agent-0", "1", node="n1", owner=("apps/v1", "DaemonSet"))
    other = a_pod("old-0", "1", node="n1")
    waiting = pods(3)
    unbound = placed([a_pool(), agent, other, *a_node("n1"), *waiting])
    here = placed([a_pool(), agent, other, bound, *a_node("n1"), *waiting])
    assert len(unbound.on_nodes) == len(here.on_nodes) == 2


def test_an_overcommitted_node_rejects_even_a_pod_without_requests() -> None:
    world = [a_pool(), *a_node("n1"), a_pod("old-0", "5", node="n1")]
    assert placed([*world, *pods(1, cpu="0", memory="0")]).on_nodes == {}


def test_host_ports_of_running_pods_count() -> None:
    world = [a_pool(), *a_node("n1"), a_pod("old-0", node="n1", ports=[80])]
    assert placed([*world, *pods(1, ports=[80])]).on_nodes == {}
    assert placed([*world, *pods(1, ports=[81])]).on_nodes == {"default/app-00": "n1"}


def test_nodes_without_a_nodepool_take_pods() -> None:
    stray = a_node("n1")[0]
    del stray["metadata"]["labels"]["karpenter.sh/nodepool"]
    assert placed([a_pool(), stray, *pods(1)]).on_nodes == {"default/app-00": "n1"}


def test_pods_of_a_deleting_node_are_placed_elsewhere() -> None:
    world = [a_pool(), *a_node("n1", deleting=True), *pods(2, node="n1")]
    placement = placed(world)
    assert [c.pods for c in placement.claims] == [("default/app-00", "default/app-01")]


def test_excluded_nodes_take_no_pods_and_their_pods_do_not_count() -> None:
    alone = pods(2, node="n1", affinity=apart(rule("kubernetes.io/hostname")))[:1]
    world = [a_pool(limits={"nodes": "1"}), *a_node("n1"), *alone]
    scheduler, cluster = a_scheduler(world)
    question = Question(pods=cluster.pods, without=frozenset({"n1"}))
    placement = scheduler.place(question)
    assert [c.pods for c in placement.claims] == [("default/app-00",)]
    assert scheduler.place(question) == placement


def test_a_claim_without_an_instance_takes_pods_and_counts_for_limits() -> None:
    claim: Object = {
        "kind": "NodeClaim",
        "metadata": {"name": "new-1", "labels": {"karpenter.sh/nodepool": "default"}},
        "spec": {
            "requirements": [wanted("node.kubernetes.io/instance-type", "In", "medium", "large")]
        },
    }
    world = [a_pool(limits={"nodes": "1"}), claim, *pods(4)]
    placement = placed(world)
    assert set(placement.on_nodes.values()) == {"new-1"}
    assert len(placement.on_nodes) == 3, "a medium node has room for three"
    assert len(placement.unschedulable) == 1


def test_only_consolidation_avoids_recently_changed_nodes() -> None:
    node, claim = a_node("n1")
    claim["status"]["conditions"] = [{"type": "Initialized", "status": "True"}]
    claim["status"]["lastPodEventTime"] = "2026-03-01T11:59:50Z"
    pool = a_pool(disruption={"consolidateAfter": "1m"})
    running = a_pod("old-0", node="n2")
    scheduler, cluster = a_scheduler([pool, node, claim, *a_node("n2"), running, *pods(1)])
    question = Question(pods=cluster.pods, without=frozenset({"n2"}), consolidation_guard=True)
    moved = scheduler.place(question)
    assert moved.on_nodes == {"default/app-00": "n1"}
    assert [c.pods for c in moved.claims] == [("default/old-0",)]
    assert pods_to_place(cluster, NOW) == cluster.pending


def _bound(name: str, zone: str, driver: str = "ebs.csi.aws.com") -> list[Object]:
    """Return a claim and its volume, reachable in one zone."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": [wanted(ZONE, "In", zone)]}]}
    return [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {"volumeName": f"pv-{name}"},
        },
        {
            "kind": "PersistentVolume",
            "metadata": {"name": f"pv-{name}"},
            "spec": {"csi": {"driver": driver}, "nodeAffinity": {"required": terms}},
        },
    ]


def _uses(*claims: str) -> list[Object]:
    return [{"name": c, "persistentVolumeClaim": {"claimName": c}} for c in claims]


def test_a_volume_restricts_its_pod_to_its_zone() -> None:
    world = [a_pool(), *_bound("data", "zone-b"), *a_node("n1"), *pods(1, volumes=_uses("data"))]
    placement = placed(world)
    assert placement.on_nodes == {}
    assert placement.claims[0].launch[1].zone == "zone-b"


def test_a_volume_of_one_host_keeps_its_pod_off_new_nodes() -> None:
    """Not a local path: the hostname of the volume applies, and no new node has it."""
    claim, volume = _bound("data", "zone-a")
    terms = volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"]
    terms[0]["matchExpressions"] = [wanted(HOST, "In", "n2")]
    world = [a_pool(), claim, volume, *pods(1, volumes=_uses("data"))]

    nowhere = placed([*world, *a_node("n1")])
    at_home = placed([*world, *a_node("n1"), *a_node("n2")])

    assert nowhere.claims == ()
    assert [r.code for r in nowhere.unschedulable["default/app-00"]] == ["VolumeUnreachable"]
    assert at_home.on_nodes == {"default/app-00": "n2"}


def test_a_node_attaches_no_more_volumes_than_its_driver_allows() -> None:
    limits: Object = {
        "kind": "CSINode",
        "metadata": {"name": "n1"},
        "spec": {"drivers": [{"name": "ebs.csi.aws.com", "allocatable": {"count": 2}}]},
    }
    names = ["one", "two", "three"]
    volumes = [o for name in names for o in _bound(name, "zone-a")]
    waiting = [a_pod(f"{name}-0", volumes=_uses(name)) for name in names]
    shared = [a_pod(f"same-{i}", volumes=_uses("one")) for i in range(2)]
    world = [a_pool(), *a_node("n1"), limits, *volumes]
    assert len(placed([*world, *waiting]).on_nodes) == 2
    assert len(placed([*world, *shared]).on_nodes) == 2


@pytest.mark.parametrize(
    ("objects", "code"),
    [
        ([], "PersistentVolumeClaimNotFound"),
        ([{"spec": {"storageClassName": "none"}}], "StorageClassNotFound"),
        ([{"spec": {}}], "StorageClassMissing"),
        ([{"spec": {"volumeName": "gone"}}], "PersistentVolumeNotFound"),
        ([{"spec": {}, "status": {"phase": "Lost"}}], "PersistentVolumeClaimLost"),
    ],
)
def test_a_pod_with_an_unavailable_volume_is_rejected_with_a_reason(
    objects: list[Object], code: str
) -> None:
    metadata = {"name": "data", "namespace": "default"}
    claims = [{"kind": "PersistentVolumeClaim", "metadata": metadata, **o} for o in objects]
    placement = placed([a_pool(), *claims, *pods(1, volumes=_uses("data"))])
    assert [r.code for r in placement.unschedulable["default/app-00"]] == [code]


def test_pods_that_fit_only_an_existing_node_use_it() -> None:
    here = wanted("example.com/rack", "In", "7")
    world = [a_pool(), *a_node("n1", labels={"example.com/rack": "7"})]
    assert placed([*world, *pods(1, affinity=on([here]))]).on_nodes == {"default/app-00": "n1"}
    assert REQUIRED in on([here])["nodeAffinity"]


def _class(name: str, *terms: tuple[str, ...], mode: str = "WaitForFirstConsumer") -> Object:
    """Return a StorageClass; each term lists zones, and any of the terms may match."""
    topologies = [{"matchLabelExpressions": [{"key": ZONE, "values": list(t)}]} for t in terms]
    return {
        "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": "ebs.csi.aws.com",
        "volumeBindingMode": mode,
        "allowedTopologies": topologies,
    }


def _unbound(name: str, storage_class: str) -> Object:
    return {
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"storageClassName": storage_class},
    }


def test_each_zone_of_a_storage_class_is_an_alternative() -> None:
    """Two pods that repel each other, with volumes that may be in either of two zones."""
    spec = {"affinity": apart(rule(ZONE)), "labels": {"app": "app"}}
    world = [
        _class("two", ("zone-b",), ("zone-c",)),
        _unbound("one", "two"),
        _unbound("more", "two"),
    ]
    waiting = [a_pod(f"{n}-0", volumes=_uses(n), **spec) for n in ("one", "more")]

    placement = placed([a_pool(), *world, *waiting])

    assert {claim.launch[1].zone for claim in placement.claims} == {"zone-b", "zone-c"}


def test_an_ephemeral_volume_counts_by_its_claim_name() -> None:
    volume = {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}
    world = [a_pool(), _class("c", ("zone-c",)), a_pod("app-0", volumes=[volume])]

    made = placed([*world, _unbound("app-0-scratch", "c")])
    not_yet = placed(world)

    assert [claim.launch[1].zone for claim in made.claims] == ["zone-c"]
    assert [r.code for r in not_yet.unschedulable["default/app-0"]] == [
        "PersistentVolumeClaimNotFound"
    ]


def test_a_pod_waits_for_a_claim_with_immediate_binding() -> None:
    world = [a_pool(), _class("c", ("zone-c",), mode="Immediate"), _unbound("data", "c")]

    placement = placed([*world, *pods(1, volumes=_uses("data"))])

    assert [r.code for r in placement.unschedulable["default/app-00"]] == ["VolumeNotBound"]


def test_a_volume_zone_remains_when_the_pod_drops_an_alternative() -> None:
    either = on([wanted("example.com/none", "In", "x")], [wanted(CAPACITY_TYPE, "In", "on-demand")])
    world = [a_pool(), *_bound("data", "zone-b")]

    placement = placed([*world, *pods(1, volumes=_uses("data"), affinity=either)])

    assert [claim.launch[1].zone for claim in placement.claims] == ["zone-b"]


def test_a_missing_hostname_label_defaults_to_the_node_name() -> None:
    """A running pod with anti-affinity repels others there as on any node."""
    runs = a_pod("alone", node="n1", affinity=apart(rule(HOST)), labels={"app": "db"})
    node, claim = a_node("n1")
    del node["metadata"]["labels"][HOST]
    placement = placed([a_pool(), node, claim, runs, a_pod("new", labels={"app": "app"})])
    assert not placement.on_nodes


HERE = {HOST: "n1"}
TAINT = {"key": "example.com/own", "effect": "NoSchedule"}


@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(st.sampled_from("24"), st.booleans(), st.booleans()),
                min_size=1,
                max_size=3,
            ),
            st.sampled_from(["", "1", "2"]),
        ),
        min_size=2,
        max_size=4,
    )
)
@settings(max_examples=examples(300), deadline=None)
def test_a_scheduler_with_the_memory_of_others_places_as_a_new_one(
    courses: list[tuple[list[tuple[str, bool, bool]], str]],
) -> None:
    memory, last = SchedulerMemory(), None
    for nodes, daemon_cpu in courses:
        world = [a_pool(), *pods(6)]
        if daemon_cpu:
            world += [a_daemon_set("d", daemon_cpu), a_daemon_set("one", "1", nodeSelector=HERE)]
        for n, (cpu, is_used, is_tainted) in enumerate(nodes):
            world += a_node(f"n{n}", cpu, taints=[TAINT] if is_tainted else [])
            world += [a_pod(f"r{n}", node=f"n{n}")] if is_used else []
        scheduler, cluster = a_scheduler(world)
        last = cluster.with_shared_nodes(last) if last is not None else cluster
        similar, _ = a_scheduler(world, cluster=last, memory=memory)
        asked = Question(pods=pods_to_place(cluster, NOW))
        assert plan_of(similar.place(asked)) == plan_of(scheduler.place(asked))
