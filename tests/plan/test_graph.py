"""The order of actions."""

from __future__ import annotations

import networkx as nx
import pytest
from hypothesis import given, settings

from reconciler.plan.graph import graph, in_waves, waves
from reconciler.plan.value.actions import Action
from tests.plan.builders import PLANS, a_plan, an_action
from tests.plan.strategies import actions


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
    assert any(command.replacements for command in plan.commands)
    assert not all(command.replacements for command in plan.commands)
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
