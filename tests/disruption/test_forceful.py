from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from reconciler.disruption.command import ForcefulReason
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.settings import DEFAULT_FEATURE_GATES, KarpenterVersion, Settings
from tests.disruption.builders import (
    NOW,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    refusal_of,
    stamp,
)

NEVER = [a_pool(consolidateAfter="Never", budgets=[{"nodes": "0"}])]


def _gates(*names: str) -> Settings:
    return Settings(feature_gates={**DEFAULT_FEATURE_GATES, **dict.fromkeys(names, True)})


def test_an_expired_node_is_removed_regardless_of_budgets_and_protection() -> None:
    protected = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
    node = a_node("n1", quiet=timedelta(hours=2), claim={"expireAfter": "2h"})

    decisions = decided(node, a_pod("p", "n1", metadata=protected), pools=NEVER)

    assert brief(decisions) == [("Expired", "delete", ("n1",))]
    assert decisions.commands[0].is_forceful


def test_pods_of_an_expired_node_count_as_pending() -> None:
    node = a_node("n1", quiet=timedelta(hours=2), claim={"expireAfter": "1h"})

    decisions = decided(node, a_pod("p", "n1", "3"), pools=NEVER)

    assert decisions.placement is not None
    assert [claim.pods for claim in decisions.placement.claims] == [("default/p",)]


def test_a_node_is_not_expired_a_moment_before() -> None:
    node = a_node("n1", quiet=timedelta(hours=2), claim={"expireAfter": "2h1s"})

    assert brief(decided(node, pools=NEVER)) == []


def test_forceful_disruption_counts_towards_the_budgets() -> None:
    pool = a_pool(budgets=[{"nodes": "1"}])
    old = a_node("n1", quiet=timedelta(hours=2), claim={"expireAfter": "1h"})

    decisions = decided(old, a_node("n2"), pools=[pool])

    assert brief(decisions) == [("Expired", "delete", ("n1",))]
    assert [d.waits_for for d in decisions.deferred] == [WaitsFor.BUDGET]


def test_interruption_takes_precedence_over_other_reasons() -> None:
    node = a_node("n1", quiet=timedelta(hours=2), claim={"expireAfter": "1h"})

    decisions = decided(node, pools=NEVER, interrupted={"claim-n1": "spot interruption"})

    assert brief(decisions) == [("Interrupted", "delete", ("n1",))]


def _ill(name: str, minutes: int) -> list[dict[str, Any]]:
    node, claim = a_node(name)
    since = stamp(NOW - timedelta(minutes=minutes))
    node["status"]["conditions"] = [
        {"type": "Ready", "status": "False", "lastTransitionTime": since}
    ]
    return [node, claim]


@pytest.mark.parametrize(("minutes", "gone"), [(29, False), (30, True)])
def test_an_unhealthy_node_is_repaired_after_its_toleration(minutes: int, gone: bool) -> None:
    nodes = [_ill("n0", minutes), *(a_node(f"n{i}") for i in range(1, 4))]

    decisions = decided(*nodes, pools=NEVER, settings=_gates("NodeRepair"))

    assert brief(decisions) == ([("Unhealthy", "delete", ("n0",))] if gone else [])


def test_an_unhealthy_node_waits_until_its_toleration_ends() -> None:
    decisions = decided(_ill("n0", 15), a_node("n1"), pools=NEVER, settings=_gates("NodeRepair"))

    (found,) = [d for d in decisions.deferred if d.reason is ForcefulReason.UNHEALTHY]
    assert (found.node, found.waits_for, found.not_before) == (
        "n0", WaitsFor.POLICY, NOW + timedelta(minutes=15),
    )  # fmt: skip
    assert found.message == (
        "Ready is False since 2026-01-05 11:45 UTC; the node is repaired if that lasts for 30m"
    )


def test_a_node_that_expires_does_not_wait_for_its_repair() -> None:
    node, claim = _ill("n0", 15)
    claim["spec"]["expireAfter"] = "1h"

    decisions = decided([node, claim], pools=NEVER, settings=_gates("NodeRepair"))

    assert brief(decisions) == [("Expired", "delete", ("n0",))]
    assert not decisions.deferred


def test_without_the_gate_nothing_is_repaired() -> None:
    decisions = decided(_ill("n0", 99), _ill("n1", 15), pools=NEVER)

    assert brief(decisions) == []
    assert not [d for d in decisions.deferred if d.reason is ForcefulReason.UNHEALTHY]


