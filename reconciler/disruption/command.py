"""What a pass of disruption decides: commands, and every «no» with its reason.

A command is what Karpenter calls one: nodes that go together, and the NodeClaims that must be
ready before they do. A node that a method wanted and may not take is a Block when someone has to
change something, and a Deferral when time alone will do.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.placement.question import Placement, PlannedClaim

DELETE: Final = "delete"
REPLACE: Final = "replace"


class ForcefulReason(StrEnum):
    """Why a node goes without asking the budgets; named as forceful wherever it appears."""

    EXPIRED = "Expired"
    INTERRUPTED = "Interrupted"
    UNHEALTHY = "Unhealthy"
    OVERPROVISIONED = "Overprovisioned"
    NODE_POOL_DELETED = "NodePoolDeleted"
    ORPHANED = "Orphaned"


Reason = DisruptionReason | ForcefulReason


class BlockCode(StrEnum):
    """Which rule said no; the message of a Block names who and what."""

    NO_NODE = "NoNode"
    UNINITIALIZED = "Uninitialized"
    DELETING = "Deleting"
    NOMINATED = "Nominated"
    BUFFER_PODS = "BufferPods"
    NODE_DO_NOT_DISRUPT = "NodeDoNotDisrupt"
    NO_NODE_POOL_LABEL = "NoNodePoolLabel"
    NODE_POOL_NOT_FOUND = "NodePoolNotFound"
    POD_DO_NOT_DISRUPT = "PodDoNotDisrupt"
    PDB = "PodDisruptionBudget"
    INSTANCE_TYPE_NOT_FOUND = "InstanceTypeNotFound"
    MISSING_LABEL = "MissingLabel"
    CONSOLIDATION_DISABLED = "ConsolidationDisabled"
    WHEN_EMPTY = "WhenEmpty"
    UNSCHEDULABLE = "Unschedulable"
    SEVERAL_REPLACEMENTS = "SeveralReplacements"
    NOT_CHEAPER = "NotCheaper"
    MIN_VALUES = "MinValues"
    SPOT_TO_SPOT = "SpotToSpot"
    SCORE = "Score"
    MINIMUM_SAVINGS = "MinimumSavings"
    UNDOES = "Undoes"
    REPLICAS = "Replicas"
    NODE_LIMIT = "NodeLimit"
    UNHEALTHY_SHARE = "UnhealthyShare"
    WORK_LIMIT = "WorkLimit"


class WaitsFor(StrEnum):
    """What has to pass before a node may go."""

    BUDGET = "budget"
    SCHEDULE = "schedule"
    CONSOLIDATE_AFTER = "consolidateAfter"
    VALIDATION = "validation"
    POLICY = "policy"
    APPROVAL = "approval"


@dataclass(frozen=True, slots=True)
class Command:
    """Nodes that go together for one reason, and what must be ready first.

    ``nodes`` and ``node_claims`` run in parallel where both exist; a claim without a Node yet
    stands in ``node_claims`` alone. ``placement`` says where the pods that leave will go, None
    where nobody asked (empty nodes, forceful reasons). ``savings`` is USD an hour; ``score`` the
    least score that a Balanced pool gave it. ``graceful`` says that budgets and pods were asked,
    though the reason may be one that else goes by force. ``message`` is what there is to say of
    the reason in this case.
    """

    reason: Reason
    decision: str
    nodes: tuple[str, ...]
    node_claims: tuple[str, ...]
    replacements: tuple[PlannedClaim, ...] = ()
    placement: Placement | None = None
    savings: float | None = None
    score: float | None = None
    pods_evicted: int = 0
    graceful: bool = False
    message: str = ""
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        assert self.nodes or self.node_claims, "a command takes something away"
        assert (self.decision == REPLACE) is bool(self.replacements), self
        facts = "\n".join((self.reason, self.decision, *sorted((*self.nodes, *self.node_claims))))
        digest = hashlib.sha256(facts.encode()).hexdigest()[:12]
        object.__setattr__(self, "id", f"{self.reason.lower()}-{digest}")

    @property
    def is_forceful(self) -> bool:
        """Whether it goes past budgets and blocks."""
        return isinstance(self.reason, ForcefulReason) and not self.graceful

    @property
    def savings_per_eviction(self) -> float | None:
        """USD an hour saved for each pod that has to move; None where nothing was priced."""
        return None if self.savings is None else self.savings / max(self.pods_evicted, 1)


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """A node that a method wanted and may not take, or that consolidation looked at and left."""

    node: str
    reason: str
    code: BlockCode
    message: str


@dataclass(frozen=True, slots=True)
class Deferral:
    """A node that will go, and what it waits for; ``not_before`` where the moment is known."""

    node_claim: str
    node: str | None
    node_pool: str
    reason: Reason
    waits_for: WaitsFor
    not_before: datetime | None
    message: str


@dataclass(frozen=True, slots=True)
class Blocker:
    """Something that keeps nodes from going, with all nodes that it holds.

    ``kind`` and ``name`` say what it is: an object of the cluster or of git, or by NodePool and
    reason what its nodes wait for, ``until`` when if that is known. ``forgone`` is what
    consolidation of the nodes would save, in USD an hour, None where none of them is priced;
    ``unpriced`` counts those that are not.
    """

    kind: str
    name: str
    code: str
    message: str
    nodes: tuple[str, ...]
    node_pools: tuple[str, ...]
    reasons: tuple[str, ...]
    owner: str = ""
    until: datetime | None = None
    forgone: float | None = None
    unpriced: int = 0

    def joined(self, other: Blocker) -> Blocker:
        """Return it with what ``other``, which is the same, holds as well."""
        return replace(
            self,
            nodes=tuple(sorted({*self.nodes, *other.nodes})),
            node_pools=tuple(sorted({*self.node_pools, *other.node_pools})),
            reasons=tuple(sorted({*self.reasons, *other.reasons})),
        )


@dataclass(frozen=True, slots=True)
class BudgetState:
    """What the budgets of a NodePool say for one reason, before any command of this pass.

    ``disrupting`` of its ``total`` nodes go or are not ready already; ``allowed`` more may go.
    ``binding`` is the index of the budget that is least; ``next_change`` when a window of any
    opens or closes. ``error`` says why the pool is closed when a budget cannot be read.
    """

    node_pool: str
    reason: DisruptionReason
    total: int
    disrupting: int
    allowed: int
    next_change: datetime | None = None
    binding: int | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Decisions:
    """All that one pass decided, in a stable order.

    ``commands`` may all start at once: each was made as if those before it had started.
    ``placement`` is where the pods that wait already would go; what ``limits_hit`` names was
    searched only as far as a stated limit of work. ``work`` is what deciding took, in nodes
    looked at.
    """

    commands: tuple[Command, ...] = ()
    blocked: tuple[Block, ...] = ()
    deferred: tuple[Deferral, ...] = ()
    budgets: tuple[BudgetState, ...] = ()
    placement: Placement | None = None
    limits_hit: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    work: int = 0
