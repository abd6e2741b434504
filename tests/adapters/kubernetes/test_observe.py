"""An observation lists everything, or fails: a part never counts as complete."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from reconciler.adapters.kubernetes.kinds import OBSERVED
from reconciler.model.errors import ClusterError
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError, ResetError
from tests.adapters.kubernetes.sandbox import Sandbox, a_claim, a_node, a_pod

either_way = pytest.mark.parametrize("sandbox", ["listed", "cached"], indirect=True)


@either_way
def test_an_observation_contains_the_cluster_and_our_claims(sandbox: Sandbox) -> None:
    sandbox.kube.add(a_pod("b"))
    sandbox.kube.add(a_pod("a", node=""))
    seen = sandbox.observe()
    assert [n.name for n in seen.nodes] == ["n0"]
    assert [(p.key, p.spec.node_name) for p in seen.pods] == [
        ("default/a", ""),
        ("default/b", "n0"),
    ]
    assert seen.node_claims == (a_claim(),)


def test_pages_are_read_to_the_end(sandbox: Sandbox) -> None:
    for number in range(11):
        sandbox.kube.add(a_pod(f"p{number:02}"))
    sandbox.kube.page_max = 3
    assert len(sandbox.observe().pods) == 11
    assert sandbox.kube.made().count("GET /api/v1/pods") == 4


@either_way
def test_unchanged_objects_are_the_same_value(sandbox: Sandbox) -> None:
    sandbox.kube.add(a_pod("a"))
    assert sandbox.observe().pods is sandbox.observe().pods


@either_way
def test_an_expired_continue_token_restarts_the_list(sandbox: Sandbox) -> None:
    for number in range(5):
        sandbox.kube.add(a_pod(f"p{number}"))
    sandbox.kube.page_max = 2
    left = [1]

    def forget(call: Call) -> None:
        if call.resource == "pods" and "continue" in call.query and left:
            left.pop()
            sandbox.kube.expire_tokens()

    sandbox.kube.fault = forget
    assert [p.metadata.name for p in sandbox.observe().pods] == ["p0", "p1", "p2", "p3", "p4"]


@either_way
def test_a_continue_token_that_always_expires_is_an_error(sandbox: Sandbox) -> None:
    for number in range(5):
        sandbox.kube.add(a_pod(f"p{number}"))
    sandbox.kube.page_max = 2
    sandbox.kube.fault = lambda call: sandbox.kube.expire_tokens()
    with pytest.raises(ClusterError, match="HTTP 410 Expired"):
        sandbox.observe()


@either_way
def test_a_missing_optional_kind_is_empty(sandbox: Sandbox) -> None:
    assert sandbox.observe().capacity_buffers == ()
    sandbox.kube.absent = frozenset({"poddisruptionbudgets"})
    with pytest.raises(ClusterError, match=r"GET /apis/policy/v1/poddisruptionbudgets.*404"):
        sandbox.observe()


@either_way
@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.resource)
@pytest.mark.parametrize("fault", ["forbidden", "broken", "reset"])
def test_no_list_fails_silently(sandbox: Sandbox, kind, fault: str) -> None:
    sandbox.kube.absent = frozenset()
    errors = {
        "forbidden": RefusedError(403, "Forbidden", "User cannot list"),
        "broken": RefusedError(500, "InternalError", "etcd"),
        "reset": ResetError(),
    }

    def break_it(call: Call) -> None:
        if call.resource == kind.resource:
            raise errors[fault]

    sandbox.kube.fault = break_it
    with pytest.raises(ClusterError) as caught:
        sandbox.observe()
    message = str(caught.value)
    assert f"GET {kind.path}" in message
    assert "\n" not in message
    if fault == "forbidden":
        assert "HTTP 403 Forbidden" in message
        assert "ClusterRole" in message
        assert not sandbox.waited, "it does not help to ask again"
    else:
        assert len(sandbox.waited) == 3


@either_way
def test_a_failed_page_fails_the_observation(sandbox: Sandbox) -> None:
    for number in range(5):
        sandbox.kube.add(a_pod(f"p{number}"))
    sandbox.kube.page_max = 2

    def second(call: Call) -> None:
        if call.resource == "pods" and "continue" in call.query:
            raise RefusedError(503, "ServiceUnavailable", "later")

    sandbox.kube.fault = second
    with pytest.raises(ClusterError, match="HTTP 503"):
        sandbox.observe()


@either_way
@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.resource)
@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"kind": "Status", "status": "Success"}, "invalid list"),
        (
            {"kind": "WelcomeList", "metadata": {}, "items": []},
            "expected a list, got a WelcomeList",
        ),
    ],
    ids=["success", "other-list"],
)
def test_an_answer_of_another_kind_is_not_an_empty_list(
    sandbox: Sandbox, kind, message: Object, problem: str
) -> None:
    """A proxy in front of the API may answer everything with a success."""
    answer = sandbox.kube.answer
    sandbox.kube.answer = lambda call: message if call.resource == kind.resource else answer(call)
    with pytest.raises(ClusterError, match=f"GET {kind.path}: {problem}"):
        sandbox.observe()


def test_an_endless_list_fails_the_observation(sandbox: Sandbox) -> None:
    for number in range(5):
        sandbox.kube.add(a_pod(f"p{number}"))
    sandbox.kube.page_max = 2
    answer = sandbox.kube.answer

    def the_first_page_again(call: Call) -> Object:
        if len(sandbox.kube.calls) > 20:
            raise RefusedError(403, "Forbidden", "enough")
        return answer(replace(call, query={}) if "continue" in call.query else call)

    sandbox.kube.answer = the_first_page_again
    with pytest.raises(ClusterError, match="the list does not end"):
        sandbox.observe()


def test_a_short_outage_is_retried(sandbox: Sandbox) -> None:
    faults = [
        RefusedError(503, "ServiceUnavailable"),
        ResetError(),
        RefusedError(429, "TooManyRequests", "", "7"),
    ]

    def fail(call: Call) -> None:
        if faults:
            raise faults.pop(0)

    sandbox.kube.fault = fail
    assert [n.name for n in sandbox.observe().nodes] == ["n0"]
    assert sandbox.waited == [0.5, 1.0, 7.0]


@either_way
def test_a_malformed_object_is_named(sandbox: Sandbox) -> None:
    sandbox.kube.add({**a_pod("odd"), "spec": {"nodeName": "n", "priority": "high"}})
    [finding] = sandbox.observe().findings
    assert re.match(r"GET /api/v1/pods: .*Pod default/odd", finding.message)


def test_nodes_come_before_pods(sandbox: Sandbox) -> None:
    sandbox.observe()
    made = sandbox.kube.made()
    assert made.index("GET /api/v1/nodes") < made.index("GET /api/v1/pods")


@either_way
def test_only_nodes_of_our_instances_are_touched(sandbox: Sandbox) -> None:
    sandbox.kube.add(a_node("alien", "aws:///us-east-1a/i-9"))
    sandbox.observe()
    before = len(sandbox.kube.calls)
    for act in (
        lambda: sandbox.cluster.taint("alien"),
        lambda: sandbox.cluster.untaint("alien"),
        lambda: sandbox.cluster.register("alien", a_claim()),
        lambda: sandbox.cluster.initialize("alien"),
        lambda: sandbox.cluster.drain("alien", None, sandbox.kube.now()),
        lambda: sandbox.cluster.delete_node("alien"),
    ):
        with pytest.raises(ClusterError, match="Node alien: no instance of this fleet"):
            act()
    assert len(sandbox.kube.calls) == before
