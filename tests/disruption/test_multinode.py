"""Consolidation of several nodes at once: how many, and what their replacement may cost."""

from __future__ import annotations

import pytest

from reconciler.model.settings import ConsolidationSearch, DecisionRules, Settings
from tests.disruption.builders import a_catalog, a_node, a_pod, brief, decided, refusal_of

AS_KARPENTER = Settings(
    decide=DecisionRules.KARPENTER, consolidation_search=ConsolidationSearch.KARPENTER
)


def test_at_most_a_hundred_and_one_nodes_are_removed_together() -> None:
    """Karpenter considers a hundred, but its search reaches one more."""
    nodes = [a_node(f"n{i:03}", "small") for i in range(120)]
    pods = [a_pod(f"p{i:03}", f"n{i:03}", "0.1") for i in range(120)]

    decisions = decided(*nodes, *pods, settings=AS_KARPENTER)

    ((_, _, removed),) = brief(decisions)
    assert len(removed) == 101


@pytest.mark.parametrize(("other", "cheaper"), [(0.4, False), (0.39, True)])
def test_a_replacement_is_cheaper_in_every_zone(other: float, cheaper: bool) -> None:
    offerings = [
        {"zone": zone, "capacityType": "on-demand", "price": price}
        for zone, price in (("zone-a", 0.1), ("zone-b", other))
    ]
    base = {"capacity": {"cpu": "4", "pods": "10"}}
    types = [
        {"name": "medium", **base, "offerings": [{**offerings[0], "price": 0.4}]},
        {"name": "uneven", **base, "offerings": offerings},
    ]

    decisions = decided(a_node("n1", "medium"), a_pod("p", "n1", "3"), catalog=a_catalog(types))

    assert bool(decisions.commands) is cheaper
    assert (refusal_of(decisions, "n1") == "Can't replace with a cheaper node") is not cheaper


@pytest.mark.parametrize(("on_medium", "on_large"), [(6, 1), (1, 6)])
def test_a_replacement_is_cheaper_than_each_node_whose_type_it_could_have(
    on_medium: int, on_large: int
) -> None:
    """Whichever is considered last: a node with more pods is worse to remove."""
    pods = [a_pod(f"m{i}", "n1", "0.1") for i in range(on_medium)]
    pods += [a_pod(f"l{i}", "n2", "0.1") for i in range(on_large)]

    decisions = decided(a_node("n1", "medium"), a_node("n2", "large"), *pods, settings=AS_KARPENTER)

    (command,) = decisions.commands
    assert sorted(command.nodes) == ["n1", "n2"]
    assert [kind.name for kind in command.replacements[0].types] == ["small"]


@pytest.mark.parametrize(
    ("settings", "removed"),
    [(AS_KARPENTER, ["n1", "n2"]), (Settings(), ["n2"])],
    ids=["as Karpenter", "default"],
)
def test_a_node_whose_type_costs_too_much_elsewhere_is_kept_only_by_default(
    settings: Settings, removed: list[str]
) -> None:
    """Karpenter no longer compares the price of a type that it has excluded for its price."""
    catalog = a_catalog(
        [
            _kind("medium", "4", {"zone-a": 0.4, "zone-b": 0.9}),
            _kind("even", "4", {"zone-a": 0.45, "zone-b": 0.45}),
            _kind("small", "2", {"zone-a": 0.1}),
        ]
    )
    nodes = [a_node("n1", "medium"), a_node("n2", "small")]

    decisions = decided(
        *nodes, a_pod("p1", "n1", "2.5"), a_pod("p2", "n2", "1"), catalog=catalog, settings=settings
    )

    assert [sorted(command.nodes) for command in decisions.commands] == [removed]


def _kind(name: str, cpu: str, price_by_zone: dict[str, float]) -> dict[str, object]:
    offerings = [
        {"zone": zone, "capacityType": "on-demand", "price": price}
        for zone, price in price_by_zone.items()
    ]
    return {"name": name, "capacity": {"cpu": cpu, "pods": "10"}, "offerings": offerings}
