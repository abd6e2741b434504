"""The price of an eviction: what a consolidation saves has to be worth the pods that it moves.

The node of the examples costs $0.80/hour, and one for $0.20 is enough for its pods.
"""

from __future__ import annotations

from datetime import timedelta
from math import log, log1p
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.disruption.command import Decisions
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.karpenter.labels import DISRUPTION_COST
from tests.disruption.builders import NOW, a_node, a_pod, brief, decided, refusal_of, stamp
from tests.disruption.test_policy import configured
from tests.examples import examples

HOUR = timedelta(hours=1)
MADE = [("Underutilized", "replace", ("wide",))]


def a_job_pod(age: timedelta, kind: str = "Job", cpu: str = "3") -> dict[str, Any]:
    owner = {"apiVersion": "batch/v1", "kind": kind, "name": "train"}
    born = {"creationTimestamp": stamp(NOW - age), "ownerReferences": [owner]}
    return a_pod("train", "wide", cpu, metadata=born)


def at_cost(cost: float, *pods: dict[str, Any], now: Any = NOW, **node: Any) -> Decisions:
    """Return the decisions about the node with these pods at a price of an eviction."""
    return decided(*a_node("wide", "huge", **node), *pods, settings=configured(evictionCost=cost),
                   now=now)  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "worth"),
    [
        ([a_pod("p", "wide", "3")], 14.4),  # $0.60/hour for a day
        ([a_pod("p", "wide", "1"), a_pod("q", "wide", "2")], 7.2),
        ([a_pod("p", "wide", "3", spec={"priority": 2**25})], 7.2),  # counts as two pods
        ([a_pod("p", "wide", "3", metadata={"annotations": {DISRUPTION_COST: "134217728"}})], 7.2),
        ([a_pod("p", "wide", "1"), a_job_pod(HOUR, cpu="2")], 7.2),  # the other pod stays longest
        ([a_job_pod(2 * HOUR)], 1.2 * log(13)),  # 5.1 hours: half of its kind run 2 or less
        ([a_job_pod(2 * HOUR, "PyTorchJob")], 1.2 * log(13)),
        ([a_job_pod(2 * HOUR, "Workflow")], 1.2 * log(13)),
        ([a_job_pod(100 * HOUR)], 60 * log(1.24)),  # 21.5 hours: more than a day does not count
    ],
)
def test_the_savings_while_the_node_is_needed_decide(pods: list[Any], worth: float) -> None:
    assert brief(at_cost(worth - 0.01, *pods)) == MADE
    assert at_cost(worth + 0.01, *pods).commands == ()


def test_a_rejection_names_both_amounts_and_the_setting() -> None:
    text = refusal_of(at_cost(20, a_pod("p", "wide", "3")), "wide")
    assert text == (
        "saves $0.6000/hour, $14.40 in the 24 hours that its nodes are expected to be needed, "
        "and moves 1 pod at $20 each (evictionCost)"
    )


def test_a_node_pool_may_have_its_own_price() -> None:
    fleet = [*a_node("wide", "huge"), a_pod("p", "wide", "3")]
    made = configured(evictionCost=20, nodePools={"default": {"evictionCost": 1}})
    assert brief(decided(*fleet, settings=made)) == MADE
    other = configured(nodePools={"default": {"evictionCost": 20}})
    assert "(nodePools.default.evictionCost)" in refusal_of(decided(*fleet, settings=other), "wide")


def test_a_node_that_expires_soon_is_needed_until_then() -> None:
    born = {"creationTimestamp": stamp(NOW - 22 * HOUR)}
    expiring = {"claim": {"expireAfter": "24h"}, "claim_metadata": born}
    pod = a_pod("p", "wide", "3")
    assert brief(at_cost(1.19, pod, **expiring)) == MADE
    assert at_cost(1.21, pod, **expiring).commands == ()


