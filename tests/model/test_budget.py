"""Budgets of a NodePool: shares, windows, and what an invalid one allows."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from reconciler.model.karpenter.budget import UNBOUNDED, Allowance, Budget, allowance

NOON = datetime(2026, 1, 5, 12, tzinfo=UTC)
NIGHT = datetime(2026, 1, 5, 23, tzinfo=UTC)
NIGHTLY = Budget(nodes="0", schedule="0 22 * * *", duration="2h")


@pytest.mark.parametrize(
    ("nodes", "total", "allowed"),
    [("10%", 0, 0), ("10%", 1, 1), ("10%", 10, 1), ("10%", 11, 2), ("0%", 9, 0), ("100%", 9, 9),
     ("3", 0, 3), ("0", 5, 0)],
)  # fmt: skip
def test_a_share_rounds_up_and_a_number_is_as_it_is(nodes: str, total: int, allowed: int) -> None:
    assert Budget(nodes=nodes).allowed_disruptions(total, NOON) == allowed


def test_a_budget_limits_nothing_outside_its_window() -> None:
    assert NIGHTLY.allowed_disruptions(9, NOON) == UNBOUNDED
    assert NIGHTLY.allowed_disruptions(9, NIGHT) == 0
    budgets = [Budget(nodes="5"), NIGHTLY]
    assert allowance(budgets, "Empty", 9, NOON) == Allowance(5, 0)
    assert allowance(budgets, "Empty", 9, NIGHT) == Allowance(0, 1)


def test_the_least_budget_of_the_reason_binds_and_the_first_of_equal_ones() -> None:
    budgets = [
        Budget(nodes="4"),
        Budget(nodes="2", reasons=("Drifted",)),
        Budget(nodes="3", reasons=("Empty", "Drifted")),
        Budget(nodes="3"),
    ]
    assert allowance(budgets, "Empty", 9, NOON) == Allowance(3, 2)
    assert allowance(budgets, "Drifted", 9, NOON) == Allowance(2, 1)
    assert allowance(budgets, "Underutilized", 9, NOON) == Allowance(3, 3)
    assert allowance([], "Empty", 9, NOON) == Allowance(UNBOUNDED)


def test_an_invalid_budget_allows_nothing_even_for_another_reason() -> None:
    budgets = [Budget(nodes="5"), Budget(nodes="many", reasons=("Drifted",))]
    found = allowance(budgets, "Empty", 9, NOON)
    assert (found.nodes, found.binding) == (0, 1)
    assert "many" in (found.error or "")
