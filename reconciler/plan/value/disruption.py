"""Which nodes go, which may not, and what their budgets allow."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar, Literal

from reconciler.plan.value.part import Part

Decision = Literal["delete", "replace"]


Wait = Literal["budget", "schedule", "consolidateAfter", "validation", "policy", "approval"]


class PlannedCommand(Part, frozen=True, kw_only=True):
    """Nodes that go together, and what must be ready before they do.

    ``savings`` is USD an hour. ``forceful`` commands do not wait for budgets. ``message`` is what
    there is to say of the reason, such as which word of EC2 interrupts; most have none.
    ``savings_per_eviction`` is the share of the savings for each pod that a consolidation moves.
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
    """A node that a method wants to disrupt and may not, and who says so."""

    node: str
    node_pool: str = ""
    reason: str = ""
    code: str = ""
    message: str


class PlannedBlocker(Part, frozen=True, kw_only=True):
    """Something that keeps nodes from going, with all nodes that it holds.

    ``kind`` and ``name`` say what it is (``PodDisruptionBudget`` ``shop/web``, ``NodePool``
    ``db``), or by NodePool and reason what its nodes wait for (``Budget`` ``web/Drifted``).
    ``since`` is when it was seen first, None where nobody keeps a record. ``forgone`` is what
    consolidation of the nodes would save, in USD an hour, None where none is priced; ``unpriced``
    counts those that are not.
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
    """What the budgets of a NodePool allow for one reason now."""

    node_pool: str
    reason: str
    total: int = 0
    disrupting: int = 0
    allowed: int
    next_change: datetime | None = None
    binding: int | None = None
