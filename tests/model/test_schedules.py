"""Hits of schedules and the windows that they open, whatever was asked before."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from zoneinfo import ZoneInfo

from hypothesis import given
from hypothesis import strategies as st

from reconciler.model import schedule as schedules
from reconciler.model.schedule import is_open, next_change, parse_schedule, steady_until

MINUTE = timedelta(minutes=1)
BERLIN = ZoneInfo("Europe/Berlin")
CHANGES = (datetime(2026, 3, 28, 12, tzinfo=UTC), datetime(2026, 10, 24, 12, tzinfo=UTC))
"""The day before the clocks of Berlin change."""

fields = st.tuples(
    st.sampled_from(["*", "*/2", "0", "7,8,59", "30-45", "*/25"]),
    st.sampled_from(["*", "2", "1-4", "*/5", "0,23"]),
    st.sampled_from(["*", "*/2", "29", "1,25-26"]),
    st.sampled_from(["*", "3,10", "2", "*/3"]),
    st.sampled_from(["*", "0", "1-5", "*/2"]),
)
texts = fields.map(" ".join)
zones = st.sampled_from([UTC, BERLIN, ZoneInfo("Australia/Lord_Howe")])
begins = st.sampled_from(CHANGES)
durations = st.sampled_from([1, 2, 17, 60, 600, 1440, 2880]).map(lambda n: n * MINUTE)


def forget() -> None:
    for kept in (schedules._searched, schedules._overlap):
        kept.cache_clear()


@given(texts, zones, begins, durations, st.lists(st.integers(0, 4000), min_size=1, max_size=12))
def test_no_answer_depends_on_what_was_asked_before(
    text: str, zone: tzinfo, begin: datetime, duration: timedelta, minutes: list[int]
) -> None:
    schedule = parse_schedule(text)

    def answers(minute: int) -> tuple[datetime | None, datetime | None]:
        at = begin + minute * MINUTE
        return schedule.next_after(at, zone), next_change(schedule, duration, at, zone)

    forget()
    together = [answers(minute) for minute in minutes]
    for minute, found in zip(minutes, together, strict=True):
        forget()
        assert answers(minute) == found


@given(texts, zones, begins, durations)
def test_a_window_changes_when_it_next_opens_or_closes(
    text: str, zone: tzinfo, begin: datetime, duration: timedelta
) -> None:
    schedule = parse_schedule(text)
    times = [begin + minute * MINUTE for minute in range(1500)]
    now = is_open(schedule, duration, begin, zone)
    changed = (at for at in times if is_open(schedule, duration, at, zone) is not now)
    expected, found = next(changed, None), next_change(schedule, duration, begin, zone)
    if expected is not None:
        assert found == expected
    else:
        assert found is None or found > times[-1]


def test_the_end_of_a_month_of_daily_windows_is_found() -> None:
    schedule, day = parse_schedule("0 0 * 2 *"), timedelta(days=1)
    found = next_change(schedule, day, datetime(2026, 2, 1, tzinfo=UTC))
    assert found == datetime(2026, 3, 1, tzinfo=UTC)


def test_windows_that_never_end_are_evaluated_again() -> None:
    schedule, at = parse_schedule("*/2 * * * *"), datetime(2026, 2, 1, tzinfo=UTC)
    assert next_change(schedule, timedelta(hours=10), at) is None
    assert steady_until(schedule, timedelta(hours=10), at) == at + 2 * MINUTE
