"""The wall clock, one that was set, and a simulated one."""

from __future__ import annotations

import re
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


SECOND = timedelta(seconds=1)


def followed(ahead: float, clock: SystemClock | None = None, took: float = 0.2) -> timedelta:
    """Return by how much a clock is ahead of this machine after a response of a server."""
    clock = clock or SystemClock()
    sent = datetime.now(UTC)
    received = sent + timedelta(seconds=took)
    stated = (received + timedelta(seconds=ahead)).replace(microsecond=0)
    clock.follow(stated, sent, received)
    return clock.now() - datetime.now(UTC)


@pytest.mark.parametrize("ahead", [-7200.0, -90.0, -3.0, 3.0, 90.0, 7200.0])
def test_a_clock_follows_that_of_the_server(ahead: float) -> None:
    assert abs(followed(ahead).total_seconds() - ahead) < 1.5


@pytest.mark.parametrize("ahead", [-0.9, 0.0, 0.9])
def test_a_well_kept_clock_is_not_changed(ahead: float) -> None:
    assert abs(followed(ahead)) < timedelta(milliseconds=50)


def test_a_slow_response_changes_nothing() -> None:
    assert abs(followed(-20.0, took=30.0)) < timedelta(milliseconds=50)


def test_a_clock_that_is_right_again_is_used_again() -> None:
    clock = SystemClock()
    assert followed(90.0, clock) > 80 * SECOND
    assert abs(followed(0.0, clock)) < timedelta(milliseconds=50)


def test_a_clock_that_was_set_does_not_follow() -> None:
    clock = SystemClock(datetime(2026, 3, 2, 9, tzinfo=UTC))
    before = clock.now()
    followed(90.0, clock)
    assert clock.now() - before < 60 * SECOND


def test_a_difference_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    clock = SystemClock()
    for _ in range(3):
        followed(90.0, clock)
    (record,) = caplog.records
    assert re.search(r" 9\d s behind that of the API server", record.getMessage())
