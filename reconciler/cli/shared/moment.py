"""The current time, from the command line or the system clock."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

YEARS: Final = range(1970, 2201)
"""The years that the command line accepts: every duration can be added to such a time."""


def present(named: datetime | None) -> datetime:
    """Return the time that the command line named, by default that of the system clock."""
    return datetime.now(UTC) if named is None else named


def read_time(text: str, flag: str) -> datetime:
    """Return the time in the value of ``flag``, in UTC.

    Raises:
        UsageError: the text is not a time with its zone.
    """
    from reconciler.model.errors import UsageError

    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text.upper():
        raise UsageError(
            f"invalid time {text[:60]!r}", where=flag, remedy="write it as 2026-01-31T12:00:00Z"
        )
    if moment.year not in YEARS:
        raise UsageError(
            f"time {text[:60]!r} is not between the years {YEARS[0]} and {YEARS[-1]}", where=flag
        )
    return moment.astimezone(UTC)
