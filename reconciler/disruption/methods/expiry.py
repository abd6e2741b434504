"""Graceful expiry: replace nodes past ``expireAfter`` in the same way as drifted ones.

This is an addition to Karpenter. It respects the budgets for Drifted and PodDisruptionBudgets, and
waits until the replacement is ready. Karpenter removes such nodes forcefully at once. Here that
happens only after a separate maximum age (``forceful.py``), and only if it is configured.
"""

from __future__ import annotations

from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.policy import expires_gracefully, is_due_for_expiry
from reconciler.disruption.methods.drift import replace_or_refuse
from reconciler.disruption.methods.staticdrift import StaticDrift
from reconciler.model.karpenter.budget import DisruptionReason


class GracefulExpiry:
    """Replaces expired nodes, the earliest expiry first; those of static pools one for one."""

    reason: Final = DisruptionReason.DRIFTED

    def decide(self, work: DisruptionPass) -> None:
        if not any(expires_gracefully(name, work.settings) for name in work.pools):
            return
        expired = list(work.candidates(lambda c: _is_due(c, work)))
        static = [c for c in expired if c.pool.is_static]
        StaticDrift(ForcefulReason.EXPIRED).replace(static, work)
        for candidate in sorted((c for c in expired if not c.pool.is_static), key=_expiry_key):
            if work.is_free(candidate):  # otherwise it receives pods from an earlier command
                replace_or_refuse(candidate, work, ForcefulReason.EXPIRED)


def _is_due(candidate: Candidate, work: DisruptionPass) -> bool:
    return is_due_for_expiry(candidate.claim, candidate.pool.name, work.settings, work.now)


def _expiry_key(candidate: Candidate) -> tuple[str, str]:
    assert candidate.claim.expires_at is not None
    return candidate.claim.expires_at.isoformat(), candidate.name
