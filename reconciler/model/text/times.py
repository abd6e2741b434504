"""Times as text, always in UTC: one form for people, one for machines."""

from __future__ import annotations

from datetime import UTC, datetime


def format_time(at: datetime) -> str:
    """Return a time for people, to the minute: ``2026-01-03 02:00 UTC``."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def format_date(at: datetime) -> str:
    """Return the day of a time: ``2026-01-03``."""
    return f"{at.astimezone(UTC):%Y-%m-%d}"


def timestamp(at: datetime) -> str:
    """Return a time as Kubernetes writes it, to the second: ``2026-01-03T02:00:00Z``."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def format_seconds(at: datetime) -> str:
    """Return a time for a page that says it is UTC: ``2026-01-03 02:00:00``."""
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def precise_timestamp(at: datetime) -> str:
    """Return a ``MicroTime`` of Kubernetes: ``2026-01-03T02:00:00.000000Z``."""
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%fZ}"
