"""A watch only wakes a sleeping daemon; none of its data is used."""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import timedelta

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.arrivals import PendingPods
from reconciler.adapters.kubernetes.informers import ClusterCache, Freshness
from reconciler.adapters.kubernetes.kinds import POD
from reconciler.adapters.simulated.conditions import SimulatedClock
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError
from tests.adapters.kubernetes.sandbox import Sandbox, a_pod


def waiting(name: str, *, owner: str = "ReplicaSet", why: str = "Unschedulable") -> Object:
    pod = a_pod(name, node="", owner=owner)
    condition = {"type": "PodScheduled", "status": "False", "reason": why}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    return pod


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock()


@pytest.fixture
def pods(sandbox: Sandbox, clock: SimulatedClock) -> PendingPods:
    return PendingPods(
        sandbox.api, clock, idle=timedelta(seconds=1), max_wait=timedelta(seconds=10)
    )


def test_a_pending_pod_wakes_until_the_next_observation(
    sandbox: Sandbox, pods: PendingPods, clock: SimulatedClock
) -> None:
    sandbox.kube.add(waiting("a"))
    assert not pods.has_events()
    assert pods.watch_once()
    assert not pods.has_events()
    clock.advance(1)
    assert pods.has_events()
    pods.acknowledge()
    clock.advance(1)
    assert not pods.has_events()


def test_a_pod_that_cannot_be_read_does_not_end_the_watch(
    sandbox: Sandbox, pods: PendingPods, clock: SimulatedClock
) -> None:
    odd = waiting("odd")
    odd["spec"]["tolerations"] = 7
    sandbox.kube.add(odd)
    sandbox.kube.add(waiting("web"))
    assert pods.watch_once()
    clock.advance(1)
    assert pods.has_events()


def test_only_pods_that_need_a_node_wake(
    sandbox: Sandbox, pods: PendingPods, clock: SimulatedClock
) -> None:
    sandbox.kube.add(a_pod("bound"))
    sandbox.kube.add(waiting("agent", owner="DaemonSet"))
    sandbox.kube.add(waiting("gated", why="SchedulingGated"))
    assert pods.watch_once()
    clock.advance(60)
    assert not pods.has_events()


def test_a_pod_that_stays_pending_wakes_once(
    sandbox: Sandbox, pods: PendingPods, clock: SimulatedClock
) -> None:
    sandbox.kube.add(waiting("a"))
    for _ in range(3):
        pods.watch_once()
        pods.acknowledge()
        clock.advance(60)
    sandbox.kube.change("pods", "a", lambda pod: pod["metadata"].update(labels={"still": "here"}))
    pods.watch_once()
    clock.advance(60)
    assert not pods.has_events()
    sandbox.kube.add(waiting("b"))
    pods.watch_once()
    clock.advance(60)
    assert pods.has_events()


def test_a_stream_of_new_pods_is_batched_for_a_limited_time(
    sandbox: Sandbox, pods: PendingPods, clock: SimulatedClock
) -> None:
    seen = []
    for number in range(24):
        sandbox.kube.add(waiting(f"pod-{number}"))
        pods.watch_once()
        clock.advance(0.5)
        seen.append(pods.has_events())
    assert seen.index(True) == 19  # ten seconds after the first


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"type":"ERROR","object":{"status":"Failure","message":"too old"}}\n', "too old"),
        (b"so long\n", "invalid watch event"),
        (b'{"type":7,"object":{}}\n', "invalid watch event: type is a whole number, not text"),
        (b"RESET", "no answer"),
    ],
)
def test_a_broken_watch_keeps_its_events(
    sandbox: Sandbox,
    pods: PendingPods,
    clock: SimulatedClock,
    caplog: pytest.LogCaptureFixture,
    line: bytes,
    message: str,
) -> None:
    sandbox.kube.add(waiting("a"))
    sandbox.kube.injected = [b'{"type":"BOOKMARK","object":{"kind":"Pod"}}\n', line]
    with caplog.at_level(logging.WARNING):
        assert [pods.watch_once(), pods.watch_once()] == [False, False]
    clock.advance(1)
    assert pods.has_events()
    (record,) = caplog.records
    assert message in record.getMessage()
    assert "noticed in the next pass" in record.getMessage()
    sandbox.kube.injected = []
    assert pods.watch_once()


def test_a_forbidden_watch_is_reported_once_and_retried(
    sandbox: Sandbox, pods: PendingPods, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox.kube.rules = []
    with caplog.at_level(logging.WARNING):
        assert [pods.watch_once() for _ in range(3)] == [False] * 3
    (record,) = caplog.records
    assert "ClusterRole" in record.getMessage()
    sandbox.kube.rules = None
    assert pods.watch_once()


def test_expired_credentials_are_loaded_again(sandbox: Sandbox, pods: PendingPods) -> None:
    def once(call: Call) -> None:
        sandbox.kube.fault = lambda _: None
        raise RefusedError(401, "Unauthorized")

    before = sandbox.api.access
    sandbox.kube.fault = once
    assert [pods.watch_once(), pods.watch_once()] == [False, True]
    assert sandbox.api.access is not before


def test_pods_read_by_an_informer_wake_once(
    sandbox: Sandbox, pods: PendingPods, clock: SimulatedClock
) -> None:
    def is_news() -> bool:
        clock.advance(60)
        found = pods.has_events()
        pods.acknowledge()
        return found

    freshness = Freshness(first_list_s=0.0)
    cache = ClusterCache(
        sandbox.api, freshness, kinds=[POD], elapsed=lambda: 0.0, on_objects=pods.record_pods
    )
    sandbox.kube.add(a_pod("bound"))
    sandbox.kube.add(waiting("agent", owner="DaemonSet"))
    sandbox.kube.add({**waiting("odd"), "status": {"conditions": "none"}})
    cache.advance()
    assert not is_news()
    sandbox.kube.add(waiting("a"))
    cache.advance()
    assert is_news()
    sandbox.kube.change("pods", "a", lambda pod: pod["metadata"].update(labels={"still": "here"}))
    cache.advance()
    assert not is_news()
    sandbox.kube.compact()
    sandbox.kube.add(waiting("b"))
    sandbox.kube.compact()
    cache.advance()
    cache.advance()
    assert is_news(), "it is in the list that follows an expired version"
    sandbox.kube.change("pods", "a", lambda pod: pod["spec"].update(nodeName="n0"))
    cache.advance()
    sandbox.kube.change("pods", "a", lambda pod: pod["spec"].pop("nodeName"))
    cache.advance()
    assert is_news(), "it is pending again"


def test_a_pod_is_noticed_while_the_watch_runs(sandbox: Sandbox) -> None:
    sandbox.kube.watches = True
    clock = SystemClock()
    pods = PendingPods(sandbox.api, clock, idle=timedelta(0), max_wait=timedelta(seconds=10))

    def comes(until: Callable[[], bool]) -> bool:
        clock.wait(10, until)
        return until()

    with pods.run_in_background():
        assert comes(lambda: any(c.verb == "watch" for c in sandbox.kube.calls))
        assert not pods.has_events()
        sandbox.kube.add(waiting("a"))
        assert comes(pods.has_events)
        sandbox.kube.watches = False
