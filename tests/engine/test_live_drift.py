"""Nodes that differ from what their class would launch now, according to EC2."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.adapters.simulated.conditions import Fault
from reconciler.desired.hash import object_hash
from reconciler.engine.loop import PAUSE_MAX
from reconciler.engine.steps.interruption import claims_in_ending_blocks
from reconciler.engine.steps.lifecycle import with_instance
from reconciler.model.errors import TransientCloudError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import CapacityReservation, EC2NodeClass
from reconciler.ports.cloud import Instance
from tests.contracts.cloud import a_class
from tests.engine.faults import three_nodes
from tests.engine.test_crash import LARGE
from tests.engine.world import World, a_deployment, a_node_class, a_pool, a_world

POOL_HASH = "karpenter.sh/nodepool-hash"
CLASS_HASH = "karpenter.k8s.aws/ec2nodeclass-hash"
RESERVATION = "karpenter.k8s.aws/capacity-reservation-id"


def drift_of(world: World) -> set[tuple[str, str]]:
    """Return the drift reasons and sources of nodes in the next pass."""
    world.clock.advance(PAUSE_MAX + 1)
    plan = world.engine().run_once().plan
    return {(d.reason, d.side) for d in plan.drift}


def two_named_nodes() -> World:
    """A fleet whose class selects images by name, so that a newer one is used."""
    named = a_node_class()
    named["spec"]["amiSelectorTerms"] = [{"name": "web-*"}]
    named["spec"]["amiFamily"] = "AL2023"
    world = a_world()
    world.cloud.publish("ami-old", "web-1", world.clock.now())
    pool = a_pool("web", budgets=[{"nodes": "2"}], template={"requirements": LARGE})
    world.git.commit(named, pool, a_deployment("web", "web", 2))
    world.converge()
    return world


def test_a_newer_image_replaces_every_node() -> None:
    world = two_named_nodes()
    before = set(world.instances())
    world.cloud.publish("ami-new", "web-2", world.clock.now() + timedelta(hours=1))
    assert drift_of(world) == {("AMIDrift", "world")}
    world.converge()
    assert not before & set(world.instances())
    assert {c.status.image_id for c in world.claims.values()} == {"ami-new"}
    assert drift_of(world) == set()


def test_another_security_group_is_drift() -> None:
    world = three_nodes()
    ec2 = world.cloud.connect("ec2", 1)
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    group = ec2.create_security_group(GroupName="more", Description="more", VpcId=vpc)["GroupId"]
    tag(world, group)
    assert drift_of(world) == {("SecurityGroupDrift", "world")}
    world.converge()
    assert drift_of(world) == set()


def test_a_deselected_subnet_is_drift_of_its_nodes_only() -> None:
    world = three_nodes()
    ec2 = world.cloud.connect("ec2", 1)
    used = {i.subnet_id for i in world.engine().ports.compute.instances()}
    lost = min(used)
    ec2.delete_tags(Resources=[lost], Tags=[{"Key": "karpenter.sh/discovery"}])
    assert drift_of(world) == {("SubnetDrift", "world")}
    world.converge()
    assert lost not in {i.subnet_id for i in world.engine().ports.compute.instances()}


def tag(world: World, resource: str) -> None:
    tags = [{"Key": "karpenter.sh/discovery", "Value": "test"}]
    world.cloud.connect("ec2", 1).create_tags(Resources=[resource], Tags=tags)


@pytest.mark.parametrize(
    "call", ["DescribeInstances", "DescribeSubnets", "DescribeSecurityGroups", "DescribeImages"]
)
def test_unreadable_facts_are_not_drift(call: str) -> None:
    world = three_nodes()
    before = set(world.instances())
    world.clock.advance(PAUSE_MAX + 1)
    world.cloud.faults.add(call, Fault.SERVER_ERROR, times=None)
    with pytest.raises(TransientCloudError):
        world.engine().run_once()
    world.cloud.faults.clear()
    assert drift_of(world) == set()
    assert set(world.instances()) == before


# Hashes of an earlier release.


def aged(world: World, *, drifted: str = "") -> None:
    """Rewrite the records to those of an earlier release; ``drifted`` was drifted already."""
    claims = []
    for claim in world.claims.values():
        old = {POOL_HASH: "111", CLASS_HASH: "222"}
        if claim.name == drifted:
            old[POOL_HASH] = "999"
        versions = {f"{key}-version": "v1" for key in old}
        annotations = {**claim.metadata.annotations, **old, **versions}
        claims.append(replace(claim, metadata=replace(claim.metadata, annotations=annotations)))
    world.store.put_node_claims(claims)
    hashes = {"NodePool": "111", "EC2NodeClass": "222"}
    objects = [replace(o, hash=hashes[o.kind]) for o in world.store.objects() if o.kind in hashes]
    world.store.put_objects(objects, "before", world.clock.now())


def changed_pool(**labels: str) -> list[dict[str, Any]]:
    pool = a_pool("web", labels=labels, budgets=[{"nodes": "3"}], template={"requirements": LARGE})
    return [a_node_class(), pool, a_deployment("web", "web", 3)]


def test_an_upgrade_replaces_nothing_and_later_changes_cause_drift() -> None:
    world = three_nodes()
    before = set(world.instances())
    aged(world)
    assert drift_of(world) == set()
    world.converge()
    assert set(world.instances()) == before
    (pool,) = [o for o in world.git.objects if o["kind"] == "NodePool"]
    for claim in world.claims.values():
        assert claim.metadata.annotations[POOL_HASH] == object_hash(pool)[0]
        assert claim.metadata.annotations[f"{POOL_HASH}-version"] == object_hash(pool)[1]
    world.git.commit(*changed_pool(version="2"))
    assert drift_of(world) == {("NodePoolDrifted", "git")}


def test_a_change_that_arrives_with_an_upgrade_causes_drift() -> None:
    world = three_nodes()
    aged(world)
    world.git.commit(*changed_pool(version="2"))
    assert drift_of(world) == {("NodePoolDrifted", "git")}


def test_claims_drifted_before_an_upgrade_stay_drifted() -> None:
    world = three_nodes()
    name = next(iter(world.claims))
    aged(world, drifted=name)
    world.clock.advance(PAUSE_MAX + 1)
    plan = world.engine().run_once().plan
    assert [d.node_claim for d in plan.drift] == [name]


def test_without_a_record_the_current_object_is_hashed() -> None:
    world = three_nodes()
    aged(world)
    world.store.put_objects([], "before", world.clock.now())
    assert drift_of(world) == set()


# Reservations and tenancy.


def a_claim(**labels: str) -> NodeClaim:
    claim = next(iter(three_nodes().claims.values()))
    metadata = replace(claim.metadata, labels={**claim.metadata.labels, **labels})
    return replace(claim, metadata=metadata)


def seen_as(claim: NodeClaim, **facts: str) -> Instance:
    labels = claim.metadata.labels
    return Instance(
        id=claim.status.provider_id.rpartition("/")[2],
        instance_type=labels["node.kubernetes.io/instance-type"],
        zone=labels["topology.kubernetes.io/zone"],
        state="running",
        launched_at=claim.metadata.creation_timestamp,
        tags={},
        **{"capacity_type": "on-demand", **facts},
    )


def test_an_instance_whose_reservation_ended_becomes_on_demand() -> None:
    claim = a_claim(**{"karpenter.sh/capacity-type": "reserved", RESERVATION: "cr-1"})
    now = claim.metadata.creation_timestamp
    kept = with_instance(claim, seen_as(claim, capacity_type="reserved"), now)
    assert kept.metadata.labels[RESERVATION] == "cr-1"
    lost = with_instance(claim, seen_as(claim), now).metadata.labels
    assert lost["karpenter.sh/capacity-type"] == "on-demand"
    assert RESERVATION not in lost


def test_another_tenancy_in_the_pool_is_drift() -> None:
    world = three_nodes()
    assert drift_of(world) == set()
    tenancy = {
        "key": "karpenter.k8s.aws/instance-tenancy",
        "operator": "In",
        "values": ["dedicated"],
    }
    requirements = [*LARGE, tenancy]
    pool = a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": requirements})
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 3))
    assert drift_of(world) == {("RequirementsDrifted", "git")}


def a_block(ends_in: timedelta, claim: NodeClaim, kind: str = "capacity-block") -> EC2NodeClass:
    found = a_class()
    end = claim.metadata.creation_timestamp + ends_in
    block = CapacityReservation("cr-1", reservation_type=kind, end_time=end)
    return replace(found, status=replace(found.status, capacity_reservations=(block,)))


@pytest.mark.parametrize(
    ("minutes", "kind", "goes"),
    [(41, "capacity-block", False), (40, "capacity-block", True), (1, "default", False)],
)
def test_nodes_of_a_capacity_block_are_removed_forty_minutes_before_its_end(
    *, minutes: int, kind: str, goes: bool
) -> None:
    claim = a_claim(**{"karpenter.sh/capacity-type": "reserved", RESERVATION: "cr-1"})
    classes = {"default": a_block(timedelta(minutes=minutes), claim, kind)}
    found = claims_in_ending_blocks([claim], classes, claim.metadata.creation_timestamp)
    assert (claim.name in found) is goes
    if goes:
        assert found[claim.name].startswith("end of capacity block cr-1 at ")
