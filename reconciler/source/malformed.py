"""Name the probable cause of a YAML syntax error.

A parser reports where it gave up and which token it expected. Two causes are so common that they
have names of their own: a merge conflict that was committed, and a line that is indented by the
wrong number of columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from reconciler.model.text.counting import format_count

_CONFLICT_START: Final = "<<<<<<<"
_CONFLICT_MARKER: Final = re.compile(r"(<{7}|\|{7}|>{7})( .*)?|={7}")
_KEY: Final = re.compile(
    r"(?:- +)*+(?P<key>\"[^\"]*\"|'[^']*'|[^\s#:\"'{\[][^:#]*):(?P<rest> .*)?$"
)
_DASHES: Final = re.compile(r"(?:- +)+")
_NAME_MAX: Final = 40


class BadIndentation(NamedTuple):
    """The wrong indentation of a line: what is wrong, the column of its text, what to do."""

    message: str
    column: int
    hint: str


def merge_conflicts(lines: Sequence[str]) -> list[tuple[int, str]]:
    """Return the line numbers, from 1, of the merge conflicts that git left, with messages.

    A conflict is reported at its first line, or at its other markers if that was removed.
    """
    marked = [(n, line) for n, line in enumerate(lines, 1) if _CONFLICT_MARKER.fullmatch(line)]
    starts = [(n, line) for n, line in marked if line.startswith(_CONFLICT_START)]
    return [(n, f"unresolved merge conflict: {line[:_NAME_MAX]}") for n, line in starts or marked]


def find_bad_indentation(lines: Sequence[str], number: int) -> BadIndentation | None:
    """Return what is wrong with the indentation of line ``number``, None if it is possible."""
    if not 0 < number <= len(lines):
        return None
    line = lines[number - 1]
    text = line.lstrip(" \t")
    blank = line[: len(line) - len(text)]
    if "\t" in blank:
        message = "the line is indented with a tab; YAML allows only spaces"
        return BadIndentation(message, blank.index("\t") + 1, "replace each tab by spaces")
    if _KEY.match(text) is None and not text.startswith("- "):
        return None
    above = _content_above(lines, number)
    if not above:
        return None
    return _check_indentation(len(blank), above)


def _check_indentation(indent: int, above: Sequence[str]) -> BadIndentation | None:
    """Return why a line cannot be indented by ``indent`` after the lines ``above`` it."""
    previous = above[-1]
    levels = _indentation_levels(above)
    deepest = max(levels)
    if indent > deepest and _has_value(previous):
        expected = f"align it with the line above: {_format_columns(deepest)}"
        message = (
            f"the line is indented by {_format_columns(indent)}, deeper than what it belongs to"
        )
        return BadIndentation(message, indent + 1, expected)
    if indent < deepest and indent not in levels:
        *others, last = map(str, sorted(levels))
        known = f"{', '.join(others)} or {last}" if others else last
        message = (
            f"the line is indented by {_format_columns(indent)} and lines up with no line above"
        )
        return BadIndentation(message, indent + 1, f"indent it by {known} columns")
    return None


def _format_columns(number: int) -> str:
    return format_count(number, "column")


def _content_above(lines: Sequence[str], number: int) -> list[str]:
    """Return the lines of the same document above line ``number`` that have content."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if line.startswith(("---", "...")):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            found.append(line)
    return found[::-1]


def _indentation_levels(above: Sequence[str]) -> set[int]:
    """Return the indentations at which the open blocks above continue.

    A list entry continues at its dash, and at the text after it.
    """
    found: set[int] = set()
    least: int | None = None
    for line in reversed(above):
        indent = len(line) - len(line.lstrip(" "))
        if least is not None and indent >= least:
            continue
        dashes = _DASHES.match(line.lstrip(" "))
        if dashes is not None:
            found |= {indent, indent + len(dashes[0])}
        else:
            found.add(indent)
        least = indent
        if not indent:
            break
    return found


def _has_value(line: str) -> bool:
    """Return whether the line is ``key: value``, so that nothing can be nested below it."""
    match = _KEY.match(line.lstrip(" "))
    if match is None:
        return False
    value = (match["rest"] or "").split(" #")[0].strip()
    return bool(value) and value[0] not in "|>&*!{[\"'#"
