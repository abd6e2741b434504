"""Effects, written down before they are tried, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec


class Verb(StrEnum):
    """What an intent does to the world."""

    LAUNCH = "launch"
    LAUNCH_BATCH = "launch-batch"
    TERMINATE = "terminate"
    TAINT = "taint"
    UNTAINT = "untaint"
    DRAIN = "drain"
    DELETE_NODE = "delete-node"
    TAG = "tag"
    DISCARD = "discard"


class Outcome(StrEnum):
    """How an intent ended; one without an outcome is in doubt."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Intent(msgspec.Struct, frozen=True, rename="camel"):
    """An effect that was decided, written down before it is tried.

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
    """An intent and what is known of its outcome."""

    sequence: int
    intent: Intent
    outcome: Outcome | None = None
    finished_at: datetime | None = None
    message: str = ""


class Journal(Protocol):
    """Append-only and durable: what is written here survives any crash after the call returns."""

    def begin(self, intents: Sequence[Intent]) -> None:
        """Write intents down; one that is known already is left as it is."""

    def finish(self, intent: str, outcome: Outcome, at: datetime, message: str = "") -> None:
        """Write down how an intent ended."""

    def entry(self, intent: str) -> JournalEntry | None:
        """Return what is known of an intent, None if it was never written here."""

    def in_doubt(self) -> Sequence[JournalEntry]:
        """Return the intents without an outcome, oldest first."""

    def entries(self, *, limit: int = 100, target: str | None = None) -> Sequence[JournalEntry]:
        """Return the newest entries, newest first."""
