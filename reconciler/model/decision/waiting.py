"""NodeClaims whose disruption waits, and what keeps nodes from being disrupted."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

import msgspec

from reconciler.model.decision.part import Part
from reconciler.model.karpenter.budget import DisruptionReason


class WaitsFor(StrEnum):
    """What a deferred node waits for."""

    BUDGET = "budget"
    SCHEDULE = "schedule"
    CONSOLIDATE_AFTER = "consolidateAfter"
    VALIDATION = "validation"
    POLICY = "policy"
    APPROVAL = "approval"


class WaitRule(StrEnum):
    """Which rule a node waits for, where ``WaitsFor`` only says that it is a policy."""

    SUSPENSION = "suspension"
    MINIMUM_AGE = "minimumAge"
    WAVE = "wave"
    MAXIMUM_PER_DAY = "maximumPerDay"
    EVICTION_COST = "evictionCost"
    UNDO_PERIOD = "undoPeriod"
    RETRY = "retry"
    REPAIR = "repair"


class DeferredClaim(Part, frozen=True, kw_only=True):
    """A NodeClaim that will be disrupted later, and what it waits for.

    ``rule`` is the rule of a policy. ``not_before`` is the earliest time, None if it is not known.
    """

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    waits_for: WaitsFor
    rule: WaitRule | None = None
    not_before: datetime | None = None
    message: str = ""

    left_out: ClassVar = ("rule",)

    @property
    def is_unapproved_removal(self) -> bool:
        """Whether its NodePool was removed from git, and its node waits for ``--allow-removal``."""
        return self.reason == "NodePoolDeleted" and self.waits_for is WaitsFor.APPROVAL


class Blocker(Part, frozen=True, kw_only=True):
    """Something that blocks the disruption of nodes, with all nodes that it blocks.

    ``kind`` and ``name`` identify it: an object in the cluster or in git (``PodDisruptionBudget``
    ``shop/web``, ``NodePool`` ``db``), or the NodePool and reason for which its nodes wait
    (``Budget`` ``web/Drifted``), with the end time in ``until`` if it is known. ``since`` is when
    it was first observed, None without records. ``forgone`` is what consolidation of the nodes
    would save, in USD an hour, None if none has a price; ``unpriced`` counts those without.
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
    """What the budgets of a NodePool allow for one reason, before any command of the pass.

    ``disrupting`` of its ``total`` nodes are already being disrupted or not ready; ``allowed`` more
    may be disrupted. ``binding`` is the index of the most restrictive budget; ``next_change`` is
    when a window of any budget opens or closes. An invalid budget allows nothing.
    """

    node_pool: str
    reason: DisruptionReason
    total: int = 0
    disrupting: int = 0
    allowed: int
    next_change: datetime | None = None
    binding: int | None = None


def merged(blockers: Sequence[Blocker]) -> Blocker:
    """Return one blocker with the nodes of all, which have the same kind and name."""
    return msgspec.structs.replace(
        blockers[0],
        nodes=tuple(sorted({node for b in blockers for node in b.nodes})),
        node_pools=tuple(sorted({pool for b in blockers for pool in b.node_pools})),
        reasons=tuple(sorted({reason for b in blockers for reason in b.reasons})),
    )
