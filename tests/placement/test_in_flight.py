"""A node in flight is a node: placement decides alike before it joins and after."""

from __future__ import annotations

import json
from copy import deepcopy
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.disruption.decide import METHODS, decide
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import TopologySpreadConstraint
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.placement.topology.defaultspread import DefaultSpread, with_default_spread
from reconciler.placement.topology.peers import owners_of
from tests.disruption.builders import a_situation, stamp
from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    NOW,
    TYPES,
    ZONE,
    Object,
    a_catalog,
    a_node,
    a_pod,
    a_pool,
    apart,
    near,
    placed,
    plan_of,
    pods,
    rule,
    spread,
    wanted,
    zones,
)
from tests.placement.worlds import workloads, worlds

STAGES = ("in flight", "joined", "registered", "initialized")
QUARANTINE = {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}
NOT_READY = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
KUBELETS_OWN = (ZONE, HOST, "node.kubernetes.io/instance-type")


def launched(name: str, stage: str, **fields: Any) -> list[Object]:
    """Return a node at a stage of its launch; its NodeClaim has the same name."""
    node, claim = a_node(name, **fields)
    claim["metadata"]["name"] = name
    labels, taints = node["metadata"]["labels"], node["spec"]["taints"]
    if stage != "initialized":
        del labels["karpenter.sh/initialized"]
        node["spec"]["taints"] = [*taints, NOT_READY]
    if stage == "joined":
        node["metadata"]["labels"] = {k: v for k, v in labels.items() if k in KUBELETS_OWN}
        node["spec"]["taints"] = [*taints, QUARANTINE]
    if stage == "in flight":
        return [claim]
    return [node, claim]


def nominated(name: str, node: str, **fields: Any) -> Object:
    """Return a pending pod that counts on the node, as the engine presents nominated pods."""
    pod = a_pod(name, node=node, **fields)
    pod["status"] = {"phase": "Pending"}
    return pod


THREE = wanted(ZONE, "In", "zone-a", "zone-b", "zone-c")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("rules", "zone"),
    [
        ({"topologySpreadConstraints": [spread(ZONE)]}, "zone-c"),
        ({"topologySpreadConstraints": [spread(ZONE, nodeTaintsPolicy="Honor")]}, "zone-c"),
        ({"affinity": apart(rule(ZONE))}, "zone-c"),
    ],
)
def test_a_pod_goes_to_the_zone_that_starting_nodes_leave(
    rules: Object, zone: str, stage: str
) -> None:
    spec: Object = {"labels": {"app": "app"}, "cpu": "3", **rules}
    world = [a_pool("default", THREE)]
    for name, there in (("x1", "zone-a"), ("x2", "zone-b")):
        world += [*launched(name, stage, zone=there), nominated(f"app-{name}", name, **spec)]
    assert zones(placed([*world, a_pod("app-3", **spec)])) == [zone]