@pytest.mark.parametrize(("healthy", "repaired"), [(2, 1), (0, 1), (7, 0)])
def test_nothing_is_repaired_if_too_many_nodes_are_unhealthy(healthy: int, repaired: int) -> None:
    """One of three and one of one are within 20%, rounded up; three of ten are not."""
    ill = [_ill(f"i{n}", 60) for n in range(1 if repaired else 3)]
    well = [a_node(f"n{n}") for n in range(healthy)]

    decisions = decided(*ill, *well, pools=NEVER, settings=_gates("NodeRepair"))

    assert brief(decisions) == [("Unhealthy", "delete", ("i0",))][:repaired]
    if not repaired:
        assert "more than 20% nodes are unhealthy" in refusal_of(decisions, "i0")


@pytest.mark.parametrize(("release", "legacy"), [("1.14", False), ("1.15", True)])
def test_repair_is_forceful_in_1_14_and_with_legacy_node_repair(release: str, legacy: bool) -> None:
    """Neither budgets nor the annotation of 1.15 matter, and the drain ends at once."""
    node, claim = _ill("n0", 60)
    node["metadata"].setdefault("annotations", {})["karpenter.sh/do-not-repair"] = "true"
    settings = replace(
        _gates("NodeRepair"), karpenter=KarpenterVersion(release), legacy_node_repair=legacy
    )

    decisions = decided([node, claim], a_node("n1"), pools=NEVER, settings=settings)

    (command,) = decisions.commands
    assert (command.reason, command.nodes) == (ForcefulReason.UNHEALTHY, ("n0",))
    assert command.is_forceful
    assert command.drain_limit == timedelta(0)


def test_a_static_pool_removes_the_node_with_the_lowest_disruption_cost() -> None:
    pool = a_pool(spec={"replicas": 2}, consolidateAfter="Never")
    protected = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}

    decisions = decided(
        a_node("n1"),
        a_pod("p", "n1", metadata=protected),
        a_node("n2"),
        a_pod("q", "n2"),
        a_pod("r", "n2"),
        a_node("n3"),
        a_pod("s", "n3"),
        a_node("n4"),
        pools=[pool],
        settings=_gates("StaticCapacity"),
    )

    assert [c.nodes for c in decisions.commands] == [("n4",), ("n3",)]
    assert {c.reason for c in decisions.commands} == {ForcefulReason.OVERPROVISIONED}


def test_nodes_of_a_deleted_pool_stay_until_removal_is_allowed() -> None:
    decisions = decided(a_node("n1", pool="gone"))

    assert brief(decisions) == []
    (deferral,) = decisions.deferred
    assert deferral.waits_for is WaitsFor.APPROVAL
    assert "--allow-removal gone" in deferral.message
    assert "nodepool not found (NodePool=gone)" in refusal_of(decisions, "n1")


def test_an_allowed_removal_moves_the_pods_first_and_respects_the_last_budgets() -> None:
    nodes = [a_node(f"n{i}", pool="gone") for i in range(3)]
    pods = [a_pod(f"p{i}", f"n{i}", "3") for i in range(3)]

    decisions = decided(
        *nodes,
        *pods,
        allow_removal={"gone"},
        last_known=[a_pool("gone", budgets=[{"nodes": "2"}])],
    )

    assert [(str(c.reason), c.decision) for c in decisions.commands] == [
        ("NodePoolDeleted", "replace"),
        ("NodePoolDeleted", "replace"),
    ]
    assert all(r.node_pool.name == "default" for c in decisions.commands for r in c.replacements)
    assert [d.waits_for for d in decisions.deferred] == [WaitsFor.BUDGET]


def test_an_unknown_removed_pool_has_the_default_budget() -> None:
    nodes = [a_node(f"n{i:02}", pool="gone") for i in range(20)]

    decisions = decided(*nodes, allow_removal={"gone"})

    assert brief(decisions) == [
        ("NodePoolDeleted", "delete", ("n00",)),
        ("NodePoolDeleted", "delete", ("n01",)),
    ]


def test_a_removal_waits_if_pods_would_be_unschedulable() -> None:
    decisions = decided(
        a_node("n1", "huge", pool="gone"), a_pod("p", "n1", "99"), allow_removal={"gone"}
    )

    assert brief(decisions) == []
    assert "not all pods would schedule" in refusal_of(decisions, "n1")


def test_a_pool_that_git_has_is_never_removed() -> None:
    decisions = decided(
        a_node("n1"),
        a_pod("p", "n1", "3"),
        a_node("n2", pool="gone"),
        a_pod("q", "n2", "3"),
        allow_removal={"default", "gone"},
    )

    assert brief(decisions) == [("NodePoolDeleted", "replace", ("n2",))]
