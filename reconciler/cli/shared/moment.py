"""The present, as the command line names it or the clock has it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

YEARS: Final = range(1970, 2201)
"""The years of a present that can be named: every duration can be added to it."""


def present(text: str | None, flag: str = "--now") -> datetime:
    """Return the moment that ``flag`` names, by default the clock's.

    Raises:
        UsageError: the text is not a time with its zone.
    """
    if text is None:
        return datetime.now(UTC)
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
