"""The contract of the port for EC2, in this process and over HTTP."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import pytest

from reconciler.adapters.aws.clients import Connect, connector
from reconciler.adapters.aws.compute import AwsCompute
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.model.errors import CloudError, TransientCloudError
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.settings import Settings
from reconciler.ports.cloud import Instance, Launch, LaunchAnswer
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.contracts.cloud import SETTINGS, a_class, a_cloud, a_compute, a_launch, a_type, options

pytestmark = pytest.mark.usefixtures("without_retry_pauses")

NUMBERS = itertools.count(1)


@dataclass
class Site:
    """An EC2, the adapter for a separate fleet, and the clock of both."""

    cloud: EmbeddedEC2
    compute: AwsCompute
    clock: SimulatedClock
    node_class: EC2NodeClass
    settings: Settings

    def launch_request(self, intent: str, *names: str, **fields: object) -> Launch:
        return a_launch(f"{self.settings.fleet}-{intent}", self.node_class, *names, **fields)

    def launch(self, intent: str, *names: str, **fields: object) -> LaunchAnswer | Exception:
        (answer,) = self.compute.launch([self.launch_request(intent, *names, **fields)])
        return answer

    def launched(self, intent: str, *names: str, **fields: object) -> Instance:
        answer = self.launch(intent, *names, **fields)
        assert isinstance(answer, LaunchAnswer), answer
        assert answer.instance is not None
        return answer.instance

    def running_instances(self, intent: str = "") -> list[str]:
        """Query EC2 itself, bypassing the adapter and the faults."""
        wanted = {"reconciler/fleet": self.settings.fleet}
        wanted |= {"reconciler/intent": f"{self.settings.fleet}-{intent}"} if intent else {}
        return [
            i
            for i, tags in self.cloud.running_instances().items()
            if wanted.items() <= tags.items()
        ]

    def count(self, operation: str) -> int:
        return sum(call.operation == operation for call in self.cloud.calls)

    def restarted(self, **how: object) -> AwsCompute:
        """Return another adapter for the same fleet, as after a crash."""
        return a_compute(self.cloud, self.clock, self.settings, **how)


@pytest.fixture
def local() -> Site:
    """A separate account, in this process."""
    clock = SimulatedClock()
    cloud = a_cloud(clock)
    compute = a_compute(cloud, clock)
    return Site(cloud, compute, clock, compute.resolve(a_class()), SETTINGS)


@dataclass
class Endpoint:
    """An account behind a port, for all tests of the module: its clients are slow to create."""

    cloud: EmbeddedEC2
    clock: SimulatedClock
    connect: Connect


@pytest.fixture(scope="module")
def endpoint() -> Iterator[Endpoint]:
    clock = SimulatedClock()
    cloud = a_cloud(clock)
    with serve(cloud) as url:
        connect = cache(connector(replace(SETTINGS, endpoint_url=url)))
        yield Endpoint(cloud, clock, connect)


@pytest.fixture
def remote(endpoint: Endpoint) -> Iterator[Site]:
    """A separate fleet and cluster in the shared account, which is restored afterwards."""
    cloud, clock = endpoint.cloud, endpoint.clock
    cloud.calls.clear()
    settings = replace(SETTINGS, fleet=f"f{next(NUMBERS)}", cluster_name=f"c{next(NUMBERS)}")
    compute = AwsCompute(endpoint.connect, settings, a_type, clock)
    yield Site(cloud, compute, clock, compute.resolve(a_class()), settings)
    cloud.faults.clear()
    cloud.market.clear()


@pytest.fixture(params=["process", "http"])
def site(request: pytest.FixtureRequest) -> Site:
    site: Site = request.getfixturevalue("local" if request.param == "process" else "remote")
    return site


def test_a_launch_uses_the_cheapest_offering_and_sets_all_tags(site: Site) -> None:
    instance = site.launched("i1")
    assert (instance.instance_type, instance.zone) == ("m7g.large", "us-east-1a")
    (listed,) = site.compute.instances()
    assert listed.id == instance.id
    assert listed.launched_at == site.clock.now()
    assert listed.provider_id == instance.provider_id == f"aws:///us-east-1a/{instance.id}"
    assert listed.tags == {
        "eks:eks-cluster-name": site.settings.cluster_name,
        "karpenter.k8s.aws/ec2nodeclass": "default",
        "karpenter.sh/nodeclaim": f"general-{site.settings.fleet}-i1",
        "karpenter.sh/nodepool": "general",
        f"kubernetes.io/cluster/{site.settings.cluster_name}": "owned",
        "reconciler/fleet": site.settings.fleet,
        "reconciler/intent": f"{site.settings.fleet}-i1",
    }
    assert listed.security_groups == tuple(g.id for g in site.node_class.status.security_groups)
    assert dict(instance.tags) == dict(listed.tags)


def test_answers_have_the_order_of_the_requests(site: Site) -> None:
    launch_requests = [site.launch_request(f"i{n}") for n in range(4)]
    launch_requests[2] = site.launch_request("i2", "x9.unknown")
    answers = site.compute.launch(launch_requests)
    assert [getattr(a, "instance", None) is not None for a in answers] == [True, True, False, True]
    assert isinstance(answers[2], CloudError)
    assert "x9.unknown" in str(answers[2])


def test_answers_of_several_workers_have_the_order_of_the_requests(local: Site) -> None:
    compute = local.restarted(workers=4)
    answers = compute.launch([local.launch_request(f"i{n}") for n in range(8)])
    instances = [a.instance for a in answers if isinstance(a, LaunchAnswer)]
    assert [i.tags["karpenter.sh/nodeclaim"][-2:] for i in instances if i] == [
        f"i{n}" for n in range(8)
    ]


def test_a_fulfilled_intent_always_returns_its_instance(site: Site) -> None:
    first = site.launched("i1")
    assert site.launched("i1").id == first.id
    site.compute.terminate([first.id])
    again = site.launched("i1")
    assert (again.id, again.is_terminating) == (first.id, True)
    assert site.running_instances("i1") == []


def test_a_refused_pool_is_reported_together_with_the_launched_instance(site: Site) -> None:
    site.cloud.market.refuse("m7g.large")
    answer = site.launch("i1")
    assert isinstance(answer, LaunchAnswer)
    assert answer.instance is not None
    assert answer.instance.instance_type == "m7i.large"
    assert [(r.instance_type, r.zone, r.capacity_type, r.code) for r in answer.refused] == [
        ("m7g.large", "us-east-1a", "on-demand", "InsufficientInstanceCapacity"),
        ("m7g.large", "us-east-1b", "on-demand", "InsufficientInstanceCapacity"),
    ]


def test_no_capacity_at_all_is_an_answer_and_not_an_error(site: Site) -> None:
    site.cloud.market.refuse()
    answer = site.launch("i1")
    assert isinstance(answer, LaunchAnswer)
    assert answer.instance is None
    assert len(answer.refused) == 4
    assert site.running_instances("i1") == []


def test_errors_other_than_missing_capacity_name_their_call_and_request(
    site: Site,
) -> None:
    site.cloud.market.refuse(code="UnauthorizedOperation")
    answer = site.launch("i1")
    assert isinstance(answer, CloudError)
    assert "UnauthorizedOperation" in answer.message
    assert answer.where.startswith("ec2:CreateFleet (request 00000000-")
    assert answer.remedy.startswith("allow ec2:CreateFleet for these credentials")


def test_spot_is_requested_and_recognized(site: Site) -> None:
    site.launched("i1", options=options(capacity_type="spot"))
    assert [i.capacity_type for i in site.compute.instances()] == ["spot"]


def test_instances_of_other_fleets_are_ignored(local: Site) -> None:
    mine = local.launched("i1")
    other = a_compute(local.cloud, local.clock, replace(local.settings, fleet="other"))
    other.launch([local.launch_request("i2")])
    assert [i.id for i in local.compute.instances()] == [mine.id]


def test_every_page_is_read(local: Site) -> None:
    launch_requests = [local.launch_request(f"i{n}") for n in range(7)]
    local.compute.launch(launch_requests)
    before = local.count("DescribeInstances")
    paged = local.restarted(page_size=3)
    assert len(paged.instances()) == 7
    assert local.count("DescribeInstances") == before + 3


def test_a_lost_page_is_an_error_and_not_a_shorter_list(local: Site) -> None:
    local.compute.launch([local.launch_request(f"i{n}") for n in range(7)])
    paged = local.restarted(page_size=3)
    local.cloud.faults.add("DescribeInstances", Fault.SERVER_ERROR, times=None, skip=2)
    with pytest.raises(TransientCloudError, match="ec2:DescribeInstances"):
        paged.instances()


def test_an_instance_passes_through_all_its_states() -> None:
    clock = SimulatedClock()
    cloud = a_cloud(clock, starting_s=20, stopping_s=40)
    compute = a_compute(cloud, clock)
    (answer,) = compute.launch([a_launch("i1", compute.resolve(a_class()))])
    assert isinstance(answer, LaunchAnswer)
    assert answer.instance is not None
    seen = []
    for seconds in (0, 19, 1, 0):
        clock.advance(seconds)
        seen += [i.state for i in compute.instances()]
    compute.terminate([answer.instance.id])
    for seconds in (0, 39):
        clock.advance(seconds)
        seen += [i.state for i in compute.instances()]
    clock.advance(1)
    assert seen == ["pending", "pending", "running", "running", "shutting-down", "shutting-down"]
    assert compute.instances() == []
    assert [i.state for i in compute.find(["i1"])] == ["terminated"]


def test_a_rebooted_instance_stays_the_same_and_runs(site: Site) -> None:
    first, second = site.launched("i1"), site.launched("i2")
    site.compute.reboot(first.id)
    after = {i.id: i.state for i in site.compute.instances()}
    assert after.keys() == {first.id, second.id}
    assert set(after.values()) <= {"pending", "running"}


def test_a_missing_instance_cannot_be_rebooted(site: Site) -> None:
    with pytest.raises(CloudError):
        site.compute.reboot("i-0123456789abcdef0")


def test_terminating_a_missing_instance_is_not_an_error_and_others_are_terminated(
    site: Site,
) -> None:
    first, second = site.launched("i1"), site.launched("i2")
    site.compute.terminate([first.id, "i-0123456789abcdef0", second.id])
    site.compute.terminate([first.id])
    site.compute.terminate(["i-0123456789abcdef0"])
    site.compute.terminate([])
    assert site.compute.instances() == []


def test_an_unknown_id_among_many_needs_few_calls(local: Site) -> None:
    launch_requests = [local.launch_request(f"i{n}", batch="lot") for n in range(31)]
    answers = local.compute.launch(launch_requests)
    ids = [a.instance.id for a in answers if isinstance(a, LaunchAnswer) and a.instance]
    ids.insert(17, "i-0123456789abcdef0")
    local.compute.terminate(ids)
    assert local.running_instances() == []
    assert local.count("TerminateInstances") == 11, "halved five times: one and five pairs"


def test_throttled_terminations_are_not_split_into_single_calls(local: Site) -> None:
    ids = [local.launched(f"i{n}").id for n in range(4)]
    local.cloud.faults.add("TerminateInstances", Fault.THROTTLE, times=None)
    with pytest.raises(TransientCloudError):
        local.compute.terminate(ids)
    assert local.count("TerminateInstances") == 5, "as often as botocore tries one call"


def test_a_batch_is_one_call_and_its_instances_are_assigned_in_order(site: Site) -> None:
    before = site.count("CreateFleet")
    launch_requests = [site.launch_request(f"i{n}", batch="lot") for n in range(3)]
    answers = site.compute.launch(launch_requests)
    ids = [a.instance.id for a in answers if isinstance(a, LaunchAnswer) and a.instance]
    assert len(set(ids)) == 3
    assert site.count("CreateFleet") == before + 1
    (found,) = {i.tags["reconciler/intent"] for i in site.compute.instances() if i.id in ids}
    assert found == "lot"
    assert all("karpenter.sh/nodeclaim" not in i.tags for i in site.compute.find(["lot"]))
    again = site.restarted().launch(launch_requests) if site.cloud.calls else []
    assert {a.instance.id for a in again if isinstance(a, LaunchAnswer) and a.instance} == set(ids)
    assert site.count("CreateFleet") == before + 1
    site.compute.terminate(ids)


def test_tags_can_be_added_later(site: Site) -> None:
    instance = site.launched("i1")
    site.compute.tag(instance.id, {"Name": "ip-10-0-0-1"})
    (listed,) = site.compute.instances()
    assert listed.tags["Name"] == "ip-10-0-0-1"
    assert listed.tags["reconciler/fleet"] == site.settings.fleet


def test_identical_launches_share_a_template_across_processes(site: Site) -> None:
    site.launched("i1")
    site.launched("i2")
    assert site.count("CreateLaunchTemplate") == 2
    site.compute = site.restarted()
    site.launched("i3")
    assert len(_templates(site)) == 2


def test_a_deleted_template_is_created_again_once(site: Site) -> None:
    site.launched("i1")
    for template in _templates(site):
        site.cloud.connect("ec2", 1).delete_launch_template(LaunchTemplateId=template)
    site.launched("i2")
    assert len(site.running_instances("i2")) == 1


def _templates(site: Site) -> list[str]:
    mine = {"Name": "tag:eks:eks-cluster-name", "Values": [site.settings.cluster_name]}
    rows = site.cloud.connect("ec2", 1).describe_launch_templates(Filters=[mine])
    return [row["LaunchTemplateId"] for row in rows["LaunchTemplates"]]


def test_of_two_instances_for_one_intent_the_oldest_is_kept(local: Site) -> None:
    """A server that ignores client tokens launches the same request twice."""
    first = local.launched("i1")
    local.clock.advance(60)
    second = local.launched("i2")
    local.compute.tag(second.id, {"reconciler/intent": first.tags["reconciler/intent"]})
    assert local.launched("i1").id == first.id
    assert local.running_instances("i1") == [first.id]


TIMES = {"once-and-three-times": (1, 3), "for-ever": (None,)}


def disturbed(*calls: str) -> pytest.MarkDecorator:
    """Parametrize with each call, each fault, and how often it comes.

    The default run tests each pair of call and fault with one of the counts, in turn; an exhaustive
    run tests the others.
    """
    cases = [
        pytest.param(
            call,
            fault,
            times,
            id=f"{call}-{fault.value}-{name}",
            marks=pytest.mark.exhaustive if (c + f + t) % len(TIMES) else (),
        )
        for c, call in enumerate(calls)
        for f, fault in enumerate(Fault)
        for t, (name, times) in enumerate(TIMES.items())
    ]
    return pytest.mark.parametrize(("call", "fault", "times"), cases)


@disturbed("CreateFleet", "DescribeInstances", "CreateLaunchTemplate")
def test_under_any_faults_one_intent_has_one_instance(
    local: Site, call: str, fault: Fault, times: tuple[int | None, ...]
) -> None:
    for count in times:
        local.cloud.faults.add(call, fault, times=count)
        cluster = replace(local.settings, cluster_name=f"cluster-{count}")
        local.compute = a_compute(local.cloud, local.clock, cluster)
        answer = local.launch(f"i{count}")
        assert len(local.running_instances(f"i{count}")) <= 1
        if isinstance(answer, Exception):
            assert count is None or fault is Fault.DENIED
            assert_addressed(answer, call, fault)
        local.cloud.faults.clear()
        instance = local.launched(f"i{count}")
        assert local.running_instances(f"i{count}") == [instance.id]


@disturbed("TerminateInstances")
def test_under_any_faults_instances_are_terminated(
    local: Site, call: str, fault: Fault, times: tuple[int | None, ...]
) -> None:
    for count in times:
        ids = [local.launched(f"i{count}-{n}").id for n in range(3)]
        local.cloud.faults.add(call, fault, times=count)
        try:
            local.compute.terminate(ids[:2])
        except (TransientCloudError, CloudError) as error:
            assert count is None or fault is Fault.DENIED
            assert_addressed(error, call, fault)
        local.cloud.faults.clear()
        local.compute.terminate(ids[:2])
        assert local.running_instances() == ids[2:]
        local.compute.terminate(ids[2:])


def assert_addressed(error: Exception, call: str, fault: Fault) -> None:
    """The error states the responsible side, the call, and the request id."""
    assert isinstance(error, CloudError if fault is Fault.DENIED else TransientCloudError)
    place = "request 00000000-0000-4000-8000-" if fault.answer else "no answer"
    assert error.where.startswith(f"ec2:{call} ({place}")
    assert error.remedy


@pytest.mark.parametrize("fault", [Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.SERVER_ERROR_AFTER])
@pytest.mark.parametrize("call", ["CreateFleet", "DescribeInstances", "CreateLaunchTemplate"])
def test_a_broken_connection_launches_no_second_instance(
    site: Site, call: str, fault: Fault
) -> None:
    site.cloud.faults.add(call, fault, times=2)
    instance = site.launched("i1")
    assert site.running_instances("i1") == [instance.id]


@pytest.mark.parametrize(
    "fault", [Fault.RESET_AFTER, Fault.SERVER_ERROR_AFTER, Fault.TIMEOUT_AFTER]
)
@pytest.mark.parametrize("times", [1, 3])
def test_a_server_that_ignores_client_tokens_still_gives_one_instance(
    local: Site, fault: Fault, times: int
) -> None:
    local.cloud.honours_tokens = False
    local.cloud.faults.add("CreateFleet", fault, times=times)
    instance = local.launched("i1")
    assert local.running_instances("i1") == [instance.id]


def test_a_launch_in_doubt_is_not_repeated_while_ec2_cannot_be_listed(local: Site) -> None:
    """An unconditional retry could launch twice if tokens are ignored."""
    local.cloud.honours_tokens = False
    local.cloud.faults.add("CreateFleet", Fault.RESET_AFTER)
    local.cloud.faults.add("DescribeInstances", Fault.THROTTLE, times=None, skip=1)
    answer = local.launch("i1")
    assert isinstance(answer, TransientCloudError)
    assert local.count("CreateFleet") == 1
    local.cloud.faults.clear()
    assert [local.launched("i1").id] == local.running_instances("i1")


def test_a_throttled_call_is_retried_with_growing_delays(local: Site) -> None:
    local.cloud.faults.add("CreateFleet", Fault.THROTTLE, times=4)
    before = local.clock.now()
    local.launched("i1")
    waited = (local.clock.now() - before).total_seconds()
    assert 1.5 <= waited <= 3.0


def test_a_launch_of_a_killed_process_is_found(local: Site) -> None:
    """The process dies after EC2 executed the call and before the answer."""

    class Killed(BaseException):
        pass

    def die(operation: str) -> None:
        if operation == "CreateFleet":
            raise Killed

    local.cloud.after_call = die
    with pytest.raises(Killed):
        local.launch("i1")
    local.cloud.after_call = lambda _: None
    local.compute = local.restarted()
    assert [local.launched("i1").id] == local.running_instances("i1")
