"""A node in flight is a node: placement decides alike before it joins and after."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    TYPES,
    ZONE,
    Object,
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


@given(ready_worlds(), st.data())
@settings(
    max_examples=examples(200),
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_a_plan_is_the_same_before_and_after_new_nodes_join(
    world: list[Object], data: st.DataObject
) -> None:
    late = []
    for app in ("web", "db"):
        for pod in data.draw(workloads(app)):
            pod["metadata"]["name"] = pod["metadata"]["uid"] = f"late-{pod['metadata']['name']}"
            late.append(pod)
    plans = [
        plan_of(placed([*after_the_launch(world, stage), *deepcopy(late)])) for stage in STAGES
    ]
    for stage, plan in zip(STAGES, plans, strict=True):
        assert plan == plans[-1], stage
