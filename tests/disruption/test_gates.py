"""Budgets and PodDisruptionBudgets: which nodes count, and which pods can be evicted."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.disruption.candidates import Candidate, pod_refusal
from reconciler.disruption.gates.budgets import BudgetLedger, node_counts
from reconciler.disruption.gates.guards import EVERY_REASON, Cap, retry_hold
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.disruption.gates.policy import Hold
from reconciler.model.decision.waiting import PoolBudget, WaitRule, WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import ClusterState
from tests.disruption.builders import NOW, a_cluster, a_node, a_pod, a_pool, stamp

EMPTY, DRIFTED = DisruptionReason.EMPTY, DisruptionReason.DRIFTED


def test_the_nodes_that_count_are_initialized_and_have_an_instance() -> None:
    terminating = [{"type": "InstanceTerminating", "status": "True"}]
    cluster = a_cluster(
        a_node("ready"),
        a_node("unready", ready=False),
        a_node("starting", initialized=False),
        a_node("terminating", conditions=terminating),
        a_node("elsewhere", pool="other"),
    )

    counts = node_counts(cluster.nodes)

    assert {name: (c.total, c.disrupting) for name, c in counts.items()} == {
        "default": (2, 1),
        "other": (1, 0),
    }


def a_state(reason: DisruptionReason, allowed: int, pool: str = "default") -> PoolBudget:
    return PoolBudget(node_pool=pool, reason=reason, total=10, allowed=allowed)


def test_a_disrupted_node_counts_for_the_pool_and_for_the_fleet() -> None:
    pools = [a_state(EMPTY, 5), a_state(EMPTY, 5, "other")]
    ledger = BudgetLedger(pools, fleet=[a_state(EMPTY, 2, "")])
    trial = ledger.copy()
    for _ in range(2):
        trial.count_disruption("other", EMPTY)
    assert trial.allowed_disruptions("default", EMPTY) == 0
    assert trial.allowed_by_pool("other", EMPTY) == 3
    assert ledger.allowed_disruptions("default", EMPTY) == 2, "a trial has its own counts"


def test_a_hold_applies_to_a_trial_as_well() -> None:
    ledger = BudgetLedger([a_state(EMPTY, 5), a_state(DRIFTED, 5)], holds=[("default", EMPTY)])
    for each in (ledger, ledger.copy()):
        assert each.allowed_disruptions("default", EMPTY) == 0
        assert each.allowed_disruptions("default", DRIFTED) == 5


def test_only_voluntary_commands_count_towards_rate_limits() -> None:
    cap = Cap(None, EVERY_REASON, 2, Hold(WaitsFor.POLICY, None, "two a day"))
    ledger = BudgetLedger([a_state(EMPTY, 9)], caps=[cap])
    for gate, left in ((None, 2), (EMPTY, 1), (None, 1), (DRIFTED, 0)):
        ledger.count_disruption("default", gate)
        assert ledger.allowed_disruptions("default", EMPTY) == left
    assert ledger.exhausted_limit("default", EMPTY) == replace(cap, left=0)


def failed(times: int, minutes_ago: int) -> list[dict[str, Any]]:
    """Return the record of attempts to replace a node."""
    at = stamp(NOW - timedelta(minutes=minutes_ago))
    return [
        {
            "type": "ReplacementFailed",
            "status": "True",
            "message": str(times),
            "reason": "revision",
            "lastTransitionTime": at,
        }
    ]


@pytest.mark.parametrize(
    ("times", "minutes_ago", "minutes_left"),
    [(1, 0, 0), (2, 0, 15), (2, 14, 1), (2, 15, 0), (3, 0, 30), (6, 0, 240), (99, 0, 240)],
)
def test_a_node_is_tried_again_after_a_pause_that_doubles(
    times: int, minutes_ago: int, minutes_left: int
) -> None:
    nodes = a_cluster(a_node("n1", conditions=failed(times, minutes_ago)))
    hold = hold_of(nodes)
    expected = NOW + timedelta(minutes=minutes_left) if minutes_left else None
    assert (hold.until if hold else None) == expected


def test_of_several_nodes_the_longest_pause_counts() -> None:
    cluster = a_cluster(
        a_node("n1", conditions=failed(2, 0)),
        a_node("n2", conditions=failed(4, 0)),
        a_node("n3", conditions=failed(3, 0)),
    )
    hold = hold_of(cluster)
    assert hold is not None
    assert hold.until == NOW + timedelta(hours=1)
    assert hold.rule is WaitRule.RETRY
    assert hold.message.startswith("replacing n2 failed 4 times")


def hold_of(cluster: ClusterState) -> Hold | None:
    """Return what holds a command of all nodes back."""
    budgets, pool = PodDisruptionBudgets(()), a_pool()
    candidates = [
        Candidate(node, node.claim, pool, None, None, budgets, NOW)
        for node in cluster.nodes
        if node.claim is not None
    ]
    return retry_hold(candidates, NOW)


def a_pdb(name: str, selector: dict[str, Any] | None, **spec: Any) -> dict[str, Any]:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {**({} if selector is None else {"selector": selector}), **spec},
        "status": {"disruptionsAllowed": 0},
    }


def protected(*budgets: dict[str, Any], ready: bool = True) -> tuple[PodDisruptionBudgets, Pod]:
    """Return the budgets and the pod ``web`` of a cluster."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    web = a_pod("web", "n1", metadata={"labels": {"app": "web"}}, status={"conditions": conditions})
    cluster = a_cluster(a_node("n1"), web, *budgets)
    (pod,) = cluster.nodes[0].pods
    return PodDisruptionBudgets(cluster.pod_disruption_budgets), pod


