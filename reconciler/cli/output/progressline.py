"""One line on a terminal that shows what a command is doing; it is erased before any output."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Lock, Thread
from typing import Final, Protocol

from reconciler.notifications.stream import has_colour

AFTER_S: Final = 2.0
"""How long a command runs before the line appears."""

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
    """The line, redrawn by ``tick``. ``terminal`` is None if there is none."""

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
        with line.suspend():
            pass


def _draw(line: ProgressLine, ended: Event) -> None:
    while not ended.wait(_EVERY_S):
        line.tick()
