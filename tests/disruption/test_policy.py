"""Additional disruption settings: each rejection names its setting, and none is bypassed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.calendar import next_decision_change
from reconciler.disruption.command import Decisions
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from tests.disruption.builders import (
    NOW,
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    drifted,
    refusal_of,
    stamp,
)

HOUR = timedelta(hours=1)
FROZEN = {"owner": "platform-team", "until": stamp(NOW + HOUR), "note": "release"}
NIGHT = {"schedule": "0 22 * * *", "duration": "8h", "owner": "night-shift"}


def configured(**config: Any) -> Settings:
    return resolve(config, {}).settings


def waiting(decisions: Decisions) -> list[tuple[str | None, str, str]]:
    """Return node, reason and what is waited for."""
    return [(d.node, str(d.reason), str(d.waits_for)) for d in decisions.deferred]


def three_launches() -> list[Any]:
    """An empty node, a drifted one, and one that a smaller one could replace."""
    return [
        *a_node("empty"),
        *a_node("old", pool="other"),
        a_pod("p-old", "old", "3", spec={"nodeSelector": {"karpenter.sh/nodepool": "other"}}),
        *a_node("wide", "huge"),
        a_pod("p-wide", "wide", "3"),
    ]


def two_pools() -> list[NodePool]:
    return [a_pool(), a_pool("other")]


def test_without_settings_all_three_nodes_are_disrupted() -> None:
    decisions = decided(*three_launches(), pools=two_pools(), drifted=drifted("old"))
    assert {c.reason for c in decisions.commands} == {
        "Empty",
        "Drifted",
        "Underutilized",
    }


@pytest.mark.parametrize(
    ("disruption", "waits_for"),
    [({"suspend": [FROZEN]}, "policy"), ({"windows": [NIGHT]}, "schedule")],
)
def test_suspensions_and_windows_block_every_voluntary_reason(
    disruption: dict[str, Any], waits_for: str
) -> None:
    made = configured(disruption=disruption)
    decisions = decided(*three_launches(), pools=two_pools(), drifted=drifted("old"), settings=made)
    assert decisions.commands == ()
    assert {(node, reason) for node, reason, _ in waiting(decisions)} >= {
        ("empty", "Empty"),
        ("old", "Drifted"),
        ("wide", "Underutilized"),
    }
    assert {waits for _, _, waits in waiting(decisions)} == {waits_for}


def test_a_suspension_names_its_owner_its_end_and_its_note() -> None:
    made = configured(disruption={"suspend": [FROZEN]})
    [deferral] = decided(*a_node("n"), settings=made).deferred
    assert deferral.not_before == NOW + HOUR
    assert deferral.message == (
        "platform-team suspended disruption of NodePool default for emptiness until "
        "2026-01-05 13:00 UTC "
        "(disruption.suspend[0]): release"
    )


@pytest.mark.parametrize(
    "other", [{"reasons": ["Drifted"]}, {"nodePools": ["web"]}, {"until": stamp(NOW)}]
)
def test_an_unrelated_suspension_blocks_nothing(other: dict[str, Any]) -> None:
    made = configured(disruption={"suspend": [{**FROZEN, **other}]})
    assert brief(decided(*a_node("n"), settings=made)) == [("Empty", "delete", ("n",))]


def test_of_two_suspensions_the_later_end_is_reported() -> None:
    endless = {"owner": "security"}
    made = configured(disruption={"suspend": [FROZEN, endless]})
    [deferral] = decided(*a_node("n"), settings=made).deferred
    assert deferral.not_before is None
    assert "security suspended" in deferral.message


def test_a_window_allows_disruption_and_a_closed_one_reports_when_it_opens() -> None:
    made = configured(disruption={"windows": [NIGHT]})
    [deferral] = decided(*a_node("n"), settings=made).deferred
    assert (deferral.waits_for, deferral.not_before) == (WaitsFor.SCHEDULE, NOW + 10 * HOUR)
    assert "(disruption.windows[0], owner night-shift)" in deferral.message
    assert brief(decided(*a_node("n"), settings=made, now=NOW + 11 * HOUR))


def test_a_window_whose_schedule_never_matches_never_opens() -> None:
    made = configured(disruption={"windows": [{**NIGHT, "schedule": "0 0 31 2 *"}]})
    [deferral] = decided(*a_node("n"), settings=made).deferred
    assert deferral.not_before is None
    assert "no window ever opens" in deferral.message


def test_forceful_methods_are_not_blocked() -> None:
    made = configured(disruption={"suspend": [FROZEN]})
    decisions = decided(*a_node("n"), settings=made, interrupted={"claim-n": "spot"})
    assert brief(decisions) == [("Interrupted", "delete", ("n",))]


def test_the_budget_of_the_fleet_applies_across_pools() -> None:
    made = configured(disruption={"budgets": [{"nodes": "1"}]})
    nodes = [a_node("a1", pool="a"), a_node("b1", pool="b")]
    decisions = decided(*nodes, pools=[a_pool("a"), a_pool("b")], settings=made)
    assert brief(decisions) == [("Empty", "delete", ("a1",))]
    [deferral] = decisions.deferred
    assert (deferral.node, deferral.waits_for) == ("b1", WaitsFor.BUDGET)
    assert deferral.message == (
        "the fleet's budget (disruption.budgets[0]) allows 1 of 2 nodes to be disrupted for "
        "emptiness at a time (0 disrupted or not ready now)"
    )


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"minimumSavings": 0.7}, "requires $0.7000/hour (minimumSavings)"),
        ({"minimumSavingsPercent": 80}, "requires 80% (minimumSavingsPercent)"),
        (
            {"nodePools": {"default": {"minimumSavings": 0.7}}},
            "requires $0.7000/hour (nodePools.default.minimumSavings)",
        ),
    ],
)
def test_a_move_below_the_minimum_savings_is_rejected(config: dict[str, Any], message: str) -> None:
    fleet = [*a_node("wide", "huge"), a_pod("p", "wide", "3")]
    decisions = decided(*fleet, settings=configured(**config))
    assert decisions.commands == ()
    assert "saves $0.6000/hour (75.0%), NodePool default " in refusal_of(decisions, "wide")
    assert message in refusal_of(decisions, "wide")


def test_a_move_above_the_minimum_savings_is_made() -> None:
    made = configured(minimumSavings=0.6, minimumSavingsPercent=75)
    fleet = [*a_node("wide", "huge"), a_pod("p", "wide", "3")]
    assert brief(decided(*fleet, settings=made)) == [("Underutilized", "replace", ("wide",))]


def test_the_minimum_age_applies_to_all_but_empty_nodes() -> None:
    made = configured(minimumAge="2h")
    fleet = [*a_node("wide", "huge"), a_pod("p", "wide", "3"), *a_node("empty")]
    decisions = decided(*fleet, settings=made)
    assert brief(decisions) == [("Empty", "delete", ("empty",))]
    [deferral] = decisions.deferred
    assert (deferral.node, deferral.waits_for) == ("wide", WaitsFor.POLICY)
    assert deferral.not_before is not None
    later = decided(*fleet, settings=made, now=deferral.not_before)
    assert ("Underutilized", "replace", ("wide",)) in brief(later)


def expiring(name: str, *, ago: timedelta = HOUR, **more: Any) -> list[Any]:
    """Return a node that expired ``ago``, with a pod."""
    born = {"creationTimestamp": stamp(NOW - ago - 24 * HOUR)}
    node = a_node(name, claim={"expireAfter": "24h"}, claim_metadata=born, **more)
    return [*node, a_pod(f"p-{name}", name, "3")]


def test_graceful_expiry_launches_the_replacement_first_and_respects_the_budget() -> None:
    made = configured(expirationPolicy="Graceful")
    pool = a_pool(budgets=[{"nodes": "1"}])
    decisions = decided(*expiring("a"), *expiring("b", ago=2 * HOUR), pools=[pool], settings=made)
    assert brief(decisions) == [("Expired", "replace", ("b",))]
    assert not decisions.commands[0].is_forceful
    assert waiting(decisions) == [("a", "Expired", "budget")]


def test_graceful_expiry_becomes_forceful_at_the_maximum_age() -> None:
    made = configured(expirationPolicy="Graceful", expirationCeiling="48h")
    pool = a_pool(budgets=[{"nodes": "0"}])
    fleet = [*expiring("young", ago=47 * HOUR), *expiring("old", ago=48 * HOUR)]
    decisions = decided(*fleet, pools=[pool], settings=made)
    assert brief(decisions) == [("Expired", "delete", ("old",))]
    assert decisions.commands[0].is_forceful


def test_protection_from_graceful_expiry_is_reported() -> None:
    made = configured(nodePools={"default": {"expirationPolicy": "Graceful"}})
    fleet = expiring("n", annotations={"karpenter.sh/do-not-disrupt": "true"})
    decisions = decided(*fleet, settings=made)
    assert decisions.commands == ()
    assert [(b.node, b.reason) for b in decisions.blocked] == [("n", "Expired")]


def test_expired_static_nodes_are_replaced_one_for_one() -> None:
    made = configured(expirationPolicy="Graceful", featureGates={"StaticCapacity": True})
    pool = a_pool(spec={"replicas": 1})
    decisions = decided(*expiring("n"), pools=[pool], settings=made)
    assert brief(decisions) == [("Expired", "replace", ("n",))]


def test_scheduled_settings_change_decisions_at_their_time() -> None:
    cluster, pools = a_cluster(*a_node("n"), a_pod("p", "n", "3")), [a_pool()]
    frozen = configured(disruption={"suspend": [FROZEN]})
    assert next_decision_change(cluster, pools, frozen, NOW) == NOW + HOUR
    nightly = configured(disruption={"windows": [NIGHT]})
    assert next_decision_change(cluster, pools, nightly, NOW) == NOW + 10 * HOUR
    forced = a_cluster(*expiring("n"))
    graceful = configured(expirationPolicy="Graceful")
    assert next_decision_change(forced, pools, graceful, NOW) == NOW + 23 * HOUR
