"""What a command writes to a stream: only text, and a progress line where a terminal can show one.

What others wrote comes out as text, not as control sequences. The progress line shows what a
command is doing, and is erased before any output.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Any, Final, Protocol, TextIO

from reconciler.model.text.visible import inert, one_line


def has_colour(out: TextIO) -> bool:
    """Return whether ``out`` is a terminal that shows colours, and nobody objects to them.

    ``NO_COLOR`` (with any value but an empty one) and ``TERM=dumb`` turn them off.
    """
    return out.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


_LINE_MAX: Final = 64
"""How much of an unfinished line counts for what comes after: more than a command's name."""


class Door:
    """A stream of text that writes to ``out`` what ``inert`` leaves of it."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._line = ""

    def write(self, text: str) -> int:
        """Write text; return how many characters were given."""
        self._out.write(inert(text, self._line))
        _, newline, tail = text.rpartition("\n")
        line = tail if newline else self._line + tail
        if line.isspace():  # as good as none, however long it is
            line = ""
        self._line = line if len(line) <= _LINE_MAX else f".{line[-_LINE_MAX:]}"
        return len(text)

    def redraw(self, text: str) -> None:
        """Replace the current line of a terminal with one that fits; an empty text erases it."""
        width = max(_columns(self._out) - 1, 1)
        self._out.write(f"\r{inert(one_line(text))[:width]}\x1b[K")
        self._out.flush()

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._out, name)


def _columns(out: TextIO) -> int:
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError, AttributeError):
        return 80


@contextmanager
def opened() -> Iterator[None]:
    """Let everything that is written to standard output and standard error pass a door."""
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = Door(before[0]), Door(before[1])
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


AFTER_S: Final = 2.0
"""How long a command takes before the line appears."""
_EVERY_S: Final = 0.2
_FRAMES: Final = "|/-\\"
_PHASES: Final = {
    "read": "Reading the fleet",
    "catalog": "Reading instance types and prices",
    "placement": "Scheduling pods",
    "disruption": "Evaluating disruptions",
    "render": "Writing the result",
}


class Redrawable(Protocol):
    """A terminal on which the current line can be replaced."""

    def redraw(self, text: str) -> None:
        """Replace the current line; an empty text erases it."""


class ProgressLine:
    """The line, redrawn by ``tick``. ``terminal`` is None where there is nothing to draw on."""

    def __init__(self, terminal: Redrawable | None, what: str, clock: Callable[[], float]) -> None:
        self._terminal = terminal
        self._what = what
        self._clock = clock
        self._start = clock()
        self._frame = 0
        self._is_shown = False
        self._lock = Lock()

    def enter(self, phase: str) -> None:
        """Show a phase of ``Timings`` from the next tick on."""
        self._what = _PHASES.get(phase, phase)

    def tick(self) -> None:
        """Draw the line, if the command has taken long enough."""
        seconds = self._clock() - self._start
        if self._terminal is None or seconds < AFTER_S:
            return
        with self._lock:
            self._frame += 1
            frame = _FRAMES[self._frame % len(_FRAMES)]
            self._terminal.redraw(f"{frame} {self._what} ({seconds:.0f} s)")
            self._is_shown = True

    @contextmanager
    def erased(self) -> Iterator[None]:
        """Keep the line erased while something else is printed."""
        with self._lock:
            if self._is_shown and self._terminal is not None:
                self._terminal.redraw("")
                self._is_shown = False
            yield


def terminal_of(stream: object) -> Redrawable | None:
    """Return the stream as a terminal that can be redrawn, None if it is not one."""
    if not callable(getattr(stream, "redraw", None)) or not has_colour(stream):  # type: ignore[arg-type]
        return None
    return stream  # type: ignore[return-value]


@contextmanager
def progress(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[ProgressLine]:
    """Show on standard error what the command is doing, until the block ends."""
    terminal = terminal_of(sys.stderr)
    line = ProgressLine(terminal, what, clock)
    if terminal is None:
        yield line
        return
    ended = Event()
    thread = Thread(target=_draw, args=(line, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()
        with line.erased():
            pass


def _draw(line: ProgressLine, ended: Event) -> None:
    while not ended.wait(_EVERY_S):
        line.tick()
