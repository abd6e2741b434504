"""Amounts of USD an hour in sentences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.text.money import (
    format_hourly,
    format_monthly,
    format_monthly_parts,
    format_rate,
    hourly_difference,
    monthly_difference,
)


@pytest.mark.parametrize(
    ("amounts", "text"),
    [
        ((0.816,), "$0.82/hour"),
        ((0.0,), "$0/hour"),
        ((0.0469,), "$0.0469/hour"),
        ((0.0, 0.816), "$0 → $0.82/hour"),
        ((0.35, 0.05), "$0.3500 → $0.0500/hour"),
        ((0.8161, 0.8172), "$0.8161 → $0.8172/hour"),
        ((1234.5, 0.0), "$1,234.50 → $0/hour"),
    ],
)
def test_a_rate_has_cents_where_they_are_enough(amounts: tuple[float, ...], text: str) -> None:
    assert format_rate(*amounts) == text


@given(st.lists(st.floats(0, 1_000), min_size=1, max_size=12), st.floats(0, 1_000))
def test_the_dollars_of_parts_add_up_to_their_total(parts: list[float], minimum: float) -> None:
    start = sum(parts) + minimum
    *shown, total = (
        int(text.replace(",", "").lstrip("$"))
        for text in format_monthly_parts(parts, start, minimum)
    )
    assert sum(shown) == total == round(start * 730) - round(minimum * 730)
    assert all(abs(text - part * 730) <= 2 for text, part in zip(shown, parts, strict=True))


@given(st.floats(0, 1_000), st.floats(0, 1_000))
def test_a_difference_is_that_of_the_amounts_shown(before: float, after: float) -> None:
    """$195 → $159 had a change of −$37 beside it, since the three were rounded apart."""

    def read(text: str) -> float:
        return float(text.replace(",", "").replace("$", "").replace("−", "-"))

    month = format_monthly(monthly_difference(before, after), signed=True)
    assert read(month) == read(format_monthly(after)) - read(format_monthly(before))
    hour = format_hourly(hourly_difference(before, after), signed=True)
    assert read(hour) == round(read(format_hourly(after)) - read(format_hourly(before)), 4)


def test_rounding_goes_to_the_largest_remainder() -> None:
    """Rounded one by one, such parts did not add up to the distance of $596 and $118."""
    hourly = [amount / 730 for amount in (299.6, 40.4, 10.3, 127.5)]
    assert format_monthly_parts(hourly, 596.3 / 730, 118.49 / 730) == [
        "$300",
        "$40",
        "$10",
        "$128",
        "$478",
    ]
