"""Narrates the demo on a terminal: chapters, commands, and the engine's actions as they happen.

Eighty columns, control characters only for a terminal, and at reading speed unless asked to be
faster.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, TextIO

from reconciler.model.text.visible import Painted, one_line, visible
from reconciler.plan.render.layout import wrap

WIDTH: Final = 80
_INDENT: Final = 3
_STYLES: Final = {"bold": "1", "dim": "2", "+": "32", "✓": "32", "=": "36", "±": "33", "!": "31",
                  "-": "35", "$": "36"}  # fmt: skip
_ASCII: Final = {
    ord("●"): "*", ord("○"): "o", ord("◌"): ".", ord("✓"): "v", ord("±"): "~", ord("→"): "->",
    ord("×"): "x", ord("…"): "...", ord("–"): "-", ord("─"): "-",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Pace:
    """Pauses in seconds, after a line and after a chapter. ``turn`` waits after a chapter.

    After ``patience_s`` the story no longer stays anywhere: a slow machine is slow enough.
    """

    line_s: float = 0.0
    chapter_s: float = 0.0
    patience_s: float = 15.0
    turn: Callable[[], None] = lambda: None


class Narrator:
    """Writes to ``out``, with ``colour`` only for a terminal, until ``stop`` says so.

    Whoever wants to stop is obeyed between two lines, by a KeyboardInterrupt: in between, something
    may be half done that would complain.
    """

    def __init__(self, out: TextIO, pace: Pace, stop: Callable[[], bool], *, colour: bool) -> None:
        self._out = out
        self._stop = stop
        self._pace = pace
        self._colour = colour
        self._chapter = 0
        self._hurry_at = time.monotonic() + pace.patience_s
        self._encoding = getattr(out, "encoding", None) or "utf-8"

    def title(self, text: str) -> None:
        """Print the title."""
        self._write(self._paint(text, "bold"))

    def chapter(self, title: str) -> None:
        """End a chapter, and begin the next one."""
        if self._chapter:
            self._stay(self._pace.chapter_s)
            self._pace.turn()
        self._chapter += 1
        rule = "─" * (WIDTH - len(title) - 5)
        self._write()
        self._write(
            f"{self._paint(f'{self._chapter}  {title}', 'bold')} {self._paint(rule, 'dim')}"
        )

    def say(self, text: str) -> None:
        """Print a paragraph."""
        self._write()
        for line in wrap(text, WIDTH - _INDENT):
            self._line(line)

    def command(self, *texts: str) -> None:
        """Show a command of the user."""
        self._write()
        for text in texts:
            self._line(f"{self._paint('$', '$')} {self._paint(text, 'bold')}")

    def quote(self, text: str) -> None:
        """Show what a command prints."""
        for line in visible(text).rstrip("\n").split("\n"):
            self._line(f"  {line}" if line else "")

    def event(self, at: datetime, sign: str, text: str, aside: str = "") -> None:
        """Show an event; ``aside`` is right-aligned if there is room."""
        text, aside = one_line(text), visible(aside)
        room = WIDTH - 2 - _INDENT - len(f"{at:%H:%M:%S}  {sign} ")
        text = text if len(text) <= room else f"{text[: room - 1]}…"
        line = f"{at:%H:%M:%S}  {sign} {text}"
        gap = WIDTH - 2 - _INDENT - len(line) - len(aside)
        shown = f"{at:%H:%M:%S}  {self._paint(sign, sign)} {text}"
        if aside and gap >= 2:
            shown += " " * gap + aside
        self._line(f"  {shown}")

    def _line(self, text: str) -> None:
        self._write(" " * _INDENT + text)
        self._stay(self._pace.line_s)

    def _stay(self, seconds: float) -> None:
        if seconds and time.monotonic() < self._hurry_at:
            time.sleep(seconds)

    def _paint(self, text: str, style: str) -> str:
        code = _STYLES.get(style)
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour and code else text

    def _write(self, text: str = "") -> None:
        if self._stop():
            raise KeyboardInterrupt
        line = text.rstrip()
        try:
            line.encode(self._encoding)
        except UnicodeEncodeError:
            line = line.translate(_ASCII).encode(self._encoding, "replace").decode(self._encoding)
        self._out.write(Painted(line + "\n"))
        self._out.flush()
