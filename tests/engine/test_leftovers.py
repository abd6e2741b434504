"""Unused objects that launches leave in the account are deleted once nothing needs them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from moto.iam.models import iam_backends

from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.aws.launch.templatestore import PROFILE_AGE, PROFILES_EVERY, UNUSED_FOR
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.karpenter.nodeclass import EC2NodeClass, SelectorTerm
from reconciler.model.settings import ClusterKind
from reconciler.ports.cloud import LaunchAnswer
from reconciler.ports.journal import Verb
from reconciler_embedded.ec2 import EmbeddedEC2
from tests.contracts.cloud import SETTINGS, a_class, a_launch, a_type
from tests.engine.faults import commit_drift, three_nodes
from tests.engine.world import World

REAL = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG, cluster_cidr="10.0.0.0/16")


def templates(world: World) -> set[str]:
    rows = world.cloud.connect("ec2", 1).describe_launch_templates()["LaunchTemplates"]
    return {row["LaunchTemplateName"] for row in rows}


def later(world: World) -> None:
    world.clock.advance(UNUSED_FOR.total_seconds())


def test_a_launch_template_unused_for_a_while_is_deleted() -> None:
    world = three_nodes()
    (old,) = templates(world)
    engine = world.engine()
    engine.run_once()
    assert templates(world) == {old}
    later(world)
    engine.run_once()
    assert templates(world) == set()
    (entry,) = [e for e in world.journal.entries() if e.intent.verb is Verb.DISCARD]
    assert entry.intent.target == old
    assert len(world.instances()) == 3


def test_a_deleted_launch_template_is_created_again_for_the_next_launch() -> None:
    world = three_nodes()
    engine = world.engine()
    later(world)
    engine.run_once()
    world.cloud.reclaim_instance(next(iter(world.instances())))
    engine.converge()
    assert len(templates(world)) == 1
    assert len(world.instances()) == 3


def test_recently_used_templates_stay_while_old_ones_are_deleted() -> None:
    world = three_nodes()
    (old,) = templates(world)
    engine = world.engine()
    later(world)
    commit_drift(world)
    engine.converge(busy=1.0)
    (new,) = templates(world)
    assert new != old


def test_templates_of_others_are_left_alone() -> None:
    world = three_nodes()
    ec2 = world.cloud.connect("ec2", 1)
    cluster = [{"Key": "eks:eks-cluster-name", "Value": "test"}]
    other = [{"Key": "eks:eks-cluster-name", "Value": "other"}]
    for name, tags in (
        ("karpenter.k8s.aws/123", cluster),
        ("reconciler/other", other),
        ("reconciler/none", []),
    ):
        spec = [{"ResourceType": "launch-template", "Tags": tags}] if tags else []
        ec2.create_launch_template(
            LaunchTemplateName=name,
            LaunchTemplateData={"ImageId": "ami-1"},
            TagSpecifications=spec,
        )
    later(world)
    world.engine().run_once()
    assert templates(world) == {"karpenter.k8s.aws/123", "reconciler/other", "reconciler/none"}


def test_missing_permissions_for_the_cleanup_do_not_stop_the_fleet() -> None:
    world = three_nodes()
    engine = world.engine()
    for call in ("DescribeLaunchTemplates", "DeleteLaunchTemplate"):
        later(world)
        world.cloud.faults.add(call, Fault.DENIED)
        assert engine.run_once().is_quiet
        assert len(templates(world)) == 1
    later(world)
    engine.run_once()
    assert templates(world) == set()


def test_a_template_deleted_by_others_is_not_an_error() -> None:
    world = three_nodes()
    (old,) = templates(world)
    later(world)
    engine = world.engine()
    found = engine.ports.unused_resources.find_unused(())
    world.cloud.connect("ec2", 1).delete_launch_template(LaunchTemplateName=old)
    for leftover in found:
        engine.ports.unused_resources.delete(leftover)
    assert [leftover.name for leftover in found] == [old]


# Instance profiles: created only if machines really boot.


class Site:
    """An account with two roles, and a fleet whose class names one of them."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.cloud = EmbeddedEC2(self.clock)
        self.cloud.seed(with_role("nodes"))
        for role in ("nodes", "others"):
            self.iam.create_role(RoleName=role, AssumeRolePolicyDocument="{}")
        self.compute = AwsCompute(self.cloud.connect, REAL, a_type, self.clock)

    @property
    def iam(self) -> Any:
        return self.cloud.connect("iam", 1)

    def launch(self, role: str) -> EC2NodeClass:
        node_class = self.compute.resolve(with_role(role))
        (answer,) = self.compute.launch([a_launch(f"of-{role}", node_class)])
        assert isinstance(answer, LaunchAnswer), answer
        return node_class

    def profiles(self) -> set[str]:
        rows = self.iam.list_instance_profiles()["InstanceProfiles"]
        return {role["RoleName"] for row in rows for role in row["Roles"]}

    def age(self, span: timedelta) -> None:
        """Advance the clock by that time after the creation of all profiles."""
        made = self.clock.now().astimezone(UTC).replace(tzinfo=None)
        account = iam_backends[self.cloud._account.number]["aws"]
        for profile in account.instance_profiles.values():
            profile.create_date = made
        self.cloud._account.forget_answers()
        self.clock.advance(span.total_seconds())

    def collect(self, *classes: EC2NodeClass) -> None:
        for leftover in self.compute.unused_resources.find_unused(classes):
            self.compute.unused_resources.delete(leftover)


def with_role(role: str) -> EC2NodeClass:
    term = SelectorTerm(name="nodes-*")
    return a_class(ami_selector_terms=(term,), ami_family="AL2023", role=role)


def test_an_old_profile_of_an_unused_role_is_deleted() -> None:
    site = Site()
    site.launch("others")
    for instance in site.cloud.running_instances():
        site.cloud.reclaim_instance(instance)
    kept = site.launch("nodes")
    site.age(PROFILE_AGE - timedelta(seconds=1))
    site.collect(kept)
    assert site.profiles() == {"nodes", "others"}
    site.clock.advance(PROFILES_EVERY.total_seconds())
    site.collect(kept)
    assert site.profiles() == {"nodes"}


def test_a_profile_of_another_fleet_is_left_alone() -> None:
    site = Site()
    other = AwsCompute(site.cloud.connect, replace(REAL, fleet="other"), a_type, site.clock)
    (answer,) = other.launch([a_launch("i1", other.resolve(with_role("others")))])
    assert isinstance(answer, LaunchAnswer)
    site.age(PROFILE_AGE)
    site.collect()
    assert site.profiles() == {"others"}


def test_a_profile_in_use_by_an_instance_stays() -> None:
    site = Site()
    site.launch("others")
    (instance,) = site.cloud.running_instances()
    site.age(PROFILE_AGE)
    site.collect()
    assert site.profiles() == {"others"}
    site.cloud.reclaim_instance(instance)
    site.clock.advance(PROFILES_EVERY.total_seconds())
    site.collect()
    assert site.profiles() == set()


def test_these_tests_do_not_use_the_system_clock() -> None:
    """Otherwise the tests about the age of profiles would pass for another reason."""
    assert Site().clock.now() < datetime.now(UTC) - timedelta(days=1)
