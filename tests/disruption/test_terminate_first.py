"""Terminate-first drift: static NodePools at their limit, in Karpenter 1.15 with its gate."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, KarpenterVersion, Settings
from tests.disruption.builders import a_node, a_pool, brief, decided, drifted, refusal_of


def _settings(
    *gates: FeatureGate, karpenter: KarpenterVersion = KarpenterVersion.V1_15
) -> Settings:
    return Settings(
        karpenter=karpenter, feature_gates={**DEFAULT_FEATURE_GATES, **dict.fromkeys(gates, True)}
    )


TERMINATE_FIRST = _settings(FeatureGate.TERMINATE_FIRST_DRIFT)
OLDER = _settings(FeatureGate.TERMINATE_FIRST_DRIFT, karpenter=KarpenterVersion.V1_14)


def _a_static_pool(replicas: int, limit: int, nodes: str = "100%") -> Any:
    spec = {"replicas": replicas, "limits": {"nodes": str(limit)}}
    return a_pool(spec=spec, consolidateAfter="Never", budgets=[{"nodes": nodes}])


@pytest.mark.parametrize("settings", [_settings(), OLDER])
def test_a_full_static_pool_is_blocked_without_the_gate_or_before_1_15(settings: Settings) -> None:
    nodes = [a_node(f"n{i}") for i in range(3)]

    decisions = decided(
        *nodes, pools=[_a_static_pool(3, 3)], drifted=drifted("n0"), settings=settings
    )

    assert brief(decisions) == []
    assert "has reached limits.nodes" in refusal_of(decisions, "n0")


def test_a_drifted_node_of_a_full_static_pool_goes_before_its_replacement() -> None:
    nodes = [a_node(f"n{i}") for i in range(3)]

    decisions = decided(
        *nodes, pools=[_a_static_pool(3, 3)], drifted=drifted("n1"), settings=TERMINATE_FIRST
    )

    assert brief(decisions) == [("Drifted", "delete", ("n1",))]
    (command,) = decisions.commands
    assert not command.is_forceful
    assert command.message == "limits.nodes leaves no room to start the replacement first"


@pytest.mark.parametrize(("budget", "gone"), [("0", 0), ("1", 1), ("2", 2), ("34%", 2), ("3", 3)])
def test_the_budget_limits_how_many_go_at_a_time(budget: str, gone: int) -> None:
    nodes = [a_node(f"n{i}") for i in range(3)]

    decisions = decided(
        *nodes,
        pools=[_a_static_pool(3, 3, budget)],
        drifted=drifted("n0", "n1", "n2"),
        settings=TERMINATE_FIRST,
    )

    assert brief(decisions) == [("Drifted", "delete", (f"n{i}",)) for i in range(gone)]
    assert {d.waits_for for d in decisions.deferred} == ({WaitsFor.BUDGET} if gone < 3 else set())


def test_a_pool_with_room_adds_the_replacement_first() -> None:
    """Nodes beyond that room wait for it, as they can be replaced first later."""
    nodes = [a_node(f"n{i}") for i in range(3)]

    decisions = decided(
        *nodes,
        pools=[_a_static_pool(3, 4)],
        drifted=drifted("n0", "n1"),
        settings=TERMINATE_FIRST,
    )

    assert [(c.decision, c.nodes, len(c.replacements)) for c in decisions.commands] == [
        ("replace", ("n0",), 1)
    ]
    assert "has reached limits.nodes" in refusal_of(decisions, "n1")


def test_a_pool_that_lacks_nodes_is_filled_before_the_next_one_goes() -> None:
    nodes = [a_node(f"n{i}") for i in range(2)]

    decisions = decided(
        *nodes, pools=[_a_static_pool(3, 3)], drifted=drifted("n0"), settings=TERMINATE_FIRST
    )

    assert brief(decisions) == []


def test_nothing_goes_first_if_its_replacement_could_not_be_launched() -> None:
    nowhere = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["nowhere"]}
    pool = a_pool(
        spec={
            "replicas": 1,
            "limits": {"nodes": "1"},
            "template": {"spec": {"requirements": [nowhere], "expireAfter": "Never"}},
        },
        consolidateAfter="Never",
    )

    decisions = decided(a_node("n0"), pools=[pool], drifted=drifted("n0"), settings=TERMINATE_FIRST)

    assert brief(decisions) == []
    assert refusal_of(decisions, "n0")


def test_nodes_of_a_dynamic_pool_are_replaced_first_all_the_same() -> None:
    pool = a_pool(consolidateAfter="Never", budgets=[{"nodes": "100%"}])

    decisions = decided(
        a_node("n0"), a_node("n1"), pools=[pool], drifted=drifted("n0"), settings=TERMINATE_FIRST
    )

    assert brief(decisions) == [("Drifted", "delete", ("n0",))]
    assert decisions.commands[0].message == ""
