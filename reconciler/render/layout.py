"""Lines of a terminal: colour, wrapping, aligned columns. Small on purpose, to start fast."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import shorten_middle
from reconciler.model.text.visible import Painted

_CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}

_COLUMN_MIN: Final = 24
_WORD_MAX: Final = 2_000


class Canvas:
    """The output of a rendering: a number of columns, with colour or without.

    Text from others is escaped before it is written here. ``cut`` is whether names were omitted
    since it was last cleared.
    """

    def __init__(self, width: int, *, colour: bool = False) -> None:
        self.width: Final = max(width, 40)
        self.colour: Final = colour
        self.lines: Final[list[str]] = []
        self.cut = False

    def fit(self, names: Iterable[str], room: int, noun: str) -> str:
        """Return as many names as fit, and record in ``cut`` whether some did not."""
        every = list(names)
        text = fit_names(every, room, noun)
        self.cut = self.cut or text != ", ".join(every)
        return text

    def paint(self, text: str, *styles: str) -> str:
        """Return the text in these styles, if the output has colour."""
        if not self.colour or not styles or not text:
            return text
        codes = ";".join(_CODES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def heading(self, text: str, note: str = "") -> None:
        """Start a section with a heading and an optional note after it."""
        if self.lines:
            self.lines.append("")
        rest = f" {self.paint(note, 'dim')}" if note else ""
        self.lines.append(self.paint(text, "bold") + rest)

    def line(self, text: str = "") -> None:
        """Write a line unchanged."""
        self.lines.append(text.rstrip())

    def paragraph(
        self, text: str, indent: int, *styles: str, hanging: int = 0, before: str = ""
    ) -> None:
        """Write a paragraph; lines after the first are indented by ``hanging`` more.

        ``before`` precedes the first line, and the others are indented to its end.
        """
        indent += len(before)
        for number, part in enumerate(wrap(text, self.width - indent, hanging)):
            gap = " " * (indent + hanging) if number else " " * (indent - len(before)) + before
            self.lines.append(gap + self.paint(part, *styles))

    def row(self, left: str, right: str, indent: int, edge: int, *styles: str) -> None:
        """Write two columns: ``left`` wraps within its own, ``right`` ends at column ``edge``.

        If there is no room for two, the right part is below.
        """
        room = edge - indent - len(right) - (2 if right else 0)
        if room < min(_COLUMN_MIN, len(left)):
            self.paragraph(left, indent, *styles, hanging=2)
            if right:
                self.line(f"{right:>{edge}}")
            return
        first, *rest = wrap(left, room, 2)
        gap = " " * (edge - indent - len(first) - len(right))
        self.line(" " * indent + self.paint(first, *styles) + gap + right)
        for part in rest:
            self.line(" " * (indent + 2) + self.paint(part, *styles))

    def text(self) -> str:
        """Return everything that was written."""
        return Painted("\n".join(line.replace("\n", " ") for line in self.lines) + "\n")


def wrap(text: str, width: int, hanging: int = 0) -> list[str]:
    """Return the text in lines of at most ``width``; a longer word is on a line of its own.

    The middle of a word that is longer than any name is left out.

    A no-break space does not break, and is written as a plain one.
    The standard library's ``textwrap`` does more, breaks at hyphens, and costs a regex to load.
    """
    lines: list[str] = []
    current = ""
    for word in text.replace("\n", " ").split(" "):
        if not word:
            continue
        word = shorten_middle(word, _WORD_MAX)
        room = width - (hanging if lines else 0)
        if current and len(current) + 1 + len(word) > room:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    every = [*lines, current] if current or not lines else lines
    return [line.replace("\xa0", " ") for line in every]


def table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Return rows as lines of aligned columns, two spaces apart; ``align`` has ``<`` or ``>``."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(align))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def fit_names(names: Iterable[str], room: int, noun: str = "node") -> str:
    """Return as many names as fit into ``room`` columns, and the number of others."""
    every = list(names)
    for shown in range(min(len(every), room // 3 + 1), 0, -1):
        rest = len(every) - shown
        more = f" and {rest:,} more" if rest else ""
        text = ", ".join(every[:shown]) + more
        if len(text) <= room:
            return text
    return format_count(len(every), noun) if len(every) > 1 else "".join(every)


def truncate(text: str, width: int) -> str:
    """Return the text, truncated to ``width`` columns."""
    return text if len(text) <= width else text[: max(width - 1, 1)] + "…"
