"""The journal of effects: written before they are tried, with their outcomes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

import msgspec


class Verb(StrEnum):
    """What an intent does to the world."""

    LAUNCH = "launch"
    LAUNCH_BATCH = "launch-batch"
    TERMINATE = "terminate"
    REBOOT = "reboot"
    TAINT = "taint"
    UNTAINT = "untaint"
    DRAIN = "drain"
    DELETE_NODE = "delete-node"
    TAG = "tag"
    DISCARD = "discard"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN_NODE = "drain-node"
    DELETE_CLAIM = "delete-nodeclaim"


REQUESTED: Final = frozenset({Verb.CORDON, Verb.UNCORDON, Verb.DRAIN_NODE, Verb.DELETE_CLAIM})
"""Verbs that people ask for: such an intent is a request until it has an outcome."""


def shown_verb(verb: str) -> str:
    """Return a verb in text: unused resources are deleted, not discarded."""
    return "delete" if verb == Verb.DISCARD else str(verb)


class Outcome(StrEnum):
    """How an intent ended; one without an outcome is in doubt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Intent(msgspec.Struct, frozen=True, rename="camel"):
    """A decided effect, journalled before it is tried.

    ``id`` is a hash of revision, serial, verb, target and parameters; a retry repeats it, changed
    parameters change it.
    """

    id: str
    verb: Verb
    target: str
    at: datetime
    revision: str = ""
    plan: str = ""
    command: str = ""
    reason: str = ""
    parameters: dict[str, str] = {}


class JournalEntry(msgspec.Struct, frozen=True, rename="camel"):
    """An intent with its outcome, if known."""

    sequence: int
    intent: Intent
    outcome: Outcome | None = None
    finished_at: datetime | None = None
    message: str = ""

    @property
    def shown_verb(self) -> str:
        """The verb in text."""
        return shown_verb(self.intent.verb)


class IntentOutcome(NamedTuple):
    """How an intent, named by its id, has ended."""

    intent: str
    outcome: Outcome
    message: str = ""


class Journal(Protocol):
    """Append-only and durable: entries survive any crash after the call returns."""

    def begin(self, intents: Sequence[Intent]) -> None:
        """Append intents; known ones are left unchanged."""

    def finish(self, ended: Sequence[IntentOutcome], at: datetime) -> None:
        """Append the outcomes of intents, all or none."""

    def find_entries(self, intents: Collection[str]) -> Mapping[str, JournalEntry]:
        """Return the entries of intents by id; ids without an entry are omitted."""

    def in_doubt(self) -> Sequence[JournalEntry]:
        """Return the intents without an outcome, oldest first."""

    def entries(self, *, limit: int = 100, target: str | None = None) -> Sequence[JournalEntry]:
        """Return the newest entries, newest first."""