@pytest.mark.parametrize("stage", STAGES)
def test_a_pod_follows_its_peer_to_the_zone_of_a_starting_node(stage: str) -> None:
    spec: Object = {"labels": {"app": "app"}, "cpu": "3", "affinity": near(rule(ZONE))}
    world = [*launched("x1", stage, zone="zone-b"), nominated("app-1", "x1", **spec)]
    placement = placed([a_pool("default", THREE), *world, a_pod("app-2", **spec)])
    assert zones(placement) == ["zone-b"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_nominated_pod_repels_others_from_its_starting_node(stage: str) -> None:
    guard = nominated("guard-1", "x1", cpu="500m", affinity=apart(rule(HOST, "app")))
    placement = placed([a_pool(), *launched("x1", stage), guard, *pods(1)])
    assert (placement.on_nodes, len(placement.claims)) == ({}, 1)


@pytest.mark.parametrize("stage", STAGES)
def test_a_host_port_and_the_limits_of_the_pool_are_taken_by_a_starting_node(stage: str) -> None:
    holder = nominated("app-1", "x1", cpu="500m", ports=[8080])
    world = [a_pool(limits={"nodes": "1"}), *launched("x1", stage), holder]
    placement = placed([*world, a_pod("app-2", cpu="500m", ports=[8080])])
    assert (placement.on_nodes, placement.claims) == ({}, ())
    assert list(placement.unschedulable) == ["default/app-2"]


@pytest.mark.parametrize("stage", ["in flight", "initialized"])
def test_the_pods_of_a_starting_node_that_is_removed_are_placed_again(stage: str) -> None:
    spec: Object = {"labels": {"app": "app"}, "cpu": "3"}
    spec["topologySpreadConstraints"] = [spread(ZONE)]
    world = [a_pool("default", THREE), *launched("x1", stage, zone="zone-a", deleting=True)]
    placement = placed([*world, nominated("app-1", "x1", **spec)])
    assert [claim.pods for claim in placement.claims] == [("default/app-1",)]


# Law 12, over random clusters.


def after_the_launch(world: list[Object], stage: str) -> list[Object]:
    """Return the cluster after its placement was carried out, with new nodes at a stage."""
    placement = placed(world)
    kinds = {kind["name"]: kind for kind in TYPES}
    homes = dict(placement.on_nodes)
    objects = [item for item in world if item["kind"] != "Pod"]
    for number, claim in enumerate(placement.claims):
        kind, offering = claim.launch
        name = f"x{number}"
        homes.update(dict.fromkeys(claim.pods, name))
        fields = {
            "zone": offering.zone,
            "pool": claim.node_pool.name,
            "labels": {
                **claim.labels,
                CAPACITY_TYPE: offering.capacity_type,
                "node.kubernetes.io/instance-type": kind.name,
                "example.com/size": kinds[kind.name]["capacity"]["cpu"],
                "kubernetes.io/arch": kinds[kind.name]["requirements"][1]["values"][0],
            },
            "taints": _taints(world, claim),
        }
        made = launched(name, stage, **fields)
        for item in made:
            capacity = kinds[kind.name]["capacity"]
            item["status"]["capacity"] = item["status"]["allocatable"] = dict(capacity)
        objects += made
    for pod in (item for item in world if item["kind"] == "Pod"):
        key = f"default/{pod['metadata']['name']}"
        if key in homes:
            pod = deepcopy(pod)
            pod["spec"]["nodeName"] = homes[key]
            pod["status"] = {"phase": "Pending"}
        objects.append(pod)
    return objects


def _taints(world: list[Object], claim: Any) -> list[Object]:
    pool = next(
        item
        for item in world
        if item["kind"] == "NodePool" and item["metadata"]["name"] == claim.node_pool.name
    )
    taints: list[Object] = pool["spec"]["template"]["spec"].get("taints", [])
    return taints


@st.composite
def ready_worlds(draw: st.DrawFn) -> list[Object]:
    """Return random clusters whose nodes are all initialized: pods try these first."""
    world = draw(worlds())
    for item in world:
        if item["kind"] == "Node":
            item["metadata"]["labels"]["karpenter.sh/initialized"] = "true"
    return world


def with_claim(pod: Object, name: str) -> Object:
    """Return the pod with a volume of that claim."""
    known = pod["spec"].get("volumes", [])
    volume = {"name": name, "persistentVolumeClaim": {"claimName": name}}
    return {**pod, "spec": {**pod["spec"], "volumes": [*known, volume]}}


def a_bound_claim(name: str, zone: str) -> list[Object]:
    term = {"matchExpressions": [wanted(ZONE, "In", zone)]}
    return [
        {
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": name,
                "namespace": "default",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes"},
            },
            "spec": {"volumeName": f"volume-{name}"},
        },
        {
            "kind": "PersistentVolume",
            "metadata": {"name": f"volume-{name}"},
            "spec": {
                "csi": {"driver": "ebs.csi.aws.com"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
            },
        },
    ]


def with_volumes(data: st.DataObject, objects: list[Object]) -> list[Object]:
    """Return the objects with volumes of some zones on some of the pending pods."""
    found: list[Object] = []
    for item in objects:
        if item["kind"] == "Pod" and not item["spec"].get("nodeName"):
            zone = data.draw(st.sampled_from([None, None, None, "zone-a", "zone-b"]))
            if zone is not None:
                name = f"data-{item['metadata']['name']}"
                found += a_bound_claim(name, zone)
                item = with_claim(item, name)
        found.append(item)
    return found


def late_pods(data: st.DataObject) -> list[Object]:
    """Return more pending pods, which came while nodes started."""
    late = []
    for app in ("web", "db"):
        for pod in data.draw(workloads(app)):
            pod["metadata"]["name"] = pod["metadata"]["uid"] = f"late-{pod['metadata']['name']}"
            late.append(pod)
    return late


def state_of(objects: list[Object], default: TopologySpreadConstraint | None) -> ClusterState:
    """Return the cluster of these objects, with a default spread for pods without their own."""
    rest = [item for item in objects if item["kind"] != "NodePool"]
    content = json.dumps({"kind": "List", "items": rest}).encode()
    cluster = cluster_state(read_snapshot(content, ""))
    if default is None:
        return cluster
    owners = owners_of(cluster.services, cluster.scalables, cluster.replication_controllers)
    return with_default_spread(cluster, DefaultSpread([default], owners))


SERVICES = [
    {
        "kind": "Service",
        "metadata": {"name": app, "namespace": "default"},
        "spec": {"selector": {"app": app}},
    }
    for app in ("web", "db")
]
DEFAULTS = [
    None,
    TopologySpreadConstraint(ZONE, 1, "DoNotSchedule"),
    TopologySpreadConstraint(ZONE, 1, "ScheduleAnyway"),
    TopologySpreadConstraint(HOST, 2, "DoNotSchedule"),
]
LAWS = settings(
    max_examples=examples(200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@given(ready_worlds(), st.sampled_from(DEFAULTS), st.data())
@LAWS
def test_a_plan_is_the_same_before_and_after_new_nodes_join(
    world: list[Object], default: TopologySpreadConstraint | None, data: st.DataObject
) -> None:
    """With host ports, limits, DaemonSets, affinity, preferences, volumes and default spread."""
    world = [*SERVICES, *with_volumes(data, world)]
    late = with_volumes(data, late_pods(data))
    plans = []
    for stage in STAGES:
        objects = [*after_the_launch(world, stage), *deepcopy(late)]
        plans.append(plan_of(placed(objects, cluster=state_of(objects, default))))
    for stage, plan in zip(STAGES, plans, strict=True):
        assert plan == plans[-1], stage


def as_candidates(world: list[Object]) -> list[Object]:
    """Return the cluster with every existing node ready to be disrupted."""
    at = stamp(NOW - timedelta(hours=2))
    for item in world:
        if item["kind"] == "NodeClaim":
            kinds = ("Launched", "Registered", "Initialized", "Consolidatable")
            item["metadata"]["creationTimestamp"] = at
            item["status"]["nodeName"] = item["metadata"]["name"].removeprefix("claim-")
            item["status"]["conditions"] = [
                {"type": kind, "status": "True", "lastTransitionTime": at} for kind in kinds
            ]
        elif item["kind"] == "Node":
            item["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
        elif item["kind"] == "NodePool":
            item["spec"]["disruption"] = {
                "consolidateAfter": "0s",
                "budgets": [{"nodes": "100%"}],
            }
    return world


def commands_of(objects: list[Object]) -> list[object]:
    """Return what would be disrupted, and what would replace it."""
    pools = [decode(item, NodePool) for item in objects if item["kind"] == "NodePool"]
    cluster = state_of(objects, None)
    found = decide(a_situation(cluster, pools, catalog=a_catalog(TYPES), now=NOW), METHODS)
    return [
        (str(c.reason), c.decision, c.nodes, [(r.pods, r.launch[1].zone) for r in c.replacements])
        for c in found.commands
    ]


@given(ready_worlds(), st.data())
@LAWS
def test_consolidation_decides_alike_until_new_nodes_are_initialized(
    world: list[Object], data: st.DataObject
) -> None:
    """Nodes in flight take part in its simulation as those that have joined; Karpenter's rule
    that no pod may move to an uninitialized node holds for all of them.
    """
    world = as_candidates(with_volumes(data, world))
    late = with_volumes(data, late_pods(data)) if data.draw(st.booleans()) else []
    starting = [stage for stage in STAGES if stage != "initialized"]
    found = [
        commands_of([*after_the_launch(deepcopy(world), stage), *deepcopy(late)])
        for stage in starting
    ]
    assert found == [found[0]] * len(starting)


def test_consolidation_counts_the_pods_of_a_starting_node() -> None:
    """The pod of the small node would fit on it, if the nominated one did not need the room."""
    found = {}
    for cpu in ("500m", "3600m"):
        world = as_candidates(
            [
                a_pool("default", wanted(CAPACITY_TYPE, "In", "on-demand")),
                *a_node("old", "4", zone="zone-a"),
                a_pod("app-1", "500m", node="old", labels={"app": "app"}),
            ]
        )
        starting = [*launched("x1", "in flight", zone="zone-a")]
        objects = [*world, *starting, nominated("big", "x1", cpu=cpu)]
        situation = a_situation(
            state_of(objects, None),
            [decode(objects[0], NodePool)],
            catalog=a_catalog(TYPES),
            now=NOW,
        )
        decisions = decide(situation, METHODS)
        found[cpu] = [(c.decision, c.nodes) for c in decisions.commands]
    assert found == {"500m": [], "3600m": [("replace", ("old",))]}
