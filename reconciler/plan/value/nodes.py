"""NodeClaims to be launched, and where pods go."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.kubernetes.taint import Taint
from reconciler.plan.value.part import Part


class PriceSource(Part, frozen=True, kw_only=True):
    """Whence a price comes (``PriceOrigin``): which list, when it was read, what was changed."""

    source: str
    at: datetime | None = None
    basis: str = ""
    note: str = ""

    left_out: ClassVar = ("at", "basis", "note")


class PlannedImage(Part, frozen=True, kw_only=True):
    """The image that a launch boots.

    ``id`` is empty where the plan knows no account; then ``alias`` says what AWS is asked for.
    """

    id: str = ""
    name: str = ""
    alias: str = ""


class PlannedNodeClass(Part, frozen=True, kw_only=True):
    """What an EC2NodeClass brings to the launches of this plan, as it was resolved.

    ``spec`` is as git has it, with a hash in the place of its user data; the other fields are what
    the selectors in it found, by id.
    """

    name: str
    spec: JsonDict = msgspec.field(default_factory=dict)
    images: tuple[PlannedImage, ...] = ()
    subnets: tuple[str, ...] = ()
    security_groups: tuple[str, ...] = ()
    capacity_reservations: tuple[str, ...] = ()
    placement_group: str = ""
    instance_profile: str = ""


class LaunchOffering(Part, frozen=True, kw_only=True):
    """What a launch is expected to yield; prices are USD an hour."""

    instance_type: str
    zone: str
    capacity_type: str
    price: float
    base_price: float | None = None
    estimated: bool = False
    price_source: PriceSource | None = None

    left_out: ClassVar = ("price_source",)
    parts: ClassVar = ("price_source",)


class LaunchReason(StrEnum):
    """Why a NodeClaim is launched that replaces nothing."""

    UNSCHEDULABLE = "Unschedulable"
    HEADROOM = "Headroom"
    STATIC = "Static"


class PlannedNodeClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim to be made, with all that it may become and what it will most likely be."""

    name: str
    node_pool: str
    node_class: str | None = None
    reason: str
    pods: tuple[str, ...] = ()
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    instance_types: tuple[str, ...] = ()
    instance_types_total: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    launch: LaunchOffering
    image: PlannedImage | None = None

    left_out: ClassVar = ("image",)
    parts: ClassVar = ("launch",)


class PlacedPod(Part, frozen=True, kw_only=True):
    """Where a pod would go: a node that is there, or a NodeClaim of this plan.

    ``relaxed`` are preferences that it has to do without; ``given_up`` those of them that could
    be had and are too dear, not written where there are none.
    """

    pod: str
    node: str | None = None
    node_claim: str | None = None
    relaxed: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()

    left_out: ClassVar = ("given_up",)


class Reason(Part, frozen=True, kw_only=True):
    """Why a pod finds no place; ``node_pool`` is None where no pool is to blame."""

    node_pool: str | None = None
    code: str = ""
    message: str


class UnschedulablePod(Part, frozen=True, kw_only=True):
    pod: str
    reasons: tuple[Reason, ...]


class PlannedHeadroom(Part, frozen=True, kw_only=True):
    """Where the room is that a CapacityBuffer (``namespace/name``) keeps for ``replicas`` pods.

    ``nodes`` and ``node_claims`` count the pods that there is room for, on nodes that are there
    and on NodeClaims of this plan; ``unschedulable`` are those that find none, for ``reasons``.
    ``code`` is Karpenter's word for how the buffer stands.
    """

    buffer: str
    replicas: int = 0
    nodes: dict[str, int] = msgspec.field(default_factory=dict)
    node_claims: dict[str, int] = msgspec.field(default_factory=dict)
    unschedulable: int = 0
    code: str = ""
    message: str = ""
    reasons: tuple[Reason, ...] = ()
