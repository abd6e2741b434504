"""The actions of a plan, and deferred ones."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from reconciler.plan.value.disruption import Wait
from reconciler.plan.value.nodes import PlannedImage
from reconciler.plan.value.part import Part


class ActionKind(StrEnum):
    """What an action does: launch a NodeClaim, validate a command, or remove a node."""

    PROVISION = "provision"
    REPLACE = "replace"
    TERMINATE = "terminate"


class Action(Part, frozen=True, kw_only=True):
    """An action. It starts when every action in ``depends_on`` has succeeded.

    ``cost_delta`` is USD an hour, negative for a removed node, None without a price. ``image`` is
    the image of a launch.
    """

    id: str
    kind: ActionKind
    node_pool: str | None = None
    node_claim: str | None = None
    node: str | None = None
    command: str | None = None
    depends_on: tuple[str, ...] = ()
    wave: int = 0
    cost_delta: float | None = None
    reason: str = ""
    instance_type: str | None = None
    zone: str | None = None
    capacity_type: str | None = None
    image: PlannedImage | None = None

    left_out: ClassVar = ("image",)


class DeferredClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim whose disruption is deferred, the reason, and the earliest time."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    waits_for: Wait
    not_before: datetime | None = None
    message: str = ""
