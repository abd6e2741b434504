"""Drains alongside passes: no pass waits for an eviction, and reads are consistent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from reconciler.adapters.kubernetes.cluster import KubernetesCluster
from reconciler.adapters.threads import threaded_calls
from reconciler.model.errors import ClusterError
from reconciler.ports.calls import InlineCalls
from tests.adapters.kubernetes.apiserver import Call, RefusedError
from tests.adapters.kubernetes.sandbox import Sandbox, a_node, a_pod, a_sandbox

MANY = 30


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Sandbox]:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    nodes = [a_node()]
    with a_sandbox(tmp_path, *nodes) as made, threaded_calls() as calls:
        made.cluster = KubernetesCluster(made.api, calls)
        yield made


def pause(release: Event) -> None:
    release.wait(20)


def eventually(read: Callable[[], object], wanted: object) -> None:
    for _ in range(1000):
        if read() == wanted:
            return
        Event().wait(0.01)
    raise AssertionError(f"{wanted!r} does not come")


def test_a_pass_does_not_wait_for_evictions(sandbox: Sandbox) -> None:
    release = Event()

    def overloaded(call: Call) -> None:
        if call.part == "eviction" and not release.is_set():
            raise RefusedError(503, "ServiceUnavailable", "try again", "10")

    sandbox.kube.fault = overloaded
    sandbox.api.wait = lambda _: pause(release)
    for n in range(MANY):
        sandbox.kube.add(a_pod(f"p{n}"))
    begin = time.monotonic()
    sandbox.observe()
    sandbox.cluster.taint("n0")
    sandbox.observe()
    assert sandbox.drain() is None
    assert sandbox.drain() is None
    assert time.monotonic() - begin < 60, "30 evictions with pauses would take minutes"
    release.set()
    eventually(sandbox.drain, 0)
    assert sandbox.pods() == []


def test_a_step_that_ends_at_once_does_not_make_a_node_without_taint_empty(
    sandbox: Sandbox,
) -> None:
    """Its answer may be there before the pass goes on."""
    sandbox.cluster = KubernetesCluster(sandbox.api, InlineCalls())
    assert sandbox.drain() is None
    sandbox.observe()
    sandbox.cluster.taint("n0")
    sandbox.observe()
    assert sandbox.drain() == 0


def test_a_node_counts_as_empty_only_after_a_step_that_started_tainted(sandbox: Sandbox) -> None:
    assert sandbox.drain() is None
    eventually(lambda: [c for c in sandbox.kube.calls if c.query.get("fieldSelector")] != [], True)
    sandbox.kube.add(a_pod("late"))  # bound after the step has listed the pods
    sandbox.observe()
    sandbox.cluster.taint("n0")
    sandbox.observe()
    eventually(sandbox.drain, 0)
    assert sandbox.pods() == [], "the pod that came before the taint was evicted"


def test_a_refused_eviction_is_reported_by_the_next_pass_and_retried(sandbox: Sandbox) -> None:
    left = [1]

    def forbid(call: Call) -> None:
        if call.part == "eviction" and left:
            left.pop()
            raise RefusedError(403, "Forbidden", "a webhook denies it")

    sandbox.kube.fault = forbid
    sandbox.kube.add(a_pod("p0"))
    sandbox.observe()
    sandbox.cluster.taint("n0")

    def step() -> str:
        try:
            return str(sandbox.drain())
        except ClusterError as error:
            return error.message

    eventually(step, "HTTP 403 Forbidden: a webhook denies it")
    eventually(step, "0")
    assert sandbox.pods() == []
