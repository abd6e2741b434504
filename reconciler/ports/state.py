"""What is recorded: claims, commands, objects and plans, and the right to act for a fleet."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from reconciler.model.history import Obstacle, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.ownership import NO_CLUSTER, ClusterId


class CommandPhase(StrEnum):
    """Where a command that is being carried out stands."""

    MARKED = "marked"
    WAITING = "waiting"
    TERMINATING = "terminating"
    DONE = "done"
    ROLLED_BACK = "rolled-back"


class RunningCommand(msgspec.Struct, frozen=True, rename="camel"):
    """A disruption command under way: which claims go, which must be ready before.

    ``node_pools`` runs in parallel with ``node_claims``. ``voluntary`` says that the budgets were
    asked; ``failed`` that it was rolled back because its replacements did not come, and not
    because somebody objected.
    """

    id: str
    reason: str
    decision: str
    node_claims: tuple[str, ...]
    replacements: tuple[str, ...]
    phase: CommandPhase
    started_at: datetime
    revision: str = ""
    plan: str = ""
    savings: float | None = None
    message: str = ""
    node_pools: tuple[str, ...] = ()
    voluntary: bool = False
    failed: bool = False


class RecordedObject(msgspec.Struct, frozen=True, rename="camel"):
    """An object of desired state as it was last carried out, with its drift hash."""

    kind: str
    name: str
    hash: str
    data: dict[str, object]
    revision: str = ""


class RecordedPlan(msgspec.Struct, frozen=True, rename="camel"):
    """A plan that was made or carried out; ``body`` is its JSON."""

    digest: str
    revision: str
    at: datetime
    serial: int
    body: bytes
    carried_out_at: datetime | None = None


class Unavailable(msgspec.Struct, frozen=True, rename="camel"):
    """An offering that EC2 refused, not to be asked for before ``until``."""

    instance_type: str
    zone: str
    capacity_type: str
    until: datetime
    refusals: int = 1
    code: str = ""


class StateStore(Protocol):
    """What we did and believe, durable. Every method is one transaction.

    ``serial`` rises with each write that changes a belief; a plan names the serial it was made
    from. Methods raise StateError when the store cannot be used.
    """

    def serial(self) -> int:
        """Return the present serial of this fleet."""

    def node_claims(self) -> Sequence[NodeClaim]:
        """Return the claims that are not gone, by name."""

    def put_node_claims(self, claims: Sequence[NodeClaim]) -> None:
        """Record claims as they are now."""

    def forget_node_claim(self, name: str, at: datetime, reason: str) -> None:
        """Record that a claim is gone; its history stays."""

    def commands(self) -> Sequence[RunningCommand]:
        """Return the commands under way, oldest first."""

    def put_command(self, command: RunningCommand) -> None:
        """Record where a command stands; DONE and ROLLED_BACK take it off the list."""

    def command(self, name: str) -> RunningCommand | None:
        """Return the command of that id, ended or not, as it was recorded last."""

    def commands_since(self, at: datetime) -> Sequence[RunningCommand]:
        """Return the commands that began at ``at`` or later, ended or not, oldest first."""

    def rollouts(self) -> Sequence[Rollout]:
        """Return the rollouts, by NodePool."""

    def put_rollout(self, rollout: Rollout) -> None:
        """Record how far a rollout has come."""

    def obstacles(self) -> Sequence[Obstacle]:
        """Return what stood in the way when somebody last looked, by kind and name."""

    def put_obstacles(self, obstacles: Sequence[Obstacle]) -> None:
        """Record what stands in the way now, replacing all that was known."""

    def objects(self) -> Sequence[RecordedObject]:
        """Return the desired objects as last carried out, by kind and name."""

    def put_objects(self, objects: Sequence[RecordedObject], revision: str, at: datetime) -> None:
        """Record the desired objects of a revision, replacing all known ones."""

    def put_plan(self, plan: RecordedPlan) -> None:
        """Record a plan."""

    def plan(self, digest: str) -> RecordedPlan | None:
        """Return a recorded plan, or None."""

    def plans(self, *, limit: int = 20) -> Sequence[RecordedPlan]:
        """Return the newest plans, newest first."""

    def unavailable(self, now: datetime) -> Sequence[Unavailable]:
        """Return the offerings that must not be asked for now."""

    def put_unavailable(self, offerings: Sequence[Unavailable]) -> None:
        """Record refusals; the later ``until`` holds, and always that of a further refusal."""


class Shelf(Protocol):
    """A durable map from name to bytes, for an adapter that imitates a part of the world."""

    def read(self, name: str) -> bytes | None:
        """Return what was last written under ``name``."""

    def write(self, name: str, content: bytes) -> None:
        """Make ``content`` durable under ``name``."""


class Lease(Protocol):
    """The right to act for a fleet.

    Acquiring it raises the epoch of the fleet. Every write of a store checks the epoch in its
    transaction, and raises LeaseLostError where another process has acquired the lease since.
    """

    def acquire(self, cluster: ClusterId = NO_CLUSTER) -> None:
        """Take the lease, to act for ``cluster``; whoever holds it may take it again.

        Raises:
            LeaseHeldError: another process holds it; the message says which.
            FleetConflictError: another fleet has nodes in this cluster.
        """

    def confirm(self) -> None:
        """Return if the lease is held for the next few seconds; renew it where that is due.

        Raises:
            LeaseLostError: it is not; acting must stop.
        """

    def release(self) -> None:
        """Give it back."""

    def holder(self) -> str | None:
        """Return who holds the lease, None where nobody does, without taking it."""