def test_a_pod_that_is_not_ready_costs_nothing_to_move() -> None:
    unready = {"conditions": [{"type": "Ready", "status": "False"}]}
    assert brief(at_cost(1000, a_pod("p", "wide", "3", status=unready))) == MADE


def test_empty_nodes_cost_nothing() -> None:
    assert brief(at_cost(1000)) == [("Empty", "delete", ("wide",))]


def test_a_job_is_looked_at_again_when_its_node_is_worth_a_move() -> None:
    [deferral] = at_cost(6, a_job_pod(2 * HOUR)).deferred
    assert (deferral.node, deferral.waits_for) == ("wide", WaitsFor.POLICY)
    assert deferral.not_before is not None
    early = deferral.not_before - timedelta(seconds=2)
    assert brief(at_cost(6, a_job_pod(2 * HOUR), now=early)) == []
    assert brief(at_cost(6, a_job_pod(2 * HOUR), now=deferral.not_before)) == MADE


@given(age=st.floats(0.01, 24), more=st.floats(0.01, 24))
@settings(max_examples=examples(60))
def test_expected_savings_are_the_mean_over_how_long_such_pods_run(age: float, more: float) -> None:
    price = 0.6 * 24 * age / (age + 24)  # every hour counts at least with the chance to reach a day
    assert brief(at_cost(price * 0.99, a_job_pod(age * HOUR))) == MADE
    highest = 0.6 * 24 + 0.01
    assert at_cost(highest, a_job_pod((age + more) * HOUR)).commands == ()
    worth = 0.6 * age * log1p(24 / age)
    assert brief(at_cost(worth * 0.99, a_job_pod((age + more) * HOUR))) == MADE


@pytest.mark.parametrize(
    ("cost", "pods"),
    [(20, [a_job_pod(HOUR)]), (9, [a_pod("p", "wide", "1"), a_job_pod(HOUR, cpu="2")])],
)
def test_a_move_that_never_pays_is_rejected_and_not_deferred(cost: float, pods: list[Any]) -> None:
    decisions = at_cost(cost, *pods)
    assert decisions.deferred == ()
    assert "(evictionCost)" in refusal_of(decisions, "wide")


def test_a_move_that_would_pay_after_the_expiry_is_not_deferred() -> None:
    born = {"creationTimestamp": stamp(NOW - 22 * HOUR)}
    expiring = {"claim": {"expireAfter": "24h"}, "claim_metadata": born}
    decisions = at_cost(3, a_job_pod(HOUR / 2), **expiring)
    assert (decisions.commands, decisions.deferred) == ((), ())


@given(cents=st.integers(0, 4000), age=st.integers(0, 200_000))
@settings(max_examples=examples(60))
def test_a_higher_price_never_starts_a_move(cents: int, age: int) -> None:
    pods = [a_job_pod(timedelta(seconds=age), cpu="2"), a_pod("p", "wide", "1")]
    if at_cost(cents / 100, *pods).commands:
        assert brief(at_cost(cents / 200, *pods)) == MADE


def on_three_nodes(*, young: timedelta) -> list[dict[str, Any]]:
    """Return three nodes whose pods fit on one for less, one of them with a pod of a Job."""
    job = a_job_pod(young, cpu="1")
    job["spec"]["nodeName"] = "a"
    nodes = [item for name in "abc" for item in a_node(name, "huge")]
    return [*nodes, job, a_pod("p", "b", "1"), a_pod("q", "c", "1")]


@pytest.mark.parametrize("search", ["karpenter", "default", "thorough"])
def test_a_set_leaves_out_a_node_that_is_not_worth_its_moves(search: str) -> None:
    made = configured(evictionCost=0.1, consolidation={"search": search})
    young = brief(decided(*on_three_nodes(young=HOUR / 60), settings=made))
    assert {name for _, _, names in young for name in names} == {"b", "c"}
    old = brief(decided(*on_three_nodes(young=HOUR), settings=made))
    assert {name for _, _, names in old for name in names} == {"a", "b", "c"}
