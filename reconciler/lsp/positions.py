"""Positions in a text: as findings count them, and as editors do.

A finding counts lines at all line breaks of YAML, from 1; the protocol counts them at three, from
0, and columns in code units of the encoding that both sides agreed on.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import Final, NamedTuple

_YAML_BREAK: Final = re.compile("\r\n|[\n\r\x85\u2028\u2029]")
_EDITOR_BREAK: Final = re.compile("\r\n|[\n\r]")
_FLOW_ENDS: Final = ",]}"


class TextRange(NamedTuple):
    """A part of a text by its offsets."""

    start: int
    end: int


class TextLines:
    """The lines of a text, in both ways of counting."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._yaml = [0, *(match.end() for match in _YAML_BREAK.finditer(text))]
        self._editor = [0, *(match.end() for match in _EDITOR_BREAK.finditer(text))]

    def offset(self, line: int, column: int) -> int:
        """Return the offset of a place of a finding; one beyond the text is its end."""
        if line > len(self._yaml):
            return len(self.text)
        return min(self._yaml[max(line, 1) - 1] + max(column, 1) - 1, len(self.text))

    def position(self, offset: int, encoding: str) -> tuple[int, int]:
        """Return the editor's line and column of an offset."""
        line = bisect_right(self._editor, offset) - 1
        return line, _units(self.text[self._editor[line] : offset], encoding)

    def offset_of_position(self, line: int, column: int, encoding: str) -> int:
        """Return the offset of an editor's position; one beyond its line is the line's end."""
        if line >= len(self._editor):
            return len(self.text)
        start = self._editor[line]
        content = self.text[start : self.line_end(start)]
        return start + _characters(content, column, encoding)

    def line_start(self, offset: int) -> int:
        """Return where the editor's line of an offset starts."""
        return self._editor[bisect_right(self._editor, offset) - 1]

    def line_end(self, offset: int) -> int:
        """Return where the editor's line of an offset ends, before its line break."""
        following = bisect_right(self._editor, offset)
        if following == len(self._editor):
            return len(self.text)
        start = self._editor[following]
        return max(offset, start - (2 if self.text.startswith("\r\n", start - 2) else 1))

    def token(self, start: int) -> TextRange:
        """Return the scalar that starts at an offset, at most to the end of its line."""
        end = self.line_end(start)
        text = self.text[start:end]
        length = _token_length(text)
        return TextRange(start, start + max(length, min(1, len(text))))


def _token_length(text: str) -> int:
    if text[:1] in ("'", '"'):
        close = text.find(text[0], 1)
        return close + 1 if close > 0 else len(text)
    for index, character in enumerate(text):
        following = text[index + 1 : index + 2]
        if character == ":" and following in ("", " ", "\t"):
            return index
        if character == "#" and index and text[index - 1].isspace():
            return len(text[:index].rstrip())
        if character in _FLOW_ENDS:
            return index
    return len(text.rstrip())


def _units(text: str, encoding: str) -> int:
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-8":
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text.encode("utf-16-le", "surrogatepass")) // 2  # a loop would take far longer


def _characters(text: str, units: int, encoding: str) -> int:
    """Return how many characters of a line the units are; those within one count before it."""
    count = 0
    for index, character in enumerate(text):
        if count >= units:
            return index
        count += _units(character, encoding)
    return len(text)
