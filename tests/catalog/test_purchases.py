"""Commitments worth buying: no other amount saves more for the same usage."""

from __future__ import annotations

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.catalog.commitments.purchases import (
    Purchase,
    PurchaseKind,
    UsageStep,
    purchases,
)
from reconciler.model.billing import HOURS_A_MONTH

PRICES = {"m5.large": 0.1, "m5.xlarge": 0.2, "c5.large": 0.08}
_COUNTS = st.fixed_dictionaries({kind: st.integers(0, 5) for kind in PRICES})
_STEPS = st.lists(st.tuples(st.integers(1, 48), _COUNTS), min_size=1, max_size=6)
Rows = list[tuple[int, dict[str, int]]]


def steps(rows: Rows) -> list[UsageStep]:
    return [
        UsageStep(hours, {kind: count * PRICES[kind] for kind, count in counts.items() if count})
        for hours, counts in rows
    ]


def bought(rows: Rows, compute: float = 27, instance: float = 37) -> tuple[Purchase, ...]:
    return purchases(steps(rows), PRICES.get, compute, instance)


def of_name(found: tuple[Purchase, ...], kind: PurchaseKind, name: str = "") -> Purchase | None:
    return next((one for one in found if (one.kind, one.name) == (kind, name)), None)


def test_usage_that_never_changes_is_covered_whole() -> None:
    found = bought([(24, {"m5.large": 4, "c5.large": 0, "m5.xlarge": 0})])
    plan = of_name(found, PurchaseKind.INSTANCE_PLAN, "m5")
    assert plan is not None
    assert (plan.replaces, plan.used_percent, plan.break_even_percent) == (0.4, 100, 63)
    assert plan.commitment == pytest.approx(0.4 * 0.63)
    assert plan.per_month == pytest.approx(-0.4 * 0.37 * 730)
    reserved = of_name(found, PurchaseKind.RESERVED_INSTANCES, "m5.large")
    assert reserved is not None
    assert (reserved.count, reserved.per_month) == (4, plan.per_month)
    assert found[0].per_month == min(one.per_month for one in found)


@pytest.mark.parametrize(("hours", "covered"), [(62, 0.1), (64, 0.4)])
def test_usage_is_covered_where_it_is_reached_for_long_enough(hours: int, covered: float) -> None:
    """Four nodes for some hours of a hundred, and one node for the others."""
    many, few = {"m5.large": 4}, {"m5.large": 1}
    plan = of_name(bought([(hours, many), (100 - hours, few)]), PurchaseKind.INSTANCE_PLAN, "m5")
    assert plan is not None
    assert plan.replaces == pytest.approx(covered)


def test_nothing_is_bought_without_a_discount_or_usage() -> None:
    assert bought([(24, dict.fromkeys(PRICES, 3))], compute=0, instance=0) == ()
    assert bought([(24, dict.fromkeys(PRICES, 0))]) == ()
    assert purchases((), PRICES.get, 27, 37) == ()


@given(_STEPS, st.integers(1, 90))
def test_no_other_amount_saves_more(rows: Rows, percent: int) -> None:
    found = bought(rows, compute=percent, instance=percent)
    total = fsum(hours for hours, _ in rows)
    usage = [(hours, fsum(c * PRICES[k] for k, c in counts.items())) for hours, counts in rows]

    def saved(covered: float) -> float:
        used = fsum(hours * min(level, covered) for hours, level in usage) / total
        return (used - covered * (1 - percent / 100)) * HOURS_A_MONTH

    best = max(saved(level) for _, level in usage)
    plan = of_name(found, PurchaseKind.COMPUTE_PLAN)
    assert -(plan.per_month if plan is not None else 0.0) == pytest.approx(max(best, 0), abs=1e-4)


@given(_STEPS)
def test_a_purchase_saves_and_is_used_beyond_its_break_even(rows: Rows) -> None:
    for one in bought(rows):
        assert one.per_month < 0
        assert one.used_percent > one.break_even_percent - 0.01
        if one.kind is PurchaseKind.RESERVED_INSTANCES:
            assert one.count >= 1
            assert one.replaces == pytest.approx(one.count * PRICES[one.name])
