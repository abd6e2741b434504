"""The interruption queue with a real SQS client: no message is lost or left behind."""

from __future__ import annotations

import json
import logging
import threading
from dataclasses import replace
from functools import cache

import pytest
from moto.sqs.models import sqs_backends

from reconciler.adapters.aws.clients import connector
from reconciler.adapters.aws.events.queue import InterruptionQueue
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve
from tests.adapters.aws.test_events import SPOT, an_event
from tests.contracts.cloud import SETTINGS
from tests.engine.processes import wait_for


class Site:
    """An account with a queue, and its listener."""

    def __init__(self) -> None:
        self.strangers = set(threading.enumerate())
        self.clock = SimulatedClock()
        self.cloud = EmbeddedEC2(self.clock)
        self.sqs = self.cloud.connect("sqs", 1)
        self.url = self.sqs.create_queue(QueueName="web")["QueueUrl"]
        self.queue = InterruptionQueue(self.cloud.connect, "web", self.clock, wait_s=0)

    def send(self, *bodies: object) -> None:
        for body in bodies:
            if isinstance(body, dict):
                body = {**body, "account": self.cloud._account.number}
            text = body if isinstance(body, str) else json.dumps(body)
            self.sqs.send_message(QueueUrl=self.url, MessageBody=text)

    def left(self) -> int:
        """Return the number of messages in the queue, including invisible ones."""
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        found = self.sqs.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)
        return sum(int(found["Attributes"][name]) for name in names)

    def interrupted_instances(self) -> list[str]:
        return [identity for word in self.queue.pending_events() for identity in word.instances]

    def is_silent(self) -> bool:
        """Return whether none of our threads is listening."""
        ours = set(threading.enumerate()) - self.strangers
        return "interruptions" not in {thread.name for thread in ours}

    def show_again(self) -> None:
        """End the visibility timeout of received messages."""
        account = self.cloud._account
        for message in sqs_backends[account.number][account.region].queues["web"]._messages:
            message.visible_at = 0


@pytest.fixture
def site() -> Site:
    return Site()


def spot(instance: str) -> dict[str, object]:
    return {**SPOT, "detail": {"instance-id": instance, "instance-action": "terminate"}}


def test_a_message_stays_in_the_queue_until_it_is_acknowledged(site: Site) -> None:
    site.send(spot("i-1"), spot("i-2"))
    assert site.queue.poll()
    assert sorted(site.interrupted_instances()) == ["i-1", "i-2"]
    assert site.queue.has_events()
    assert site.queue.poll()
    assert site.left() == 2
    site.queue.acknowledge(site.queue.pending_events())
    assert not site.queue.has_events()
    assert site.queue.poll()
    assert (site.left(), site.queue.deleted) == (0, 2)


