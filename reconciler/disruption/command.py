"""The result of a disruption pass: commands, and every rejection with its reason.

As in Karpenter, a command is a set of nodes that are disrupted together, and the NodeClaims that
must be ready first. A node that a method selected and cannot take is a Block if someone has to
change something, and a DeferredClaim if it only has to wait.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from reconciler.model.decision.equals import EqualCandidates
from reconciler.model.decision.waiting import Blocker, DeferredClaim, PoolBudget
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.placement.question import Placement, PlannedClaim

DELETE: Final = "delete"
REPLACE: Final = "replace"
REBOOT: Final = "reboot"


class ForcefulReason(StrEnum):
    """The reason of a disruption that ignores budgets; it is named as forceful everywhere."""

    EXPIRED = "Expired"
    INTERRUPTED = "Interrupted"
    UNHEALTHY = "Unhealthy"
    OVERPROVISIONED = "Overprovisioned"
    NODE_POOL_DELETED = "NodePoolDeleted"
    ORPHANED = "Orphaned"


Reason = DisruptionReason | ForcefulReason


class BlockCode(StrEnum):
    """The rule that blocks a node; the message of the Block has the details."""

    NO_NODE = "NoNode"
    UNINITIALIZED = "Uninitialized"
    DELETING = "Deleting"
    REBOOTING = "Rebooting"
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
    EVICTION_COST = "EvictionCost"
    UNDOES = "Undoes"
    REPLICAS = "Replicas"
    NODE_LIMIT = "NodeLimit"
    UNHEALTHY_SHARE = "UnhealthyShare"
    DO_NOT_REPAIR = "DoNotRepair"
    UNBOUNDED_DRAIN = "UnboundedDrain"


@dataclass(frozen=True, slots=True)
class Command:
    """Nodes that are disrupted together for one reason, and what must be ready first.

    They are removed, unless the ``decision`` is to reboot them.

    ``nodes`` and ``node_claims`` have the same order if both exist; a claim without a Node is only
    in ``node_claims``. ``placement`` has the new nodes of the pods, None if it was not computed
    (empty nodes, forceful reasons). ``savings`` is USD an hour; ``score`` is the lowest score in a
    Balanced pool. ``graceful`` is whether budgets and pods were checked even though the reason is
    usually forceful. ``message`` adds to the reason: the event of an interruption, the condition of
    an unhealthy node, or why a node is terminated before its replacement. ``drain_limit`` is how
    long the drain may take before its remaining pods are deleted, None for the NodeClaim's own
    termination grace period. ``equals`` are the nodes that might be removed in place of its own,
    where the caller of the pass lists them.
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
    drain_limit: timedelta | None = None
    equals: tuple[EqualCandidates, ...] = ()
    id: str = field(init=False, default="")

    def __post_init__(self) -> None:
        assert self.nodes or self.node_claims, "a command removes at least one node or claim"
        assert (self.decision == REPLACE) is bool(self.replacements), self
        facts = "\n".join((self.reason, self.decision, *sorted((*self.nodes, *self.node_claims))))
        digest = hashlib.sha256(facts.encode()).hexdigest()[:12]
        object.__setattr__(self, "id", f"{self.reason.lower()}-{digest}")

    @property
    def removes_nodes(self) -> bool:
        """Whether its nodes are terminated in the end; a reboot keeps them."""
        return self.decision != REBOOT

    @property
    def is_forceful(self) -> bool:
        """Whether it ignores budgets and blocks."""
        return isinstance(self.reason, ForcefulReason) and not self.graceful

    @property
    def ends_drain(self) -> bool:
        """Whether its drain ends although pods cannot be evicted: by its limit, or by EC2."""
        return self.drain_limit is not None or self.reason is ForcefulReason.INTERRUPTED

    @property
    def savings_per_eviction(self) -> float | None:
        """USD an hour saved for each pod that has to move; None without prices."""
        return None if self.savings is None else self.savings / max(self.pods_evicted, 1)


@dataclass(frozen=True, slots=True, order=True)
class Block:
    """A node that a method selected and cannot take, or that consolidation rejected."""

    node: str
    reason: str
    code: BlockCode
    message: str


@dataclass(frozen=True, slots=True)
class Decisions:
    """The decisions of one pass, in a stable order.

    All ``commands`` may start at once: each was decided as if the previous ones had started.
    ``placement`` is where pods that were already pending are placed. The searches in ``limits_hit``
    ended at a work limit. ``work`` is the number of nodes examined, ``reached_limit`` is whether
    the pass might have found more with more of it. ``consolidation_waits`` is True if consolidation
    decided nothing because its earlier commands have not settled. The pods of
    ``limited_namespaces`` are not moved, because simulating that took too much work.
    """

    commands: tuple[Command, ...] = ()
    blocked: tuple[Block, ...] = ()
    deferred: tuple[DeferredClaim, ...] = ()
    budgets: tuple[PoolBudget, ...] = ()
    placement: Placement | None = None
    limits_hit: tuple[str, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    work: int = 0
    reached_limit: bool = False
    consolidation_waits: bool = False
    limited_namespaces: tuple[str, ...] = ()
