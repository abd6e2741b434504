"""EC2: instances, launches, what EC2 announces, and what launches leave behind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass


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
