"""What a command is doing: one line on a terminal, which is erased before any output.

On a pipe, as in a CI job, it is a line of its own every ten seconds, on standard error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread
from typing import Final, Protocol

from reconciler.notifications.stream import has_colour

AFTER_S: Final = 2.0
"""How long a command runs before the line appears."""

LINE_EVERY_S = 10.0
"""After how many seconds a line follows on a pipe."""
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
    """The line, redrawn by ``tick``.

    ``terminal`` is None if there is none; ``write`` then gets a line every ``LINE_EVERY_S``.
    """

    def __init__(
        self,
        terminal: Redrawable | None,
        what: str,
        clock: Callable[[], float],
        write: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._terminal = terminal
        self._write = write
        self._next_line = LINE_EVERY_S
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
        if self._terminal is None:
            self._log(seconds)
            return
        if seconds < AFTER_S:
            return
        with self._lock:
            self._frame += 1
            frame = _FRAMES[self._frame % len(_FRAMES)]
            self._terminal.redraw(f"{frame} {self._what} ({seconds:.0f} s)")
            self._is_shown = True

    def _log(self, seconds: float) -> None:
        """Write a line, if the last one is long enough ago."""
        if seconds >= self._next_line:
            self._next_line = (seconds // LINE_EVERY_S + 1) * LINE_EVERY_S
            self._write(f"{self._what} ({seconds:.0f} s)\n")

    @contextmanager
    def suspend(self) -> Iterator[None]:
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
def show_progress(what: str, clock: Callable[[], float] = time.monotonic) -> Iterator[ProgressLine]:
    """Show on standard error what the command is doing, until the block ends."""
    terminal = terminal_of(sys.stderr)
    line = ProgressLine(terminal, what, clock, _write_to_stderr)
    ended = Event()
    thread = Thread(target=_draw, args=(line, ended), name="progress", daemon=True)
    thread.start()
    try:
        yield line
    finally:
        ended.set()
        thread.join()
        with line.suspend():
            pass


def _write_to_stderr(text: str) -> None:
    """Write a line for a log; a reader that has gone away loses it."""
    with suppress(OSError, ValueError):
        sys.stderr.write(text)
        sys.stderr.flush()


def _draw(line: ProgressLine, ended: Event) -> None:
    while not ended.wait(_EVERY_S):
        line.tick()
