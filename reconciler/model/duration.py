"""Durations as Kubernetes and Karpenter write them: ``72h``, ``1h30m``, ``Never``."""

from __future__ import annotations

import re
from datetime import timedelta
from functools import lru_cache
from typing import Final, Self

from reconciler.model.text.quoting import quote_value

NEVER: Final = "Never"

_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
_NANOSECONDS: Final = {
    "ns": 1,
    "us": 10**3,
    "µs": 10**3,
    "μs": 10**3,
    "ms": 10**6,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3600 * 10**9,
}


NANOSECONDS_MAX: Final = 2**63 - 1
"""The longest duration, 292 years: Go keeps durations in 64 bits."""

LENGTH_MAX: Final = 100
"""The maximum number of characters of a duration."""

_DAYS_MAX: Final = NANOSECONDS_MAX // (86400 * 10**9)
_DAY_DIGITS_MAX: Final = 9
_TOO_LONG: Final = "at most 292 years, 2562047h"


@lru_cache(maxsize=4096)
def parse_nanoseconds(text: str) -> int:
    """Return a Go duration in nanoseconds: ``"1h30m"``, ``"1.5s"``, ``"-2m"``, ``"0"``.

    Raises:
        ValueError: ``text`` is not a Go duration, or is longer than one can be.
    """
    if len(text) > LENGTH_MAX:
        raise ValueError(f"invalid duration: {quote_value(text)}… has {len(text)} characters")
    sign, body = (-1, text[1:]) if text.startswith("-") else (1, text.removeprefix("+"))
    if body == "0":
        return 0
    total, end = 0, 0
    while part := _PART.match(body, end):
        whole, _, fraction = part[1].partition(".")
        unit = _NANOSECONDS[part[2]]
        total += int(whole or 0) * unit
        total += int(fraction) * unit // 10 ** len(fraction) if fraction else 0
        end = part.end()
    if not body or end != len(body):
        raise ValueError(f"invalid duration {quote_value(text)} (examples: 30s, 72h, 1h30m)")
    if total > NANOSECONDS_MAX:
        raise ValueError(f"duration out of range: {quote_value(text)} ({_TOO_LONG})")
    return sign * total


@lru_cache(maxsize=1024)
def parse_duration(text: str) -> timedelta:
    """Return a Go duration, to the microsecond; a fleet has few different ones.

    Raises:
        ValueError: ``text`` is not a duration, or longer than 292 years.
    """
    return timedelta(microseconds=parse_nanoseconds(text) // 1000)


def parse_span(text: str) -> timedelta:
    """Return a span that may begin with days: ``30d``, ``1d12h``, ``24h``.

    Only settings of this program have days; Karpenter's durations do not.

    Raises:
        ValueError: ``text`` is not a span, or longer than 292 years.
    """
    days, separator, rest = text.partition("d")
    if not separator or not (days.isascii() and days.isdigit()):
        return parse_duration(text)
    if len(days) > _DAY_DIGITS_MAX or int(days) > _DAYS_MAX:
        raise ValueError(f"duration out of range: {quote_value(text)} ({_TOO_LONG})")
    try:
        more = parse_duration(rest) if rest else timedelta(0)
    except ValueError:
        raise ValueError(
            f"invalid duration {quote_value(text)} (examples: 30s, 72h, 1d12h)"
        ) from None
    return timedelta(days=int(days)) + more


def parse_nillable(text: str | None) -> timedelta | None:
    """Return a duration, or None for ``Never`` and for a field that is not set."""
    return None if text is None or text == NEVER else parse_duration(text)


def format_duration(value: timedelta) -> str:
    """Return the duration as a person writes it: ``2h30m``, ``45s``, ``3d4h``."""
    seconds = int(value.total_seconds())
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m"), (1, "s")):
        count, seconds = divmod(seconds, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + ("".join(parts[:2]) or "0s")


def iso_duration(span: timedelta) -> str:
    """Return a span as ISO 8601 has it: ``PT0S``, ``PT12M``, ``P1DT2H``; whole seconds."""
    seconds = span.days * 86_400 + span.seconds
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, seconds = divmod(rest, 60)
    time = "".join(
        f"{amount}{unit}"
        for amount, unit in ((hours, "H"), (minutes, "M"), (seconds, "S"))
        if amount
    )
    day = f"{days}D" if days else ""
    return f"P{day}T{time}" if time else f"P{day}" if day else "PT0S"


class Duration(timedelta):
    """A duration that keeps the text it was read from: ``str(Duration("90m"))`` is ``90m``.

    It is a ``timedelta`` for every calculation, whose results are plain ``timedelta`` values.
    Users see a setting as they wrote it, which a ``timedelta`` alone cannot give back.
    """

    __slots__ = ("_text",)
    _text: str

    def __new__(cls, text: str) -> Self:
        """Read a duration, which may begin with days as in ``parse_span``.

        Raises:
            ValueError: ``text`` is not a duration, or longer than 292 years.
        """
        length = parse_span(text)
        made = super().__new__(cls, length.days, length.seconds, length.microseconds)
        made._text = text
        return made

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return f"Duration({self._text!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (self._text,)
