"""The state machine of a plan's actions follows its table, whatever the events."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.plan.graph import sort_into_waves
from reconciler.plan.run import TRANSITIONS, ActionEvent, ActionState, PlanRun, RunEvent
from reconciler.plan.value.actions import Action
from tests.plan.builders import an_action
from tests.plan.strategies import actions

KINDS = ("provision", "replace", "terminate")
TABLE = {(t.kind, t.before, t.event): t.after for t in TRANSITIONS}
STARTS = {(t.kind, t.event) for t in TRANSITIONS if t.starts}

events = st.lists(st.tuples(st.integers(0, 7), st.sampled_from(ActionEvent)), max_size=60)


@given(actions(), events)
def test_states_change_only_according_to_the_table(
    every: Sequence[Action], happened: Sequence[tuple[int, ActionEvent]]
) -> None:
    run = PlanRun(every)
    for number, event in happened:
        if not every:
            return
        action = every[number % len(every)]
        before, illegal = dict(run.states), len(run.illegal)
        waiting = run.waits_for(action.id)
        after = TABLE.get((action.kind, before[action.id], event))
        run.feed(RunEvent(action.id, event))
        if after is None or (waiting and (action.kind, event) in STARTS):
            assert dict(run.states) == before
            assert len(run.illegal) == illegal + 1
        else:
            assert dict(run.states) == {**before, action.id: after}
            assert len(run.illegal) == illegal
        if before[action.id].is_final:
            assert run.states[action.id] is before[action.id], "what is final stays"


@given(actions(), st.data())
def test_every_legal_order_of_events_ends_and_nothing_starts_early(
    every: Sequence[Action], data: st.DataObject
) -> None:
    run, fed = PlanRun(every), list[RunEvent]()
    while not run.is_finished:
        for ready in run.ready():
            assert all(run.states[before] is ActionState.SUCCEEDED for before in ready.depends_on)
        legal = [
            RunEvent(a.id, t.event)
            for a in run.unfinished()
            for t in TRANSITIONS
            if (t.kind, t.before) == (a.kind, run.states[a.id])
            if not (t.starts and run.waits_for(a.id))
        ]
        assert legal, "there is always a way on"
        fed.append(data.draw(st.sampled_from(legal)))
        run.feed(fed[-1])
    assert run.illegal == ()
    assert run.ready() == ()
    assert sum(run.counts().values()) == len(every)

    rebuilt = PlanRun(every)
    for event in fed:
        rebuilt.feed(event)
    assert rebuilt.states == run.states


def test_the_table_is_deterministic() -> None:
    assert len(TABLE) == len(TRANSITIONS)
    assert {t.event for t in TRANSITIONS} == set(ActionEvent)
    assert {t.before for t in TRANSITIONS} | {t.after for t in TRANSITIONS} == set(ActionState)
    assert not [t for t in TRANSITIONS if t.before.is_final]


@pytest.mark.parametrize("kind", KINDS)
def test_every_state_is_reachable_and_not_a_dead_end(kind: str) -> None:
    rows = [t for t in TRANSITIONS if t.kind == kind]
    reached = {ActionState.PENDING}
    for _ in rows:
        reached |= {t.after for t in rows if t.before in reached}
    assert {t.before for t in rows} <= reached
    assert {s for s in reached if not s.is_final} == {t.before for t in rows}
    assert any(t.starts for t in rows)


def replacement() -> PlanRun:
    return PlanRun(
        sort_into_waves(
            [
                an_action("provision/new", command="c", node_claim="new"),
                an_action("replace/c", after=("provision/new",), kind="replace", command="c"),
                an_action("terminate/old", after=("replace/c",), kind="terminate", command="c"),
            ]
        )
    )


def fed(run: PlanRun, *happened: tuple[str, ActionEvent]) -> dict[str, str]:
    for action, event in happened:
        run.feed(RunEvent(action, event))
    assert run.illegal == ()
    return {name: str(state) for name, state in run.states.items()}


def ids(found: Sequence[Action]) -> list[str]:
    return [action.id for action in found]


def test_a_replacement_goes_from_launch_to_termination() -> None:
    run, event = replacement(), ActionEvent
    assert ids(run.ready()) == ["provision/new"]
    assert run.commands_not_started() == {"c"}
    run.mark("c")
    assert run.commands_not_started() == frozenset()
    fed(run, ("provision/new", event.REQUESTED), ("provision/new", event.LAUNCHED))
    assert ids(run.ready()) == []
    assert ids(run.waits_for("replace/c")) == ["provision/new"]
    assert run.status_message("replace/c") == "waits for provision/new"
    fed(run, ("provision/new", event.INITIALIZED))
    assert ids(run.ready()) == ["replace/c"]
    fed(run, ("replace/c", event.VALIDATED))
    assert ids(run.ready()) == ["terminate/old"]
    fed(run, ("terminate/old", event.DELETED))
    assert not run.is_finished
    assert fed(run, ("terminate/old", event.GONE)) == {
        "provision/new": "succeeded",
        "replace/c": "succeeded",
        "terminate/old": "succeeded",
    }
    assert run.is_finished


def test_a_failed_launch_terminates_no_node() -> None:
    run, event = replacement(), ActionEvent
    run.mark("c")
    fed(run, ("provision/new", event.REQUESTED), ("provision/new", event.REFUSED))
    assert run.ready() == ()
    states = fed(run, ("replace/c", event.ROLLED_BACK), ("terminate/old", event.ROLLED_BACK))
    assert states == {
        "provision/new": "failed",
        "replace/c": "rolled-back",
        "terminate/old": "skipped",
    }


def test_a_command_is_not_validated_before_its_replacements_are_ready() -> None:
    run = replacement()
    run.mark("c")
    run.feed(RunEvent("replace/c", ActionEvent.VALIDATED))
    assert run.states["replace/c"] is ActionState.WAITING
    assert run.illegal == ("replace/c: validated while waiting before provision/new",)


def test_the_message_of_a_state_contains_its_details() -> None:
    run = replacement()
    run.feed(RunEvent("provision/new", ActionEvent.REQUESTED))
    run.feed(RunEvent("provision/new", ActionEvent.LAUNCHED, "no node has joined yet"))
    assert run.status_message("provision/new") == "no node has joined yet"
