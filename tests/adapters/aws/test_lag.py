"""AWS is eventually consistent: an object that was just created may be unknown to the next call.

Whatever lags, once, three times or forever: one intent has one instance, nothing that exists counts
as gone, and once AWS has caught up the same operation succeeds.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace as changed

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.aws.launch.profiles import Profiles, profile_name
from reconciler.adapters.aws.launch.requests import launch_requests
from reconciler.adapters.aws.launch.templatestore import PROFILE, TEMPLATE, UNUSED_FOR
from reconciler.adapters.aws.tags import as_list, owner_of
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.karpenter.nodeclass import EC2NodeClass, EC2NodeClassStatus, SelectorTerm
from reconciler.model.settings import ClusterKind, Settings
from reconciler.ports.cloud import Launch, LaunchAnswer
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.contracts.cloud import SETTINGS, a_class, a_cloud, a_compute, a_launch, a_type

REAL = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG, cluster_cidr="10.0.0.0/16")
ONCE_THRICE_FOR_EVER = pytest.mark.parametrize("times", [1, 3, None])


@pytest.fixture
def cloud(clock: SimulatedClock) -> EmbeddedEC2:
    cloud = a_cloud(clock)
    document = json.dumps({"Version": "2012-10-17", "Statement": []})
    cloud.connect("iam", 1).create_role(RoleName="nodes", AssumeRolePolicyDocument=document)
    return cloud


class Account:
    """A fleet in an account, and one launch of it."""

    def __init__(self, cloud: EmbeddedEC2, clock: SimulatedClock, settings: Settings) -> None:
        self.cloud = cloud
        self.settings = settings
        self.compute = AwsCompute(cloud.connect, settings, a_type, clock)
        seen = a_compute(cloud, clock).resolve(a_class())
        profile = profile_name(seen, settings)
        status = changed(seen.status, instance_profile=profile)
        self.node_class: EC2NodeClass = changed(seen, status=status)

    @property
    def launch_request(self) -> Launch:
        return a_launch("i1", self.node_class)

    def make_templates(self) -> None:
        """Create the templates of the launch, as an earlier launch of the same kind did."""
        for template in launch_requests(self.launch_request, a_type, self.settings).templates:
            self.cloud.connect("ec2", 1).create_launch_template(**template)

    def launch(self) -> LaunchAnswer | Exception:
        (answer,) = self.compute.launch([self.launch_request])
        return answer


def has_instance(answer: LaunchAnswer | Exception) -> bool:
    return isinstance(answer, LaunchAnswer) and answer.instance is not None


@ONCE_THRICE_FOR_EVER
@pytest.mark.parametrize("lost", [Fault.SERVER_ERROR_AFTER, Fault.TIMEOUT_AFTER])
def test_a_launch_whose_instance_is_not_listed_yet_is_not_repeated(
    cloud: EmbeddedEC2, clock: SimulatedClock, times: int | None, lost: Fault
) -> None:
    account = Account(cloud, clock, SETTINGS)
    cloud.faults.add("CreateFleet", lost)
    cloud.lag.add("DescribeInstances", times=times)
    first = account.launch()
    assert has_instance(first) or isinstance(first, TransientCloudError)
    assert len(cloud.running_instances()) == 1
    cloud.lag.clear()
    assert has_instance(account.launch())
    assert len(cloud.running_instances()) == 1


@ONCE_THRICE_FOR_EVER
def test_a_launch_is_retried_until_ec2_knows_its_template(
    cloud: EmbeddedEC2, clock: SimulatedClock, times: int | None
) -> None:
    account = Account(cloud, clock, SETTINGS)
    cloud.lag.add("CreateFleet", times=times)
    first = account.launch()
    assert has_instance(first) is (times is not None)
    if isinstance(first, Exception):
        assert isinstance(first, TransientCloudError)
        assert first.where.startswith("ec2:CreateFleet (request ")
        assert "EC2 does not list it yet" in first.remedy
        assert cloud.running_instances() == {}
    cloud.lag.clear()
    assert has_instance(account.launch())
    assert len(cloud.running_instances()) == 1


@ONCE_THRICE_FOR_EVER
def test_a_launch_is_retried_until_ec2_knows_its_profile(
    cloud: EmbeddedEC2, clock: SimulatedClock, times: int | None
) -> None:
    """The usual case: IAM has created it, and EC2 sees it seconds later."""
    account = Account(cloud, clock, REAL)
    account.make_templates()
    cloud.lag.add("CreateFleet", times=times)
    first = account.launch()
    assert has_instance(first) is (times is not None)
    if isinstance(first, Exception):
        assert isinstance(first, TransientCloudError)
        assert "Invalid IAM Instance Profile name" in first.message
    cloud.lag.clear()
    assert has_instance(account.launch())
    assert len(cloud.running_instances()) == 1


def test_a_missing_profile_of_the_user_is_an_author_error(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    account = Account(cloud, clock, SETTINGS)
    spec = changed(account.node_class.spec, role="", instance_profile="given")
    status = changed(account.node_class.status, instance_profile="given")
    account.node_class = changed(account.node_class, spec=spec, status=status)
    account.make_templates()
    cloud.lag.add("CreateFleet", times=None)
    cloud.connect("iam", 1).create_instance_profile(InstanceProfileName="given")
    refused = account.launch()
    assert isinstance(refused, CloudError)
    assert refused.remedy == "create the instance profile, or correct spec.instanceProfile"


@ONCE_THRICE_FOR_EVER
@pytest.mark.parametrize("call", ["GetInstanceProfile", "AddRoleToInstanceProfile"])
def test_a_profile_not_visible_in_iam_yet_gets_its_role_once(
    cloud: EmbeddedEC2, clock: SimulatedClock, call: str, times: int | None
) -> None:
    del clock
    bare = a_class()
    status = EC2NodeClassStatus(instance_profile=profile_name(bare, REAL))
    node_class = EC2NodeClass(bare.metadata, bare.spec, status)
    profiles = Profiles(cloud.connect, REAL)
    cloud.lag.add(call, times=times)
    cloud.faults.add("AddRoleToInstanceProfile", Fault.TIMEOUT_AFTER)
    for _ in range(5):
        with suppress(TransientCloudError):
            profiles.ensure(node_class)
    cloud.lag.clear()
    profiles.ensure(node_class)
    name = status.instance_profile
    row = cloud.connect("iam", 1).get_instance_profile(InstanceProfileName=name)
    assert [role["RoleName"] for role in row["InstanceProfile"]["Roles"]] == ["nodes"]


@ONCE_THRICE_FOR_EVER
def test_an_instance_that_cannot_be_tagged_yet_is_tagged_later(
    cloud: EmbeddedEC2, clock: SimulatedClock, times: int | None
) -> None:
    account = Account(cloud, clock, SETTINGS)
    cloud.lag.add("CreateTags", times=times)
    assert has_instance(account.launch())
    (identity,) = cloud.running_instances()
    with pytest.raises(CloudError, match="InvalidInstanceID") as error:
        account.compute.tag(identity, {"Name": "n1"})
    assert error.value.where.startswith("ec2:CreateTags (request ")
    cloud.lag.clear()
    account.compute.tag(identity, {"Name": "n1"})
    assert cloud.running_instances()[identity]["Name"] == "n1"


@ONCE_THRICE_FOR_EVER
def test_an_unknown_instance_does_not_block_termination_of_others(
    cloud: EmbeddedEC2, clock: SimulatedClock, times: int | None
) -> None:
    """A call with one unknown id is rejected completely; known instances are terminated anyway."""
    account = Account(cloud, clock, SETTINGS)
    old = [instance_of(account.compute, account, f"old-{n}") for n in range(3)]
    cloud.lag.add("TerminateInstances", times=times)
    young = instance_of(account.compute, account, "young")
    account.compute.terminate([*old, young])
    assert set(cloud.running_instances()) <= {young}
    cloud.lag.clear()
    account.compute.terminate([*old, young])
    assert cloud.running_instances() == {}


def instance_of(compute: AwsCompute, account: Account, intent: str) -> str:
    (answer,) = compute.launch([a_launch(intent, account.node_class)])
    assert isinstance(answer, LaunchAnswer)
    assert answer.instance is not None
    return answer.instance.id


def test_a_template_listed_late_is_garbage_collected_later(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    account = Account(cloud, clock, SETTINGS)
    cloud.lag.add("DescribeLaunchTemplates", times=1)
    assert has_instance(account.launch())
    clock.advance(UNUSED_FOR.total_seconds() * 2)
    assert account.compute.unused_resources.find_unused(()) == []
    clock.advance(UNUSED_FOR.total_seconds() * 2)
    idle, other = account.compute.unused_resources.find_unused(())
    assert idle.kind == other.kind == TEMPLATE
    account.compute.unused_resources.delete(idle)
    account.compute.unused_resources.delete(idle)
    assert not cloud._account.has_template(idle.name)


@pytest.mark.parametrize("call", ["ListInstanceProfiles", "GetInstanceProfile"])
def test_a_partially_visible_profile_is_kept_until_it_is_visible(
    cloud: EmbeddedEC2, clock: SimulatedClock, call: str
) -> None:
    compute = AwsCompute(cloud.connect, REAL, a_type, clock)
    cloud.lag.add(call, times=1)
    path = f"/reconciler/{REAL.region}/"
    tags = as_list(owner_of(REAL).tags)
    name = f"web_{7:020x}"
    iam = cloud.connect("iam", 1)
    iam.create_instance_profile(InstanceProfileName=name, Path=path, Tags=tags)
    clock.advance(400 * 24 * 3600 * 10)
    assert compute.unused_resources.find_unused(()) == []
    clock.advance(3600)
    (idle,) = compute.unused_resources.find_unused(())
    assert (idle.kind, idle.name) == (PROFILE, name)


LOOKS: dict[str, Callable[[EC2NodeClass], Any]] = {
    "DescribeSubnets": lambda c: c.status.subnets,
    "DescribeSecurityGroups": lambda c: c.status.security_groups,
    "DescribeImages": lambda c: c.status.amis,
}
"""What a class finds in the account, by the call."""


@pytest.mark.parametrize("call", list(LOOKS))
def test_a_resource_is_gone_only_after_two_observations_without_it(
    clock: SimulatedClock, call: str
) -> None:
    """Nodes drift if their subnet, groups or image are not found any more."""
    cloud = EmbeddedEC2(clock)
    node_class = a_class(ami_selector_terms=(SelectorTerm(name="golden-*"),), ami_family="AL2023")
    cloud.lag.add(call, times=1, skip=1)
    cloud.lag.add(call, times=2, skip=2)
    if call == "DescribeSubnets":
        node_class = changed(
            node_class,
            spec=changed(node_class.spec, subnet_selector_terms=(SelectorTerm(id="subnet-0abc"),)),
        )
    cloud.seed(node_class)
    compute, what = a_compute(cloud, clock), LOOKS[call]
    whole = what(compute.resolve(node_class))
    seen = []
    for _ in range(5):
        clock.advance(60)
        found = compute.resolve(node_class)
        seen.append((what(found), found.is_ready))
    assert whole
    assert seen == [(whole, True), (whole, True), (whole, True), ((), False), (whole, True)]


def test_a_lagging_list_does_not_select_a_replaced_image_again(
    clock: SimulatedClock,
) -> None:
    cloud = EmbeddedEC2(clock)
    node_class = a_class(ami_selector_terms=(SelectorTerm(name="golden-*"),), ami_family="AL2023")
    made = [datetime(2026, month, 1, tzinfo=UTC) for month in (2, 3)]
    cloud.seed(a_class())
    cloud.publish("ami-old", "golden-1", made[0])
    cloud.lag.add("DescribeImages", times=1, skip=2)
    compute = a_compute(cloud, clock)

    def image() -> str:
        clock.advance(60)
        (found,) = compute.resolve(node_class).status.amis
        return found.id

    assert image() == "ami-old"
    cloud.publish("ami-new", "golden-2", made[1])
    assert image() == "ami-new", "a newer image is taken at once"
    assert image() == "ami-new", "an answer that lags is not"
    assert image() == "ami-new"
    cloud._account.backend.amis.pop("ami-new")
    cloud._account.forget_answers()
    assert image() == "ami-new"
    assert image() == "ami-old", "it was taken back: two looks say so"
