"""What the engine needs of the outside world, in the words of the domain.

Each port has an adapter that talks to the real thing and one in ``adapters/simulated`` that keeps
the same promises; ``tests/contracts`` puts the same questions to both. A method that reads
returns everything or raises: a partial answer never looks like «nothing there».
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Protocol

import msgspec

from reconciler.model.history import Obstacle, Rollout
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.observed.snapshot import Snapshot


class Clock(Protocol):
    """The only source of the present."""

    def now(self) -> datetime:
        """Return the present time, always in UTC and timezone-aware."""

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Return after ``seconds``, or as soon as ``until`` says so."""


@dataclass(frozen=True, slots=True)
class Instance:
    """An EC2 instance that bears our tags, as described by EC2.

    ``state`` is EC2's: pending, running, stopping, stopped, shutting-down, terminated.
    """

    id: str
    instance_type: str
    zone: str
    capacity_type: str
    state: str
    launched_at: datetime
    tags: Mapping[str, str]
    image_id: str = ""
    subnet_id: str = ""
    security_groups: tuple[str, ...] = ()
    private_dns_name: str = ""
    reservation_id: str = ""
    tenancy: str = ""

    @property
    def provider_id(self) -> str:
        """How Kubernetes names the instance: ``aws:///<zone>/<id>``."""
        return f"aws:///{self.zone}/{self.id}"

    @property
    def is_going(self) -> bool:
        """Whether it is terminated, or soon will be."""
        return self.state in ("shutting-down", "terminated")


@dataclass(frozen=True, slots=True)
class LaunchOption:
    """One offering that a launch may take, with its price in USD an hour.

    A reserved one names its reservation: which kind (``default``, ``capacity-block``), and whether
    EC2 may take it back.
    """

    instance_type: str
    zone: str
    capacity_type: str
    price: float
    reservation_id: str = ""
    reservation_type: str = ""
    interruptible: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """A wish for one instance.

    ``intent`` is the id of the journalled intent and the client token of the call: the same
    intent never yields a second instance. ``options`` are in order of preference, all of one
    capacity type, at most 60 instance types.

    ``batch`` is the id of the journalled intent that joins equal wishes into one call, empty for
    a wish that is a call by itself. Wishes of a batch follow one another and stay together.
    """

    intent: str
    node_claim: NodeClaim
    node_class: EC2NodeClass
    options: tuple[LaunchOption, ...]
    tags: Mapping[str, str]
    price_overlaid: bool = False
    batch: str = ""

    @property
    def token(self) -> str:
        """What makes the call the same call again; its instances bear it as a tag."""
        return self.batch or self.intent


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offering that EC2 could not give, and what it said."""

    instance_type: str
    zone: str
    capacity_type: str
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class LaunchAnswer:
    """What came of a launch: an instance, refusals, or both at once; both are to be read."""

    instance: Instance | None
    refused: tuple[Refusal, ...] = ()


class Compute(Protocol):
    """EC2.

    Every method may raise TransientCloudError (the outcome may be unknown: look, then repeat),
    CloudError (repeating does not help) with the API call and request id in ``where``.
    """

    def resolve(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """Return the class with a status: its subnets, groups, images, and whether it is ready."""

    def launch(self, wishes: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Try to get the instances; the answers stand in the order of the wishes.

        Repeating a wish whose intent was fulfilled returns the same instance. The instances of a
        batch go to its wishes in their order; where there are fewer, the last ones get none.
        """

    def instances(self) -> Sequence[Instance]:
        """Return every instance of this fleet that is not yet terminated, all pages of them."""

    def find(self, intents: Sequence[str]) -> Sequence[Instance]:
        """Return the instances that bear the tag of one of the intents, whatever their state."""

    def look_up(self, ids: Sequence[str]) -> Sequence[Instance]:
        """Return these instances, whatever their state; what EC2 does not show is left out."""

    def terminate(self, ids: Sequence[str]) -> None:
        """Begin to terminate the instances; those that are gone already count as done."""

    def tag(self, instance: str, tags: Mapping[str, str]) -> None:
        """Put further tags on an instance."""


