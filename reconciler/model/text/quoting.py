"""How a message names a value that it has read."""

from __future__ import annotations

from typing import Final

WIDTH: Final = 60
"""The maximum characters of a value in a message."""


def quoted(value: object, width: int = WIDTH) -> str:
    """Return a value as it was written, cut to ``width``; a string is in double quotes.

    Characters that cannot be printed are escaped.
    """
    if not isinstance(value, str):
        return _cut(_written(value), width)
    text = _cut(value, width).replace('"', '\\"')
    return f'"{text if text.isprintable() else _escaped(text)}"'


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _escaped(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else str(value)
