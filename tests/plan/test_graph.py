"""The order of actions, and the machine that keeps it."""

from __future__ import annotations

from datetime import UTC, datetime

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.plan.graph import graph, in_waves, waves
from reconciler.plan.plan import Action, Plan
from reconciler.plan.run import ActionState, Event, Failed, PlanRun, Started, Succeeded
from tests.plan.builders import PLANS, a_plan, an_action
from tests.plan.strategies import actions

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@given(actions())
@settings(deadline=None)
def test_waves_agree_with_the_graph(every: tuple[Action, ...]) -> None:
    edges = graph(a_plan(actions=every))
    by_wave = {action.id: action.wave for action in every}
    for number, layer in enumerate(nx.topological_generations(edges)):
        assert {by_wave[name] for name in layer} == {number}
    assert [a.wave for a in every] == sorted(a.wave for a in every)


def test_a_replacement_is_ready_before_what_it_replaces_goes() -> None:
    plan = PLANS["pull_request"]()
    edges = graph(plan)
    for command in plan.commands:
        for name in command.node_claims:
            before = nx.ancestors(edges, f"terminate/{name}")
            assert {f"provision/{r}" for r in command.replacements} <= before
            assert (f"replace/{command.id}" in before) is bool(command.replacements)


def test_a_circle_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="wait for each other"):
        waves({"a": ["b"], "b": ["a"]})


def test_waiting_for_what_is_not_there_is_our_mistake() -> None:
    with pytest.raises(AssertionError, match="ghost"):
        waves({"a": ["ghost"]})
    with pytest.raises(AssertionError, match="not in the plan"):
        graph(a_plan(actions=(an_action("a", after=("ghost",)),)))


def test_two_actions_of_one_id_are_our_mistake() -> None:
    with pytest.raises(AssertionError, match="duplicate"):
        in_waves([an_action("a"), an_action("a")])
    with pytest.raises(AssertionError, match="one id"):
        PlanRun(a_plan(actions=(an_action("a"), an_action("a"))))


@given(actions(), st.data())
@settings(deadline=None)
def test_every_order_of_events_ends_and_never_runs_ahead(
    every: tuple[Action, ...], data: st.DataObject
) -> None:
    plan = a_plan(actions=every)
    run, journal = PlanRun(plan), list[Event]()
    while not run.is_finished:
        action = data.draw(st.sampled_from(run.ready() + run.in_doubt()))
        if run.states[action.id] is ActionState.PENDING:
            assert all(run.states[i] is ActionState.SUCCEEDED for i in action.depends_on)
            event: Event = Started(action.id, NOW)
        elif data.draw(st.booleans()):
            event = Succeeded(action.id, NOW)
        else:
            event = Failed(action.id, NOW, "no capacity")
        journal.append(event)
        run.feed(event)
        assert_restored(plan, journal, run)

    final = {ActionState.SUCCEEDED, ActionState.FAILED, ActionState.SKIPPED}
    assert set(run.states.values()) <= final
    assert_skipped_behind_failures(plan, run)


def assert_restored(plan: Plan, journal: list[Event], run: PlanRun) -> None:
    """After a crash at this point the same is ready, and the same in doubt."""
    restored = PlanRun(plan)
    restored.restore(journal)
    assert restored.states == run.states
    assert restored.ready() == run.ready()
    assert restored.in_doubt() == run.in_doubt()


def assert_skipped_behind_failures(plan: Plan, run: PlanRun) -> None:
    edges = graph(plan)
    for action in plan.actions:
        failed = any(run.states[b] is ActionState.FAILED for b in nx.ancestors(edges, action.id))
        assert (run.states[action.id] is ActionState.SKIPPED) is failed


@pytest.mark.parametrize(
    "events",
    [
        [Succeeded("a", NOW)],
        [Started("a", NOW), Started("a", NOW)],
        [Started("a", NOW), Succeeded("a", NOW), Failed("a", NOW, "")],
        [Started("b", NOW)],
    ],
)
def test_events_out_of_turn_are_our_mistake(events: list[Event]) -> None:
    run = PlanRun(a_plan(actions=(an_action("a"), an_action("b", after=("a",)))))
    with pytest.raises(AssertionError):
        run.restore(events)


def test_a_failed_launch_keeps_the_old_node() -> None:
    run = PlanRun(a_plan(actions=(an_action("launch"), an_action("remove", after=("launch",)))))
    run.restore([Started("launch", NOW), Failed("launch", NOW, "no capacity")])
    assert run.states["remove"] is ActionState.SKIPPED
    assert run.is_finished
