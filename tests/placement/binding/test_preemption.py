"""A pod that fits nowhere evicts pods of a lower priority: few, and the least important."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from reconciler.model.kubernetes.cluster import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.profile import DEFAULT_PROFILE, Plugin
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo
from tests.placement.binding.builders import a_binder, a_node, a_pod, apart, places, selecting

URGENT = {"priority": 100}


def a_budget(app: str, allowed: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        Metadata(name=app, namespace="shop"),
        PodDisruptionBudgetSpec(selecting(app)),
        PodDisruptionBudgetStatus(allowed),
    )


def evicted(binder: NodeBinder) -> dict[str, list[str]]:
    """The names of the victims of the last ``bind``, by the node that they leave."""
    return {p.node: [v.metadata.name for v in p.victims] for p in binder.preemptions}


Pods = Sequence[Pod]


@pytest.mark.parametrize(
    ("first", "second", "budgets", "expected"),
    [
        pytest.param(
            [a_pod("x", "3", app="db", priority=1)],
            [a_pod("y", "3", priority=1)],
            [a_budget("db", 0)],
            {"b": ["y"]},
            id="no budget is violated",
        ),
        pytest.param(
            [a_pod("x", "3", priority=5)],
            [a_pod("y", "2", priority=4), a_pod("z", "1", priority=4)],
            [],
            {"b": ["y"]},
            id="the lowest of the highest priorities",
        ),
        pytest.param(
            [a_pod("x", "2", priority=4), a_pod("y", "2", priority=4)],
            [a_pod("z", "4", priority=4)],
            [],
            {"b": ["z"]},
            id="the smallest sum of priorities",
        ),
        pytest.param(
            [a_pod("x", "4", priority=4, started=1)],
            [a_pod("y", "4", priority=4, started=2)],
            [],
            {"b": ["y"]},
            id="the one that started last",
        ),
    ],
)
def test_the_node_where_least_is_lost_is_chosen(
    first: Pods, second: Pods, budgets: list[PodDisruptionBudget], expected: dict[str, list[str]]
) -> None:
    wanted = "4" if any(p.requests()["cpu"] == 4000 for p in (*first, *second)) else "3"
    for pairs in ((("a", first), ("b", second)), (("b", second), ("a", first))):
        binder = a_binder(*((a_node(name), pods) for name, pods in pairs), budgets=budgets)
        assert places(binder, a_pod("urgent", wanted, **URGENT)) == {}
        assert evicted(binder) == expected


def test_as_many_pods_as_possible_stay_the_most_important_first() -> None:
    pods = [
        a_pod("old", "1", priority=1, started=1),
        a_pod("new", "1", priority=1, started=9),
        a_pod("low", "1", priority=0, started=1),
        a_pod("same", "1", priority=100),
    ]
    binder = a_binder((a_node("n"), pods))
    assert places(binder, a_pod("urgent", "2", **URGENT)) == {}
    assert evicted(binder) == {"n": ["new", "low"]}


def test_pods_that_a_budget_protects_stay_rather_than_more_important_ones() -> None:
    pods = [a_pod("kept", "2", app="db", priority=1), a_pod("gone", "2", priority=50)]
    binder = a_binder((a_node("n"), pods), budgets=[a_budget("db", 0)])
    places(binder, a_pod("urgent", "2", **URGENT))
    assert evicted(binder) == {"n": ["gone"]}


def test_a_budget_is_violated_if_nothing_else_helps() -> None:
    binder = a_binder((a_node("n"), [a_pod("db", "4", app="db")]), budgets=[a_budget("db", 0)])
    places(binder, a_pod("urgent", "2", **URGENT))
    assert evicted(binder) == {"n": ["db"]}


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({"priority": 100, "preemption_policy": "Never"}, id="its policy is Never"),
        pytest.param({"priority": 0}, id="no pod has a lower priority"),
        pytest.param({"priority": 100, "node_selector": {"gpu": "yes"}}, id="node selector"),
    ],
)
def test_nobody_is_evicted_in_vain(spec: dict[str, object]) -> None:
    binder = a_binder((a_node("n"), [a_pod("x", "4")]))
    places(binder, a_pod("urgent", "2", **spec))
    assert evicted(binder) == {}


def test_nobody_is_evicted_for_a_pod_that_is_larger_than_the_node() -> None:
    binder = a_binder((a_node("n"), [a_pod("x", "4")]))
    places(binder, a_pod("urgent", "5", **URGENT))
    assert evicted(binder) == {}


def test_preemption_can_be_disabled() -> None:
    profile = replace(DEFAULT_PROFILE, disabled=frozenset({Plugin.DEFAULT_PREEMPTION}))
    binder = a_binder((a_node("n"), [a_pod("x", "4")]), profile=profile)
    places(binder, a_pod("urgent", "2", **URGENT))
    assert evicted(binder) == {}


def test_anti_affinity_to_less_important_pods_is_solved_by_their_eviction() -> None:
    binder = a_binder((a_node("n"), [a_pod("x", "1"), a_pod("y", "1", app="db")]))
    places(binder, a_pod("urgent", "1", affinity=apart("db"), **URGENT))
    assert evicted(binder) == {"n": ["y"]}


def test_the_pod_is_bound_to_its_node_once_the_victims_are_gone() -> None:
    node, other = a_node("n"), a_node("other")
    victim, stays = a_pod("victim", "4"), a_pod("stays", "4", priority=100)
    urgent = a_pod("urgent", "4", **URGENT)
    binder = a_binder((node, [victim]), (other, [stays]))
    assert places(binder, urgent) == {}
    leaving = a_pod("victim", "4", deleted=True)
    binder.follow([NodeInfo(node, [leaving]), NodeInfo(other, [stays])])
    assert places(binder, urgent) == {}
    assert evicted(binder) == {}, "it waits for its victim"
    binder.follow([NodeInfo(node), NodeInfo(other)])
    assert places(binder, a_pod("small", "1"), urgent) == {"urgent": "n", "small": "other"}


def test_pods_of_a_lower_priority_leave_the_room_that_is_made() -> None:
    node, urgent, later = a_node("n"), a_pod("urgent", "3", **URGENT), a_pod("later", "2")
    binder = a_binder((node, [a_pod("x", "2"), a_pod("y", "2")]))
    assert places(binder, urgent) == {}
    binder.follow([NodeInfo(node, [a_pod("y", "2", deleted=True)])])
    assert places(binder, later, urgent) == {}, "two cores are free, and wait for the urgent pod"
    assert places(binder, later) == {"later": "n"}, "it was deleted meanwhile"


def test_the_cluster_is_as_before_if_nobody_is_evicted() -> None:
    pods = [a_pod(f"p{n}", "1", affinity=apart("db"), priority=n) for n in range(4)]
    binder = a_binder((a_node("n"), pods), a_node("m", "b"))
    before = binder.scores(a_pod("q", "", ""))
    places(binder, a_pod("urgent", "5", **URGENT), a_pod("blocked", "5", "9Gi", **URGENT))
    assert binder.scores(a_pod("q", "", "")) == before
