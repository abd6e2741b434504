"""Recorded resources as objects of the Kubernetes API."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.model.karpenter.nodeclaim import NodeClaim, NodeClaimSpec, NodeClaimStatus
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.pod import Amounts
from reconciler.model.kubernetes.taint import Taint
from reconciler.render.listing import stamp

if TYPE_CHECKING:
    from datetime import datetime

    from reconciler.ports.cluster import NodeUsage
    from reconciler.ports.state import RunningCommand

API: Final = "reconciler/v1"


def phase_of(claim: NodeClaim) -> str:
    """Return the stage of a claim in its life cycle, in one word."""
    if claim.is_deleting:
        return "Terminating"
    for condition, phase in (
        ("Initialized", "Ready"),
        ("Registered", "Registered"),
        ("Launched", "Launched"),
    ):
        if claim.is_true(condition):
            return phase
    return "Pending"


def fields_of(value: msgspec.Struct, *, without: tuple[str, ...] = ()) -> dict[str, object]:
    """Return the encoded fields of a value, except those that are named."""
    fields: dict[str, object] = msgspec.to_builtins(value)
    return {name: item for name, item in fields.items() if name not in without}


class ResourceName(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The metadata of a recorded resource."""

    name: str
    creation_timestamp: str | None = None


class RecordedResource(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A recorded resource as an object of the Kubernetes API.

    ``plan`` is the body of a plan, and ``operations`` are those on the resource; both are only
    shown of one resource.
    """

    api_version: str = API
    kind: str
    metadata: object
    spec: object = msgspec.UNSET
    status: object
    plan: object = msgspec.UNSET
    operations: tuple[RecordedResource, ...] | msgspec.UnsetType = msgspec.UNSET


class UsageReply(msgspec.Struct, frozen=True, rename="camel"):
    """The usage of nodes: USD an hour, pods, and shares from 0."""

    price_per_hour: float | None
    requested_share: dict[str, float]
    pods: int


def usage_reply(usage: NodeUsage | None) -> UsageReply | msgspec.UnsetType:
    """Return a usage for ``status.usage``, unset if there is none."""
    if usage is None:
        return msgspec.UNSET
    shares = {name: usage.share(name) for name in ("cpu", "memory")}
    requested = {name: round(share, 4) for name, share in shares.items() if share is not None}
    return UsageReply(usage.price, requested, usage.pods)


class ShownClaimStatus(NodeClaimStatus, frozen=True, rename="camel", omit_defaults=True):
    """The status of a NodeClaim, with its usage."""

    usage: UsageReply | msgspec.UnsetType = msgspec.UNSET


class NodeStatusReply(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a node that its NodeClaim records."""

    capacity: Amounts
    allocatable: Amounts
    conditions: tuple[Condition, ...]
    usage: UsageReply | msgspec.UnsetType


class NodeSpecReply(msgspec.Struct, frozen=True, kw_only=True):
    """The spec of a node that its NodeClaim records."""

    provider_id: str = msgspec.field(name="providerID")
    taints: tuple[Taint, ...]


class OwnerName(msgspec.Struct, frozen=True, rename="camel"):
    """The NodeClaim that owns a node."""

    name: str
    api_version: str = "karpenter.sh/v1"
    kind: str = "NodeClaim"


class NodeMetadata(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The metadata of a node that its NodeClaim records."""

    name: str
    labels: dict[str, str]
    creation_timestamp: str
    owner_references: tuple[OwnerName, ...]


class NodePoolStatusReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """How many nodes a NodePool has, and their usage."""

    nodes: int
    ready_nodes: int
    usage: UsageReply | msgspec.UnsetType


class PlanSpecReply(msgspec.Struct, frozen=True):
    """The commit and the state that a plan was made from."""

    revision: str
    serial: int


class PlanStatusReply(msgspec.Struct, frozen=True, rename="camel"):
    """When a plan was applied."""

    carried_out_at: str | None


class CommandStatusReply(msgspec.Struct, frozen=True):
    """The progress of a command."""

    phase: str
    message: str


def claim_resource(claim: NodeClaim, usage: NodeUsage | None = None) -> RecordedResource:
    """Return a claim as the Kubernetes API spells it, with the condition that sums up the others.

    Karpenter's NodeClaim is Ready when it is launched, registered and initialized.
    """
    status = claim.status
    if claim.condition("Ready") is None:
        ready = _ready_condition(claim)
        status = msgspec.structs.replace(status, conditions=(*status.conditions, ready))
    return RecordedResource(
        api_version="karpenter.sh/v1",
        kind="NodeClaim",
        metadata=claim.metadata,
        spec=claim.spec if claim.spec != NodeClaimSpec() else msgspec.UNSET,
        status=ShownClaimStatus(**msgspec.structs.asdict(status), usage=usage_reply(usage)),
    )


def _ready_condition(claim: NodeClaim) -> Condition:
    initialized = claim.condition("Initialized")
    since = initialized.last_transition_time if initialized else claim.metadata.creation_timestamp
    is_ready = initialized is not None and initialized.status == "True"
    return Condition(
        type="Ready",
        status="True" if is_ready else "Unknown",
        reason="Ready" if is_ready else phase_of(claim),
        last_transition_time=since.replace(microsecond=0) if since else None,
    )


def node_resource(claim: NodeClaim, usage: NodeUsage | None) -> RecordedResource:
    """Return the node of a claim, with what the claim records of it."""
    status = claim.status
    ready = "True" if phase_of(claim) == "Ready" else "Unknown"
    return RecordedResource(
        api_version="v1",
        kind="Node",
        metadata=NodeMetadata(
            name=status.node_name,
            labels=claim.metadata.labels,
            creation_timestamp=stamp(registered_at(claim)),
            owner_references=(OwnerName(claim.name),),
        ),
        spec=NodeSpecReply(provider_id=status.provider_id, taints=claim.spec.taints),
        status=NodeStatusReply(
            capacity=status.capacity,
            allocatable=status.allocatable,
            conditions=(Condition("Ready", ready),),
            usage=usage_reply(usage),
        ),
    )


class ActionStatus(msgspec.Struct, frozen=True):
    """The state of an action of the plan, and what it waits for."""

    state: str
    plan: str
    why: str


def running_command_resource(command: RunningCommand) -> RecordedResource:
    """Return a disruption command with its progress."""
    return RecordedResource(
        kind="Command",
        metadata=ResourceName(name=command.id, creation_timestamp=stamp(command.started_at)),
        spec=fields_of(command, without=("id", "phase", "message")),
        status=CommandStatusReply(command.phase.value, command.message),
    )


def registered_at(claim: NodeClaim) -> datetime | None:
    """Return when the node of a claim joined, or when the claim was created."""
    registered = claim.condition("Registered")
    return registered.last_transition_time if registered else claim.metadata.creation_timestamp
