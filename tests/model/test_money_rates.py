"""Amounts of USD an hour in sentences."""

from __future__ import annotations

import pytest

from reconciler.model.text.money import format_rate


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
