"""Time in a command: the current time, and the seconds of each phase (``--timings``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import Final

from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value

YEARS: Final = range(1970, 2201)
"""The years that the command line accepts: every duration can be added to such a time."""

_DATE: Final = re.compile(r"\d{4}-")
_NUMBER: Final = re.compile(r"[-+]?\d")

PHASES: Final = ("read", "catalog", "placement", "disruption", "render")


def current_time(requested: datetime | None) -> datetime:
    """Return the time that the command line named, by default that of the system clock."""
    return datetime.now(UTC) if requested is None else requested


def start_of_simulation(requested: datetime | None) -> datetime:
    """Return the current time in complete seconds, as Kubernetes states the times of its objects.

    With a fraction, two events of one second would have another order in each run.
    """
    return current_time(requested).replace(microsecond=0)


def read_time(text: str, flag: str) -> datetime:
    """Return the time in the value of ``flag``, in UTC.

    Raises:
        UsageError: the text is not a time with its zone.
    """
    try:
        moment = datetime.fromisoformat(text.upper())
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text.upper():
        raise UsageError(
            f"invalid time {quote_value(text)}",
            where=flag,
            remedy="write it as 2026-01-31T12:00:00Z",
        )
    if moment.year not in YEARS:
        raise UsageError(
            f"time {quote_value(text)} is not between the years {YEARS[0]} and {YEARS[-1]}",
            where=flag,
        )
    return moment.astimezone(UTC)


def read_time_or_span(text: str, flag: str) -> datetime | timedelta:
    """Return the value of a flag that takes a duration or a time.

    Raises:
        UsageError: the text is neither.
    """
    from reconciler.model.duration import parse_span

    if _DATE.match(text):
        return read_time(text, flag)
    try:
        return parse_span(text)
    except ValueError as error:
        if _NUMBER.match(text):  # the error says what is wrong with the duration
            raise UsageError(str(error), where=flag) from error
        raise UsageError(
            f"neither a duration nor a time: {quote_value(text)}",
            where=flag,
            remedy="write a duration such as 24h or 7d, or a time such as 2026-01-31T12:00:00Z",
        ) from error


class Timings:
    """Counts the seconds of each phase; the total includes the time between them.

    Phases may be nested: time counts for the innermost one. ``on_enter`` is called at the start of
    each phase.
    """

    def __init__(self, on_enter: Callable[[str], None] = lambda _: None) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._start = self._since = perf_counter()
        self._running: list[str] = []
        self._on_enter = on_enter

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time of the block as ``phase``."""
        self._add_elapsed()
        self._running.append(phase)
        self._on_enter(phase)
        try:
            yield
        finally:
            self._add_elapsed()
            self._running.pop()

    def _add_elapsed(self) -> None:
        now = perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now

    def to_json(self) -> str:
        """Return the seconds so far as one JSON object."""
        import json

        total = perf_counter() - self._start
        return json.dumps({k: round(v, 6) for k, v in (*self._seconds.items(), ("total", total))})
