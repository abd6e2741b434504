"""Resolution of an EC2NodeClass to resources of the account, and missing ones."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reconciler.adapters.aws.launch.requests import launch_requests
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.catalog.classfacts import class_facts
from reconciler.model.errors import TransientCloudError
from reconciler.model.karpenter.nodeclass import (
    EC2NodeClass,
    FoundPlacementGroup,
    PlacementGroupSelector,
    SelectorTerm,
)
from reconciler.model.kubernetes.metadata import condition
from reconciler.model.settings import ClusterKind, PlacementGroup
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.contracts.cloud import SETTINGS, a_class, a_compute, a_launch, a_type


@pytest.fixture
def cloud(clock: SimulatedClock) -> EmbeddedEC2:
    return EmbeddedEC2(clock)


def resolved(cloud: EmbeddedEC2, clock: SimulatedClock, node_class: EC2NodeClass) -> EC2NodeClass:
    return a_compute(cloud, clock).resolve(node_class)


def reasons(node_class: EC2NodeClass) -> dict[str, str]:
    return {c.type: c.reason for c in node_class.status.conditions if c.status != "True"}


def test_resources_selected_by_the_class_are_found(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    cloud.seed(a_class())
    found = resolved(cloud, clock, a_class())
    assert found.is_ready
    assert reasons(found) == {}
    assert len({s.zone for s in found.status.subnets}) == 6
    assert all(s.zone_id for s in found.status.subnets)
    assert len(found.status.security_groups) == 1
    assert [a.requirements[0].values for a in found.status.amis] == [("arm64",), ("amd64",)]
    assert found.status.instance_profile.startswith("web_")


def test_all_missing_resources_are_reported_together(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    node_class = a_class(ami_selector_terms=(SelectorTerm(name="nothing-*"),), role="")
    found = resolved(cloud, clock, node_class)
    assert not found.is_ready
    assert reasons(found) == {
        "SubnetsReady": "SubnetsNotFound",
        "SecurityGroupsReady": "SecurityGroupsNotFound",
        "AMIsReady": "AMINotFound",
        "InstanceProfileReady": "InstanceProfileNotFound",
        "Ready": "UnhealthyDependents",
    }
    ready = condition(found.status.conditions, "Ready")
    assert ready is not None
    assert ready.message == (
        "SubnetsReady=False, SecurityGroupsReady=False, AMIsReady=False, InstanceProfileReady=False"
    )


def test_a_class_with_a_status_is_used_unchanged(cloud: EmbeddedEC2, clock: SimulatedClock) -> None:
    cloud.seed(a_class())
    known = resolved(cloud, clock, a_class())
    cloud.calls.clear()
    assert resolved(cloud, clock, known) is known
    assert cloud.calls == []


def test_lookups_are_cached_for_a_minute(cloud: EmbeddedEC2, clock: SimulatedClock) -> None:
    compute = a_compute(cloud, clock)
    assert not compute.resolve(a_class()).is_ready
    cloud.seed(a_class())
    clock.advance(59)
    assert not compute.resolve(a_class()).is_ready
    clock.advance(1)
    assert compute.resolve(a_class()).is_ready


def test_a_failed_lookup_is_not_a_finding(cloud: EmbeddedEC2, clock: SimulatedClock) -> None:
    """Unknown does not mean missing."""
    cloud.seed(a_class())
    for call in ("DescribeSubnets", "DescribeSecurityGroups", "DescribeImages"):
        cloud.faults.add(call, Fault.SERVER_ERROR, times=None)
        with pytest.raises(TransientCloudError, match=f"ec2:{call}"):
            resolved(cloud, clock, a_class())
        cloud.faults.clear()


def test_earlier_lookups_are_used_while_ec2_is_unreachable(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    cloud.seed(a_class())
    compute = a_compute(cloud, clock)
    before = compute.resolve(a_class())
    clock.advance(3600)
    cloud.faults.add("*", Fault.RESET_BEFORE, times=None)
    assert compute.resolve(a_class()) == before
    cloud.faults.clear()
    assert compute.resolve(a_class()) != before, "conditions are as old as the look"


def test_selectors_accept_ids_names_and_any_value(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    node_class = a_class(
        subnet_selector_terms=(
            SelectorTerm(id="subnet-0abc"),
            SelectorTerm(id="subnet-0abd"),
            SelectorTerm(tags={"team": "*"}),
        ),
        security_group_selector_terms=(SelectorTerm(id="sg-0abc"), SelectorTerm(name="nodes")),
        ami_selector_terms=(SelectorTerm(id="ami-0abc"),),
        instance_profile="profile",
        role="",
    )
    cloud.seed(node_class)
    found = resolved(cloud, clock, node_class)
    assert reasons(found) == {}
    ids = {s.id for s in found.status.subnets}
    assert {"subnet-0abc", "subnet-0abd"} < ids
    assert [g.name for g in found.status.security_groups if g.id != "sg-0abc"] == ["nodes"]
    assert [a.id for a in found.status.amis] == ["ami-0abc"]
    assert found.status.instance_profile == "profile"


def test_images_are_selected_by_tags_name_and_owner(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    term = SelectorTerm(name="golden-*", tags={"team": "web"}, owner="123456789012")
    node_class = a_class(ami_selector_terms=(term,), ami_family="AL2023")
    cloud.seed(node_class)
    found = resolved(cloud, clock, node_class)
    assert {a.name for a in found.status.amis} == {"golden-seeded"}
    assert sorted(a.requirements[0].values[0] for a in found.status.amis) == ["amd64", "arm64"]


def test_al2023_needs_the_service_cidr_of_a_real_cluster(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    node_class = a_class(ami_selector_terms=(SelectorTerm(name="x"),), ami_family="AL2023")
    cloud.seed(node_class)
    real = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG)
    (found,) = (a_compute(cloud, clock, real).resolve(node_class),)
    assert reasons(found)["ValidationSucceeded"] == "ClusterCIDRResolutionFailed"
    with_cidr = replace(real, cluster_cidr="10.100.0.0/16")
    assert a_compute(cloud, clock, with_cidr).resolve(node_class).is_ready


def test_equal_fleets_resolve_to_equal_resources(clock: SimulatedClock) -> None:
    def found() -> EC2NodeClass:
        cloud = EmbeddedEC2(clock)
        cloud.seed(a_class())
        return resolved(cloud, clock, a_class())

    one, two = found(), found()
    assert [a.id for a in one.status.amis] == [a.id for a in two.status.amis]
    assert one.status.instance_profile == two.status.instance_profile


@pytest.mark.parametrize("selector", [{"name": "close"}, {"id": "pg-1"}])
def test_a_placement_group_is_found_and_launched_into(
    cloud: EmbeddedEC2, clock: SimulatedClock, selector: dict[str, str]
) -> None:
    cloud.seed(a_class())
    cloud.placement_groups.put("pg-1", "close", "partition", 3)
    found = resolved(
        cloud, clock, a_class(placement_group_selector=PlacementGroupSelector(**selector))
    )
    assert found.is_ready
    assert found.status.placement_group == FoundPlacementGroup("pg-1", "close", "partition", 3)
    facts = class_facts(found, SETTINGS)
    assert (facts.placement_group, facts.strategy, facts.partitions) == ("pg-1", "partition", 3)
    (template, *_) = launch_requests(a_launch("i1", found), a_type, SETTINGS).templates
    assert template["LaunchTemplateData"]["Placement"]["GroupId"] == "pg-1"


@pytest.mark.parametrize("state", ["absent", "pending", "deleting"])
def test_a_missing_placement_group_makes_the_class_not_ready(
    cloud: EmbeddedEC2, clock: SimulatedClock, state: str
) -> None:
    cloud.seed(a_class())
    if state != "absent":
        cloud.placement_groups.put("pg-1", "close", "cluster", state=state)
    found = resolved(
        cloud, clock, a_class(placement_group_selector=PlacementGroupSelector(name="close"))
    )
    assert reasons(found) == {
        "PlacementGroupReady": "PlacementGroupNotFound",
        "Ready": "UnhealthyDependents",
    }


def test_a_class_without_a_selector_has_no_placement_group(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    cloud.seed(a_class())
    stated = replace(SETTINGS, placement_group=PlacementGroup(id="pg-9", strategy="cluster"))
    found = resolved(cloud, clock, a_class())
    (template, *_) = launch_requests(a_launch("i1", found), a_type, stated).templates
    assert template["LaunchTemplateData"]["Placement"] == {"Tenancy": "default"}
    assert "DescribePlacementGroups" not in {call.operation for call in cloud.calls}
