"""What a plan does: changes in git, actions, and nodes that wait or cannot be disrupted."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Literal

import msgspec

from reconciler.plan.value.nodes import PlannedImage
from reconciler.plan.value.part import Part

ChangeKind = Literal["create", "update", "delete"]


class PlannedFieldChange(Part, frozen=True, kw_only=True):
    """A field that differs; ``drifts`` means that running nodes no longer match it."""

    path: str
    old: Any = msgspec.field(default=None, name="from")
    new: Any = msgspec.field(default=None, name="to")
    drifts: bool = False


class PlannedChange(Part, frozen=True, kw_only=True):
    """An object that git creates, updates or deletes; ``drifted`` are the affected NodeClaims."""

    op: ChangeKind
    kind: str
    name: str
    file: str | None = None
    line: int | None = None
    fields: tuple[PlannedFieldChange, ...] = ()
    drifted: tuple[str, ...] = ()


class DriftedClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim that no longer matches git; ``side`` is the side that changed."""

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    recorded_hash: str | None = None
    desired_hash: str | None = None
    fields: tuple[PlannedFieldChange, ...] = ()
    side: str = ""


Decision = Literal["delete", "replace"]


Wait = Literal["budget", "schedule", "consolidateAfter", "validation", "policy", "approval"]


class PlannedCommand(Part, frozen=True, kw_only=True):
    """Nodes that are removed together, and the replacements that must be ready before.

    ``savings`` is USD an hour. ``forceful`` commands ignore budgets. ``message`` has details of the
    reason, such as the event of an interruption; most commands have none.
    ``savings_per_eviction`` is the savings per pod that a consolidation moves.
    ``termination_grace_period`` limits the drain in addition to that of each NodeClaim.
    """

    id: str
    reason: str
    decision: Decision
    nodes: tuple[str, ...]
    node_claims: tuple[str, ...] = ()
    replacements: tuple[str, ...] = ()
    savings: float | None = None
    score: float | None = None
    pods_evicted: int = 0
    savings_per_eviction: float | None = None
    forceful: bool = False
    message: str = ""
    termination_grace_period: str = ""

    left_out: ClassVar = ("savings_per_eviction", "message", "termination_grace_period")


class BlockedNode(Part, frozen=True, kw_only=True):
    """A node that a disruption method selected and that cannot be disrupted, with the reason."""

    node: str
    node_pool: str = ""
    reason: str = ""
    code: str = ""
    message: str


class PlannedBlocker(Part, frozen=True, kw_only=True):
    """Something that blocks the disruption of nodes, with all nodes that it blocks.

    ``kind`` and ``name`` identify it (``PodDisruptionBudget`` ``shop/web``, ``NodePool`` ``db``),
    or by NodePool and reason what its nodes wait for (``Budget`` ``web/Drifted``). ``since`` is
    when it was first observed, None without records. ``forgone`` is what consolidation of the
    nodes would save, in USD an hour, None if none has a price; ``unpriced`` counts those without.
    """

    kind: str
    name: str
    code: str = ""
    message: str = ""
    owner: str = ""
    nodes: tuple[str, ...] = ()
    node_pools: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    forgone: float | None = None
    unpriced: int = 0


class PoolBudget(Part, frozen=True, kw_only=True):
    """The disruptions that the budgets of a NodePool allow for one reason now."""

    node_pool: str
    reason: str
    total: int = 0
    disrupting: int = 0
    allowed: int
    next_change: datetime | None = None
    binding: int | None = None


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

    @property
    def is_unapproved_removal(self) -> bool:
        """Whether its NodePool was removed from git, and its node waits for ``--allow-removal``."""
        return self.reason == "NodePoolDeleted" and self.waits_for == "approval"
