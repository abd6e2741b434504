"""Keeps expressions apart while a text is read as YAML, which would misread their brackets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final

_TOKEN: Final = "PLACEHOLDER{}X"  # noqa: S105 - not a secret
_TOKENS: Final = re.compile(r"PLACEHOLDER(\d+)X")


def protect(text: str, spans: Iterable[tuple[int, int]]) -> str:
    """Return a text with a word in place of what is at each of the spans, which are in order."""
    parts: list[str] = []
    position = 0
    for number, (start, end) in enumerate(spans):
        parts += (text[position:start], _TOKEN.format(number))
        position = end
    return "".join((*parts, text[position:]))


def restore(value: object, expressions: Sequence[str]) -> object:
    """Return data with the expressions in place of these words."""
    if isinstance(value, dict):
        return {str(restore(k, expressions)): restore(v, expressions) for k, v in value.items()}
    if isinstance(value, list):
        return [restore(item, expressions) for item in value]
    if isinstance(value, str) and "PLACEHOLDER" in value:
        return _TOKENS.sub(lambda m: _expression(expressions, m), value)
    return value


def _expression(expressions: Sequence[str], match: re.Match[str]) -> str:
    number = int(match[1])
    return expressions[number] if number < len(expressions) else match[0]
