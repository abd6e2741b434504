"""EC2: instances, launches, interruption events, and unused objects that launches leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Protocol

import msgspec

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass


class Instance(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An EC2 instance with our tags, as described by EC2 and recorded in a snapshot.

    ``state`` is EC2's: pending, running, stopping, stopped, shutting-down, terminated.
    """

    id: str
    instance_type: str
    zone: str
    capacity_type: str
    state: str
    launched_at: Annotated[datetime, msgspec.Meta(tz=True)]
    tags: Mapping[str, str] = {}
    image_id: str = ""
    subnet_id: str = ""
    security_groups: tuple[str, ...] = ()
    private_dns_name: str = ""
    reservation_id: str = ""
    tenancy: str = ""

    @property
    def provider_id(self) -> str:
        """The provider id of the instance in Kubernetes: ``aws:///<zone>/<id>``."""
        return f"aws:///{self.zone}/{self.id}"

    @property
    def is_terminating(self) -> bool:
        """Whether it is terminated or shutting down."""
        return self.state in ("shutting-down", "terminated")


@dataclass(frozen=True, slots=True)
class LaunchOption:
    """An offering that a launch may use, with its price in USD an hour.

    A reserved offering names its reservation, its type (``default``, ``capacity-block``), and
    whether EC2 may interrupt it.
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
    """The request for one instance.

    ``intent`` is the id of the journalled intent and the client token of the call: the same
    intent never yields a second instance. ``options`` are in order of preference, all of one
    capacity type, at most 60 instance types.

    ``batch`` is the id of the journalled intent that joins identical requests into one call, empty
    for a request with a call of its own. Requests of a batch are adjacent.
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
        """The client token of the call, which is also a tag of its instances."""
        return self.batch or self.intent


@dataclass(frozen=True, slots=True)
class Refusal:
    """An offering that EC2 refused, and its error.

    With ``reservation_id``, the other reservations of the type and zone may have capacity.
    """

    instance_type: str
    zone: str
    capacity_type: str
    code: str
    message: str
    reservation_id: str = ""

    @property
    def offering(self) -> tuple[str, str, str, str]:
        """The instance type, zone, capacity type and reservation, which identify the offering."""
        return (self.instance_type, self.zone, self.capacity_type, self.reservation_id)


@dataclass(frozen=True, slots=True)
class LaunchAnswer:
    """The answer to a launch: an instance, refusals, or both; callers have to read both."""

    instance: Instance | None
    refused: tuple[Refusal, ...] = ()


class Compute(Protocol):
    """EC2.

    Every method may raise TransientCloudError (the outcome may be unknown: check, then repeat),
    CloudError (repeating does not help) with the API call and request id in ``where``.
    """

    def resolve(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """Return the class with its status: subnets, security groups, images and readiness."""

    def launch(self, requests: Sequence[Launch]) -> Sequence[LaunchAnswer | Exception]:
        """Launch the instances; the answers have the order of the requests.

        Repeating a request whose intent was fulfilled returns the same instance. The instances of a
        batch are assigned to its requests in order; if there are fewer, the last ones get none.
        """

    def instances(self) -> Sequence[Instance]:
        """Return all instances of this fleet that are not terminated, from every page."""

    def find(self, intents: Sequence[str]) -> Sequence[Instance]:
        """Return the instances with the tag of one of the intents, whatever their state."""

    def look_up(self, ids: Sequence[str]) -> Sequence[Instance]:
        """Return the instances with these ids, whatever their state, without those EC2 lacks."""

    def terminate(self, ids: Sequence[str]) -> None:
        """Request the termination of instances; those that are gone already are not an error."""

    def reboot(self, instance: str) -> None:
        """Request the reboot of an instance; a repeated request may reboot it again."""

    def tag(self, instance: str, tags: Mapping[str, str]) -> None:
        """Add tags to an instance."""


class InterruptionKind(StrEnum):
    """What EC2 announces about instances, or has already done."""

    SPOT_INTERRUPTION = "SpotInterruption"
    RESERVATION_INTERRUPTION = "CapacityReservationInterruption"
    TERMINATED = "InstanceTerminated"
    STOPPED = "InstanceStopped"
    IMPAIRED = "InstanceImpaired"
    SCHEDULED_CHANGE = "ScheduledChange"
    REBALANCE_RECOMMENDATION = "RebalanceRecommendation"


@dataclass(frozen=True, slots=True)
class Interruption:
    """An event of EC2 about instances that are reclaimed, or should be replaced.

    ``id`` identifies the event, which may be delivered more than once. ``text`` describes it for
    people: ``spot interruption warning``.
    """

    id: str
    kind: InterruptionKind
    instances: tuple[str, ...]
    at: datetime
    text: str


class Interruptions(Protocol):
    """The source of interruption events. No method waits for the world, or raises."""

    def pending_events(self) -> Sequence[Interruption]:
        """Return the received events that are not acknowledged, in order of arrival.

        An event may be delivered again: EC2 delivers at least once.
        """

    def acknowledge(self, received: Sequence[Interruption]) -> None:
        """Acknowledge events whose consequences are recorded."""

    def has_events(self) -> bool:
        """Return whether ``pending_events`` would return any event."""

    def problem(self) -> str:
        """Return why events cannot be received at present, empty if they can."""


@dataclass(frozen=True, slots=True)
class UnusedResource:
    """An unused object in the account that a launch created.

    ``kind`` is ``launch-template`` or ``instance-profile``. ``id`` is the id of a template, so that
    a new one of the same name is not meant. ``roles`` are those of a profile.
    """

    kind: str
    name: str
    id: str = ""
    roles: tuple[str, ...] = ()


class UnusedResources(Protocol):
    """Unused objects that launches leave in the account; raises like ``Compute``."""

    def find_unused(self, classes: Iterable[EC2NodeClass]) -> Sequence[UnusedResource]:
        """Return what may be deleted, given all node classes of the fleet.

        It may be called at any time, and queries AWS only now and then.
        """

    def delete(self, resource: UnusedResource) -> None:
        """Delete it; one that is gone already is not an error."""
