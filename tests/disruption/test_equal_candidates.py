"""Which nodes a command might remove just as well as its own."""

from typing import Any

from reconciler.model.decision.equals import EqualCandidates
from tests.disruption.builders import a_node, a_pod, a_pool, brief, decided, drifted

ONE = [{"nodes": "1"}]


def rows_of(*names: str, **fields: Any) -> list[list[dict[str, Any]]]:
    """Return nodes with one pod of the same workload each."""
    return [[*a_node(name, **fields), a_pod(f"p-{name}", name, "3")] for name in names]


def test_a_drifted_node_is_one_of_those_that_drifted_together() -> None:
    rows = rows_of("n1", "n2", "n3", "n4")
    claims = drifted("n1", "n2", "n3", "n4")

    decisions = decided(*rows, pools=[a_pool(budgets=ONE)], drifted=claims, lists_blockers=True)

    (command,) = decisions.commands
    assert command.nodes == ("n1",)
    assert command.equals == (EqualCandidates(count=1, nodes=("n1", "n2", "n3", "n4")),)


def test_nodes_are_not_equal_in_another_zone_with_other_pods_or_if_protected() -> None:
    protection = {"karpenter.sh/do-not-disrupt": "true"}
    rows = [
        *rows_of("n1", "n2"),
        *rows_of("n3", zone="zone-b"),
        *rows_of("n5", annotations=protection),
        [*a_node("n4"), a_pod("p-n4", "n4", "2")],
    ]
    claims = drifted("n1", "n2", "n3", "n4", "n5")

    decisions = decided(*rows, pools=[a_pool(budgets=ONE)], drifted=claims, lists_blockers=True)

    (command,) = decisions.commands
    assert command.equals == (EqualCandidates(count=1, nodes=("n1", "n2")),)


def test_all_empty_nodes_that_the_budget_allows_have_no_alternative() -> None:
    decisions = decided(a_node("n1"), a_node("n2"), lists_blockers=True)

    assert brief(decisions) == [("Empty", "delete", ("n1", "n2"))]
    assert decisions.commands[0].equals == ()


def test_a_command_removes_some_of_several_equal_empty_nodes() -> None:
    pool = a_pool(budgets=[{"nodes": "2"}])

    decisions = decided(*(a_node(f"n{n}") for n in range(5)), pools=[pool], lists_blockers=True)

    (command,) = decisions.commands
    assert command.equals == (EqualCandidates(count=2, nodes=("n0", "n1", "n2", "n3", "n4")),)
