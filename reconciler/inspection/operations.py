"""Operations of the journal, and the commands that they belong to, as rows and as objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.inspection.resources import RecordedResource, ResourceName, fields_of
from reconciler.model.text.counting import format_list
from reconciler.model.text.identifiers import short_commit
from reconciler.model.text.money import format_monthly
from reconciler.ports.journal import REQUESTED
from reconciler.render.listing import clock_time, human_duration, stamp, truncate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reconciler.assembly.inputs.records import ServedAction
    from reconciler.engine.shown.past import CommandView, CommitView
    from reconciler.ports.journal import JournalEntry

HEADER: Final = ("AT", "VERB", "TARGET", "OUTCOME", "REVISION", "REASON", "MESSAGE")

_TARGETS_SHOWN: Final = 3


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pass


class OperationAction(_Part, frozen=True):
    """The action of a plan that an operation served."""

    plan: str
    id: str
    state: str


class OperationStatus(_Part, frozen=True):
    """How an operation ended, None while that is not known."""

    outcome: str | None
    finished_at: str | None
    message: str
    action: OperationAction | None


class PastCommand(_Part, frozen=True):
    """A command of the history: why, and how many operations of each kind on what."""

    revision: str
    reason: str
    operations: dict[str, int]
    targets: tuple[str, ...]


class PastCommandStatus(_Part, frozen=True):
    """How a command of the history ended; money is USD an hour."""

    outcome: str
    message: str
    finished_at: str | None
    savings_per_hour: float | None
    pods: int | None


def operation_resource(entry: JournalEntry, served: ServedAction | None = None) -> RecordedResource:
    """Return an entry as an object of a List, with the action that it ``served``."""
    action = None
    if served is not None:
        action = OperationAction(plan=served.plan, id=served.action, state=served.state.value)
    return RecordedResource(
        kind="JournalEntry",
        metadata=ResourceName(
            name=entry.intent.id, creation_timestamp=msgspec.to_builtins(entry.intent.at)
        ),
        spec={**fields_of(entry.intent, without=("id", "at")), "sequence": entry.sequence},
        status=OperationStatus(
            outcome=entry.outcome.value if entry.outcome else None,
            finished_at=msgspec.to_builtins(entry.finished_at),
            message=entry.message,
            action=action,
        ),
    )


def operation_rows(entries: Sequence[JournalEntry], width: int | None) -> list[tuple[str, ...]]:
    """Return a row of cells for each entry; messages are cut to ``width``."""
    return [
        (
            clock_time(e.intent.at),
            e.shown_verb,
            e.intent.target,
            _outcome(e),
            short_commit(e.intent.revision),
            e.intent.reason,
            truncate(e.message, width) if width else e.message,
        )
        for e in entries
    ]


def _outcome(entry: JournalEntry) -> str:
    """Return the outcome of an entry; an open request is not executed yet."""
    if entry.outcome is not None:
        return entry.outcome.value
    return "requested" if entry.intent.verb in REQUESTED else "unknown"


def command_resource(commit: CommitView, command: CommandView) -> RecordedResource:
    """Return a command of the history as an object of a List."""
    return RecordedResource(
        kind="CommandHistory",
        metadata=ResourceName(name=command.name, creation_timestamp=stamp(command.began)),
        spec=PastCommand(
            revision=commit.revision,
            reason=command.reason,
            operations=dict(command.counts),
            targets=command.targets,
        ),
        status=PastCommandStatus(
            outcome=command.outcome,
            message=command.problem,
            finished_at=stamp(command.ended) or None,
            savings_per_hour=command.saves,
            pods=command.pods,
        ),
    )


def command_row(commit: CommitView, command: CommandView) -> tuple[str, ...]:
    """Return a command of the history as a row of cells."""
    return (
        clock_time(command.began),
        "" if command.took is None else human_duration(command.took),
        command.reason,
        command.operations,
        format_list(command.targets, _TARGETS_SHOWN),
        "" if command.saves is None else format_monthly(-command.saves, signed=True),
        "" if command.pods is None else str(command.pods),
        ": ".join(filter(None, (command.outcome, command.problem))),
        short_commit(commit.revision),
    )
