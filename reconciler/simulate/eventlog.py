"""What happened in a simulation, as events, and when budgets and windows limited it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

import msgspec

from reconciler.adapters.simulated.memory import MemoryStateStore
from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.ports.clock import Clock
from reconciler.ports.progress import EventKind, Notifier, Progress
from reconciler.ports.state import RunningCommand

_EVENTS: Final = frozenset(
    {
        EventKind.NODE_CLAIM_CREATED,
        EventKind.LAUNCHED,
        EventKind.REGISTERED,
        EventKind.INITIALIZED,
        EventKind.LAUNCH_FAILED,
        EventKind.COMMAND_STARTED,
        EventKind.COMMAND_VALIDATED,
        EventKind.COMMAND_ROLLED_BACK,
        EventKind.TAINTED,
        EventKind.DRAINED,
        EventKind.TERMINATED,
        EventKind.POD_BOUND,
        EventKind.POD_EVICTED,
        EventKind.INTERRUPTED,
        EventKind.EXPIRED,
    }
)
"""The events that the contract names; any other is a note."""

_REASONS: Final = (
    DisruptionReason.DRIFTED,
    DisruptionReason.UNDERUTILIZED,
    DisruptionReason.EMPTY,
    DisruptionReason.UNHEALTHY,
)


class Event(msgspec.Struct, frozen=True, rename="camel"):
    """An event with all its subjects; other fields are empty."""

    at: datetime
    kind: str
    node_pool: str = ""
    node_claim: str = ""
    node: str = ""
    command: str = ""
    reason: str = ""
    message: str = ""
    pod: str = ""


class EventLog:
    """Records progress (the port ``Notifier``) as events, each with its subject.

    ``listener`` also receives each event, when it happens.
    """

    def __init__(self, listener: Callable[[Event], None] = lambda _: None) -> None:
        self.listener = listener
        self.events: list[Event] = []
        self.notes: list[Event] = []
        self._pools: dict[str, str] = {}
        self._nodes: dict[str, str] = {}
        self._claims: dict[str, str] = {}
        self._commands: dict[str, RunningCommand] = {}
        self._command_by_claim: dict[str, str] = {}

    def add_listener(self, listener: Callable[[Event], None]) -> None:
        """Call another function with each event as well."""
        before = self.listener

        def both(event: Event) -> None:
            before(event)
            listener(event)

        self.listener = both

    def notify(self, progress: Progress) -> None:
        """Record it; must not fail."""
        event = self._make_event(progress)
        (self.events if event.kind in _EVENTS else self.notes).append(event)
        self.listener(event)
        if event.kind == EventKind.COMMAND_STARTED and event.reason == ForcefulReason.EXPIRED:
            self._record_expirations(event)

    def record_claims(self, claims: Sequence[NodeClaim]) -> list[NodeClaim]:
        """Record the facts of claims, and return the new claims."""
        fresh = [claim for claim in claims if claim.name not in self._pools]
        for claim in claims:
            self._pools[claim.name] = claim.node_pool
            if claim.status.node_name:
                self._nodes[claim.name] = claim.status.node_name
                self._claims[claim.status.node_name] = claim.name
        return fresh

    def record_command(self, command: RunningCommand) -> None:
        """Record which claims a command removes and which it waits for."""
        self._commands[command.id] = command
        for name in (*command.node_claims, *command.replacements):
            self._command_by_claim[name] = command.id

    def removing_command(self, claim: str) -> RunningCommand | None:
        """Return the last command of a claim, if it removed it and did not only wait for it."""
        command = self._commands.get(self._command_by_claim.get(claim, ""))
        return command if command is not None and claim in command.node_claims else None

    def _make_event(self, progress: Progress) -> Event:
        claim = progress.node_claim
        claim = claim if claim in self._pools else self._claims.get(claim or progress.node, claim)
        command = progress.command or self._command_by_claim.get(claim, "")
        known = self._commands.get(command)
        removed = known.node_claims if known is not None else ()
        if not claim and len(removed) == 1:
            (claim,) = removed
        pool = progress.node_pool or self._pools.get(claim, "")
        if not pool and removed:
            pool = self._pools.get(removed[0], "")
        return Event(
            progress.at,
            progress.kind,
            node_pool=pool,
            node_claim=claim,
            node=progress.node or self._nodes.get(claim, ""),
            command=command,
            reason=progress.reason or (known.reason if known is not None else ""),
            message=progress.message,
            pod=progress.facts.get("pod", ""),
        )

    def _record_expirations(self, started: Event) -> None:
        command = self._commands.get(started.command)
        for name in command.node_claims if command is not None else ():
            event = msgspec.structs.replace(
                started,
                kind=EventKind.EXPIRED,
                node_claim=name,
                node_pool=self._pools.get(name, ""),
                node=self._nodes.get(name, ""),
                message=f"{name} has reached its expireAfter",
            )
            self.events.append(event)
            self.listener(event)


class NotifyingStore(MemoryStateStore):
    """Records in memory that pass claims and commands to the event_log as they are written."""

    def __init__(self, event_log: EventLog, clock: Clock) -> None:
        super().__init__()
        self._event_log = event_log
        self._clock = clock

    def put_node_claims(self, claims: Sequence[NodeClaim]) -> None:
        """Record claims as they are now."""
        super().put_node_claims(claims)
        for claim in self._event_log.record_claims(claims):
            _notify_created(self._event_log, claim, self._clock.now())

    def put_command(self, command: RunningCommand) -> None:
        """Record the progress of a command."""
        super().put_command(command)
        self._event_log.record_command(command)


def _notify_created(event_log: Notifier, claim: NodeClaim, now: datetime) -> None:
    event_log.notify(
        Progress(
            now,
            EventKind.NODE_CLAIM_CREATED,
            f"{claim.name} for {claim.node_pool}",
            node_pool=claim.node_pool,
            node_claim=claim.name,
        )
    )


class RulePeriod(msgspec.Struct, frozen=True, rename="camel"):
    """How many nodes of a NodePool may be disrupted at a time, by reason, in a period.

    Reasons without a limit are omitted. ``closed`` is whether no reason allows any.
    """

    node_pool: str
    begin: datetime
    end: datetime
    allowed: dict[str, int]
    closed: bool


def rule_periods(
    pool: NodePool, limits: FleetLimits, begin: datetime, end: datetime
) -> list[RulePeriod]:
    """Return the periods in which something limits the disruption of a NodePool, in order."""
    total = limits.total(pool.name)
    found: list[RulePeriod] = []
    for span in limits.spans(pool, begin, end):
        allowed = {
            reason.value: nodes
            for reason in _REASONS
            if (nodes := span.allowed.get(reason, total)) < total
            or (not nodes and reason in span.allowed)
        }
        if allowed:
            closed = len(allowed) == len(span.allowed) and not any(allowed.values())
            found.append(RulePeriod(pool.name, span.start, span.end, allowed, closed))
    return found
