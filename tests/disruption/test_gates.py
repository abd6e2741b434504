"""Budgets and PodDisruptionBudgets: which nodes count, and which pods can be evicted."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.disruption.gates.budgets import BudgetLedger, BudgetState, node_counts
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.kubernetes.pod import Pod
from tests.disruption.builders import NOW, a_cluster, a_node, a_pod

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


def a_state(reason: DisruptionReason, allowed: int, pool: str = "default") -> BudgetState:
    return BudgetState(pool, reason, total=10, disrupting=0, allowed=allowed)


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
