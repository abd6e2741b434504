"""Behaviour of EC2 that is added to moto."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
from botocore.exceptions import ClientError

from reconciler.adapters.simulated.conditions import START, Fault, Faults, SimulatedClock
from reconciler_embedded.ec2 import EmbeddedEC2

PRICES = {
    ("m5.large", "us-east-1a", "spot"): 0.04,
    ("m5.large", "us-east-1b", "spot"): 0.03,
    ("c5.large", "us-east-1a", "spot"): 0.05,
    ("m5.large", "us-east-1a", "on-demand"): 0.09,
    ("c5.large", "us-east-1a", "on-demand"): 0.08,
}


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def cloud(clock: SimulatedClock) -> EmbeddedEC2:
    cloud = EmbeddedEC2(clock, prices=lambda *pool: PRICES.get(pool))
    data = {"ImageId": "ami-0000000000000a64d"}
    cloud.connect("ec2", 1).create_launch_template(
        LaunchTemplateName="nodes", LaunchTemplateData=data
    )
    return cloud


def fleet(cloud: EmbeddedEC2, *overrides: tuple[str, str, float], **fields: Any) -> dict[str, Any]:
    """Request one instance out of (type, zone letter, priority)."""
    capacity_type = fields.pop("capacity_type", "spot")
    strategy = {"AllocationStrategy": fields.pop("strategy", "price-capacity-optimized")}
    options = (
        {"SpotOptions": strategy} if capacity_type == "spot" else {"OnDemandOptions": strategy}
    )
    rows = [
        {"InstanceType": kind, "AvailabilityZone": f"us-east-1{zone}", "Priority": priority}
        for kind, zone, priority in overrides
    ]
    answer: dict[str, Any] = cloud.connect("ec2", 1).create_fleet(
        Type="instant",
        LaunchTemplateConfigs=[
            {
                "LaunchTemplateSpecification": {
                    "LaunchTemplateName": "nodes",
                    "Version": "$Latest",
                },
                "Overrides": rows,
            }
        ],
        TargetCapacitySpecification={
            "TotalTargetCapacity": 1,
            "DefaultTargetCapacityType": capacity_type,
        },
        **options,
        **fields,
    )
    return answer


def taken(answer: dict[str, Any]) -> tuple[str, str]:
    (row,) = answer["Instances"]
    override = row["LaunchTemplateAndOverrides"]["Overrides"]
    return row["InstanceType"], override["AvailabilityZone"][-1]


EVERYTHING = (("c5.large", "a", 1.0), ("m5.large", "a", 2.0), ("m5.large", "b", 3.0))


@pytest.mark.parametrize(
    ("capacity_type", "strategy", "pool"),
    [
        ("spot", "price-capacity-optimized", ("m5.large", "b")),
        ("spot", "lowest-price", ("m5.large", "b")),
        ("spot", "capacity-optimized-prioritized", ("c5.large", "a")),
        ("on-demand", "lowest-price", ("c5.large", "a")),
        ("on-demand", "prioritized", ("c5.large", "a")),
    ],
)
def test_the_allocation_strategy_selects_the_offering(
    cloud: EmbeddedEC2, capacity_type: str, strategy: str, pool: tuple[str, str]
) -> None:
    answer = fleet(cloud, *EVERYTHING, capacity_type=capacity_type, strategy=strategy)
    assert taken(answer) == pool


def test_without_prices_priorities_are_used_as_prices(clock: SimulatedClock) -> None:
    cloud = EmbeddedEC2(clock)
    data = {"ImageId": "ami-0000000000000a64d"}
    cloud.connect("ec2", 1).create_launch_template(
        LaunchTemplateName="nodes", LaunchTemplateData=data
    )
    assert taken(fleet(cloud, ("m5.large", "a", 0.2), ("x9.huge", "b", 0.1))) == ("x9.huge", "b")


def test_an_offering_not_sold_in_the_zone_has_its_own_error(cloud: EmbeddedEC2) -> None:
    answer = fleet(cloud, ("c5.large", "b", 1.0))
    assert answer["Instances"] == []
    assert [e["ErrorCode"] for e in answer["Errors"]] == ["InvalidFleetConfiguration"]


def test_unavailable_pools_are_reported_and_skipped(cloud: EmbeddedEC2) -> None:
    cloud.market.refuse("m5.large", "us-east-1b", "spot")
    answer = fleet(cloud, *EVERYTHING)
    assert taken(answer) == ("m5.large", "a")
    (error,) = answer["Errors"]
    assert error["Lifecycle"] == "spot"
    assert error["ErrorCode"] == "InsufficientInstanceCapacity"
    override = error["LaunchTemplateAndOverrides"]["Overrides"]
    assert (override["InstanceType"], override["AvailabilityZone"]) == ("m5.large", "us-east-1b")
    cloud.market.clear()
    assert not fleet(cloud, *EVERYTHING).get("Errors")


def test_a_zone_without_a_subnet_uses_its_default_subnet(cloud: EmbeddedEC2) -> None:
    fleet(cloud, ("m5.large", "b", 1.0))
    (row,) = cloud.connect("ec2", 1).describe_instances()["Reservations"]
    assert row["Instances"][0]["Placement"]["AvailabilityZone"] == "us-east-1b"


def test_a_subnet_without_addresses_is_skipped(cloud: EmbeddedEC2) -> None:
    ec2 = cloud.connect("ec2", 1)
    vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    subnet = ec2.create_subnet(
        VpcId=vpc, CidrBlock="172.31.128.0/28", AvailabilityZone="us-east-1a"
    )["Subnet"]["SubnetId"]

    def describe_all() -> dict[str, Any]:
        row = {"InstanceType": "m5.large", "AvailabilityZone": "us-east-1a", "SubnetId": subnet}
        spec = {"LaunchTemplateName": "nodes", "Version": "$Latest"}
        config = {"LaunchTemplateSpecification": spec, "Overrides": [row]}
        target = {"TotalTargetCapacity": 1, "DefaultTargetCapacityType": "spot"}
        answer: dict[str, Any] = ec2.create_fleet(
            Type="instant", LaunchTemplateConfigs=[config], TargetCapacitySpecification=target
        )
        return answer

    answers = [describe_all() for _ in range(12)]
    assert [bool(a["Instances"]) for a in answers] == [True] * 11 + [False]
    assert [e["ErrorCode"] for e in answers[-1]["Errors"]] == ["InsufficientFreeAddressesInSubnet"]


def test_a_client_token_repeats_its_answer_and_requires_equal_parameters(
    cloud: EmbeddedEC2,
) -> None:
    first = fleet(cloud, ("m5.large", "a", 1.0), ClientToken="once")
    again = fleet(cloud, ("m5.large", "a", 1.0), ClientToken="once")
    assert first["FleetId"] == again["FleetId"]
    assert len(cloud.running_instances()) == 1
    with pytest.raises(ClientError, match="IdempotentParameterMismatch"):
        fleet(cloud, ("m5.large", "b", 1.0), ClientToken="once")


def test_a_missing_template_is_an_error_before_any_launch(
    cloud: EmbeddedEC2,
) -> None:
    cloud.connect("ec2", 1).delete_launch_template(LaunchTemplateName="nodes")
    with pytest.raises(ClientError, match="does not exist"):
        fleet(cloud, ("m5.large", "a", 1.0))


def test_every_call_has_a_unique_request_id(cloud: EmbeddedEC2) -> None:
    answers = [fleet(cloud, ("m5.large", "a", 1.0)) for _ in range(2)]
    ids = [answer["ResponseMetadata"]["RequestId"] for answer in answers]
    assert ids == [call.request_id for call in cloud.calls[-2:]]
    assert len(set(ids)) == 2


def test_accounts_are_isolated(cloud: EmbeddedEC2, clock: SimulatedClock) -> None:
    fleet(cloud, ("m5.large", "a", 1.0))
    other = EmbeddedEC2(clock)
    assert other.running_instances() == {}
    assert other.connect("ec2", 1).describe_instances()["Reservations"] == []


def test_terminated_instances_are_listed_for_a_while_only(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    fleet(cloud, ("m5.large", "a", 1.0))
    (identity,) = cloud.running_instances()
    cloud.reclaim_instance(identity)
    assert cloud.running_instances() == {}
    describe = cloud.connect("ec2", 1).describe_instances
    (row,) = describe()["Reservations"]
    assert row["Instances"][0]["State"]["Name"] == "terminated"
    clock.advance(3600)
    assert describe()["Reservations"] == []


def test_instances_are_launched_at_the_time_of_the_clock(
    cloud: EmbeddedEC2, clock: SimulatedClock
) -> None:
    clock.advance(90)
    fleet(cloud, ("m5.large", "a", 1.0))
    (row,) = cloud.connect("ec2", 1).describe_instances()["Reservations"]
    assert (row["Instances"][0]["LaunchTime"] - START).total_seconds() == 90


@pytest.mark.parametrize(
    "page",
    [pytest.param({}, marks=pytest.mark.exhaustive), {"PageSize": 40}],
    ids=["as one", "by pages"],
)
def test_nothing_of_a_long_list_is_left_out(cloud: EmbeddedEC2, page: dict[str, int]) -> None:
    ec2, iam = cloud.connect("ec2", 1), cloud.connect("iam", 1)
    for number in range(101):
        fleet(cloud, *EVERYTHING)
        iam.create_instance_profile(InstanceProfileName=f"profile-{number}")
    for number in range(20):
        data = {"ImageId": "ami-0000000000000a64d"}
        ec2.create_launch_template(LaunchTemplateName=f"t{number}", LaunchTemplateData=data)

    def listed(client: Any, operation: str, key: str) -> list[Any]:
        pages = client.get_paginator(operation).paginate(PaginationConfig=page)
        return [row for one in pages for row in one[key]]

    assert len(listed(ec2, "describe_instances", "Reservations")) == 101
    assert len(listed(ec2, "describe_launch_templates", "LaunchTemplates")) == 21
    assert len(listed(iam, "list_instance_profiles", "InstanceProfiles")) == 101


def test_other_services_are_available(cloud: EmbeddedEC2) -> None:
    path = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
    value = cloud.connect("ssm", 1).get_parameter(Name=path)["Parameter"]["Value"]
    assert value.startswith("ami-")
    url = cloud.connect("sqs", 1).create_queue(QueueName="interruptions")["QueueUrl"]
    cloud.connect("sqs", 1).send_message(QueueUrl=url, MessageBody="hello")
    received = cloud.connect("sqs", 1).receive_message(QueueUrl=url)["Messages"]
    assert [message["Body"] for message in received] == ["hello"]


def test_faults_are_used_up_in_order() -> None:
    faults = Faults()
    faults.add("CreateFleet", Fault.THROTTLE, times=2, skip=1)
    faults.add("*", Fault.RESET_BEFORE)
    taken = [faults.take(call) for call in ("CreateFleet", "Other", "CreateFleet", "CreateFleet")]
    assert taken == [Fault.RESET_BEFORE, None, Fault.THROTTLE, Fault.THROTTLE]
    faults.add("Other", Fault.DENIED, times=None)
    assert {faults.take("Other") for _ in range(9)} == {Fault.DENIED}
    faults.clear()
    assert faults.take("Other") is None


@pytest.mark.parametrize(
    ("service", "operation"),
    [("ec2", "DescribeVpcs"), ("iam", "ListRoles"), ("ssm", "DescribeParameters")],
)
def test_every_service_has_its_own_error_format(
    cloud: EmbeddedEC2, service: str, operation: str
) -> None:
    cloud.faults.add(operation, Fault.DENIED)
    client = cloud.connect(service, 1)
    with pytest.raises(ClientError) as caught:
        getattr(client, {v: k for k, v in client.meta.method_to_api_mapping.items()}[operation])()
    assert caught.value.response["Error"]["Code"] == "UnauthorizedOperation"
    assert caught.value.response["ResponseMetadata"]["RequestId"] == cloud.calls[-1].request_id


def test_an_account_is_freed_with_its_last_reference(clock: SimulatedClock) -> None:
    gone, kept = EmbeddedEC2(clock), EmbeddedEC2(clock)
    gone.connect("ec2", 1).describe_subnets()
    kept.connect("ec2", 1).create_launch_template(
        LaunchTemplateName="nodes", LaunchTemplateData={"ImageId": "ami-0000000000000a64d"}
    )
    image = weakref.ref(next(iter(gone._account.backend.amis.values())))
    del gone
    gc.collect()
    EmbeddedEC2(clock)
    gc.collect()
    assert image() is None
    (template,) = kept.connect("ec2", 1).describe_launch_templates()["LaunchTemplates"]
    assert template["LaunchTemplateName"] == "nodes"


def test_tags_are_found_by_id_pattern_and_in_instance_lists(cloud: EmbeddedEC2) -> None:
    ec2: Any = cloud.connect("ec2", 1)
    for name in ("one", "two"):
        tags = [{"Key": "name", "Value": name}, {"Key": "team", "Value": "web"}]
        specification = [{"ResourceType": "instance", "Tags": tags}]
        fleet(cloud, ("m5.large", "a", 1.0), TagSpecifications=specification)
    first, second = cloud.running_instances()

    def found(*ids: str) -> set[tuple[str, str, str]]:
        filters = [{"Name": "resource-id", "Values": [*ids]}]
        rows = ec2.describe_tags(Filters=filters)["Tags"]
        return {(r["ResourceId"], r["Key"], r["Value"]) for r in rows}

    of_first = {(first, "name", "one"), (first, "team", "web")}
    of_second = {(second, "name", "two"), (second, "team", "web")}
    assert {row for row in found(first) if row[1] in ("name", "team")} == of_first
    assert found("i-*") >= of_first | of_second
    assert found(first, second) == found("i-*")
    assert found("i-other") == set()
    ec2.delete_tags(Resources=[first], Tags=[{"Key": "team"}])
    assert {k for _, k, _ in found(first)} & {"name", "team"} == {"name"}
    (row,) = ec2.describe_instances(Filters=[{"Name": "tag:name", "Values": ["two"]}])[
        "Reservations"
    ]
    (instance,) = row["Instances"]
    assert instance["InstanceId"] == second
    assert {"Key": "team", "Value": "web"} in instance["Tags"]
