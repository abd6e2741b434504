"""Interruption events in the tests of the engine: sent through SQS, and polled on demand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from moto.sqs.models import sqs_backends

from reconciler.adapters.aws.events.queue import InterruptionQueue
from reconciler.adapters.aws.events.statuses import InstanceStatuses
from reconciler.engine import world as engine_world
from reconciler.ports.cloud import Interruption
from tests.engine.world import Engine, World

QUEUE = "words"


class PolledQueue:
    """The queue, polled on demand instead of by a thread."""

    def __init__(self, queue: InterruptionQueue | InstanceStatuses) -> None:
        self.queue = queue

    def pending_events(self) -> Sequence[Interruption]:
        self.queue.poll()
        return self.queue.pending_events()

    def acknowledge(self, interruptions: Sequence[Interruption]) -> None:
        self.queue.acknowledge(interruptions)
        self.queue.poll()

    def has_events(self) -> bool:
        self.queue.poll()
        return self.queue.has_events()

    def problem(self) -> str:
        return self.queue.problem()


def listening(world: World) -> Engine:
    """Start a process that listens to the queue."""
    engine = world.engine()
    queue = InterruptionQueue(world.cloud.connect, QUEUE, world.clock, wait_s=0)
    ports: engine_world.World = replace(engine.ports, interruptions=PolledQueue(queue))
    return Engine(ports, engine.source)


def sqs(world: World) -> tuple[Any, str]:
    """Return a client and the URL of the queue, which is created if it does not exist."""
    client = world.cloud.connect("sqs", 1)
    return client, client.create_queue(QueueName=QUEUE)["QueueUrl"]


def send_event(world: World, kind: str, source: str = "aws.ec2", **detail: object) -> None:
    """Send an event of EventBridge; ``instance_id`` becomes ``instance-id``."""
    client, url = sqs(world)
    event = {
        "version": "0",
        "source": source,
        "detail-type": kind,
        "time": f"{world.clock.now():%Y-%m-%dT%H:%M:%SZ}",
        "detail": {key.replace("_", "-"): value for key, value in detail.items()},
    }
    client.send_message(QueueUrl=url, MessageBody=json.dumps(event))


def warn(world: World, instance: str) -> None:
    """Send the warning that EC2 reclaims a spot instance."""
    send_event(
        world,
        "EC2 Spot Instance Interruption Warning",
        instance_id=instance,
        instance_action="terminate",
    )


def messages_left(world: World) -> int:
    """Return how many messages are in the queue, hidden ones among them."""
    client, url = sqs(world)
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = client.get_queue_attributes(QueueUrl=url, AttributeNames=names)["Attributes"]
    return sum(int(found[name]) for name in names)


def show_again(world: World) -> None:
    """End the visibility timeout of received messages."""
    account = world.cloud._account
    for message in sqs_backends[account.number][account.region].queues[QUEUE]._messages:
        message.visible_at = 0


def polling_statuses(world: World) -> Engine:
    """Start a process that polls the status of its instances."""
    engine = world.engine()
    statuses = PolledQueue(InstanceStatuses(world.cloud.connect, world.clock))
    ports: engine_world.World = replace(engine.ports, interruptions=statuses)
    return Engine(ports, engine.source)
