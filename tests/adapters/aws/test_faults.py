"""Faults of AWS calls: each call with each fault, once, three times and forever.

A call that may be repeated is retried; a permanent refusal is an error that names the call, the
request and the remedy; after the fault has ended, the same operation succeeds.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest

from reconciler.adapters.aws.checks import Checks
from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.aws.events.queue import InterruptionQueue
from reconciler.adapters.aws.events.statuses import InstanceStatuses
from reconciler.adapters.aws.facts.commitments import read_commitments
from reconciler.adapters.aws.facts.latest import describe_offerings, describe_types
from reconciler.adapters.aws.facts.prices import on_demand_prices, spot_prices
from reconciler.adapters.aws.launch.profiles import Profiles, profile_name
from reconciler.adapters.aws.launch.templatestore import PROFILE, TEMPLATE
from reconciler.adapters.aws.permissions import CALLS
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.diagnostics import Verdict
from reconciler.model.errors import CloudError, ReconcilerError, TransientCloudError
from reconciler.model.karpenter.nodeclass import (
    EC2NodeClass,
    EC2NodeClassStatus,
    PlacementGroupSelector,
    SelectorTerm,
)
from reconciler.model.settings import ClusterKind
from reconciler.ports.cloud import LaunchAnswer, UnusedResource
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.purchases import SimulatedReservation
from tests.adapters.aws.test_events import SPOT
from tests.contracts.cloud import PRICES, SETTINGS, a_class, a_cloud, a_compute, a_launch, a_type
from tests.examples import rotate

pytestmark = pytest.mark.usefixtures("tireless")

REAL = replace(SETTINGS, cluster=ClusterKind.KUBECONFIG, cluster_cidr="10.0.0.0/16")
SSM = SelectorTerm(
    ssm_parameter="/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"
)
NUMBERS = itertools.count(1)
ONCE_THRICE_FOR_EVER = (1, 3, None)


@dataclass
class Site:
    """An account with some of each resource that the calls use."""

    cloud: EmbeddedEC2
    clock: SimulatedClock
    found: EC2NodeClass

    def compute(self, **how: Any) -> AwsCompute:
        """Return the adapter of a new process."""
        return a_compute(self.cloud, self.clock, **how)

    def client(self, service: str) -> Any:
        return self.cloud.connect(service, 5)


@pytest.fixture
def site() -> Site:
    """An account for each call: objects left by earlier operations would slow down later ones."""
    return a_site()


def a_site(kind: type[EmbeddedEC2] = EmbeddedEC2) -> Site:
    clock = SimulatedClock()
    sold = {**PRICES, "m7i.metal-24xl": 5.0}
    cloud = a_cloud(clock, kind, prices=lambda kind, *_: sold.get(kind), types=tuple(sold))
    cloud.connect("sqs", 1).create_queue(QueueName="words")
    document = json.dumps({"Version": "2012-10-17", "Statement": []})
    cloud.connect("iam", 1).create_role(RoleName="nodes", AssumeRolePolicyDocument=document)
    cloud.reservations.put(
        SimulatedReservation("cr-1", "m7i.large", "us-east-1a", 1, tags={"team": "web"})
    )
    cloud.placement_groups.put("pg-1", "close", "cluster")
    cloud.contracts.add_plan("sp-1", "Compute", "1.5", "2027-01-01T00:00:00.000Z")
    return Site(cloud, clock, a_compute(cloud, clock).resolve(a_class()))


def observe_instances(s: Site) -> None:
    s.compute().instances()


def resolve(s: Site) -> None:
    assert s.compute().resolve(a_class()).status.subnets


def by_parameter(s: Site) -> None:
    s.compute().resolve(a_class(ami_selector_terms=(SSM,), ami_family="AL2023"))


def reserving(s: Site) -> None:
    term = SelectorTerm(tags={"team": "web"})
    node_class = a_class(capacity_reservation_selector_terms=(term,))
    (reserved,) = s.compute().resolve(node_class).status.capacity_reservations
    assert reserved.id == "cr-1"


def grouping(s: Site) -> None:
    node_class = a_class(placement_group_selector=PlacementGroupSelector(name="close"))
    found = s.compute().resolve(node_class).status.placement_group
    assert found is not None
    assert found.id == "pg-1"


def by_alias(s: Site) -> None:
    """Request a missing cluster: this has a separate answer and is not a fault."""
    try:
        AwsCompute(s.cloud.connect, REAL, a_type, s.clock).resolve(a_class())
    except CloudError as error:
        if "ResourceNotFound" not in error.message and "No cluster found" not in error.message:
            raise


def launch(s: Site) -> None:
    """Launch one instance for a new intent, with templates that do not exist yet."""
    number = next(NUMBERS)
    settings = replace(SETTINGS, cluster_name=f"cluster-{number}")
    compute = AwsCompute(s.cloud.connect, settings, a_type, s.clock)
    launch_request = a_launch(f"launch-{number}", s.found)
    try:
        (answer,) = compute.launch([launch_request])
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, LaunchAnswer)
        assert answer.instance is not None
    finally:
        mine = [
            t
            for t in s.cloud.running_instances().values()
            if t["reconciler/intent"] == launch_request.intent
        ]
        assert len(mine) <= 1, "one intent, one instance"


def terminate(s: Site) -> None:
    *ids, other = launched(s, 3)
    try:
        s.compute().terminate(ids)
        living = s.cloud.running_instances()
        assert not set(ids) & set(living)
        assert other in living
    finally:
        for identity in s.cloud.running_instances():
            s.cloud.reclaim_instance(identity)


def reboot(s: Site) -> None:
    (one,) = launched(s, 1)
    try:
        s.compute().reboot(one)
        assert one in s.cloud.running_instances()
    finally:
        s.cloud.reclaim_instance(one)


def launched(s: Site, count: int = 1) -> list[str]:
    """Launch instances with one call, bypassing the faults."""
    faults, s.cloud.faults._rules = s.cloud.faults._rules, []
    batch = f"spare-{next(NUMBERS)}"
    launch_requests = [a_launch(f"{batch}-{n}", s.found, batch=batch) for n in range(count)]
    answers = s.compute().launch(launch_requests)
    s.cloud.faults._rules = faults
    return [a.instance.id for a in answers if isinstance(a, LaunchAnswer) and a.instance]


def tag(s: Site) -> None:
    identity = next(iter(s.cloud.running_instances()), None) or launched(s)[0]
    name = f"n{next(NUMBERS)}"
    s.compute().tag(identity, {"Name": name})
    assert s.cloud.running_instances()[identity]["Name"] == name


def validate(s: Site) -> None:
    node_class = a_class(tags={"number": str(next(NUMBERS))})
    found = s.compute(validates=True).resolve(node_class).status.conditions
    verdict = next(c for c in found if c.type == "ValidationSucceeded")
    if verdict.status != "True":
        assert verdict.reason == "RunInstancesAuthCheckFailed"
        where, _, message = verdict.message.partition(": ")
        raise CloudError(message, where=where, remedy="allow it")


def types(s: Site) -> None:
    assert {row["InstanceType"] for row in describe_types(s.client("ec2"))} >= set(PRICES)


def offerings(s: Site) -> None:
    assert describe_offerings(s.client("ec2"))


def spot(s: Site) -> None:
    assert spot_prices(s.client("ec2"), s.clock.now())


def price_list(s: Site) -> None:
    on_demand_prices(s.client("pricing"), "us-east-1")


def profile(s: Site) -> None:
    """Create the profile of a new class, with its role."""
    bare = a_class(f"class-{next(NUMBERS)}")
    status = EC2NodeClassStatus(instance_profile=profile_name(bare, REAL))
    node_class = EC2NodeClass(bare.metadata, bare.spec, status)
    Profiles(s.cloud.connect, REAL).ensure(node_class)
    assert roles(s, status.instance_profile) == ["nodes"]


def roles(s: Site, name: str) -> list[str]:
    faults, s.cloud.faults._rules = s.cloud.faults._rules, []
    row = s.client("iam").get_instance_profile(InstanceProfileName=name)["InstanceProfile"]
    s.cloud.faults._rules = faults
    return [role["RoleName"] for role in row["Roles"]]


def find_templates(s: Site) -> None:
    s.compute().unused_resources.find_unused(())


def find_profiles(s: Site) -> None:
    AwsCompute(s.cloud.connect, REAL, a_type, s.clock).unused_resources.find_unused(())


def drop_template(s: Site) -> None:
    name = f"reconciler/{next(NUMBERS)}"
    made = s.client("ec2").create_launch_template(
        LaunchTemplateName=name, LaunchTemplateData={"ImageId": "ami-0000000000000a64d"}
    )["LaunchTemplate"]
    s.compute().unused_resources.delete(UnusedResource(TEMPLATE, name, made["LaunchTemplateId"]))
    assert not s.cloud._account.has_template(name)


def drop_profile(s: Site) -> None:
    name, iam = f"idle-{next(NUMBERS)}", s.client("iam")
    iam.create_instance_profile(InstanceProfileName=name)
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName="nodes")
    s.compute().unused_resources.delete(UnusedResource(PROFILE, name, roles=("nodes",)))


def poll_queue(s: Site) -> None:
    """Poll the queue: its problems are reported and stop nothing, and polling continues."""
    faults, s.cloud.faults._rules = s.cloud.faults._rules, []
    url = s.client("sqs").get_queue_url(QueueName="words")["QueueUrl"]
    s.client("sqs").send_message(QueueUrl=url, MessageBody="{}")
    s.cloud.faults._rules = faults
    queue = InterruptionQueue(s.cloud.connect, "words", s.clock, wait_s=0)
    for _ in range(2):
        assert queue.poll() or queue.problem()


def hand_back(s: Site) -> None:
    """Close the queue with an unacknowledged message: at worst it is delivered again later."""
    faults, s.cloud.faults._rules = s.cloud.faults._rules, []
    url = s.client("sqs").get_queue_url(QueueName="words")["QueueUrl"]
    word = {**SPOT, "account": s.cloud._account.number}
    s.client("sqs").send_message(QueueUrl=url, MessageBody=json.dumps(word))
    queue = InterruptionQueue(s.cloud.connect, "words", s.clock, wait_s=0)
    assert queue.poll()
    assert queue.has_events()
    s.cloud.faults._rules = faults
    queue.release_messages()
    assert not queue.has_events()


def health(s: Site) -> None:
    """Poll instance statuses: unknown ones are reported, except for missing permissions."""
    statuses = InstanceStatuses(s.cloud.connect, s.clock)
    for _ in range(2):
        assert statuses.poll() or statuses.problem() or statuses._is_denied


def contracts(s: Site) -> None:
    assert len(read_commitments(s.cloud.connect, "us-east-1").savings_plans) == 1


def identity(s: Site) -> None:
    known, _ = Checks(s.cloud.connect, SETTINGS, s.clock).identity()
    if known.verdict is Verdict.FAILED:
        where, _, message = known.message.partition("): ")
        kind = CloudError if "UnauthorizedOperation" in message else TransientCloudError
        raise kind(message, where=f"{where})", remedy=known.remedy)


def quotas(s: Site) -> None:
    """A quota that cannot be read is unknown, whatever the reason."""
    rows = list(Checks(s.cloud.connect, SETTINGS, s.clock).quotas([("m7i.large", "spot", 2)]))
    assert [row.verdict for row in rows] == [Verdict.UNKNOWN]
    assert "service-quotas:GetServiceQuota" in rows[0].message


ACTS: dict[str, Callable[[Site], None]] = {
    "ec2:DescribeInstances": observe_instances,
    "ec2:DescribeSubnets": resolve,
    "ec2:DescribeSecurityGroups": resolve,
    "ec2:DescribeImages": resolve,
    "ec2:DescribeCapacityReservations": reserving,
    "ec2:DescribePlacementGroups": grouping,
    "ec2:DescribeInstanceTypes": types,
    "ec2:DescribeInstanceTypeOfferings": offerings,
    "ec2:DescribeSpotPriceHistory": spot,
    "pricing:GetProducts": price_list,
    "ssm:GetParameter": by_parameter,
    "eks:DescribeCluster": by_alias,
    "ec2:CreateFleet": launch,
    "ec2:CreateLaunchTemplate": launch,
    "ec2:RunInstances": validate,
    "ec2:TerminateInstances": terminate,
    "ec2:RebootInstances": reboot,
    "ec2:CreateTags": tag,
    "ec2:DescribeInstanceStatus": health,
    "ec2:DescribeLaunchTemplates": find_templates,
    "ec2:DeleteLaunchTemplate": drop_template,
    "iam:ListInstanceProfiles": find_profiles,
    "iam:GetInstanceProfile": profile,
    "iam:CreateInstanceProfile": profile,
    "iam:AddRoleToInstanceProfile": profile,
    "iam:RemoveRoleFromInstanceProfile": drop_profile,
    "iam:DeleteInstanceProfile": drop_profile,
    "sqs:GetQueueUrl": poll_queue,
    "sqs:ReceiveMessage": poll_queue,
    "sqs:DeleteMessageBatch": poll_queue,
    "sqs:ChangeMessageVisibilityBatch": hand_back,
    "savingsplans:DescribeSavingsPlans": contracts,
    "ec2:DescribeReservedInstances": contracts,
    "sts:GetCallerIdentity": identity,
    "service-quotas:GetServiceQuota": quotas,
}
TRIED_TWICE = {"sts:GetCallerIdentity", "ec2:RunInstances", "ec2:RebootInstances"}
"""Calls with few attempts: looks that nothing waits for, and one that the engine repeats itself."""

NEVER_RAISE = {
    "ec2:DescribeInstanceStatus",
    "service-quotas:GetServiceQuota",
    *(name for name in ACTS if name.startswith("sqs")),
}
"""Unread messages and unknown statuses are reported, and stop nothing."""

MOTO_FAILS = "iam:RemoveRoleFromInstanceProfile"
"""moto breaks where AWS says that the role is not there; so its repetition cannot be tried."""


def test_every_declared_call_is_in_the_table() -> None:
    assert set(ACTS) == {call.name for call in CALLS}


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "count",
    [
        pytest.param(1, id="sample"),
        pytest.param(3, id="all", marks=pytest.mark.exhaustive),
    ],
)
@pytest.mark.parametrize("name", list(ACTS))
def test_a_fault_is_retried_or_reported_with_its_call(site: Site, name: str, count: int) -> None:
    act = ACTS[name]
    for fault in Fault:
        if name != MOTO_FAILS or not fault.takes_effect:
            turn = list(ACTS).index(name) + list(Fault).index(fault)
            for times in rotate(turn, ONCE_THRICE_FOR_EVER)[:count]:
                try_with(site, act, name, fault, times)


def try_with(
    here: Site, act: Callable[[Site], None], name: str, fault: Fault, times: int | None
) -> None:
    """Make a call with that number of faults, check the result, and repeat it without faults."""
    here.cloud.faults.add(name.partition(":")[2], fault, times=times)
    error = error_of(lambda: act(here))
    here.cloud.faults.clear()
    if error is not None:
        few = name in TRIED_TWICE and fault is not Fault.DENIED
        assert times is None or fault is Fault.DENIED or few, str(error)
        assert_addressed(error, name, fault)
    else:
        is_found = name == "ec2:CreateFleet" and fault.takes_effect
        assert times is not None or is_found or name in NEVER_RAISE, (fault, times)
    here.clock.advance(timedelta(hours=1).total_seconds())
    act(here)


def error_of(act: Callable[[], None]) -> ReconcilerError | None:
    try:
        act()
    except (TransientCloudError, CloudError) as error:
        return error
    return None


def assert_addressed(error: ReconcilerError, name: str, fault: Fault) -> None:
    """The error states the responsible side, the call, and the request id."""
    assert isinstance(error, CloudError if fault is Fault.DENIED else TransientCloudError)
    place = "request 00000000-0000-4000-8000-" if fault.answer else "no answer"
    assert error.where.startswith(f"{name} ({place}"), (error.where, str(error))
    assert error.remedy
