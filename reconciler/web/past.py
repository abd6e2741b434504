"""What was done to a fleet, by commit: the commands of its journal on a timeline."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.ports.journal import JournalEntry, Outcome

ENTRIES_MAX: Final = 500
"""How many entries of the journal the page is made of; ``reconciler history`` lists all."""

WIDTH: Final = 1000
"""The length of the timeline, in the units of the drawing."""
_LEAST: Final = 4
_SHOWN: Final = 6


@dataclass(frozen=True, slots=True)
class CommandView:
    """The operations of one command, or those of one plan that serve no command.

    ``start`` and ``length`` place it on the timeline of its commit. ``outcome`` is
    "succeeded", "failed" (an operation of it failed) or "in progress".
    """

    reason: str
    operations: str
    targets: tuple[str, ...]
    more: int
    began: datetime
    ended: datetime | None
    outcome: str
    problem: str
    start: int
    length: int

    @property
    def took(self) -> timedelta | None:
        """The time from its first operation to the outcome of its last."""
        return self.ended - self.began if self.ended is not None else None


@dataclass(frozen=True, slots=True)
class CommitView:
    """A commit with the commands that were executed under it, newest first."""

    revision: str
    began: datetime
    ended: datetime | None
    operations: int
    failures: int
    commands: tuple[CommandView, ...]


def commits_of(entries: Iterable[JournalEntry], now: datetime) -> tuple[CommitView, ...]:
    """Return the commits, newest first, of entries that are ordered newest first.

    A commit that was in effect twice, with another one between, is listed twice.
    """
    runs: list[list[JournalEntry]] = []
    for entry in entries:
        if runs and runs[-1][0].intent.revision == entry.intent.revision:
            runs[-1].append(entry)
        else:
            runs.append([entry])
    return tuple(_commit(run, now) for run in runs)


def _commit(entries: Sequence[JournalEntry], now: datetime) -> CommitView:
    began = min(entry.intent.at for entry in entries)
    ended = _end(entries)
    groups: dict[tuple[str, str], list[JournalEntry]] = {}
    for entry in entries:
        intent = entry.intent
        key = ("command", intent.command) if intent.command else (intent.plan, intent.verb)
        groups.setdefault(key, []).append(entry)
    span = (ended or now) - began
    return CommitView(
        revision=entries[0].intent.revision,
        began=began,
        ended=ended,
        operations=len(entries),
        failures=sum(entry.outcome is Outcome.FAILED for entry in entries),
        commands=tuple(_command(group, began, span, now) for group in groups.values()),
    )


def _command(
    entries: Sequence[JournalEntry], origin: datetime, span: timedelta, now: datetime
) -> CommandView:
    verbs = Counter(entry.intent.verb.value for entry in reversed(entries))
    targets = list(dict.fromkeys(entry.intent.target for entry in reversed(entries)))
    began, ended = min(entry.intent.at for entry in entries), _end(entries)
    failed = [entry for entry in entries if entry.outcome is Outcome.FAILED]
    start = min(_place(began - origin, span), WIDTH - _LEAST)
    return CommandView(
        reason=next((e.intent.reason for e in entries if e.intent.reason), ""),
        operations=", ".join(f"{count} × {verb}" for verb, count in verbs.items()),
        targets=tuple(targets[:_SHOWN]),
        more=max(0, len(targets) - _SHOWN),
        began=began,
        ended=ended,
        outcome="in progress" if ended is None else "failed" if failed else "succeeded",
        problem=failed[0].message if failed else "",
        start=start,
        length=max(_LEAST, _place((ended or now) - origin, span) - start),
    )


def _end(entries: Iterable[JournalEntry]) -> datetime | None:
    """Return when the last outcome was known, None while one is not."""
    ends = [entry.finished_at for entry in entries]
    known = [end for end in ends if end is not None]
    return max(known) if len(known) == len(ends) else None


def _place(after: timedelta, span: timedelta) -> int:
    return min(WIDTH, max(0, round(after / span * WIDTH))) if span else 0
