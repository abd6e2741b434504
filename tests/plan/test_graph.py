"""The order of actions."""

from __future__ import annotations

import sys

import networkx as nx
import pytest
from hypothesis import given, settings

from reconciler.plan.graph import ActionGraph, sort_into_waves
from reconciler.plan.run import PlanRun
from reconciler.plan.value.actions import Action
from tests.plan.builders import PLANS, an_action
from tests.plan.strategies import actions


@given(actions())
@settings(deadline=None)
def test_an_action_is_one_wave_after_the_last_it_depends_on(every: tuple[Action, ...]) -> None:
    wave = {action.id: action.wave for action in every}
    for action in every:
        assert action.wave == max((wave[before] + 1 for before in action.depends_on), default=0)
    assert [(a.wave, a.id) for a in every] == sorted((a.wave, a.id) for a in every)


@given(actions())
@settings(deadline=None)
def test_the_graph_has_every_action_and_dependency(every: tuple[Action, ...]) -> None:
    graph = ActionGraph.from_actions(every)
    assert dict(graph.edges.nodes(data="verb")) == {a.id: a.kind for a in every}
    assert set(graph.edges.edges) == {(before, a.id) for a in every for before in a.depends_on}
    place = {name: number for number, name in enumerate(graph.order)}
    assert all(place[before] < place[after] for before, after in graph.edges.edges)


def test_a_replacement_is_ready_before_the_old_node_is_terminated() -> None:
    plan = PLANS["pull_request"]()
    edges = ActionGraph.from_actions(plan.actions).edges
    assert any(command.replacements for command in plan.commands)
    assert not all(command.replacements for command in plan.commands)
    for command in plan.commands:
        for name in command.node_claims:
            before = nx.ancestors(edges, f"terminate/{name}")
            assert {f"provision/{r}" for r in command.replacements} <= before
            assert (f"replace/{command.id}" in before) is bool(command.replacements)


def test_a_cycle_is_an_internal_error_that_names_it() -> None:
    with pytest.raises(AssertionError, match=r"wait for each other: (a -> b -> a|b -> a -> b)$"):
        sort_into_waves(
            [an_action("a", after=("b",)), an_action("b", after=("a",)), an_action("c")]
        )


def test_a_dependency_on_an_unknown_action_is_an_internal_error() -> None:
    with pytest.raises(AssertionError, match="a waits for ghost, which is not in the plan"):
        ActionGraph.from_actions([an_action("a", after=("ghost",))])


def test_a_duplicate_action_id_is_an_internal_error() -> None:
    with pytest.raises(AssertionError, match="duplicate"):
        sort_into_waves([an_action("a"), an_action("a")])


def test_actions_without_dependencies_do_not_load_networkx(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "networkx", None)
    alone = sort_into_waves([an_action("b"), an_action("a")])
    assert [a.id for a in PlanRun(alone).ready()] == ["a", "b"]
    with pytest.raises(ImportError):
        sort_into_waves([an_action("a"), an_action("b", after=("a",))])
