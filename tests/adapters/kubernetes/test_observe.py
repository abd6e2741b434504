"""An observation lists everything, or fails: a part never counts as complete."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from reconciler.adapters.kubernetes.kinds import OBSERVED
from reconciler.model.errors import ClusterError
from tests.adapters.kubernetes.apiserver import Call, Object, RefusedError, ResetError
from tests.adapters.kubernetes.town import Town, a_claim, a_node, a_pod

either_way = pytest.mark.parametrize("town", ["listed", "cached"], indirect=True)


@either_way
def test_an_observation_contains_the_cluster_and_our_claims(town: Town) -> None:
    town.kube.add(a_pod("b"))
    town.kube.add(a_pod("a", node=""))
    seen = town.look()
    assert [n.name for n in seen.nodes] == ["n0"]
    assert [(p.key, p.spec.node_name) for p in seen.pods] == [
        ("default/a", ""),
        ("default/b", "n0"),
    ]
    assert seen.node_claims == (a_claim(),)


def test_pages_are_read_to_the_end(town: Town) -> None:
    for number in range(11):
        town.kube.add(a_pod(f"p{number:02}"))
    town.kube.page_max = 3
    assert len(town.look().pods) == 11
    assert town.kube.made().count("GET /api/v1/pods") == 4


@either_way
def test_unchanged_objects_are_the_same_value(town: Town) -> None:
    town.kube.add(a_pod("a"))
    assert town.look().pods is town.look().pods


@either_way
def test_an_expired_continue_token_restarts_the_list(town: Town) -> None:
    for number in range(5):
        town.kube.add(a_pod(f"p{number}"))
    town.kube.page_max = 2
    left = [1]

    def forget(call: Call) -> None:
        if call.resource == "pods" and "continue" in call.query and left:
            left.pop()
            town.kube.expire_tokens()

    town.kube.fault = forget
    assert [p.metadata.name for p in town.look().pods] == ["p0", "p1", "p2", "p3", "p4"]


@either_way
def test_a_continue_token_that_always_expires_is_an_error(town: Town) -> None:
    for number in range(5):
        town.kube.add(a_pod(f"p{number}"))
    town.kube.page_max = 2
    town.kube.fault = lambda call: town.kube.expire_tokens()
    with pytest.raises(ClusterError, match="HTTP 410 Expired"):
        town.look()


@either_way
def test_a_missing_optional_kind_is_empty(town: Town) -> None:
    assert town.look().capacity_buffers == ()
    town.kube.absent = frozenset({"poddisruptionbudgets"})
    with pytest.raises(ClusterError, match=r"GET /apis/policy/v1/poddisruptionbudgets.*404"):
        town.look()


@either_way
@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.resource)
@pytest.mark.parametrize("fault", ["forbidden", "broken", "reset"])
def test_no_list_fails_silently(town: Town, kind, fault: str) -> None:
    town.kube.absent = frozenset()
    errors = {
        "forbidden": RefusedError(403, "Forbidden", "User cannot list"),
        "broken": RefusedError(500, "InternalError", "etcd"),
        "reset": ResetError(),
    }

    def break_it(call: Call) -> None:
        if call.resource == kind.resource:
            raise errors[fault]

    town.kube.fault = break_it
    with pytest.raises(ClusterError) as caught:
        town.look()
    said = str(caught.value)
    assert f"GET {kind.path}" in said
    assert "\n" not in said
    if fault == "forbidden":
        assert "HTTP 403 Forbidden" in said
        assert "ClusterRole" in said
        assert not town.waited, "it does not help to ask again"
    else:
        assert len(town.waited) == 3


@either_way
def test_a_failed_page_fails_the_observation(town: Town) -> None:
    for number in range(5):
        town.kube.add(a_pod(f"p{number}"))
    town.kube.page_max = 2

    def second(call: Call) -> None:
        if call.resource == "pods" and "continue" in call.query:
            raise RefusedError(503, "ServiceUnavailable", "later")

    town.kube.fault = second
    with pytest.raises(ClusterError, match="HTTP 503"):
        town.look()


@either_way
@pytest.mark.parametrize("kind", OBSERVED, ids=lambda kind: kind.resource)
@pytest.mark.parametrize(
    ("said", "problem"),
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
    town: Town, kind, said: Object, problem: str
) -> None:
    """A proxy in front of the API may answer everything with a success."""
    answer = town.kube.answer
    town.kube.answer = lambda call: said if call.resource == kind.resource else answer(call)
    with pytest.raises(ClusterError, match=f"GET {kind.path}: {problem}"):
        town.look()


def test_an_endless_list_fails_the_observation(town: Town) -> None:
    for number in range(5):
        town.kube.add(a_pod(f"p{number}"))
    town.kube.page_max = 2
    answer = town.kube.answer

    def the_first_page_again(call: Call) -> Object:
        if len(town.kube.calls) > 20:
            raise RefusedError(403, "Forbidden", "enough")
        return answer(replace(call, query={}) if "continue" in call.query else call)

    town.kube.answer = the_first_page_again
    with pytest.raises(ClusterError, match="the list does not end"):
        town.look()


def test_a_short_outage_is_retried(town: Town) -> None:
    faults = [
        RefusedError(503, "ServiceUnavailable"),
        ResetError(),
        RefusedError(429, "TooManyRequests", "", "7"),
    ]

    def fail(call: Call) -> None:
        if faults:
            raise faults.pop(0)

    town.kube.fault = fail
    assert [n.name for n in town.look().nodes] == ["n0"]
    assert town.waited == [0.5, 1.0, 7.0]


@either_way
def test_a_malformed_object_is_named(town: Town) -> None:
    town.kube.add({**a_pod("odd"), "spec": {"nodeName": "n", "priority": "high"}})
    [finding] = town.look().findings
    assert re.match(r"GET /api/v1/pods: .*Pod default/odd", finding.message)


def test_nodes_come_before_pods(town: Town) -> None:
    town.look()
    made = town.kube.made()
    assert made.index("GET /api/v1/nodes") < made.index("GET /api/v1/pods")


@either_way
def test_only_nodes_of_our_instances_are_touched(town: Town) -> None:
    town.kube.add(a_node("alien", "aws:///us-east-1a/i-9"))
    town.look()
    before = len(town.kube.calls)
    for act in (
        lambda: town.cluster.taint("alien"),
        lambda: town.cluster.untaint("alien"),
        lambda: town.cluster.register("alien", a_claim()),
        lambda: town.cluster.initialize("alien"),
        lambda: town.cluster.drain("alien", None, town.kube.now()),
        lambda: town.cluster.delete_node("alien"),
    ):
        with pytest.raises(ClusterError, match="Node alien: no instance of this fleet"):
            act()
    assert len(town.kube.calls) == before
