"""The clock on the wall, and one that was set."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from reconciler.adapters.clock import SystemClock


def test_a_clock_that_was_set_goes_on_from_there() -> None:
    start = datetime(2026, 3, 2, 9, tzinfo=UTC)
    clock = SystemClock(start)
    first, second = clock.now(), clock.now()
    assert start <= first <= second < start + timedelta(minutes=5)


def test_a_clock_that_was_not_set_shows_the_time() -> None:
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)
