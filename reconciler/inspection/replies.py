"""The replies of commands, in the form of their schemas; money is USD an hour."""

from __future__ import annotations

import msgspec

from reconciler.model.diagnostics import Check


class ChecksReply(msgspec.Struct, frozen=True):
    """The reply of ``check`` (``schemas/check.v1.json``)."""

    passed: bool
    checks: tuple[Check, ...]


class TopNode(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A node in the reply of ``top``; ``created_at`` is empty if it is unknown."""

    name: str
    node_claim: str
    node_pool: str
    instance_type: str
    capacity_type: str
    zone: str
    status: str
    price_per_hour: float | None
    pods: int
    created_at: str
    requested_share: dict[str, float]


class TopTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sums of the fleet; ``unpriced`` nodes are not in the price."""

    nodes: int
    pods: int
    price_per_hour: float
    unpriced: int
    requested_share: dict[str, float]


class TopReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply of ``top`` (``schemas/top.v1.json``)."""

    api_version: str = "reconciler/v1"
    kind: str = "Top"
    fleet: str
    nodes: tuple[TopNode, ...]
    total: TopTotal


class CostOfGroup(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What one group of workloads costs; ``idle_per_hour`` is the part that no pod requests."""

    name: str
    pods: int
    price_per_hour: float
    idle_per_hour: float


class CostTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The sums of all groups."""

    pods: int
    price_per_hour: float
    idle_per_hour: float


class CostReply(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The reply of ``top --by`` (``schemas/costallocation.v1.json``)."""

    api_version: str = "reconciler/v1"
    kind: str = "CostAllocation"
    fleet: str
    by: str
    groups: tuple[CostOfGroup, ...]
    total: CostTotal
