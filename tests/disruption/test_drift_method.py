from datetime import timedelta

from reconciler.model.decision.waiting import WaitsFor
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

NEVER = [a_pool(consolidateAfter="Never")]
PROTECTED = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}


def _since(minutes: int, kind: str = "Drifted") -> dict[str, str]:
    moment = stamp(NOW - timedelta(minutes=minutes))
    return {
        "type": kind,
        "status": "True",
        "reason": "NodePoolDrifted",
        "lastTransitionTime": moment,
    }


def test_a_drifted_node_is_replaced_by_what_its_pods_need() -> None:
    decisions = decided(a_node("n1"), a_pod("p", "n1", "3"), pools=NEVER, drifted=drifted("n1"))

    assert brief(decisions) == [("Drifted", "replace", ("n1",))]
    (command,) = decisions.commands
    assert [c.pods for c in command.replacements] == [("default/p",)]
    assert command.pods_evicted == 1


def test_several_nodes_may_replace_one() -> None:
    pods = [a_pod(f"p{i}", "n1", "15") for i in range(3)]

    decisions = decided(a_node("n1"), *pods, pools=NEVER, drifted=drifted("n1"))

    assert len(decisions.commands[0].replacements) == 3


def test_empty_nodes_come_first_then_those_that_drifted_longest_ago() -> None:
    pool = a_pool(consolidateAfter="Never", budgets=[{"nodes": "2"}])
    decisions = decided(
        a_node("n1", conditions=[_since(5)]),
        a_pod("p1", "n1", "3"),
        a_node("n2", conditions=[_since(50)]),
        a_pod("p2", "n2", "3"),
        a_node("n3", conditions=[_since(1)]),
        pools=[pool],
        drifted=drifted("n1", "n2", "n3"),
    )

    assert [c.nodes for c in decisions.commands] == [("n3",), ("n2",)]
    assert [(d.node, d.waits_for) for d in decisions.deferred] == [("n1", WaitsFor.BUDGET)]


def test_recorded_drift_times_count_and_new_drift_comes_last() -> None:
    pool = a_pool(consolidateAfter="Never", budgets=[{"nodes": "2"}])
    decisions = decided(
        a_node("n1"),
        a_pod("p1", "n1", "3"),
        a_node("n2", conditions=[_since(5, "DriftSeen")]),
        a_pod("p2", "n2", "3"),
        a_node("n3", conditions=[_since(50, "DriftSeen")]),
        a_pod("p3", "n3", "3"),
        pools=[pool],
        drifted=drifted("n1", "n2", "n3"),
    )

    assert [c.nodes for c in decisions.commands] == [("n3",), ("n2",)]


def test_a_node_whose_pods_do_not_fit_is_skipped() -> None:
    decisions = decided(
        a_node("n1"),
        a_pod("p1", "n1", "99"),
        a_node("n2"),
        a_pod("p2", "n2", "3"),
        pools=NEVER,
        drifted=drifted("n1", "n2"),
    )

    assert brief(decisions) == [("Drifted", "replace", ("n2",))]
    assert "not all pods would schedule, default/p1 =>" in refusal_of(decisions, "n1")


def test_a_protected_pod_blocks_a_drifted_node() -> None:
    decisions = decided(
        a_node("n1"), a_pod("p", "n1", metadata=PROTECTED), pools=NEVER, drifted=drifted("n1")
    )

    assert brief(decisions) == []
    assert "(Pod=default/p)" in refusal_of(decisions, "n1")


def test_with_a_grace_period_drift_ignores_a_protected_pod_and_launches_nothing_for_it() -> None:
    decisions = decided(
        a_node("n1", claim={"terminationGracePeriod": "1h"}),
        a_pod("p", "n1", metadata=PROTECTED),
        pools=NEVER,
        drifted=drifted("n1"),
    )

    assert brief(decisions) == [("Drifted", "delete", ("n1",))]


def test_with_a_grace_period_consolidation_respects_a_protected_pod() -> None:
    decisions = decided(
        a_node("n1", claim={"terminationGracePeriod": "1h"}),
        a_pod("p", "n1", metadata=PROTECTED),
        a_node("n2"),
        a_pod("q", "n2"),
    )

    assert all("n1" not in c.nodes for c in decisions.commands)
    assert "do-not-disrupt" in refusal_of(decisions, "n1")


def test_a_temporary_protection_ends() -> None:
    pod = a_pod(
        "p",
        "n1",
        metadata={"annotations": {"karpenter.sh/do-not-disrupt": "10m"}},
        status={"startTime": stamp(NOW - timedelta(minutes=9))},
    )

    before = decided(a_node("n1"), pod, pools=NEVER, drifted=drifted("n1"))
    after = decided(
        a_node("n1"), pod, pools=NEVER, drifted=drifted("n1"), now=NOW + timedelta(minutes=1)
    )

    assert brief(before) == []
    assert len(after.commands) == 1


def test_two_commands_do_not_use_the_same_room() -> None:
    """n3 has room for the pod of one of them, not of both."""
    decisions = decided(
        a_node("n1"),
        a_pod("p1", "n1", "3"),
        a_node("n2"),
        a_pod("p2", "n2", "3"),
        a_node("n3"),
        a_pod("p3", "n3", "1"),
        pools=NEVER,
        drifted=drifted("n1", "n2"),
    )

    assert sorted(c.decision for c in decisions.commands) == ["delete", "replace"]


def test_a_node_of_a_deleted_pool_is_not_drifted() -> None:
    decisions = decided(a_node("n1", pool="gone"), drifted=drifted("n1"))

    assert brief(decisions) == []
    assert "nodepool not found (NodePool=gone)" in refusal_of(decisions, "n1")


def test_static_nodes_are_replaced_one_for_one_within_the_limit() -> None:
    pool = a_pool(spec={"replicas": 3, "limits": {"nodes": "5"}}, consolidateAfter="Never")
    nodes = [a_node(f"n{i}") for i in range(3)]

    decisions = decided(*nodes, pools=[pool], drifted=drifted("n0", "n1", "n2"))

    assert [(c.decision, c.nodes, len(c.replacements)) for c in decisions.commands] == [
        ("replace", ("n0",), 1),
        ("replace", ("n1",), 1),
    ]
    assert "limits.nodes" in refusal_of(decisions, "n2")


def test_a_static_pool_with_too_many_nodes_is_scaled_down_first() -> None:
    pool = a_pool(spec={"replicas": 1}, consolidateAfter="Never")

    decisions = decided(a_node("n1"), a_node("n2"), pools=[pool], drifted=drifted("n1", "n2"))

    assert brief(decisions) == []
    assert "2 nodes for 1 replicas" in refusal_of(decisions, "n1")
