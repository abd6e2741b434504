"""Drains evict pods in order, within PodDisruptionBudgets."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.adapters.simulated.cluster import SHELF_NAME
from reconciler.adapters.simulated.records import decode_record
from reconciler.model.kubernetes.eviction import desired_healthy, disruptions_allowed
from tests.adapters.simulated.builders import Sandbox, a_budget, a_daemon, a_pod, a_sandbox, pods
from tests.examples import examples


def drained(sandbox: Sandbox, node: str = "n0.internal", after: float | None = None) -> int:
    deadline = None if after is None else sandbox.now + timedelta(seconds=after)
    return sandbox.cluster.drain(node, deadline, sandbox.now).pods


def tainted(sandbox: Sandbox) -> Sandbox:
    sandbox.observe_registered()
    sandbox.cluster.taint("n0.internal")
    return sandbox


def test_without_a_budget_all_pods_are_evicted_at_once() -> None:
    sandbox = tainted(a_sandbox(*pods(3), nodes=1))
    assert drained(sandbox) == 0
    assert set(sandbox.places().values()) == {""}


def test_a_budget_allows_evictions_one_by_one() -> None:
    sandbox = tainted(
        a_sandbox(*pods(6, "100m"), nodes=2, pod_disruption_budgets=(a_budget(max_unavailable=1),))
    )
    left = []
    for _ in range(4):
        left.append(drained(sandbox))
        sandbox.observe_registered()
    assert left == [2, 1, 0, 0]


def test_a_budget_waits_until_the_new_pods_are_ready() -> None:
    sandbox = tainted(
        a_sandbox(
            *pods(6, "100m"),
            nodes=2,
            starting_s=10,
            pod_disruption_budgets=(a_budget(max_unavailable=1),),
        )
    )
    sandbox.clock.advance(10)
    assert (drained(sandbox), drained(sandbox)) == (2, 2)
    sandbox.observe_registered()
    assert drained(sandbox) == 2
    sandbox.clock.advance(10)
    assert drained(sandbox) == 1


def test_a_budget_that_allows_nothing_blocks_until_the_deadline() -> None:
    sandbox = tainted(
        a_sandbox(*pods(4), nodes=2, pod_disruption_budgets=(a_budget(min_available=4),))
    )
    assert drained(sandbox) == 2
    assert drained(sandbox, after=31) == 2
    assert drained(sandbox, after=30) == 0, "pods get their 30 s of grace before the deadline"


def test_do_not_disrupt_also_blocks_until_the_deadline() -> None:
    pod = a_pod("web")
    pod.metadata.annotations["karpenter.sh/do-not-disrupt"] = "true"
    sandbox = tainted(a_sandbox(pod, nodes=1))
    assert drained(sandbox) == 1
    assert drained(sandbox, after=0) == 0


def test_a_drain_waits_for_slowly_terminating_pods() -> None:
    sandbox = tainted(a_sandbox(a_pod("web"), nodes=1, leaving_s=20))
    assert drained(sandbox) == 1
    (pod,) = sandbox.observe_registered().pods
    assert pod.is_terminating
    sandbox.clock.advance(20)
    assert drained(sandbox) == 0
    assert sandbox.places() == {"web": ""}


def test_daemons_are_evicted_last_and_do_not_return() -> None:
    sandbox = tainted(
        a_sandbox(
            *pods(1),
            nodes=1,
            daemon_sets=(a_daemon(),),
            pod_disruption_budgets=(a_budget(min_available=1),),
        )
    )
    assert drained(sandbox) == 2
    assert len([p for p in sandbox.observe_registered().pods if p.is_daemon]) == 1
    assert drained(sandbox, after=0) == 0
    assert [p.metadata.name for p in sandbox.observe_registered().pods] == ["web-0"]


def test_critical_pods_are_evicted_last() -> None:
    critical = a_pod("dns", app="dns", priority=2_000_000_000)
    sandbox = tainted(
        a_sandbox(
            critical, *pods(1), nodes=1, pod_disruption_budgets=(a_budget(min_available="100%"),)
        )
    )
    assert drained(sandbox) == 2
    assert sandbox.places()["dns"] == "n0.internal"


def test_two_budgets_on_one_pod_are_refused_as_the_api_does() -> None:
    budgets = (a_budget(max_unavailable=1), a_budget("other", max_unavailable=1))
    sandbox = tainted(a_sandbox(*pods(1), nodes=1, pod_disruption_budgets=budgets))
    assert drained(sandbox) == 1


def test_an_unhealthy_pod_can_be_evicted_if_its_policy_allows_it() -> None:
    for policy, left in (("", 1), ("AlwaysAllow", 0)):
        budget = a_budget(min_available=1, unhealthy_pod_eviction_policy=policy)
        sandbox = tainted(
            a_sandbox(*pods(1), nodes=1, starting_s=60, pod_disruption_budgets=(budget,))
        )
        assert drained(sandbox) == left


@pytest.mark.parametrize(
    ("spec", "expected", "healthy"),
    [
        ({"max_unavailable": 1}, 3, 2),
        ({"max_unavailable": "50%"}, 3, 1),
        ({"max_unavailable": "0%"}, 3, 3),
        ({"max_unavailable": 5}, 3, 0),
        ({"min_available": 2}, 3, 2),
        ({"min_available": "50%"}, 3, 2),
        ({"min_available": "100%"}, 3, 3),
        ({"min_available": 0}, 3, 0),
        ({}, 3, 0),
    ],
)
def test_the_required_number_of_healthy_pods(
    spec: dict[str, object], expected: int, healthy: int
) -> None:
    assert desired_healthy(a_budget(**spec), expected) == healthy


def test_the_snapshot_shows_the_allowed_disruptions() -> None:
    sandbox = a_sandbox(
        *pods(4), nodes=1, pod_disruption_budgets=(a_budget(max_unavailable="50%"),)
    )
    assert sandbox.observe().pod_disruption_budgets[0].status.disruptions_allowed == 0
    assert sandbox.observe_registered().pod_disruption_budgets[0].status.disruptions_allowed == 2


@given(
    count=st.integers(1, 12),
    nodes=st.integers(1, 3),
    budget=st.one_of(
        st.builds(lambda n: {"max_unavailable": n}, st.integers(0, 4)),
        st.builds(lambda n: {"min_available": n}, st.integers(0, 4)),
        st.builds(lambda n: {"min_available": f"{n}%"}, st.integers(0, 100)),
    ),
    steps=st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=12),
)
@settings(max_examples=examples(300), deadline=None)
def test_no_drain_exceeds_the_budget(
    count: int, nodes: int, budget: dict[str, object], steps: list[tuple[int, bool]]
) -> None:
    rule = a_budget(**budget)
    sandbox = a_sandbox(*pods(count, cpu="100m"), nodes=nodes, pod_disruption_budgets=(rule,))
    placed = [p for p in sandbox.observe_registered().pods if p.spec.node_name]
    assert len(placed) == min(count, nodes * 10)
    floor = desired_healthy(rule, count)
    for number, look in steps:
        if look:
            seen = sandbox.observe()
            (shown,) = seen.pod_disruption_budgets
            assert shown.status.disruptions_allowed == disruptions_allowed(rule, seen.pods)
        before = bound(sandbox)
        sandbox.cluster.drain(f"n{number}.internal", None, sandbox.now)
        assert bound(sandbox) >= min(floor, before)


def bound(sandbox: Sandbox) -> int:
    """The number of bound pods, by cached state."""
    record = decode_record(sandbox.shelf.read(SHELF_NAME))
    return sum(bool(pod.node) for pod in record.pods.values())
