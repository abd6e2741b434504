"""The wall clock, one that was set, and a simulated one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.ports.clock import Clock


@pytest.mark.parametrize("clock", [SystemClock(), SimulatedClock()])
def test_the_time_is_utc_and_never_decreases(clock: Clock) -> None:
    moments = [clock.now() for _ in range(3)]
    assert moments == sorted(moments)
    assert all(moment.tzinfo is UTC for moment in moments)


@pytest.mark.parametrize("clock", [SystemClock(), SimulatedClock()])
def test_waiting_ends_when_the_condition_holds(clock: Clock) -> None:
    before = clock.now()
    clock.wait(3600, lambda: True)
    assert clock.now() - before < timedelta(seconds=1)


@pytest.mark.parametrize("clock", [SystemClock(), SimulatedClock()])
def test_waiting_takes_the_requested_time(clock: Clock) -> None:
    before = clock.now()
    clock.wait(0.01, lambda: False)
    assert timedelta(seconds=0.01) <= clock.now() - before < timedelta(seconds=5)


def test_simulated_time_passes_at_once_and_exactly() -> None:
    clock = SimulatedClock()
    before = clock.now()
    clock.wait(86_400, lambda: False)
    clock.advance(0.5)
    assert clock.now() - before == timedelta(days=1, seconds=0.5)


def test_a_clock_that_was_set_continues_from_that_time() -> None:
    start = datetime(2026, 3, 2, 9, tzinfo=UTC)
    clock = SystemClock(start)
    first, second = clock.now(), clock.now()
    assert start <= first <= second < start + timedelta(minutes=5)


def test_a_clock_that_was_not_set_shows_the_time() -> None:
    before = datetime.now(UTC)
    assert before <= SystemClock().now() <= datetime.now(UTC)
