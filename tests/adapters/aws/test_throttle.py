"""The buckets that keep us below EC2's limits, on a clock that only advances by waiting."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest

from reconciler.adapters.aws.clients import (
    LEAST,
    MUTATING,
    RATES,
    READING,
    RECOVERY,
    Bucket,
    Rate,
    Throttle,
    family_of,
)
from reconciler.adapters.simulated.conditions import Fault, SimulatedClock
from reconciler_embedded.ec2 import EmbeddedEC2


@pytest.mark.parametrize(
    ("operation", "family"),
    [
        ("DescribeInstances", READING),
        ("GetLaunchTemplateData", READING),
        ("CreateFleet", MUTATING),
        ("CreateLaunchTemplate", MUTATING),
        ("DeleteLaunchTemplate", MUTATING),
        ("TerminateInstances", "TerminateInstances"),
        ("RunInstances", "RunInstances"),
        ("CreateTags", "CreateTags"),
    ],
)
def test_each_operation_has_its_bucket(operation: str, family: str) -> None:
    assert family_of(operation) == family


def test_a_full_bucket_lets_a_burst_pass_and_then_a_steady_stream() -> None:
    clock = SimulatedClock()
    bucket = Bucket(Rate(5, 50), clock)
    assert [bucket.take() for _ in range(50)] == [0.0] * 50
    assert [round(bucket.take(), 3) for _ in range(5)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    clock.advance(1)
    assert round(bucket.take(), 3) == 0.2


def test_an_idle_bucket_holds_at_most_its_burst() -> None:
    clock = SimulatedClock()
    bucket = Bucket(Rate(5, 10), clock)
    clock.advance(3600)
    assert [bucket.take() for _ in range(10)] == [0.0] * 10
    assert bucket.take() > 0


def test_throttling_halves_the_rate_and_time_restores_it() -> None:
    clock = SimulatedClock()
    bucket = Bucket(Rate(8, 10), clock)
    bucket.record_throttling()
    assert bucket.refill == 4
    assert bucket.take() == 0.25
    for _ in range(20):
        bucket.record_throttling()
    assert bucket.refill == 8 * LEAST
    clock.advance(RECOVERY.total_seconds())
    bucket.take()
    assert bucket.refill == pytest.approx(8 * (LEAST + 0.1))
    clock.advance(RECOVERY.total_seconds() * 20)
    bucket.take()
    assert bucket.refill == 8


def test_threads_share_a_bucket_and_no_token_is_used_twice() -> None:
    bucket = Bucket(Rate(10, 4), SimulatedClock())
    waits: list[float] = []
    threads = [threading.Thread(target=lambda: waits.append(bucket.take())) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(round(w, 3) for w in waits) == [0.0] * 4 + [
        round(n / 10, 3) for n in range(1, 13)
    ]


def test_calls_of_all_clients_of_an_account_wait_for_their_turn() -> None:
    clock = SimulatedClock()
    cloud, throttle = EmbeddedEC2(clock), Throttle(clock)
    clients = [cloud.connect("ec2", attempts) for attempts in (1, 2)]
    for client in clients:
        throttle.watch(client)
    start = clock.now()
    burst = int(RATES["TerminateInstances"].burst)
    for number in range(burst + 10):
        with pytest.raises(clients[0].exceptions.ClientError):
            clients[number % 2].terminate_instances(InstanceIds=["i-0123456789abcdef0"])
    waited = clock.now() - start
    assert timedelta(seconds=1) <= waited <= timedelta(seconds=11)
    clients[0].describe_instances()
    assert clock.now() - start == waited, "reading has a bucket of its own"


def test_a_throttled_call_slows_its_family_down_and_no_other() -> None:
    clock = SimulatedClock()
    cloud, throttle = EmbeddedEC2(clock), Throttle(clock)
    client = cloud.connect("ec2", 3)
    throttle.watch(client)
    cloud.faults.add("DescribeInstances", Fault.THROTTLE, times=2)
    client.describe_instances()
    assert throttle.buckets[READING].refill == RATES[READING].refill / 4
    assert throttle.buckets[MUTATING].refill == RATES[MUTATING].refill
