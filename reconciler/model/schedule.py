"""Cron schedules of disruption budgets, and the windows that they open.

The dialect is the one that Karpenter reads (robfig/cron v3, five fields): names of months and
days, ``?`` for ``*``, ``N/step`` up to the maximum, days of the week from 0 to 6 only, and day of
month OR day of week as soon as neither is a plain star. A time zone is our addition.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from itertools import pairwise
from typing import Final

from reconciler.model.duration import parse_duration
from reconciler.model.text.quoting import quote_value

_MONTHS: Final = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_DAYS_OF_MONTH: Final = {month: monthrange(2024, month)[1] for month in range(1, 13)}
_HOURS_A_DAY: Final = 24
_MONTHS_A_YEAR: Final = 12
_HORIZON_YEARS: Final = 5

_SCHEDULES_MAX: Final = 4096
_SEARCHED_MAX: Final = 64
"""Schedules that are kept after they were read, and for each one the hits that were searched."""

_OVERLAP_MAX: Final = timedelta(days=366)
"""How far ahead the end of windows that overlap is searched, in addition to one of them."""

LENGTH_MAX: Final = 1000
"""The maximum number of characters of a schedule."""

_DESCRIPTORS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: dict[str, int]


_FIELDS: Final = (
    _Field("minute", 0, 59, {}),
    _Field("hour", 0, 23, {}),
    _Field("day of month", 1, 31, {}),
    _Field("month", 1, 12, {name: i + 1 for i, name in enumerate(_MONTHS)}),
    _Field("day of week", 0, 6, {name: i for i, name in enumerate(_DAYS)}),
)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A parsed schedule: the allowed values of each field."""

    text: str
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool

    @property
    def is_hourly(self) -> bool:
        """Whether it hits at the same minutes of every hour."""
        is_daily = self.any_day and self.any_weekday and len(self.months) == _MONTHS_A_YEAR
        return is_daily and len(self.hours) == _HOURS_A_DAY

    @property
    def longest_pause(self) -> timedelta | None:
        """The longest time between two hits in UTC, None unless every week is the same."""
        if not self.any_day or len(self.months) < _MONTHS_A_YEAR:
            return None
        hits = [
            timedelta(days=day, hours=hour, minutes=minute)
            for day in sorted(self.weekdays)
            for hour in sorted(self.hours)
            for minute in sorted(self.minutes)
        ]
        return max(b - a for a, b in pairwise([*hits, hits[0] + timedelta(weeks=1)]))

    def next_after(self, moment: datetime, zone: tzinfo = UTC) -> datetime | None:
        """Return the first hit strictly after ``moment``, in UTC; None if there is none in 5 years.

        A wall-clock time that a time zone skips or repeats is hit once. A simulation asks for the
        same hits thousands of times, so those that were searched are kept.
        """
        if self.any_weekday and not self._has_matching_day:
            return None
        searched = _searched(self, zone)
        hit = searched.hit_after(moment)
        if hit is None:
            hit = self._search(moment, zone)
            if hit is not None:
                searched.keep(moment, hit)
        return hit

    def _search(self, moment: datetime, zone: tzinfo) -> datetime | None:
        start = moment.astimezone(zone).replace(second=0, microsecond=0, tzinfo=None)
        hours, minutes = sorted(self.hours), sorted(self.minutes)
        for day in self._days_from(start):
            first = start.hour if day.date() == start.date() else 0
            for hour in hours[bisect_left(hours, first) :]:
                is_now = hour == first and day.date() == start.date()
                earliest = bisect_left(minutes, start.minute) if is_now else 0
                for minute in minutes[earliest:]:
                    local = day.replace(hour=hour, minute=minute)
                    hit = local.replace(tzinfo=zone).astimezone(UTC)
                    if hit > moment and _exists(local, zone):
                        return hit
        return None

    @property
    def gap(self) -> timedelta:
        """The longest time between two hits of the same day."""
        return timedelta(minutes=_longest_gap(self))

    def last_of_day(self, hit: datetime, zone: tzinfo = UTC) -> datetime:
        """Return the last hit of a hit's day; the hit itself if clocks are changed between them."""
        local = hit.astimezone(zone)
        last = local.replace(hour=max(self.hours), minute=max(self.minutes))
        if last.utcoffset() != local.utcoffset() or not _exists(last.replace(tzinfo=None), zone):
            return hit
        return last.astimezone(UTC)

    @property
    def _has_matching_day(self) -> bool:
        """Whether any of the months has any of the days (30 February does not exist)."""
        return min(self.days) <= max(_DAYS_OF_MONTH[month] for month in self.months)

    def _days_from(self, start: datetime) -> Iterator[datetime]:
        day = start.replace(hour=0, minute=0)
        end = day + timedelta(days=366 * _HORIZON_YEARS)
        while day < end:
            if day.month not in self.months:
                day = (day.replace(day=1) + timedelta(days=31)).replace(day=1)
                continue
            if self._matches_day(day):
                yield day
            day += timedelta(days=1)

    def _matches_day(self, day: datetime) -> bool:
        by_month = day.day in self.days
        by_week = day.isoweekday() % 7 in self.weekdays
        if self.any_day or self.any_weekday:
            return by_month and by_week
        return by_month or by_week


