"""The log of a daemon: a line for each event, as text or as JSON.

An ongoing problem is not repeated in every pass. It is logged again after five minutes, and then
at growing intervals, with its duration, and once more when it has ended.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from threading import RLock
from typing import Final, Literal, Protocol, TextIO

from reconciler.model.duration import format_duration
from reconciler.model.errors import OutputError
from reconciler.model.text.times import timestamp
from reconciler.model.text.visible import Painted, one_line
from reconciler.ports.clock import Clock
from reconciler.ports.progress import EventKind, Progress

LogFormat = Literal["text", "json"]
FORMATS: Final[tuple[LogFormat, ...]] = ("text", "json")

_LASTING: Final = frozenset(
    {
        EventKind.FAILED,
        EventKind.LAUNCH_FAILED,
        EventKind.RETRYING,
        EventKind.UNAVAILABLE,
        EventKind.UNREADABLE,
    }
)
"""Problems that recur in every pass until they end."""

REPEATED_AFTER: Final = timedelta(minutes=5)
REPEATED_AT_MOST: Final = timedelta(hours=1)


class Level(StrEnum):
    """How serious an event is."""

    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


_LEVELS: Final[Mapping[EventKind, Level]] = {
    EventKind.CLOCK_SET_BACK: Level.WARNING,
    EventKind.COMMAND_ROLLED_BACK: Level.WARNING,
    EventKind.FAILED: Level.ERROR,
    EventKind.IGNORED: Level.WARNING,
    EventKind.ILLEGAL_TRANSITION: Level.ERROR,
    EventKind.INTERRUPTED: Level.WARNING,
    EventKind.INVALID_REVISION: Level.ERROR,
    EventKind.LAUNCH_FAILED: Level.ERROR,
    EventKind.LEASE_LOST: Level.ERROR,
    EventKind.PROGRESS_DEADLINE_EXCEEDED: Level.WARNING,
    EventKind.RETRYING: Level.WARNING,
    EventKind.ROLLOUT_STOPPED: Level.ERROR,
    EventKind.STALLED: Level.WARNING,
    EventKind.UNAVAILABLE: Level.WARNING,
    EventKind.UNKNOWN: Level.ERROR,
    EventKind.UNREADABLE: Level.WARNING,
    EventKind.AWAITING_APPROVAL: Level.WARNING,
    EventKind.VANISHED: Level.WARNING,
    EventKind.WAVE_FAILED: Level.ERROR,
    EventKind.WORK_LIMITED: Level.WARNING,
}
"""The level of an event that is not merely information."""

_COLOURS: Final = {Level.WARNING: "33", Level.ERROR: "31"}


def level_of(kind: EventKind) -> Level:
    """Return how serious an event is."""
    return _LEVELS.get(kind, Level.INFO)


@dataclass
class _Problem:
    """A recurring problem: when it began, and when it is logged again."""

    progress: Progress
    since: datetime
    seen_at: datetime
    due: datetime
    interval: timedelta = REPEATED_AFTER
    times: int = 1


@dataclass
class LogContext:
    """What every line of the log names: the fleet, the commit in effect and the last plan."""

    fleet: str = ""
    revision: str = ""
    plan: str = ""


class LogStream(Protocol):
    """Where lines are written."""

    def write(self, text: str, /) -> int:
        """Write a text; return how many characters were given."""

    def flush(self) -> None:
        """Flush the buffer."""


class LogNotifier:
    """Writes events as lines; recurring problems are logged less and less often."""

    def __init__(
        self,
        out: LogStream,
        clock: Clock,
        form: LogFormat,
        context: LogContext | None = None,
        *,
        colour: bool = False,
        names_fleet: bool = False,
    ) -> None:
        self.context: Final = context or LogContext()
        self._names_fleet = names_fleet
        self._colour = colour
        self._out = out
        self._clock = clock
        self._form = form
        self._problems: dict[tuple[EventKind, str], _Problem] = {}
        self._lock = RLock()  # libraries log from threads of their own

    def notify(self, progress: Progress) -> None:
        """Log an event, unless it is a problem that was logged recently."""
        with self._lock:
            self._notify(progress)

    def _notify(self, progress: Progress) -> None:
        if progress.kind not in _LASTING:
            self._write(level_of(progress.kind), progress, progress.message)
            return
        key = (progress.kind, progress.node_claim or progress.node or one_line(progress.message))
        known = self._problems.get(key)
        if known is None:
            due = progress.at + REPEATED_AFTER
            self._problems[key] = _Problem(progress, progress.at, progress.at, due)
            self._write(level_of(progress.kind), progress, progress.message)
            return
        known.seen_at, known.times = progress.at, known.times + 1
        is_other = known.progress.message != progress.message
        known.progress = progress
        if is_other or progress.at >= known.due:
            known.interval = min(known.interval * 2, REPEATED_AT_MOST)
            known.due = progress.at + known.interval
            lasting = f" (for {format_duration(_whole_seconds(progress.at - known.since))})"
            self._write(level_of(progress.kind), progress, f"{progress.message}{lasting}")

    def log_resolved(self, started: datetime) -> None:
        """Log the end of problems that did not recur in a pass since ``started``."""
        with self._lock:
            self._log_ended_problems(started)

    def _log_ended_problems(self, started: datetime) -> None:
        for key, problem in list(self._problems.items()):
            if problem.seen_at >= started:
                continue
            del self._problems[key]
            if problem.times > 1:
                lasted = format_duration(_whole_seconds(problem.seen_at - problem.since))
                text = f"no longer: {problem.progress.message} (lasted {lasted})"
                over = Progress(
                    self._clock.now(),
                    EventKind.RESOLVED,
                    text,
                    node_pool=problem.progress.node_pool,
                    node_claim=problem.progress.node_claim,
                )
                self._write(Level.INFO, over, text)

    def log_library(self, level: Level, logger: str, message: str) -> None:
        """Log a message or a warning of a library."""
        now = self._clock.now()
        with self._lock:
            if self._form == "json":
                self._write_json({"level": level, "logger": logger, "message": message}, now)
            else:
                self._write_text(now, level, logger, message)

    def _write(self, level: Level, progress: Progress, message: str) -> None:
        if self._form == "text":
            self._write_text(progress.at, level, progress.kind, message)
            return
        facts = {
            "level": level,
            "event": progress.kind.value,
            "message": message,
            "nodePool": progress.node_pool,
            "nodeClaim": progress.node_claim,
            "node": progress.node,
            "command": progress.command,
            "reason": progress.reason,
            **progress.facts,
        }
        self._write_json(facts, progress.at)

    def _write_text(self, at: datetime, level: Level, kind: str, message: str) -> None:
        shown = f"{level:<7}"
        if self._colour and level is not Level.INFO:
            shown = f"\x1b[{_COLOURS[level]}m{shown}\x1b[0m"
        fleet = f"{self.context.fleet}: " if self._names_fleet else ""
        self._put(Painted(f"{timestamp(at)} {shown} {kind:<17} {fleet}{one_line(message)}\n"))

    def _write_json(self, facts: Mapping[str, str], at: datetime) -> None:
        context = {
            "fleet": self.context.fleet,
            "revision": self.context.revision,
            "plan": self.context.plan,
        }
        known = {name: str(value) for name, value in {**facts, **context}.items() if value}
        self._put(json.dumps({"time": timestamp(at), **known}, ensure_ascii=True) + "\n")

    def _put(self, line: str) -> None:
        """Write a line; on a full device it is lost, as nodes matter more than the log of them."""
        with suppress(OutputError):
            self._out.write(line)
            self._out.flush()


class _LibraryLog(logging.Handler):
    """Forwards the records of libraries and of adapters to the log."""

    def __init__(self, log: LogNotifier) -> None:
        super().__init__(logging.INFO)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Log a record in one line."""
        level = _level_of_record(record.levelno)
        self._log.log_library(level, record.name, one_line(record.getMessage()))


def _level_of_record(number: int) -> Level:
    if number >= logging.WARNING:
        return Level.ERROR if number >= logging.ERROR else Level.WARNING
    return Level.INFO


@contextmanager
def log_libraries(log: LogNotifier) -> Iterator[None]:
    """Redirect log messages and warnings of libraries to ``log`` while the block runs."""
    handler, root, own = _LibraryLog(log), logging.getLogger(), logging.getLogger("reconciler")
    level = own.level
    own.setLevel(logging.INFO)  # libraries keep the root's level, which is that of warnings
    root.addHandler(handler)
    logging.captureWarnings(capture=True)
    try:
        yield
    finally:
        logging.captureWarnings(capture=False)
        root.removeHandler(handler)
        own.setLevel(level)


def _whole_seconds(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds()))


_KIND_COLOURS = {
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
        code = _KIND_COLOURS.get(progress.kind)
        if self._colour and code:
            kind = f"\x1b[{code}m{kind}\x1b[0m"
        self._out.write(Painted(f"{progress.at:%H:%M:%S} {kind} {message}\n"))
        self._out.flush()
