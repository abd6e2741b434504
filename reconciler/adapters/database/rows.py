"""Between values and rows: times, JSON, and text that both databases can hold."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from reconciler.model.errors import StateError

T = TypeVar("T")


def time_text(at: datetime) -> str:
    """Return a time as UTC text with microseconds, which sorts as time passes."""
    assert at.tzinfo is not None, "a time has no time zone"
    moment = at.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="microseconds") + "Z"


def time_of(text: str) -> datetime:
    """Return the time that ``time_text`` wrote."""
    return datetime.fromisoformat(text)


def plain(text: str) -> str:
    """Return ``text`` without what PostgreSQL or UTF-8 cannot hold: NUL and lone surrogates."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def body_of(value: Any) -> str:
    """Return a value as JSON whose bytes depend on nothing but the value."""
    return msgspec.json.encode(value, order="deterministic").decode()


def value_of(body: str, kind: type[T], *, name: str, place: str) -> T:
    """Return the value that ``body_of`` wrote.

    Raises:
        StateError: the row was changed by another hand.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.MsgspecError as error:
        raise StateError(
            f"the record of {name} is not a {kind.__name__}: {error}",
            where=place,
            remedy="run `reconciler state check`",
        ) from error
