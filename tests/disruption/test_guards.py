"""The rate limits, one at a time, on recorded past disruptions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.desired.settings.layers import resolve
from reconciler.disruption.calendar import next_decision_change
from reconciler.disruption.command import Decisions
from reconciler.disruption.consolidation.flapdamping import (
    GAVE_UP,
    AbandonedOffering,
    abandoned_offerings,
    avoided_offerings,
    gave_up_annotation,
)
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.decode import decode
from reconciler.model.errors import UsageError
from reconciler.model.history import DAY, DisruptionRecord, History, Move, Rollout, next_free_at
from reconciler.model.karpenter.nodeclaim import NodeClaim
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


def configured(**config: Any) -> Settings:
    return resolve(config, {}).settings


def four_drifted(history: History, settings: Settings) -> Decisions:
    """Return the decisions on four drifted nodes with a pod each."""
    names = ("a", "b", "c", "d")
    nodes = [[*a_node(n), a_pod(f"p-{n}", n, "3")] for n in names]
    return decided(*nodes, drifted=drifted(*names), settings=settings, history=history)


def taken(*ages: timedelta) -> tuple[DisruptionRecord, ...]:
    return tuple(DisruptionRecord(NOW - age, "default") for age in ages)


# daily maximum


@pytest.mark.parametrize(("most", "left"), [("3", 2), ("50%", 1), ("26%", 1), ("4", 3), ("0", 0)])
def test_nodes_disrupted_within_the_day_count_towards_the_daily_maximum(
    most: str, left: int
) -> None:
    history = History(taken=taken(HOUR, 30 * HOUR))
    decisions = four_drifted(history, configured(maximumPerDay=most))
    assert len(decisions.commands) == left
    assert {d.waits_for for d in decisions.deferred} == {WaitsFor.POLICY}


def test_the_daily_maximum_reports_when_the_next_node_is_allowed() -> None:
    history = History(taken=taken(3 * HOUR, HOUR))
    decisions = four_drifted(history, configured(disruption={"maximumPerDay": "2"}))
    assert decisions.commands == ()
    assert {d.not_before for d in decisions.deferred} == {NOW + 21 * HOUR}
    [message] = {d.message for d in decisions.deferred}
    assert message == (
        "2 of the 4 nodes of the fleet may be disrupted within 24 hours (disruption.maximumPerDay);"
        " 2 were disrupted"
    )


def test_a_node_that_waits_for_this_plans_disruptions_has_no_time() -> None:
    """The day begins when the plan is executed, however often it is computed."""
    decisions = four_drifted(History(), configured(maximumPerDay="1"))
    assert len(decisions.commands) == 1
    assert [d.not_before for d in decisions.deferred] == [None] * 3


def test_the_daily_maximum_of_one_pool_does_not_affect_another() -> None:
    made = configured(nodePools={"a": {"maximumPerDay": "1"}})
    history = History(taken=(DisruptionRecord(NOW - HOUR, "a"),))
    nodes = [a_node("a1", pool="a"), a_node("b1", pool="b")]
    decisions = decided(*nodes, pools=[a_pool("a"), a_pool("b")], settings=made, history=history)
    assert brief(decisions) == [("Empty", "delete", ("b1",))]


def test_forceful_disruption_does_not_count_towards_the_daily_maximum() -> None:
    made = configured(maximumPerDay="1")
    decisions = decided(*a_node("n"), *a_node("m"), settings=made, interrupted={"claim-n": "spot"})
    assert brief(decisions) == [("Interrupted", "delete", ("n",)), ("Empty", "delete", ("m",))]


@given(
    ages=st.lists(st.integers(0, 24 * 60 - 1), max_size=8).map(sorted),
    most=st.integers(0, 8),
)
def test_the_reported_time_is_the_first_at_which_a_node_is_allowed(
    ages: list[int], most: int
) -> None:
    rows = taken(*(timedelta(minutes=age) for age in reversed(ages)))
    at = next_free_at(rows, most)
    if at is None:
        assert most == 0 or len(rows) < most
        return
    assert sum(at - row.at < DAY for row in rows) < most
    before = at - timedelta(microseconds=1)
    assert sum(before - row.at < DAY for row in rows) >= most


# waves


def a_move(**fields: Any) -> Move:
    return Move(**{"command": "drifted-1", "started_at": NOW - HOUR, "nodes": 2, **fields})


def rolling(*moves: Move, **fields: Any) -> History:
    return History(rollouts=(Rollout("default", wave=3, size=2, moves=moves, **fields),))


def test_a_wave_limits_the_number_of_nodes_and_names_itself() -> None:
    decisions = four_drifted(History(), configured(waveSize="50%"))
    assert len(decisions.commands) == 2
    assert {d.message for d in decisions.deferred} == {
        "wave 1 of NodePool default is limited to 2 nodes (waveSize)"
    }


@pytest.mark.parametrize(
    ("move", "why", "until"),
    [
        (a_move(), "its commands must finish", None),
        (
            a_move(ended_at=NOW - HOUR, waits_for="1 of 3 pods of x/ReplicaSet/y are available"),
            "1 of 3 pods of x/ReplicaSet/y are available",
            None,
        ),
        (
            a_move(ended_at=NOW - HOUR, healthy_at=NOW - timedelta(minutes=5)),
            "its nodes must stay healthy for waveSoak",
            NOW + timedelta(minutes=15),
        ),
    ],
)
def test_the_next_wave_reports_what_the_last_one_waits_for(
    move: Move, why: str, until: Any
) -> None:
    made = configured(waveSize="2", waveSoak="20m")
    decisions = four_drifted(rolling(move), made)
    assert decisions.commands == ()
    [(message, at)] = {(d.message, d.not_before) for d in decisions.deferred}
    wave = "wave 3 of NodePool default has disrupted 2 of 2 nodes (waveSize)"
    assert (message, at) == (f"{wave}; before the next wave, {why}", until)


def test_an_incomplete_wave_continues() -> None:
    decisions = four_drifted(rolling(a_move(nodes=1)), configured(waveSize="2"))
    assert len(decisions.commands) == 1


def test_waves_do_not_limit_empty_nodes() -> None:
    decisions = decided(*a_node("n"), settings=configured(waveSize="2"), history=rolling(a_move()))
    assert brief(decisions) == [("Empty", "delete", ("n",))]


def test_a_halted_rollout_stays_halted_until_resumed() -> None:
    history = rolling(stopped_at=NOW - HOUR, stopped_why="no capacity", failures=3)
    decisions = four_drifted(history, configured(stopAfterFailures=3))
    assert decisions.commands == ()
    assert {d.waits_for for d in decisions.deferred} == {WaitsFor.APPROVAL}
    [message] = {d.message for d in decisions.deferred}
    assert message == (
        "disruption of NodePool default was halted at 2026-01-05 11:00 UTC after 3 failures"
        " (last: no capacity); run `reconciler resume --node-pool default` to continue"
    )
    assert len(four_drifted(history, configured()).commands) == 4, "nobody asks for stops any more"


# flap damping


def fresh(at: str, offering: str = "medium,zone-a,on-demand") -> list[dict[str, Any]]:
    """Return an expensive node that replaced a medium one, and a pod that fits a medium one."""
    memory = {"annotations": {GAVE_UP: f"{offering}@{at}"}}
    return [*a_node("n", "huge", claim_metadata=memory), a_pod("p", "n", "3")]


def test_a_recently_replaced_offering_is_not_used_again() -> None:
    made = configured(undoPeriod="24h")
    decisions = decided(*fresh(stamp(NOW - HOUR)), settings=made)
    assert decisions.commands == ()
    [deferral] = decisions.deferred
    assert deferral.not_before == NOW + 23 * HOUR
    assert deferral.message == (
        "would undo a consolidation: n replaced medium on-demand in zone-a at 2026-01-05 11:00 UTC,"
        " and its replacement could be the same offering again (undoPeriod)"
    )
    assert brief(decided(*fresh(stamp(NOW - HOUR)))), "without a period nothing is remembered"


@pytest.mark.parametrize(
    "offering", ["small,zone-a,on-demand", "medium,zone-a,spot", "medium,zone-c,on-demand", "?"]
)
def test_an_offering_that_was_not_replaced_may_be_used(offering: str) -> None:
    made = configured(undoPeriod="24h")
    assert brief(decided(*fresh(stamp(NOW - HOUR), offering), settings=made))


def test_flap_damping_ends_with_its_period() -> None:
    made = configured(undoPeriod="24h")
    objects = fresh(stamp(NOW - 24 * HOUR))
    assert brief(decided(*objects, settings=made))
    early = NOW - timedelta(microseconds=1)
    assert next_decision_change(a_cluster(*objects), [a_pool()], made, early) == NOW


def test_flap_damping_does_not_prevent_deletion() -> None:
    made = configured(undoPeriod="24h")
    decisions = decided(
        *fresh(stamp(NOW)), *a_node("m", "huge"), a_pod("q", "m", "1"), settings=made
    )
    assert [(c.decision, len(c.nodes)) for c in decisions.commands] == [("delete", 1)]


CLAIMS = st.builds(
    lambda name, text: decode(
        {
            "metadata": {
                "name": "claim",
                "labels": {
                    "node.kubernetes.io/instance-type": name,
                    "topology.kubernetes.io/zone": "zone-a",
                    "karpenter.sh/capacity-type": "spot",
                },
                "annotations": {GAVE_UP: text},
            }
        },
        NodeClaim,
    ),
    st.sampled_from(["small", "large"]),
    st.text(max_size=30) | st.just(f"huge,zone-b,spot@{stamp(NOW - HOUR)}"),
)


@given(CLAIMS)
def test_a_replacement_inherits_the_replaced_offerings(claim: NodeClaim) -> None:
    made = configured(undoPeriod="24h")
    text = gave_up_annotation([claim], made, NOW)
    heir = decode({"metadata": {"name": "heir", "annotations": {GAVE_UP: text}}}, NodeClaim)
    own = claim.metadata.labels["node.kubernetes.io/instance-type"]
    assert abandoned_offerings(heir) == (
        *abandoned_offerings(claim),
        AbandonedOffering(NOW, own, "zone-a", "spot"),
    )
    assert [until for _, until in avoided_offerings(heir, made)][-1] == NOW + 24 * HOUR


@given(CLAIMS)
def test_descendants_of_several_replacements_remember_without_a_period(claim: NodeClaim) -> None:
    """For an hour, ``repeat_refusal`` reads the offerings that such a lineage gave up."""
    assert gave_up_annotation([claim], configured(), NOW) == ""
    text = gave_up_annotation([claim], configured(), NOW, several=True)
    heir = decode({"metadata": {"name": "heir", "annotations": {GAVE_UP: text}}}, NodeClaim)
    own = claim.metadata.labels["node.kubernetes.io/instance-type"]
    assert abandoned_offerings(heir)[-1] == AbandonedOffering(NOW, own, "zone-a", "spot")
    assert text.split()[-1] in gave_up_annotation([heir], configured(), NOW + HOUR / 2)
    assert gave_up_annotation([heir], configured(), NOW + HOUR) == ""


# configuration


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("waveSize", "101%"), ("waveSize", True), ("maximumPerDay", "-1"), ("undoPeriod", "-1h"),
        ("waveDeadline", "0s"), ("stopAfterFailures", "some"), ("progressDeadline", "soon"),
    ],
)  # fmt: skip
def test_an_invalid_setting_is_rejected_with_its_key(key: str, value: Any) -> None:
    with pytest.raises(UsageError, match=key):
        resolve({key: value}, {})
    with pytest.raises(UsageError, match=key):
        resolve({"nodePools": {"web": {key: value}}}, {})


def test_a_rate_limit_names_its_setting() -> None:
    made = configured(nodePools={"default": {"undoPeriod": "24h"}})
    decisions = decided(*fresh(stamp(NOW - HOUR)), settings=made)
    assert "(nodePools.default.undoPeriod)" in decisions.deferred[0].message
    assert refusal_of(decisions, "n") == ""
