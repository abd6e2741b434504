"""Subnets with few addresses: launches in progress are counted before EC2 counts them."""

from __future__ import annotations

import pytest

from reconciler.adapters.aws.launch.addresses import NONE_FREE, Addresses
from reconciler.adapters.simulated.conditions import CallRule, Fault, SimulatedClock
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.ports.cloud import LaunchAnswer, LaunchOption
from tests.contracts.cloud import a_class, a_cloud, a_compute, a_launch

ZONE = "us-east-1a"
PODS = 29
"""The number of pods, and of addresses, of the test's instance types."""


class Site:
    """A zone with a default subnet of 4,091 free addresses, and others created by tests."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.cloud = a_cloud(self.clock)
        self.compute = a_compute(self.cloud, self.clock)

    def subnet(self, block: str) -> str:
        ec2 = self.cloud.connect("ec2", 1)
        vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
        made = ec2.create_subnet(VpcId=vpc, CidrBlock=block, AvailabilityZone=ZONE)["Subnet"]
        tags = [{"Key": "karpenter.sh/discovery", "Value": "web"}]
        ec2.create_tags(Resources=[made["SubnetId"]], Tags=tags)
        return str(made["SubnetId"])

    def node_class(self) -> EC2NodeClass:
        return self.compute.resolve(a_class())

    def request_launch(self, intent: str) -> LaunchAnswer | Exception:
        """Request one instance in the zone."""
        options = (LaunchOption("m7i.large", ZONE, "on-demand", 0.1),)
        (answer,) = self.compute.launch([a_launch(intent, self.node_class(), options=options)])
        return answer

    def launch(self, intent: str) -> str:
        """Launch one instance in the zone, and return its subnet."""
        answer = self.request_launch(intent)
        assert isinstance(answer, LaunchAnswer), answer
        assert answer.instance is not None
        return answer.instance.subnet_id


@pytest.fixture
def site() -> Site:
    return Site()


def test_launches_of_one_minute_spread_over_the_subnets_of_a_zone(site: Site) -> None:
    """By EC2's count, the default subnet has the most free addresses for all of them."""
    second = site.subnet("172.31.112.0/20")
    used = [site.launch(f"i{number}") for number in range(4)]
    assert used.count(second) == 2
    assert len(set(used)) == 2


def test_an_observation_of_ec2_corrects_the_counts(site: Site) -> None:
    second = site.subnet("172.31.112.0/20")
    first = site.launch("i1")
    assert site.launch("i2") == second or first == second
    counts = site.compute._launcher._addresses.free()
    site.clock.advance(60)
    site.node_class()
    fresh = site.compute._launcher._addresses.free()
    assert fresh[second] == counts[second] + PODS - 1, "a node took one address, and not all yet"


def test_an_unclear_launch_is_repeated_with_the_same_request(site: Site) -> None:
    """A token repeated with another subnet would be rejected, and the instance lost."""
    site.subnet("172.31.112.0/20")
    site.cloud.lag.add("DescribeInstances", times=None)
    site.cloud.faults.add("CreateFleet", Fault.TIMEOUT_AFTER, times=5)
    options = (LaunchOption("m7i.large", ZONE, "on-demand", 0.1),)
    launch_request = a_launch("i1", site.node_class(), options=options)
    (unclear,) = site.compute.launch([launch_request])
    assert isinstance(unclear, Exception)
    site.clock.advance(60)
    again = a_launch("i1", site.node_class(), options=options)
    (answer,) = site.compute.launch([again])
    assert isinstance(answer, LaunchAnswer), answer
    assert answer.instance is not None
    assert len(site.cloud.running_instances()) == 1


@pytest.mark.parametrize(("times", "found"), [(4, True), (None, False)])
def test_a_launch_of_a_dead_process_is_found_despite_another_request(
    site: Site, times: int | None, *, found: bool
) -> None:
    """Another subnet has the most addresses by now: EC2 rejects the token, and has the instance."""
    site.cloud.faults.add("CreateFleet", Fault.TIMEOUT_AFTER, times=5)
    site.cloud.lag.add("DescribeInstances", times=None)
    assert isinstance(site.request_launch("i1"), TransientCloudError)
    site.cloud.lag.clear()
    site.subnet("172.31.112.0/20")
    site.compute = a_compute(site.cloud, site.clock)
    (lost,) = site.cloud.running_instances()
    site.cloud.lag._rules.append(CallRule("DescribeInstances", frozenset(), times))
    answer = site.request_launch("i1")
    assert list(site.cloud.running_instances()) == [lost]
    if found:
        assert isinstance(answer, LaunchAnswer)
        assert answer.instance is not None
        assert answer.instance.id == lost
    else:
        assert isinstance(answer, CloudError)
        assert "IdempotentParameterMismatch" in answer.message


def test_a_full_subnet_makes_no_offering_unavailable_while_another_of_its_zone_has_addresses(
    site: Site,
) -> None:
    small = site.subnet("172.31.240.0/28")
    site.node_class()
    addresses = site.compute._launcher._addresses
    addresses.update(dict.fromkeys(addresses.free(), 5) | {small: 4000})
    answers = [site.request_launch(f"i{number}") for number in range(13)]
    *launched, full, after = answers
    assert {i.subnet_id for a in launched if isinstance(a, LaunchAnswer) and (i := a.instance)} == {
        small
    }
    assert isinstance(full, CloudError)
    assert "InsufficientFreeAddressesInSubnet" in full.message
    assert full.remedy == "another subnet of the zone has free addresses and is tried next"
    assert isinstance(after, LaunchAnswer)
    assert after.instance is not None
    assert after.instance.subnet_id != small


def test_a_zone_with_only_full_subnets_makes_the_offering_unavailable(site: Site) -> None:
    small = site.subnet("172.31.240.0/28")
    site.node_class()
    addresses = site.compute._launcher._addresses
    addresses.update(dict.fromkeys(addresses.free(), 0) | {small: 4000})
    *_, full = [site.request_launch(f"i{number}") for number in range(12)]
    assert isinstance(full, LaunchAnswer)
    assert [(r.zone, r.code) for r in full.refused] == [(ZONE, NONE_FREE)]


def test_unused_addresses_of_a_launch_are_released_once() -> None:
    addresses = Addresses()
    addresses.update({"a": 100, "b": 100})
    taken = addresses.reserve({"a": 29, "b": 29, "unknown": 29})
    assert addresses.free() == {"a": 71, "b": 71}
    addresses.release_unused(taken, ["a"])
    assert addresses.free() == {"a": 71, "b": 100}
    late = addresses.reserve({"b": 50})
    addresses.update({"a": 90, "b": 80})
    addresses.release_unused(late, [])
    assert addresses.free() == {"a": 90, "b": 80}, "the look knew better"
