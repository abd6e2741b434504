"""Instance statuses from EC2: complete or not used, and each problem reported once."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime, timedelta

import pytest

from reconciler.adapters.aws.clients import READING, family_of
from reconciler.adapters.aws.events.queue import InterruptionQueue
from reconciler.adapters.aws.events.statuses import (
    IMPAIRED_FOR,
    InstanceStatuses,
    InterruptionSources,
)
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler.ports.cloud import InterruptionKind, LaunchAnswer
from tests.adapters.aws.test_queue import spot
from tests.contracts.cloud import a_class, a_cloud, a_compute, a_launch
from tests.engine.processes import wait_for

CALL = "DescribeInstanceStatus"
RETIRES = datetime(2026, 5, 1, 3, tzinfo=UTC)


class Site:
    """An account with three instances, and the poller of their statuses."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()
        self.cloud = a_cloud(self.clock)
        compute = a_compute(self.cloud, self.clock)
        node_class = compute.resolve(a_class())
        answers = compute.launch([a_launch(f"i{n}", node_class) for n in range(3)])
        self.ids = [a.instance.id for a in answers if isinstance(a, LaunchAnswer) and a.instance]
        self.statuses = InstanceStatuses(self.cloud.connect, self.clock)

    def reported(self) -> list[tuple[str, str, str]]:
        assert self.statuses.poll()
        words = self.statuses.pending_events()
        return [(w.kind.name, *w.instances, w.text) for w in words]


@pytest.fixture
def site() -> Site:
    return Site()


def test_healthy_instances_have_no_events(site: Site) -> None:
    assert site.reported() == []
    assert not site.statuses.has_events()
    asked = [call.operation for call in site.cloud.calls if call.operation == CALL]
    assert len(asked) == 3
    assert family_of(CALL) == READING


@pytest.mark.parametrize("check", ["instance", "system"])
def test_a_status_check_counts_after_failing_for_two_minutes(site: Site, check: str) -> None:
    ill = site.ids[1]
    site.cloud.health.impair(ill, site.clock.now(), check=check)
    site.clock.advance(IMPAIRED_FOR.total_seconds() - 1)
    assert site.reported() == []
    site.clock.advance(1)
    assert site.reported() == [("IMPAIRED", ill, f"{check} status check failed")]


@pytest.mark.parametrize(
    "code",
    [
        "instance-reboot",
        "system-reboot",
        "system-maintenance",
        "instance-retirement",
        "instance-stop",
    ],
)
def test_a_scheduled_event_counts_at_once(site: Site, code: str) -> None:
    site.cloud.health.announce(site.ids[0], code, RETIRES)
    text = f"scheduled {code}, not before 2026-05-01T03:00:00Z, announced"
    assert site.reported() == [("SCHEDULED_CHANGE", site.ids[0], text)]


@pytest.mark.parametrize("text", ["[Completed] The instance", "[Canceled] The instance"])
def test_a_completed_event_is_ignored_while_still_listed(site: Site, text: str) -> None:
    site.cloud.health.announce(site.ids[0], "instance-stop", RETIRES, text)
    assert site.reported() == []


def test_an_ignored_filter_makes_no_instance_unhealthy(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Imitations of EC2 return all instances, whatever the filter."""
    monkeypatch.setattr(site.cloud.health, "_matches_filter", lambda *_: True)
    site.cloud.health.impair(site.ids[2], site.clock.now() - timedelta(hours=1))
    assert [identity for _, identity, _ in site.reported()] == [site.ids[2]]


def test_an_acknowledged_event_is_reported_again_only_if_it_recurs(site: Site) -> None:
    ill = site.ids[0]
    site.cloud.health.impair(ill, site.clock.now() - timedelta(minutes=5))
    site.cloud.health.announce(ill, "instance-stop", RETIRES)
    assert len(site.reported()) == 2
    site.statuses.acknowledge(site.statuses.pending_events())
    assert site.reported() == []
    assert not site.statuses.has_events()
    site.cloud.health.recover(ill)
    assert site.reported() == []
    site.cloud.health.impair(ill, site.clock.now() - timedelta(minutes=3))
    assert [kind for kind, *_ in site.reported()] == ["IMPAIRED"]


def test_an_event_withdrawn_before_it_was_handled_is_dropped(site: Site) -> None:
    site.cloud.health.announce(site.ids[0], "instance-stop", RETIRES)
    assert len(site.reported()) == 1
    site.cloud.health.recover(site.ids[0])
    assert site.reported() == []


@pytest.mark.parametrize("skip", [0, 1, 2, 3])
def test_an_incomplete_answer_changes_nothing(site: Site, skip: int) -> None:
    for identity in site.ids:
        site.cloud.health.announce(identity, "instance-stop", RETIRES)
    whole = site.reported()
    assert len(whole) == 3
    site.cloud.rows_a_page = 1
    site.cloud.health.recover(site.ids[0])
    site.cloud.faults.add(CALL, Fault.SERVER_ERROR, times=None, skip=skip)
    assert not site.statuses.poll()
    assert len(site.statuses.pending_events()) == 3
    assert "ec2:DescribeInstanceStatus (request " in site.statuses.problem()
    assert "it will be retried" in site.statuses.problem()
    site.cloud.faults.clear()
    assert len(site.reported()) == 2
    assert site.statuses.problem() == ""


def test_a_missing_permission_is_reported_once_and_polling_stops(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    site.cloud.faults.add(CALL, Fault.DENIED, times=None)
    with caplog.at_level(logging.WARNING), site.statuses.run_in_background():
        wait_for(lambda: bool(caplog.messages))
    assert len(caplog.messages) == 1
    assert "allow ec2:DescribeInstanceStatus" in caplog.messages[0]
    assert site.statuses.problem() == "", "it is the operator's choice"


def test_a_listener_polls_until_it_is_closed(site: Site) -> None:
    statuses = InstanceStatuses(site.cloud.connect, site.clock, every_s=0.01)
    with statuses.run_in_background():
        site.cloud.health.announce(site.ids[0], "instance-stop", RETIRES)
        wait_for(statuses.has_events)
    assert [w.kind for w in statuses.pending_events()] == [InterruptionKind.SCHEDULED_CHANGE]


def test_both_sources_are_read_and_each_acknowledges_its_events(site: Site) -> None:
    sqs = site.cloud.connect("sqs", 1)
    url = sqs.create_queue(QueueName="web")["QueueUrl"]
    word = {**spot(site.ids[1]), "account": site.cloud._account.number}
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(word))
    queue = InterruptionQueue(site.cloud.connect, "web", site.clock, wait_s=0)
    both = InterruptionSources(queue, site.statuses)
    assert not both.has_events()
    site.cloud.health.announce(site.ids[0], "instance-stop", RETIRES)
    assert queue.poll()
    assert site.statuses.poll()
    assert both.has_events()
    assert [i for word in both.pending_events() for i in word.instances] == [
        site.ids[1],
        site.ids[0],
    ]
    both.acknowledge(both.pending_events())
    assert both.pending_events() == []
    site.cloud.faults.add("*", Fault.SERVER_ERROR, times=None)
    assert not queue.poll()
    assert not site.statuses.poll()
    assert both.problem().count("(request ") == 2
