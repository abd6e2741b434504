"""A state store, a journal, a shelf and a lease that live in the memory of this process.

They keep the promises of the database adapter but durability; ``simulate`` and tests use them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from operator import itemgetter
from typing import Final, TypeVar

from msgspec.structs import replace

from reconciler.model.history import Obstacle, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.journal import Intent, IntentOutcome, JournalEntry
from reconciler.ports.state import (
    CommandPhase,
    RecordedObject,
    RecordedPlan,
    RunningCommand,
    Unavailable,
)

K = TypeVar("K")
V = TypeVar("V")

_OVER: Final = (CommandPhase.DONE, CommandPhase.ROLLED_BACK)


class MemoryShelf:
    """A map from name to bytes."""

    def __init__(self) -> None:
        self._content: dict[str, bytes] = {}

    def read(self, name: str) -> bytes | None:
        """Return what was last written under ``name``."""
        return self._content.get(name)

    def write(self, name: str, content: bytes) -> None:
        """Store ``content`` under ``name``."""
        self._content[name] = content


class MemoryJournal:
    """The intents in the order in which they were first written."""

    def __init__(self) -> None:
        self._entries: dict[str, JournalEntry] = {}
        self._open: dict[str, None] = {}  # in the order of the entries

    def begin(self, intents: Sequence[Intent]) -> None:
        """Record intents; one that is already recorded is not changed."""
        for intent in intents:
            if intent.id not in self._entries:
                self._entries[intent.id] = JournalEntry(len(self._entries) + 1, intent)
                self._open[intent.id] = None

    def finish(self, ended: Sequence[IntentOutcome], at: datetime) -> None:
        """Record how intents ended; the last outcome is valid."""
        when = at.astimezone(UTC)
        for intent, outcome, message in ended:
            entry = self._entries.get(intent)
            if entry is not None:
                self._open.pop(intent, None)
                self._entries[intent] = replace(
                    entry, outcome=outcome, finished_at=when, message=message
                )

    def in_doubt(self) -> Sequence[JournalEntry]:
        """Return the intents without an outcome, oldest first."""
        return [self._entries[intent] for intent in self._open]

    def find_entries(self, intents: Collection[str]) -> Mapping[str, JournalEntry]:
        """Return the entries of intents by their ids, without those that were never recorded."""
        return {intent: self._entries[intent] for intent in intents if intent in self._entries}

    def entries(self, *, limit: int = 100, target: str | None = None) -> Sequence[JournalEntry]:
        """Return the newest entries, newest first."""
        newest = (
            entry
            for entry in reversed(self._entries.values())
            if target is None or entry.intent.target == target
        )
        return list(islice(newest, limit))


class MemoryStateStore:
    """The recorded state, in memory."""

    def __init__(self) -> None:
        self._serial = 0
        self._claims: dict[str, NodeClaim] = {}
        self._commands: dict[str, RunningCommand] = {}
        self._running: set[str] = set()
        self._commands_by_time: list[tuple[datetime, str]] = []
        self._objects: list[RecordedObject] = []
        self._plans: dict[str, RecordedPlan] = {}
        self._plans_by_time: list[tuple[datetime, str]] = []
        self._unavailable: dict[tuple[str, str, str, str], Unavailable] = {}
        self._rollouts: dict[str, Rollout] = {}
        self._obstacles: list[Obstacle] = []

    def serial(self) -> int:
        """Return the current serial; it rises with each write that changes the state."""
        return self._serial

    def node_claims(self) -> Sequence[NodeClaim]:
        """Return the claims that are not gone, by name."""
        return [self._claims[name] for name in sorted(self._claims)]

    def put_node_claims(self, claims: Sequence[NodeClaim]) -> None:
        """Record claims as they are now."""
        self._record_changes(self._claims, {claim.name: claim for claim in claims})

    def forget_node_claims(self, reasons: Mapping[str, str], at: datetime) -> None:  # noqa: ARG002 - the port's; no history is kept here
        """Record that claims are gone."""
        gone = [name for name in reasons if self._claims.pop(name, None) is not None]
        self._serial += bool(gone)

    def commands(self) -> Sequence[RunningCommand]:
        """Return the commands under way, oldest first."""
        running = (self._commands[name] for name in self._running)
        return sorted(running, key=lambda c: (c.started_at, c.id))

    def put_command(self, command: RunningCommand) -> None:
        """Record the phase of a command; DONE and ROLLED_BACK remove it from the list."""
        known = self._commands.get(command.id)
        if known is not None and known.started_at != command.started_at:
            self._commands_by_time.remove((known.started_at, known.id))
            known = None
        if known is None:
            insort(self._commands_by_time, (command.started_at, command.id))
        self._record_changes(self._commands, {command.id: command})
        (self._running.discard if command.phase in _OVER else self._running.add)(command.id)

    def command(self, name: str) -> RunningCommand | None:
        """Return the command of that id, ended or not, as last recorded."""
        return self._commands.get(name)

    def commands_since(self, at: datetime) -> Sequence[RunningCommand]:
        """Return the commands that began at ``at`` or later, ended or not, oldest first."""
        first = bisect_left(self._commands_by_time, (at, ""))
        return [self._commands[name] for _, name in self._commands_by_time[first:]]

    def rollouts(self) -> Sequence[Rollout]:
        """Return the rollouts, by NodePool."""
        return [self._rollouts[name] for name in sorted(self._rollouts)]

    def put_rollout(self, rollout: Rollout) -> None:
        """Record the progress of a rollout."""
        self._record_changes(self._rollouts, {rollout.node_pool: rollout})

    def obstacles(self) -> Sequence[Obstacle]:
        """Return the obstacles of the last observation, by kind and name."""
        return list(self._obstacles)

    def put_obstacles(self, obstacles: Sequence[Obstacle]) -> None:
        """Record the current obstacles; no decision depends on them."""
        self._obstacles = sorted(obstacles, key=lambda o: (o.kind, o.name))

    def objects(self) -> Sequence[RecordedObject]:
        """Return the desired objects as last carried out, by kind and name."""
        return list(self._objects)

    def put_objects(self, objects: Sequence[RecordedObject], revision: str, at: datetime) -> None:  # noqa: ARG002 - the port's; no history is kept here
        """Record the desired objects of a revision, replacing all known ones."""
        fresh = sorted(objects, key=lambda o: (o.kind, o.name))
        if fresh != self._objects:
            self._objects = fresh
            self._serial += 1

    def put_plan(self, plan: RecordedPlan) -> None:
        """Record a plan; an applied one stays applied."""
        known = self._plans.get(plan.digest)
        carried_out = plan.carried_out_at or (known.carried_out_at if known else None)
        fresh = replace(plan, at=plan.at.astimezone(UTC), carried_out_at=carried_out)
        if known is not None:
            self._plans_by_time.remove((known.at, known.digest))
        insort(self._plans_by_time, (fresh.at, fresh.digest), key=itemgetter(0))
        self._plans[plan.digest] = fresh

    def plan(self, digest: str) -> RecordedPlan | None:
        """Return a recorded plan, or None."""
        return self._plans.get(digest)

    def plans(self, *, limit: int = 20) -> Sequence[RecordedPlan]:
        """Return the newest plans, newest first."""
        return [self._plans[digest] for _, digest in islice(reversed(self._plans_by_time), limit)]

    def plans_since(self, at: datetime) -> Iterator[RecordedPlan]:
        """Yield the plans from the last one at or before ``at`` on, oldest first."""
        first = bisect_right(self._plans_by_time, at, key=itemgetter(0)) - 1
        yield from (self._plans[digest] for _, digest in self._plans_by_time[max(first, 0) :])

    def unavailable(self, now: datetime) -> Sequence[Unavailable]:
        """Return the offerings that must not be requested now."""
        rows = self._unavailable
        return [rows[pool] for pool in sorted(rows) if rows[pool].until > now]

    def put_unavailable(self, offerings: Sequence[Unavailable]) -> None:
        """Record refusals; the later ``until`` is kept, and always that of a further refusal."""
        for fresh in offerings:
            known = self._unavailable.get(fresh.offering)
            if known is None or fresh.until >= known.until or fresh.refusals > known.refusals:
                self._record_changes(self._unavailable, {fresh.offering: fresh})

    def _record_changes(self, known: dict[K, V], fresh: dict[K, V]) -> None:
        """Record changed values; without a change the serial stays the same."""
        if any(known.get(key) != value for key, value in fresh.items()):
            known.update(fresh)
            self._serial += 1
