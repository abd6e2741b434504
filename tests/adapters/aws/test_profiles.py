"""The instance profile of a class with a role is created before its first launch, and only then."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.errors import CloudError
from reconciler.model.karpenter.nodeclass import EC2NodeClass, SelectorTerm
from reconciler.model.settings import ClusterKind
from reconciler.ports.cloud import LaunchAnswer
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.contracts.cloud import SETTINGS, a_class, a_compute, a_launch, a_type

REAL = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG, cluster_cidr="10.0.0.0/16")


@pytest.fixture
def cloud() -> EmbeddedEC2:
    cloud = EmbeddedEC2(SimulatedClock())
    cloud.seed(our_class())
    return cloud


@pytest.fixture
def compute(cloud: EmbeddedEC2) -> AwsCompute:
    return AwsCompute(cloud.connect, REAL, a_type, SimulatedClock())


def our_class() -> EC2NodeClass:
    return a_class(
        ami_selector_terms=(SelectorTerm(name="nodes-*"),), ami_family="AL2023", role="team/nodes"
    )


def a_role(cloud: EmbeddedEC2) -> None:
    document = json.dumps({"Version": "2012-10-17", "Statement": []})
    cloud.connect("iam", 1).create_role(RoleName="nodes", AssumeRolePolicyDocument=document)


def profiles(cloud: EmbeddedEC2) -> list[tuple[str, list[str]]]:
    rows = cloud.connect("iam", 1).list_instance_profiles()["InstanceProfiles"]
    return [(r["InstanceProfileName"], [role["RoleName"] for role in r["Roles"]]) for r in rows]


def writes(cloud: EmbeddedEC2) -> list[str]:
    return [c.operation for c in cloud.calls if "InstanceProfile" in c.operation]


def test_a_profile_is_created_once_by_the_first_launch_only(
    cloud: EmbeddedEC2, compute: AwsCompute
) -> None:
    a_role(cloud)
    found = compute.resolve(our_class())
    assert profiles(cloud) == []
    cloud.calls.clear()
    for intent in ("i1", "i2"):
        (answer,) = compute.launch([a_launch(intent, found)])
        assert isinstance(answer, LaunchAnswer), answer
    assert writes(cloud) == [
        "GetInstanceProfile",
        "CreateInstanceProfile",
        "AddRoleToInstanceProfile",
    ]
    assert profiles(cloud) == [(found.status.instance_profile, ["nodes"])]


def test_an_incomplete_profile_is_completed(cloud: EmbeddedEC2, compute: AwsCompute) -> None:
    a_role(cloud)
    found = compute.resolve(our_class())
    cloud.faults.add("AddRoleToInstanceProfile", Fault.DENIED)
    (answer,) = compute.launch([a_launch("i1", found)])
    assert isinstance(answer, CloudError)
    assert answer.where.startswith("iam:AddRoleToInstanceProfile")
    assert cloud.running_instances() == {}
    (answer,) = compute.launch([a_launch("i1", found)])
    assert isinstance(answer, LaunchAnswer), answer
    assert profiles(cloud) == [(found.status.instance_profile, ["nodes"])]


def test_a_missing_role_is_named(cloud: EmbeddedEC2, compute: AwsCompute) -> None:
    (answer,) = compute.launch([a_launch("i1", compute.resolve(our_class()))])
    assert isinstance(answer, CloudError)
    assert "nodes" in answer.message
    assert cloud.running_instances() == {}


def test_a_profile_of_the_user_is_left_alone(cloud: EmbeddedEC2, compute: AwsCompute) -> None:
    spec = {"instance_profile": "mine", "role": "", "ami_family": "AL2023"}
    given = a_class(ami_selector_terms=(SelectorTerm(name="nodes-*"),), **spec)
    (answer,) = compute.launch([a_launch("i1", compute.resolve(given))])
    assert isinstance(answer, LaunchAnswer), answer
    assert writes(cloud) == []


def test_a_simulated_ec2_needs_no_profile(cloud: EmbeddedEC2) -> None:
    compute = a_compute(cloud, SimulatedClock())
    (answer,) = compute.launch([a_launch("i1", compute.resolve(a_class()))])
    assert isinstance(answer, LaunchAnswer), answer
    assert writes(cloud) == []
