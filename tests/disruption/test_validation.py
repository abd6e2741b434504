from datetime import timedelta
from typing import Any

from reconciler.disruption.command import Command
from reconciler.disruption.decide import decide
from reconciler.disruption.validation import Failure, Invalid, validate
from tests.disruption.builders import (
    NOW,
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    a_situation,
    decided,
    drifted,
)


def _again(command: Command, *objects: Any, **facts: Any) -> Command | Invalid:
    pools = facts.pop("pools", [a_pool()])
    now = NOW + timedelta(seconds=15)
    return validate(command, a_situation(a_cluster(*objects), pools, now=now, **facts))


def test_of_empty_nodes_those_that_stayed_empty_go() -> None:
    (command,) = decided(a_node("n1"), a_node("n2")).commands

    still = _again(command, a_node("n1"), a_node("n2"), a_pod("p", "n2", "3"))

    assert isinstance(still, Command)
    assert still.nodes == ("n1",)
    assert still.node_claims == ("claim-n1",)


def test_when_none_is_empty_any_more_nothing_goes() -> None:
    (command,) = decided(a_node("n1")).commands

    still = _again(command, a_node("n1"), a_pod("p", "n1", "3"))

    assert isinstance(still, Invalid)
    assert still.failure is Failure.CHURN


def test_a_budget_that_closed_meanwhile_holds() -> None:
    (command,) = decided(a_node("n1")).commands

    still = _again(command, a_node("n1"), pools=[a_pool(budgets=[{"nodes": "0"}])])

    assert isinstance(still, Invalid)
    assert still.failure is Failure.BUDGET


def test_a_merge_that_still_holds_is_carried_out_as_decided() -> None:
    objects = [a_node("n1", "large"), a_pod("p", "n1", "3")]
    (command,) = decided(*objects).commands

    assert _again(command, *objects) is command


def test_a_pod_that_came_meanwhile_and_must_not_move_stops_it() -> None:
    objects = [a_node("n1", "large"), a_pod("p", "n1", "3")]
    (command,) = decided(*objects).commands
    protected = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}

    still = _again(command, *objects, a_pod("q", "n1", metadata=protected))

    assert isinstance(still, Invalid)
    assert still.failure is Failure.CHURN


def test_a_pod_that_needs_another_type_stops_it() -> None:
    (command,) = decided(a_node("n1", "large"), a_pod("p", "n1", "1.5")).commands

    still = _again(command, a_node("n1", "large"), a_pod("p", "n1", "1.5"), a_pod("q", "n1", "2"))

    assert isinstance(still, Invalid)
    assert still.failure is Failure.SCHEDULING
    assert "small" in still.message


def test_a_drifted_node_that_someone_deleted_meanwhile_is_left_to_them() -> None:
    never = [a_pool(consolidateAfter="Never")]
    (command,) = decided(a_node("n1"), pools=never, drifted=drifted("n1")).commands
    deleted = a_node("n1", claim_metadata={"deletionTimestamp": "2026-01-05T12:00:01Z"})

    assert _again(command, a_node("n1"), pools=never) is command
    still = _again(command, deleted, pools=never)

    assert isinstance(still, Invalid)
    assert still.message == "gone already: claim-n1"


def test_room_that_was_taken_meanwhile_stops_it() -> None:
    nodes = [a_node("n1", "small"), a_pod("p", "n1"), a_node("n2", "small"), a_pod("q", "n2")]
    (command,) = decide(a_situation(a_cluster(*nodes), [a_pool()])).commands

    still = _again(command, *nodes, a_pod("r", "n2"))

    assert isinstance(still, Invalid)
    assert still.failure is Failure.SCHEDULING
