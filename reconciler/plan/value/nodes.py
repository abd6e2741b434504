"""NodeClaims to be launched, and the placement of pods."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import ClassVar, Final, Protocol

import msgspec

from reconciler.model.decision.part import Part
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.instancetype import PriceOrigin
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.text.counting import format_count

LIMIT_CODES: Final = frozenset({"LimitReached", "NodeLimitReached"})
"""The codes of the reasons that a NodePool has reached its limits."""


class PlannedImage(Part, frozen=True, kw_only=True):
    """The image that a launch boots.

    ``id`` is empty if the plan has no access to the account; ``alias`` then names the request.
    """

    id: str = ""
    name: str = ""
    alias: str = ""


class PlannedNodeClass(Part, frozen=True, kw_only=True):
    """A resolved EC2NodeClass of the launches of this plan.

    ``spec`` is that of git, with a hash instead of its user data; the other fields are the ids that
    its selectors match.
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
    """The expected result of a launch; prices are USD an hour."""

    instance_type: str
    zone: str
    capacity_type: str
    price: float
    base_price: float | None = None
    estimated: bool = False
    price_source: PriceOrigin | None = None

    left_out: ClassVar = ("price_source",)
    parts: ClassVar = ("price_source",)


class LaunchReason(StrEnum):
    """Why a NodeClaim is launched that is not a replacement."""

    UNSCHEDULABLE = "Unschedulable"
    HEADROOM = "Headroom"
    STATIC = "Static"


class PlannedNodeClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim to be created, with its possible instance types and the expected launch."""

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
    device_drivers: tuple[str, ...] = ()

    left_out: ClassVar = ("image", "device_drivers")
    parts: ClassVar = ("launch",)


class PlacedPod(Part, frozen=True, kw_only=True):
    """The placement of a pod: on an existing node, or on a NodeClaim of this plan.

    ``relaxed`` are dropped preferences; ``given_up`` are those of them that are possible but too
    expensive, left out if there are none.
    """

    pod: str
    node: str | None = None
    node_claim: str | None = None
    relaxed: tuple[str, ...] = ()
    given_up: tuple[str, ...] = ()

    left_out: ClassVar = ("given_up",)


class Reason(Part, frozen=True, kw_only=True):
    """Why a pod cannot be scheduled; ``node_pool`` is None if no NodePool is concerned."""

    node_pool: str | None = None
    code: str = ""
    message: str


class UnschedulablePod(Part, frozen=True, kw_only=True):
    pod: str
    reasons: tuple[Reason, ...]


def limiting_pool(pod: UnschedulablePod) -> str:
    """Return a NodePool whose limits keep the pod out, empty without one."""
    pools = (r.node_pool for r in pod.reasons if r.code in LIMIT_CODES and r.node_pool)
    return next(pools, "")


class _Rejected(Protocol):
    @property
    def code(self) -> str: ...
    @property
    def message(self) -> str: ...


def deciding_reason(reasons: Sequence[_Rejected]) -> str:
    """Return why a pod cannot be scheduled: a limit of a NodePool that could take it, or the first.

    Reasons of other NodePools are counted.
    """
    limits = (reason.message for reason in reasons if reason.code in LIMIT_CODES)
    messages = dict.fromkeys(reason.message for reason in reasons)
    first = next(limits, next(iter(messages), ""))
    more = len(messages) - 1
    return f"{first} (and {format_count(more, 'other reason')})" if more > 0 else first


class PlannedHeadroom(Part, frozen=True, kw_only=True):
    """The capacity that a CapacityBuffer (``namespace/name``) reserves for ``replicas`` pods.

    ``nodes`` and ``node_claims`` count the pods that fit on existing nodes and on NodeClaims of
    this plan; ``unschedulable`` counts those that fit nowhere, for ``reasons``. ``code`` is
    Karpenter's name for the state of the buffer.
    """

    buffer: str
    replicas: int = 0
    nodes: dict[str, int] = msgspec.field(default_factory=dict)
    node_claims: dict[str, int] = msgspec.field(default_factory=dict)
    unschedulable: int = 0
    code: str = ""
    message: str = ""
    reasons: tuple[Reason, ...] = ()


class OfferedTypes(Part, frozen=True, kw_only=True):
    """What a NodePool may launch: how many instance types, and the cheapest price of a vCPU.

    ``per_vcpu`` is in USD an hour, of the offering ``cheapest``; both are None without a price.
    """

    types: int
    cheapest: str | None = None
    per_vcpu: float | None = None


class OffersChange(Part, frozen=True, kw_only=True):
    """What a NodePool may launch at the base and at the head; None if it does not exist there."""

    before: OfferedTypes | None = None
    after: OfferedTypes | None = None

    @property
    def sides(self) -> tuple[OfferedTypes, OfferedTypes]:
        """What both sides offer; a NodePool that does not exist offers nothing."""
        return self.before or _NOTHING, self.after or _NOTHING


_NOTHING: Final = OfferedTypes(types=0)
