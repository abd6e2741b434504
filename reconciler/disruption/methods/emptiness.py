"""Emptiness: delete nodes without pods to reschedule, all in one command.

It is the first method in Karpenter's order, applies under every consolidation policy, and needs no
scheduling simulation: there is nothing to place.
"""

from __future__ import annotations

import math
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.consolidatable import (
    consolidatable_at,
    is_consolidatable,
    retained_until,
)
from reconciler.disruption.gates.policy import Hold
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.placement.pods.headroom import buffer_of


class Emptiness:
    """Removes quiet nodes without pods that have a disruption cost, best savings first."""

    reason: Final = DisruptionReason.EMPTY

    def decide(self, work: DisruptionPass) -> None:
        chosen: list[Candidate] = []
        trial = work.ledger.copy()
        for candidate in sorted(work.candidates(_may_be_empty), key=savings_ratio_key):
            if candidate.headroom:
                work.refuse(candidate, self.reason, _buffer_refusal(candidate))
                continue
            refusal = candidate.refusal(eventual=False)
            if refusal is not None:  # reported before consolidateAfter has passed
                work.refuse(candidate, self.reason, refusal)
                continue
            if not _is_quiet(candidate):
                self._defer(candidate, work)
                continue
            pool = candidate.pool.name
            if trial.allowed_disruptions(pool, self.reason) == 0:
                work.defer_for_budget(candidate, self.reason, ledger=trial)
                continue
            trial.count_disruption(pool, self.reason)
            chosen.append(candidate)
        if chosen:
            work.start(self.reason, chosen)

    def _defer(self, candidate: Candidate, work: DisruptionPass) -> None:
        """Record that an empty node waits for consolidateAfter."""
        at = consolidatable_at(candidate.claim, candidate.pool)
        until = retained_until(candidate.claim)
        if until is not None and (at is None or until < at):
            at = until
            text = "empty; kept because its command was rolled back and may be retried"
        elif at is not None:
            wait = candidate.pool.spec.disruption.consolidate_after or "0s"
            text = f"empty; consolidateAfter of NodePool {candidate.pool.name} is {wait}"
        else:
            return
        work.defer(candidate, self.reason, Hold(WaitsFor.CONSOLIDATE_AFTER, at, text))


def _may_be_empty(candidate: Candidate) -> bool:
    pool = candidate.pool
    if pool.is_static:
        return False
    never = pool.spec.disruption.consolidates_after is None
    if never and retained_until(candidate.claim) is None:
        return False
    return candidate.is_without_pods


def _is_quiet(candidate: Candidate) -> bool:
    """Return whether the node was quiet for long enough, or is left from a rolled-back command."""
    until = retained_until(candidate.claim)
    if until is not None and candidate.claim.is_true("Initialized") and candidate.now >= until:
        return True
    return is_consolidatable(candidate.claim, candidate.pool, candidate.now)


def _buffer_refusal(candidate: Candidate) -> CandidateRefusal:
    """Return the rejection of a node that is kept free on purpose (Karpenter ``HasBufferPods``)."""
    buffers = sorted({buffer_of(pod) for pod in candidate.headroom})
    text = f'node "{candidate.name}" has buffer pods (CapacityBuffer(s)=[{" ".join(buffers)}])'
    return CandidateRefusal(BlockCode.BUFFER_PODS, text)


def savings_ratio_key(candidate: Candidate) -> tuple[float, float, str]:
    """Return the key that sorts by savings for each unit of disruption, best first.

    Of equal candidates the one that expires first comes first: it will be removed soon anyway.
    """
    expires = candidate.claim.expires_at
    return -candidate.ratio, math.inf if expires is None else expires.timestamp(), candidate.name
