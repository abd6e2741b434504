"""Format values that were read, for messages."""

from __future__ import annotations

from typing import Final

WIDTH: Final = 60
"""The maximum characters of a value in a message."""


def quote_value(value: object, width: int = WIDTH) -> str:
    """Return a value as it was written, cut to ``width``; a string is in double quotes.

    Characters that cannot be printed are escaped.
    """
    if not isinstance(value, str):
        return _truncate(_format_value(value), width)
    text = _truncate(value, width).replace('"', '\\"')
    return f'"{text if text.isprintable() else _escape(text)}"'


def shorten_middle(text: str, width: int) -> str:
    """Return a text without its middle, if it has more than ``width`` characters.

    A name of any length may be in a sentence: its start and its end say what is wrong.
    """
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[-end:]}"


def _truncate(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"


def _escape(text: str) -> str:
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, list) else str(value)


def without_backticks(name: str) -> str:
    """Return a name from elsewhere for a sentence with code, without any backtick of its own.

    Names that Kubernetes accepts have none, but those of a file may.
    """
    return name.replace("`", "'")


def code_spans(text: str) -> list[tuple[str, bool]]:
    """Return the parts of a text in order, and whether each is code: it was between backticks."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # one backtick has no partner
        return [(text, False)]
    return [(part, number % 2 == 1) for number, part in enumerate(parts) if part]