def test_irrelevant_messages_are_counted_deleted_and_logged_once_per_kind(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    site.send("garbage", "more garbage", an_event("EC2 Fleet Error"), an_event("EC2 Fleet Error"))
    assert site.queue.poll()
    assert site.left() == 0
    assert site.queue.pending_events() == []
    assert dict(site.queue.received) == {
        "unreadable": 2,
        "unknown event: aws.ec2 / EC2 Fleet Error": 2,
    }
    assert len(caplog.messages) == 2


def test_the_number_of_counted_kinds_is_bounded(site: Site) -> None:
    for start in range(0, 120, 10):
        site.send(*(an_event(f"Kind {start + n}") for n in range(10)))
        assert site.queue.poll()
    assert site.left() == 0
    assert sum(site.queue.received.values()) == 120
    assert len(site.queue.received) <= 51


def test_a_redelivered_message_is_received_once_until_acknowledged(site: Site) -> None:
    site.send(spot("i-1"))
    assert site.queue.poll()
    site.show_again()
    assert site.queue.poll()
    assert site.interrupted_instances() == ["i-1"]
    site.queue.acknowledge(site.queue.pending_events())
    site.show_again()
    assert site.queue.poll()
    assert (site.interrupted_instances(), site.left()) == ([], 0)


def test_messages_are_deleted_in_batches_of_ten(site: Site) -> None:
    site.send(*(spot(f"i-{n}") for n in range(23)))
    for _ in range(3):
        assert site.queue.poll()
    site.queue.acknowledge(site.queue.pending_events())
    site.cloud.calls.clear()
    assert site.queue.poll()
    assert [c.operation for c in site.cloud.calls].count("DeleteMessageBatch") == 3
    assert site.left() == 0


def test_a_failed_deletion_is_retried(site: Site) -> None:
    site.send(spot("i-1"))
    site.queue.poll()
    site.queue.acknowledge(site.queue.pending_events())
    site.cloud.faults.add("DeleteMessageBatch", Fault.SERVER_ERROR)
    assert not site.queue.poll()
    assert site.left() == 1
    assert site.queue.poll()
    assert (site.left(), site.interrupted_instances()) == (0, [])


@pytest.mark.parametrize("fault", [f for f in Fault if not f.takes_effect])
def test_an_unreachable_queue_is_a_temporary_problem(site: Site, fault: Fault) -> None:
    site.send(spot("i-1"))
    site.cloud.faults.add("ReceiveMessage", fault)
    assert not site.queue.poll()
    assert site.queue.problem().startswith("queue web: sqs:ReceiveMessage (")
    advice = "; allow sqs:ReceiveMessage for " if fault is Fault.DENIED else "; it will be retried"
    assert advice in site.queue.problem()
    assert site.queue.poll()
    assert (site.queue.problem(), site.interrupted_instances()) == ("", ["i-1"])


def test_a_missing_queue_is_reported_once_and_found_when_created(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    queue = InterruptionQueue(site.cloud.connect, "later", site.clock, wait_s=0)
    assert not queue.poll()
    assert not queue.poll()
    assert "queue later: " in queue.problem()
    assert "NonExistentQueue" in queue.problem()
    assert "sqs:GetQueueUrl (request " in queue.problem()
    assert queue.problem().endswith("; create the queue, or correct interruptionQueue")
    assert len(caplog.messages) == 1
    site.sqs.create_queue(QueueName="later")
    assert queue.poll()
    assert queue.problem() == ""


def test_a_queue_url_needs_no_lookup(site: Site) -> None:
    queue = InterruptionQueue(site.cloud.connect, site.url, site.clock, wait_s=0)
    site.send(spot("i-1"))
    site.cloud.calls.clear()
    assert queue.poll()
    assert [c.operation for c in site.cloud.calls] == ["ReceiveMessage"]
    assert queue.has_events()


def test_a_listener_receives_at_once_without_blocking_others(site: Site) -> None:
    with serve(site.cloud) as endpoint:
        connect = cache(connector(replace(SETTINGS, endpoint_url=endpoint)))
        queue = InterruptionQueue(connect, "web", site.clock)
        with queue.run_in_background():
            wait_for(lambda: any(c.operation == "GetQueueUrl" for c in site.cloud.calls))
            assert site.cloud.connect("ec2", 1).describe_instances()["Reservations"] == []
            site.send("garbage", spot("i-1"))
            wait_for(queue.has_events, at_most_s=10)
            queue.acknowledge(queue.pending_events())
        assert site.left() == 0


def test_a_closed_listener_releases_unacknowledged_messages(site: Site) -> None:
    site.send(spot("i-1"))
    with site.queue.run_in_background():
        wait_for(site.queue.has_events)
    assert not site.queue.has_events()
    wait_for(site.is_silent)
    following = InterruptionQueue(site.cloud.connect, "web", site.clock, wait_s=0)
    assert following.poll()
    assert [w.instances for w in following.pending_events()] == [("i-1",)]


def test_a_poll_that_outlives_its_listener_releases_its_messages(site: Site) -> None:
    with serve(site.cloud) as endpoint:
        connect = cache(connector(replace(SETTINGS, endpoint_url=endpoint)))
        former = InterruptionQueue(connect, "web", site.clock, wait_s=3)
        with former.run_in_background():
            wait_for(lambda: any(c.operation == "GetQueueUrl" for c in site.cloud.calls))
        site.send(spot("i-1"))
        wait_for(site.is_silent)
    assert former.received
    assert not former.has_events()
    assert site.queue.poll()
    assert site.interrupted_instances() == ["i-1"]
