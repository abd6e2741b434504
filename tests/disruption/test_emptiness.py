from datetime import timedelta

import pytest

from reconciler.disruption.decide import METHODS
from reconciler.disruption.gates.consolidatable import LEFT_OVER
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason
from tests.disruption.builders import (
    NOW,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    drifted,
    refusal_of,
    stamp,
)


def test_empty_nodes_are_deleted_in_one_command() -> None:
    decisions = decided(a_node("n1"), a_node("n2", "large"))

    assert brief(decisions) == [("Empty", "delete", ("n1", "n2"))]
    (command,) = decisions.commands
    assert command.node_claims == ("claim-n1", "claim-n2")
    assert round(command.savings or 0, 9) == 0.6


def test_a_node_with_daemons_only_is_empty() -> None:
    daemon = {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d"}]}

    decisions = decided(a_node("n1"), a_pod("d", "n1", metadata=daemon))

    assert brief(decisions) == [("Empty", "delete", ("n1",))]


def test_a_pod_without_eviction_cost_does_not_block_its_node() -> None:
    cheap = {"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-134217728"}}

    decisions = decided(a_node("n1"), a_pod("p", "n1", metadata=cheap))

    assert brief(decisions) == [("Empty", "delete", ("n1",))]


def test_a_terminating_stateful_pod_still_needs_a_node() -> None:
    leaving = {
        "deletionTimestamp": "2026-01-05T11:59:59Z",
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "s"}],
    }
    pool = a_pool(consolidationPolicy="WhenEmpty")

    decisions = decided(a_node("n1"), a_pod("p", "n1", metadata=leaving), pools=[pool])

    assert brief(decisions) == []
    assert "WhenEmpty, but node is not empty" in refusal_of(decisions, "n1")


def test_an_empty_node_waits_for_consolidate_after() -> None:
    pool = a_pool(consolidateAfter="10m")
    node = a_node("n1", quiet=timedelta(minutes=4))

    decisions = decided(node, pools=[pool])

    assert brief(decisions) == []
    (deferral,) = decisions.deferred
    assert deferral.waits_for is WaitsFor.CONSOLIDATE_AFTER
    assert deferral.not_before == NOW + timedelta(minutes=6)


def test_the_end_of_consolidate_after_is_included() -> None:
    pool = a_pool(consolidateAfter="10m")

    decisions = decided(a_node("n1", quiet=timedelta(minutes=10)), pools=[pool])

    assert brief(decisions) == [("Empty", "delete", ("n1",))]


def test_never_means_never() -> None:
    assert brief(decided(a_node("n1"), pools=[a_pool(consolidateAfter="Never")])) == []


def test_only_the_value_true_protects_a_node() -> None:
    key = "karpenter.sh/do-not-disrupt"

    protected = decided(a_node("n1", annotations={key: "true"}))
    unprotected = decided(a_node("n1", annotations={key: "1h"}))

    assert brief(protected) == []
    assert key in refusal_of(protected, "n1")
    assert brief(unprotected) == [("Empty", "delete", ("n1",))]


def test_the_budget_allows_the_most_expensive_node_and_the_others_wait() -> None:
    pool = a_pool(budgets=[{"nodes": "1"}])

    decisions = decided(a_node("n1"), a_node("n2", "large"), a_node("n3"), pools=[pool])

    assert brief(decisions) == [("Empty", "delete", ("n2",))]
    assert [(d.node, d.waits_for) for d in decisions.deferred] == [
        ("n1", WaitsFor.BUDGET),
        ("n3", WaitsFor.BUDGET),
    ]


def test_a_closed_window_reports_when_it_opens() -> None:
    closed = {"nodes": "0", "schedule": "0 9 * * mon-fri", "duration": "8h"}
    pool = a_pool(budgets=[closed])

    (deferral,) = decided(a_node("n1"), pools=[pool]).deferred

    assert deferral.waits_for is WaitsFor.SCHEDULE
    assert deferral.not_before == NOW.replace(hour=17)


def test_nodes_that_are_not_ready_use_up_the_budget() -> None:
    pool = a_pool(budgets=[{"nodes": "2"}])
    nodes = [a_node(f"n{i}", ready=i > 0) for i in range(4)]

    decisions = decided(*nodes, pools=[pool])

    (command,) = decisions.commands
    assert len(command.nodes) == 1


def test_one_invalid_budget_blocks_the_pool_for_every_reason() -> None:
    broken = {"nodes": "5", "reasons": ["Drifted"], "schedule": "@wrongly", "duration": "1h"}
    pool = a_pool(budgets=[{"nodes": "100%"}, broken])

    decisions = decided(a_node("n1"), pools=[pool])

    assert brief(decisions) == []
    assert all(state.allowed == 0 for state in decisions.budgets)
    message = decisions.deferred[0].message
    assert message.startswith("the budget of NodePool ")
    assert " is invalid: " in message


def test_emptiness_comes_before_drift_by_default() -> None:
    usual = decided(a_node("n1"), drifted=drifted("n1"))
    by_reason = sorted(METHODS, key=lambda m: m.reason is not DisruptionReason.DRIFTED)

    other = decided(a_node("n1"), drifted=drifted("n1"), methods=by_reason)

    assert brief(usual) == [("Empty", "delete", ("n1",))]
    assert brief(other) == [("Drifted", "delete", ("n1",))]


def test_a_node_that_receives_a_pending_pod_stays() -> None:
    decisions = decided(a_node("n1"), a_pod("p", None))

    assert brief(decisions) == []
    assert decisions.placement is not None
    assert decisions.placement.on_nodes == {"default/p": "n1"}


def test_a_static_pool_is_never_consolidated() -> None:
    assert brief(decided(a_node("n1"), pools=[a_pool(spec={"replicas": 1})])) == []


def test_a_protecting_daemon_is_reported_before_consolidate_after() -> None:
    daemon = a_pod(
        "d",
        "n1",
        metadata={
            "annotations": {"karpenter.sh/do-not-disrupt": "true"},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "d"}],
        },
    )

    decisions = decided(a_node("n1"), daemon, pools=[a_pool(consolidateAfter="2h")])

    assert brief(decisions) == []
    assert "do-not-disrupt" in refusal_of(decisions, "n1")
    assert decisions.deferred == ()


def test_of_equal_nodes_the_one_that_expires_first_goes_first() -> None:
    lives = {"n1": "720h", "n2": "24h", "n3": None}
    nodes = [
        a_node(name, claim={"expireAfter": life} if life else None) for name, life in lives.items()
    ]
    one_at_a_time = a_pool(budgets=[{"nodes": "1"}])

    (command,) = decided(*nodes, pools=[one_at_a_time]).commands

    assert command.node_claims == ("claim-n2",)


@pytest.mark.parametrize(
    ("minutes_ago", "initialized", "removed"),
    [(9, True, False), (10, True, True), (10, False, False)],
)
def test_a_replacement_left_over_from_a_command_is_removed_after_ten_minutes(
    minutes_ago: int, initialized: bool, removed: bool
) -> None:
    """Whatever ``consolidateAfter`` says; a node that is not initialized yet may still be used."""
    at = stamp(NOW - timedelta(minutes=minutes_ago))
    condition = {"type": LEFT_OVER, "status": "True", "lastTransitionTime": at}

    decisions = decided(
        a_node("n1", initialized=initialized, conditions=[condition]),
        pools=[a_pool(consolidateAfter="Never")],
    )

    assert bool(decisions.commands) is removed
