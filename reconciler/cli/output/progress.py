"""Prints the engine's progress: one line for each event."""

from __future__ import annotations

from typing import TextIO

from reconciler.model.text.visible import Painted, one_line
from reconciler.ports.progress import EventKind, Progress

_COLOURS = {
    EventKind.LAUNCHED: "32",
    EventKind.INITIALIZED: "32",
    EventKind.RECOVERED: "36",
    EventKind.COMMAND_STARTED: "33",
    EventKind.COMMAND_ROLLED_BACK: "31",
    EventKind.FAILED: "31",
    EventKind.LAUNCH_FAILED: "31",
    EventKind.ILLEGAL_TRANSITION: "31",
    EventKind.UNAVAILABLE: "31",
    EventKind.TERMINATED: "35",
}


class TerminalNotifier:
    """Prints progress as lines: time, kind, message; a line that repeats the last is left out."""

    def __init__(self, out: TextIO, *, colour: bool) -> None:
        self._out = out
        self._colour = colour
        self._last = ""

    def notify(self, progress: Progress) -> None:
        """Print one line."""
        message = one_line(progress.message)
        line = f"{progress.kind:<17} {message}"
        if line == self._last:
            return
        self._last = line
        kind = f"{progress.kind:<17}"
        code = _COLOURS.get(progress.kind)
        if self._colour and code:
            kind = f"\x1b[{code}m{kind}\x1b[0m"
        self._out.write(Painted(f"{progress.at:%H:%M:%S} {kind} {message}\n"))
        self._out.flush()
