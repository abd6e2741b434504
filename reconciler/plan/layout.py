"""Lines of a terminal: colour, wrapping, aligned columns. Small on purpose, to start fast."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}


class Paper:
    """What a rendering is written on: so many columns, with colour or without."""

    def __init__(self, width: int, *, colour: bool = False) -> None:
        self.width: Final = max(width, 40)
        self.colour: Final = colour
        self.lines: Final[list[str]] = []

    def paint(self, text: str, *styles: str) -> str:
        """Return the text in these styles, where the paper takes colour."""
        if not self.colour or not styles or not text:
            return text
        codes = ";".join(_CODES[style] for style in styles)
        return f"\x1b[{codes}m{text}\x1b[0m"

    def heading(self, text: str, note: str = "") -> None:
        """Begin a section."""
        if self.lines:
            self.lines.append("")
        rest = f"  {self.paint(note, 'dim')}" if note else ""
        self.lines.append(self.paint(text, "bold") + rest)

    def line(self, text: str = "") -> None:
        """Write a line as it stands."""
        self.lines.append(text.rstrip())

    def wrapped(self, text: str, indent: int, *styles: str, hanging: int = 0) -> None:
        """Write a paragraph; lines after the first are indented by ``hanging`` more."""
        for number, part in enumerate(wrap(text, self.width - indent, hanging)):
            gap = " " * (indent + (hanging if number else 0))
            self.lines.append(gap + self.paint(part, *styles))

    def row(
        self, left: str, right: str, indent: int, edge: int, styles: Sequence[str] = ()
    ) -> None:
        """Write a line whose ``right`` part ends at column ``edge``, below if there is no room."""
        gap = edge - indent - len(left) - len(right)
        if right and gap < 2:
            self.wrapped(left, indent, *styles, hanging=4)
            self.lines.append(" " * max(edge - len(right), 0) + right)
            return
        self.lines.append((" " * indent + self.paint(left, *styles) + " " * gap + right).rstrip())

    def text(self) -> str:
        """Return everything that was written."""
        return "\n".join(self.lines) + "\n"


def wrap(text: str, width: int, hanging: int = 0) -> list[str]:
    """Return the text in lines of at most ``width``; a word that is longer stands alone.

    The standard library's ``textwrap`` does more, breaks at hyphens, and costs a regex to load.
    """
    lines: list[str] = []
    current = ""
    for word in text.split():
        room = width - (hanging if lines else 0)
        if current and len(current) + 1 + len(word) > room:
            lines.append(current)
            current = word
        else:
            current = f"{current} {word}" if current else word
    return [*lines, current] if current or not lines else lines


def table(rows: Sequence[Sequence[str]], align: str) -> list[str]:
    """Return rows as lines of aligned columns, two spaces apart; ``align`` has ``<`` or ``>``."""
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(len(align))]
    return [
        "  ".join(
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
