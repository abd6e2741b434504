"""The recorded state (claims, commands, objects, plans), the workload's record, and the lease."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Final, Protocol

import msgspec

from reconciler.model.history import Obstacle, RecordedNode, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.pod import PodSpec
from reconciler.model.ownership import NO_CLUSTER, ClusterId

REVISION_PROBLEM_RECORD: Final = "revisionProblem"
"""The name under which the problem of the newest revision is kept on the shelf of a fleet."""


class CommandPhase(StrEnum):
    """The phase of a command."""

    MARKED = "marked"
    WAITING = "waiting"
    TERMINATING = "terminating"
    DONE = "done"
    ROLLED_BACK = "rolled-back"


class RunningCommand(msgspec.Struct, frozen=True, rename="camel"):
    """A disruption command: the claims that it removes, and those that must be ready before.

    One whose ``decision`` is to reboot keeps its claims. ``node_pools`` are the NodePools of
    ``node_claims``, in the same order. ``voluntary`` means that budgets apply. ``failed`` means
    that it was rolled back because its replacements did not become ready, or its node did not come
    back, and not because validation failed. ``termination_grace_period`` limits the drain, in
    addition to that of each claim; empty without such a limit. ``pods`` is how many pods it moves,
    None if an earlier release recorded it.
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
    termination_grace_period: str = ""
    pods: int | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether it still acts on its NodeClaims: it is neither done nor rolled back."""
        return self.phase not in (CommandPhase.DONE, CommandPhase.ROLLED_BACK)

    @property
    def removes_nodes(self) -> bool:
        """Whether its nodes are terminated in the end; a reboot keeps them."""
        return self.decision != "reboot"


class RecordedObject(msgspec.Struct, frozen=True, rename="camel"):
    """An object of the desired state as last applied, with its drift hash."""

    kind: str
    name: str
    hash: str
    data: dict[str, object]
    revision: str = ""


class RecordedPlan(msgspec.Struct, frozen=True, rename="camel"):
    """A plan that was made or applied; ``body`` is its JSON."""

    digest: str
    revision: str
    at: datetime
    serial: int
    body: bytes
    carried_out_at: datetime | None = None


class Unavailable(msgspec.Struct, frozen=True, rename="camel"):
    """An offering that EC2 refused, not to be requested before ``until``.

    With ``reservation_id``, only that capacity reservation is unavailable.
    """

    instance_type: str
    zone: str
    capacity_type: str
    until: datetime
    refusals: int = 1
    code: str = ""
    reservation_id: str = ""

    @property
    def offering(self) -> tuple[str, str, str, str]:
        """The instance type, zone, capacity type and reservation, which identify the offering."""
        return (self.instance_type, self.zone, self.capacity_type, self.reservation_id)


class StateStore(Protocol):
    """The durable records of a fleet. Every method is one transaction.

    ``serial`` increases with each write that changes the state; a plan names the serial that it was
    made from. Methods raise StateError when the store cannot be used.
    """

    def serial(self) -> int:
        """Return the current serial of this fleet."""

    def node_claims(self) -> Sequence[NodeClaim]:
        """Return the claims that exist, by name."""

    def put_node_claims(self, claims: Sequence[NodeClaim]) -> None:
        """Record the current claims."""

    def forget_node_claims(self, reasons: Mapping[str, str], at: datetime) -> None:
        """Record that claims are gone, each with the reason; their history is kept."""

    def commands(self) -> Sequence[RunningCommand]:
        """Return the running commands, oldest first."""

    def put_command(self, command: RunningCommand) -> None:
        """Record the phase of a command; DONE and ROLLED_BACK end it."""

    def command(self, name: str) -> RunningCommand | None:
        """Return the command with the id, running or ended, or None."""

    def commands_since(self, at: datetime) -> Sequence[RunningCommand]:
        """Return the commands that started at ``at`` or later, running or ended, oldest first."""

    def rollouts(self) -> Sequence[Rollout]:
        """Return the rollouts, by NodePool."""

    def put_rollout(self, rollout: Rollout) -> None:
        """Record the progress of a rollout."""

    def obstacles(self) -> Sequence[Obstacle]:
        """Return the blockers of the last pass, by kind and name."""

    def put_obstacles(self, obstacles: Sequence[Obstacle]) -> None:
        """Record the current blockers, replacing all recorded ones."""

    def objects(self) -> Sequence[RecordedObject]:
        """Return the desired objects as last applied, by kind and name."""

    def put_objects(self, objects: Sequence[RecordedObject], revision: str, at: datetime) -> None:
        """Record the desired objects of a revision, replacing all recorded ones."""

    def put_plan(self, plan: RecordedPlan) -> None:
        """Record a plan."""

    def plan(self, digest: str) -> RecordedPlan | None:
        """Return a recorded plan, or None."""

    def plans(self, *, limit: int = 20) -> Sequence[RecordedPlan]:
        """Return the newest plans, newest first."""

    def plans_since(self, at: datetime) -> Iterator[RecordedPlan]:
        """Yield the plans from the last one at or before ``at`` on, oldest first."""

    def unavailable(self, now: datetime) -> Sequence[Unavailable]:
        """Return the offerings that are unavailable at ``now``."""

    def put_unavailable(self, offerings: Sequence[Unavailable]) -> None:
        """Record refusals; the later ``until`` is kept, except that a further refusal wins."""


class RevisionProblem(msgspec.Struct, frozen=True, rename="camel"):
    """Why the newest revision is not in effect, and since when."""

    message: str
    since: datetime


class Shelf(Protocol):
    """A durable map from names to bytes, for adapters that simulate an external system."""

    def read(self, name: str) -> bytes | None:
        """Return the bytes last written under ``name``."""

    def write(self, name: str, content: bytes) -> None:
        """Store ``content`` under ``name``."""


class Lease(Protocol):
    """The right to act for a fleet.

    Acquiring it raises the epoch of the fleet. Every write of a store checks the epoch in its
    transaction, and raises LeaseLostError where another process has acquired the lease since.
    """

    def acquire(self, cluster: ClusterId = NO_CLUSTER) -> None:
        """Take the lease, to act for ``cluster``; its holder may take it again.

        Raises:
            LeaseHeldError: another process holds it; the message names it.
            FleetConflictError: another fleet has nodes in this cluster.
        """

    def confirm(self) -> None:
        """Return if the lease is held for the next few seconds; renew it when due.

        Raises:
            LeaseLostError: it is not held; all effects must stop.
        """

    def release(self) -> None:
        """Release the lease."""

    def holder(self) -> str | None:
        """Return the holder of the lease, or None, without taking it."""


class PodClass(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What decisions read from pods that are alike; the ``spec`` names no node.

    ``owner`` is their controller, None if they have none.
    """

    spec: PodSpec
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner: OwnerReference | None = None


