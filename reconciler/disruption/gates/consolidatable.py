"""Determine since when a node has been quiet enough to be consolidated.

Karpenter stores this as a condition on the NodeClaim (``nodeclaim/disruption/consolidation.go``).
Here it is computed from timestamps if they exist, so that a plan is correct at its own ``now`` and
for the pool as it is in git. Otherwise the recorded condition is used.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.observed.state import last_pod_change

LEFT_OVER: Final = "LeftOver"
"""Condition of a claim in our records: its command was rolled back, and it never had pods."""

LEFT_OVER_FOR: Final = timedelta(minutes=10)
"""How long such a node is retained for the next attempt; then it counts as empty."""


def consolidatable_at(claim: NodeClaim, pool: NodePool) -> datetime | None:
    """Return the time from which the node may be consolidated; None if none is known.

    A node of a static pool, of a pool that never consolidates, or that is not initialized has none.
    The boundary itself is included.
    """
    wait = pool.spec.disruption.consolidates_after
    if pool.is_static or wait is None or not claim.is_true("Initialized"):
        return None
    since = last_pod_change(claim)
    return None if since is None else since + wait


def retained_until(claim: NodeClaim) -> datetime | None:
    """Return when the retention of a node from a rolled-back command ends.

    None for every other node. Karpenter retains it for ``consolidateAfter``, which may be forever.
    That setting is meant for nodes whose pods have left, but this node never had any.
    """
    known = claim.condition(LEFT_OVER)
    if known is None or known.status != "True" or known.last_transition_time is None:
        return None
    return known.last_transition_time + LEFT_OVER_FOR


def is_consolidatable(claim: NodeClaim, pool: NodePool, now: datetime) -> bool:
    """Return whether the node has been quiet for as long as its pool requires.

    A recorded condition that contradicts the timestamps is out of date: Karpenter would update it.
    """
    at = consolidatable_at(claim, pool)
    if at is not None:
        return now >= at
    if pool.is_static or pool.spec.disruption.consolidates_after is None:
        return False
    return claim.is_true("Initialized") and claim.is_true("Consolidatable")