class _Searched:
    """Hits of one schedule that were searched, each with the time from which it was.

    Several threads may use it: a list that is full is replaced, and never becomes shorter.
    """

    __slots__ = ("_found",)

    def __init__(self) -> None:
        self._found: list[tuple[datetime, datetime]] = []

    def hit_after(self, moment: datetime) -> datetime | None:
        """Return the first hit after ``moment``, None if it is not known."""
        found = self._found
        at = bisect_right(found, moment, key=lambda searched: searched[0])
        return next(
            (hit for start, hit in found[max(at - 1, 0) : at] if start <= moment < hit), None
        )

    def keep(self, moment: datetime, hit: datetime) -> None:
        """Keep ``hit``, the first one after ``moment``."""
        if len(self._found) >= _SEARCHED_MAX:
            self._found = []
        insort(self._found, (moment, hit))


@lru_cache(maxsize=_SCHEDULES_MAX)
def _longest_gap(schedule: Schedule) -> int:
    minutes = sorted(60 * hour + minute for hour in schedule.hours for minute in schedule.minutes)
    return max((later - one for one, later in pairwise(minutes)), default=0)


@lru_cache(maxsize=_SCHEDULES_MAX)
def _searched(_schedule: Schedule, _zone: tzinfo) -> _Searched:
    return _Searched()


def _exists(local: datetime, zone: tzinfo) -> bool:
    """Return whether the zone's clocks show ``local`` at all (not skipped in spring)."""
    there = local.replace(tzinfo=zone)
    return there.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == local