WEB = {"matchLabels": {"app": "web"}}

PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {
                "labels": st.sampled_from([{}, {"app": "web"}, {"app": "db"}]),
                "annotations": st.sampled_from(
                    [{}, {}, {DO_NOT_DISRUPT: "true"}, {DO_NOT_DISRUPT: "5m"}]
                ),
            }
        ),
        "status": st.sampled_from(
            [{}, {"phase": "Succeeded"}, {"startTime": stamp(NOW - timedelta(minutes=9))}]
        ),
    }
)


@given(
    st.lists(PODS, max_size=4),
    st.lists(st.tuples(st.sampled_from([WEB, {}]), st.sampled_from([0, 1])), max_size=2),
)
def test_a_candidate_reads_annotations_only_where_there_are_any(
    pods: list[dict[str, Any]], rules: list[tuple[dict[str, Any], int]]
) -> None:
    """Its shortcuts lead to what the rules say about each pod."""
    budgets = [a_pdb(f"b{n}", rule, maxUnavailable=most) for n, (rule, most) in enumerate(rules)]
    rows = [a_pod(f"p{n}", "n1", **deepcopy(fields)) for n, fields in enumerate(pods)]
    cluster = a_cluster(a_node("n1"), *rows, *budgets)
    (node,) = cluster.nodes
    known = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    assert node.claim is not None
    candidate = Candidate(node, node.claim, a_pool(), None, None, known, NOW)

    moving = tuple(pod for pod in node.pods if known.is_currently_reschedulable(pod, NOW))
    assert candidate.moving_pods == moving
    assert candidate.pod_refusal == pod_refusal(node.pods, known, NOW)


def test_a_pod_of_several_budgets_can_never_be_evicted() -> None:
    """The eviction API refuses it, whatever the budgets allow."""
    budgets, pod = protected(a_pdb("a", WEB, maxUnavailable=1), a_pdb("b", {}, maxUnavailable=1))
    assert budgets.is_fully_blocked(pod, NOW)
    assert not budgets.is_currently_reschedulable(pod, NOW)
    assert "multiple PDBs" in (budgets.refusal(pod, NOW) or "")


@pytest.mark.parametrize(
    ("selector", "blocks"),
    [(WEB, True), ({}, True), (None, False), ({"matchLabels": {"app": "db"}}, False)],
    ids=["its label", "every pod", "no selector", "another label"],
)
def test_a_budget_protects_the_pods_that_it_selects(
    selector: dict[str, Any] | None, blocks: bool
) -> None:
    budgets, pod = protected(a_pdb("a", selector, maxUnavailable=0))
    assert (budgets.refusal(pod, NOW) is not None) is blocks
    assert budgets.is_fully_blocked(pod, NOW) is blocks


@pytest.mark.parametrize(
    ("policy", "ready", "blocks"),
    [
        ("AlwaysAllow", False, False),
        ("AlwaysAllow", True, True),
        ("IfHealthyBudget", False, True),
        (None, False, True),
    ],
)
def test_only_always_allow_evicts_a_pod_that_is_not_ready(
    policy: str | None, ready: bool, blocks: bool
) -> None:
    more = {} if policy is None else {"unhealthyPodEvictionPolicy": policy}
    budgets, pod = protected(a_pdb("a", WEB, maxUnavailable=0, **more), ready=ready)
    assert (budgets.refusal(pod, NOW) is not None) is blocks
    assert budgets.is_fully_blocked(pod, NOW) is blocks
