"""Kubernetes Events: identical ones once in two minutes, and within the rate limits."""

from __future__ import annotations

from datetime import datetime

from reconciler.adapters.kubernetes.cluster import ClusterEvents
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.ports.calls import InlineCalls
from reconciler.ports.cluster import Announcement
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError
from tests.adapters.kubernetes.sandbox import NOW, Sandbox

BLOCKED = Announcement("Node", "n0", "DisruptionBlocked", "Disrupting", "why", uid="u0")


def writer(sandbox: Sandbox, at: datetime = NOW) -> tuple[ClusterEvents, SimulatedClock]:
    clock = SimulatedClock(at)
    return ClusterEvents(sandbox.api, InlineCalls(), clock, "host-7"), clock


def written(sandbox: Sandbox) -> list[Object]:
    return [c.body for c in sandbox.kube.calls if c.resource == "events"]


def test_an_event_about_a_pod_is_in_its_namespace(sandbox: Sandbox) -> None:
    events, _ = writer(sandbox)
    events.announce([Announcement("Pod", "api-0", "Nominated", "Scheduling", "to x", "shop", "u1")])
    (event,) = written(sandbox)
    assert event["metadata"]["namespace"] == "shop"
    assert event["regarding"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "name": "api-0",
        "namespace": "shop",
        "uid": "u1",
    }
    assert (event["type"], event["reason"], event["note"]) == ("Normal", "Nominated", "to x")
    assert event["eventTime"] == "2026-03-02T09:00:00.000000Z"
    assert event["reportingController"] == "reconciler"
    assert event["reportingInstance"] == "host-7"


def test_an_event_about_a_node_is_in_the_default_namespace(sandbox: Sandbox) -> None:
    events, _ = writer(sandbox)
    events.announce([BLOCKED])
    (event,) = written(sandbox)
    assert event["metadata"]["namespace"] == "default"
    assert "namespace" not in event["regarding"]


def test_an_identical_event_is_written_once_in_two_minutes(sandbox: Sandbox) -> None:
    events, clock = writer(sandbox)
    for _ in range(11):
        events.announce([BLOCKED])
        clock.advance(10)
    assert len(written(sandbox)) == 1
    clock.advance(20)
    events.announce([BLOCKED])
    assert len(written(sandbox)) == 2
    names = {event["metadata"]["name"] for event in written(sandbox)}
    assert len(names) == 2


def test_a_flood_of_one_reason_is_limited_and_leaves_room_for_others(sandbox: Sandbox) -> None:
    events, clock = writer(sandbox)
    flood = [
        Announcement("Node", f"n{n}", "DisruptionBlocked", "Disrupting", "why") for n in range(100)
    ]
    other = Announcement("Pod", "p", "FailedScheduling", "Scheduling", "no", "shop", "u")
    events.announce([*flood, other])
    reasons = [event["reason"] for event in written(sandbox)]
    assert reasons == ["DisruptionBlocked"] * 10 + ["FailedScheduling"]
    clock.advance(1)
    events.announce(flood)
    assert len(written(sandbox)) == 11 + 5, "five a second after the burst"


def test_a_refused_event_stops_nothing(sandbox: Sandbox) -> None:
    def forbid(call: Call) -> None:
        if call.resource == "events":
            raise RefusedError(403, "Forbidden")

    sandbox.kube.fault = forbid
    events, clock = writer(sandbox)
    events.announce([BLOCKED])
    clock.advance(300)
    sandbox.kube.fault = lambda _: None
    events.announce([BLOCKED])
    assert len(written(sandbox)) == 2