class PodArrival(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pod, by ``namespace/name``, and the id of its class; ``bound`` is None while it waits."""

    pod: str
    pod_class: str = msgspec.field(name="class")
    created: datetime
    bound: datetime | None = None


class NodeArrival(RecordedNode, frozen=True, omit_defaults=True):
    """A node of the fleet; ``price`` is in USD an hour, None if unknown."""

    created: datetime
    price: float | None = None


class OfferingRefusal(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A pool of capacity that EC2 has refused, and until when it counts as unavailable."""

    instance_type: str
    zone: str
    capacity_type: str
    until: datetime
    code: str = ""


SpotChanges = dict[str, dict[str, float | None]]
"""Spot prices by instance type and zone, USD an hour; None where one is no longer known."""


def spot_changes(
    before: Mapping[str, Mapping[str, float]], after: Mapping[str, Mapping[str, float | None]]
) -> SpotChanges:
    """Return the prices of ``after`` that differ, and None for those that it does not have."""
    found: SpotChanges = {}
    for kind in sorted(before.keys() | after.keys()):
        old, new = before.get(kind, {}), after.get(kind, {})
        if old != new:
            zones = sorted(old.keys() | new.keys())
            changed = {zone: new.get(zone) for zone in zones if old.get(zone) != new.get(zone)}
            if changed:
                found[kind] = changed
    return found


class TraceBatch(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What changed up to ``at``. Removals come before all additions of the batch.

    ``classes`` are the classes by id that no batch has named since the last whole one. ``daemons``
    are the DaemonSets by ``namespace/name``, None where they are as before. ``spot`` are the spot
    prices that changed, all of them in a whole batch; it is None where they are as before, and in
    batches of releases that did not record them. ``refused`` are refusals that no batch has named.
    """

    at: datetime
    is_whole: bool = False
    gone: tuple[str, ...] = ()
    gone_nodes: tuple[str, ...] = ()
    classes: dict[str, PodClass] = {}
    pods: tuple[PodArrival, ...] = ()
    bound: dict[str, datetime] = {}
    nodes: tuple[NodeArrival, ...] = ()
    daemons: dict[str, PodClass] | None = None
    spot: SpotChanges | None = None
    refused: tuple[OfferingRefusal, ...] = ()


class TraceLog(Protocol):
    """The recorded batches of a fleet."""

    def append(self, batch: TraceBatch, forget_before: datetime | None = None) -> None:
        """Add a batch; with a time, remove what no trace from that time on needs.

        Raises:
            StateError: it cannot be written.
            LeaseLostError: another process acts for the fleet.
        """

    def batches(self, since: datetime) -> Iterator[TraceBatch]:
        """Yield the batches from the last whole one at or before ``since``, or from the first.

        Raises:
            StateError: they cannot be read.
        """
