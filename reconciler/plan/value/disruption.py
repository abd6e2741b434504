"""Nodes to be disrupted, nodes that cannot be, and what their budgets allow."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from reconciler.plan.value.part import Part

Decision = Literal["delete", "replace"]


Wait = Literal["budget", "schedule", "consolidateAfter", "validation", "policy", "approval"]


class PlannedCommand(Part, frozen=True, kw_only=True):
    """Nodes that are removed together, and the replacements that must be ready before.

    ``savings`` is USD an hour. ``forceful`` commands ignore budgets. ``message`` has details of the
    reason, such as the event of an interruption; most commands have none.
    ``savings_per_eviction`` is the savings per pod that a consolidation moves.
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

    left_out: ClassVar = ("savings_per_eviction", "message")


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