class InterruptionKind(StrEnum):
    """What EC2 announces, or has already done, to instances."""

    SPOT_INTERRUPTION = "SpotInterruption"
    RESERVATION_INTERRUPTION = "CapacityReservationInterruption"
    TERMINATED = "InstanceTerminated"
    STOPPED = "InstanceStopped"
    IMPAIRED = "InstanceImpaired"
    SCHEDULED_CHANGE = "ScheduledChange"
    REBALANCE_RECOMMENDATION = "RebalanceRecommendation"


@dataclass(frozen=True, slots=True)
class Interruption:
    """Word from EC2 that instances go, or should.

    ``id`` tells one word from another, and may come more than once. ``text`` says it to a person:
    ``spot interruption warning``.
    """

    id: str
    kind: InterruptionKind
    instances: tuple[str, ...]
    at: datetime
    text: str


class Interruptions(Protocol):
    """Where EC2's word of interruptions comes in. No method waits for the world, or raises."""

    def arrived(self) -> Sequence[Interruption]:
        """Return what was heard and is not settled, in the order in which it came.

        The same word may come again: EC2 tells everything at least once.
        """

    def settle(self, heard: Sequence[Interruption]) -> None:
        """Say that what these mean is on record: they need not be told again."""

    def has_news(self) -> bool:
        """Return whether ``arrived`` would give something."""

    def problem(self) -> str:
        """Return why nothing can be heard at present, empty where all is well."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something in the account that launches made and nothing needs any more.

    ``kind`` is ``launch-template`` or ``instance-profile``; ``id`` is that of a template, which
    outlives no second one of its name; ``roles`` are those of a profile.
    """

    kind: str
    name: str
    id: str = ""
    roles: tuple[str, ...] = ()


class Leftovers(Protocol):
    """What launches leave behind in the account. Methods raise as those of ``Compute`` do."""

    def found(self, classes: Iterable[EC2NodeClass]) -> Sequence[Leftover]:
        """Return what may be deleted, while ``classes`` are all that the fleet has.

        It may be asked at any time, and looks only as often as is worth it.
        """

    def discard(self, leftover: Leftover) -> None:
        """Delete it; what is gone already is no error."""


class Cluster(Protocol):
    """The Kubernetes API. Methods raise ClusterError."""

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        """Return what runs now: nodes, pods and what governs them.

        ``claims`` are our recorded NodeClaims and ``instances`` what EC2 says: an imitated
        cluster makes its nodes from them, a real one ignores them.
        """

    def taint(self, node: str) -> None:
        """Put the taint ``karpenter.sh/disrupted:NoSchedule`` on a node; twice is once."""

    def untaint(self, node: str) -> None:
        """Take that taint away; a node that is gone is no error."""

    def register(self, node: str, claim: NodeClaim) -> None:
        """Give a node that has joined the labels, annotations and taints of its claim."""

    def initialize(self, node: str) -> None:
        """Mark a node as initialized."""

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> int:
        """Ask the pods of a node to leave, and return how many it still waits for.

        Evictions respect PodDisruptionBudgets; after ``deadline`` pods are deleted.
        """

    def delete_node(self, node: str) -> None:
        """Remove the Node object; one that is gone is no error."""


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
        """Record refusals; the later ``until`` holds."""


class Arrivals(Protocol):
    """Word of pods that wait for a node. It is a reason to look, and is believed in nothing."""

    def has_news(self) -> bool:
        """Return whether pods began to wait since the last look, and enough have come together."""

    def heed(self) -> None:
        """Say that a look begins: it will see whatever has come until now."""


class Shelf(Protocol):
    """A durable map from name to bytes, for an adapter that imitates a part of the world."""

    def read(self, name: str) -> bytes | None:
        """Return what was last written under ``name``."""

    def write(self, name: str, content: bytes) -> None:
        """Make ``content`` durable under ``name``."""


class Lease(Protocol):
    """The right to act for a fleet."""

    def acquire(self) -> None:
        """Take the lease.

        Raises:
            LockedError: another process holds it; the message says which.
        """

    def release(self) -> None:
        """Give it back."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Something that happened, for a person to read while it happens."""

    at: datetime
    kind: str
    message: str
    node_pool: str = ""
    node_claim: str = ""
    node: str = ""
    command: str = ""
    reason: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


class Notifier(Protocol):
    """Where progress is told."""

    def tell(self, progress: Progress) -> None:
        """Tell it; must not fail."""