@lru_cache(maxsize=_SCHEDULES_MAX)
def parse_schedule(text: str) -> Schedule:
    """Return a schedule of five fields or one of the descriptors (``@daily``).

    Raises:
        ValueError: the text is not a schedule; the message says which part and why.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError(f"not a schedule: {len(text)} characters, at most {LENGTH_MAX} are read")
    line = _DESCRIPTORS.get(text, text)
    if line.startswith("@"):
        raise ValueError(
            f"unrecognized descriptor: {quote_value(text)} (one of {', '.join(_DESCRIPTORS)})"
        )
    parts = line.split()
    if len(parts) != len(_FIELDS):
        raise ValueError(f"expected exactly 5 fields, found {len(parts)}: {quote_value(text)}")
    minutes, hours, days, months, weekdays = (
        frozenset(v for item in part.split(",") for v in _parse_range(item, field))
        for part, field in zip(parts, _FIELDS, strict=True)
    )
    return Schedule(
        text, minutes, hours, days, months, weekdays, _is_star(parts[2]), _is_star(parts[4])
    )


def _is_star(part: str) -> bool:
    """Return whether a field restricts nothing; a stepped star does not count as a star."""
    return any(item in ("*", "?", "*/1", "?/1") for item in part.split(","))


def _parse_range(item: str, field: _Field) -> range:
    span, slash, step_text = item.partition("/")
    step = _parse_number(step_text, field, {}) if slash else 1
    if step == 0:
        raise ValueError(f"step of range should be a positive number: {quote_value(item)}")
    if span in ("*", "?"):
        return range(field.low, field.high + 1, step)
    first_text, dash, last_text = span.partition("-")
    first = _parse_number(first_text, field, field.names)
    last = _parse_number(last_text, field, field.names) if dash else field.high if slash else first
    if first < field.low:
        raise ValueError(
            f"beginning of range ({first}) below minimum ({field.low}): {quote_value(item)}"
        )
    if last > field.high:
        raise ValueError(f"end of range ({last}) above maximum ({field.high}): {quote_value(item)}")
    if first > last:
        raise ValueError(
            f"beginning of range ({first}) beyond end of range ({last}): {quote_value(item)}"
        )
    return range(first, last + 1, step)


def _parse_number(text: str, field: _Field, names: dict[str, int]) -> int:
    known = names.get(text.lower())
    if known is not None:
        return known
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise ValueError(f"failed to parse {field.name} from {quote_value(text)}")
    return int(text)


def time_zone(name: str | None) -> tzinfo:
    """Return the IANA time zone of that name, UTC for None.

    Raises:
        ValueError: the zone does not exist.
    """
    if name is None:
        return UTC
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError  # UTC schedules start without it

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ValueError(
            f"no such time zone: {quote_value(name)} (an IANA name: Europe/Berlin)"
        ) from error


def is_open(schedule: Schedule, duration: timedelta, now: datetime, zone: tzinfo = UTC) -> bool:
    """Return whether a window of ``duration`` from some hit covers ``now``.

    A hit H covers [H, H + duration). A schedule that never hits counts as always open: Karpenter
    treats the missing hit as long past, which is the safe choice for a budget of 0 nodes.
    """
    hit = schedule.next_after(_truncate_to_second(now - duration), zone)
    return hit is None or hit <= now


def next_change(
    schedule: Schedule, duration: timedelta, now: datetime, zone: tzinfo = UTC
) -> datetime | None:
    """Return when the window opens next, or closes if it is open; None if never."""
    first = schedule.next_after(_truncate_to_second(now - duration), zone)
    if first is None or first + duration <= now:
        return None
    if first > now:
        return schedule.next_after(now, zone)
    return _closing(schedule, duration, first, zone)


class _Overlap:
    """Windows of one schedule that overlap, up to the last one that was searched.

    ``found`` are the first and the last hit, and whether the window of the last one ends them.
    Several threads may use it: ``found`` is replaced as a whole.
    """

    __slots__ = ("found",)

    def __init__(self) -> None:
        self.found: tuple[datetime, datetime, bool] | None = None


@lru_cache(maxsize=_SCHEDULES_MAX)
def _overlap(_schedule: Schedule, _duration: timedelta, _zone: tzinfo) -> _Overlap:
    return _Overlap()


def _closing(
    schedule: Schedule, duration: timedelta, first: datetime, zone: tzinfo
) -> datetime | None:
    """Return when the windows that overlap from the hit ``first`` on close, None if too late.

    It does not depend on what was searched before: that only makes it faster.
    """
    overlap = _overlap(schedule, duration, zone)
    start, last, is_end = overlap.found or (first, first, False)
    if not start <= first <= last:
        start, last, is_end = first, first, False
    limit = first + duration + _OVERLAP_MAX
    is_joined = schedule.gap <= duration
    while not is_end and last + duration <= limit:
        last = schedule.last_of_day(last, zone) if is_joined else last
        hit = schedule.next_after(last, zone)
        is_end = hit is None or hit > last + duration
        last = last if hit is None or is_end else hit
    overlap.found = start, last, is_end
    return last + duration if is_end and last + duration <= limit else None


def is_always_open(schedule: str | None, duration: str | None) -> bool:
    """Return whether each window reaches the next one, or there are no windows.

    Raises:
        ValueError: schedule or duration is invalid.
    """
    if schedule is None or duration is None:
        return schedule is None and duration is None
    pause = parse_schedule(schedule).longest_pause
    return pause is not None and parse_duration(duration) >= pause


def steady_until(
    schedule: Schedule, duration: timedelta, now: datetime, zone: tzinfo = UTC
) -> datetime:
    """Return the first time after ``now`` at which the results of this module may differ.

    That is the next change, if one is found. If windows overlap for too long to find an end, it is
    the end of the first of them. A schedule without a hit in the searched years is evaluated again
    every quarter of an hour, because a day begins in some time zone then.
    """
    change = next_change(schedule, duration, now, zone)
    if change is not None:
        return change
    hit = schedule.next_after(_truncate_to_second(now - duration), zone)
    if hit is not None:
        return hit + duration
    quarter = timedelta(minutes=15)
    return now + quarter - (now - datetime.min.replace(tzinfo=UTC)) % quarter


def _truncate_to_second(moment: datetime) -> datetime:
    """Truncate to a second: the cron library searches from the next whole second on."""
    return moment.replace(microsecond=0)
