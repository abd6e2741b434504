"""Drift: replace nodes that differ from the desired state, one at a time.

Prices, ``consolidateAfter`` and the consolidation policy do not matter here. Empty nodes come
first, then those that drifted longest ago, and last those whose drift was just detected. A node
whose pods do not fit anywhere is skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode, Reason, WaitsFor
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.guards import retry_delay
from reconciler.disruption.gates.policy import Hold
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim

DRIFT_SEEN: Final = "DriftSeen"
"""Condition of a claim in our records: since when it has been drifted, for any reason."""

_JUST_DETECTED: Final = datetime.max.replace(tzinfo=UTC)


class DriftMethod:
    """Replaces each drifted node by whatever its pods need."""

    reason: Final = DisruptionReason.DRIFTED

    def decide(self, work: DisruptionPass) -> None:
        drifted = work.candidates(lambda c: c.drift is not None and not c.pool.is_static)
        for candidate in sorted(drifted, key=_drift_age_key):
            if not work.is_free(candidate):
                continue  # it receives pods from an earlier command
            commands = len(work.commands)
            replace_or_refuse(candidate, work, self.reason)
            if work.starts_one_command and len(work.commands) > commands:
                return


def replace_or_refuse(candidate: Candidate, work: DisruptionPass, reported_reason: Reason) -> None:
    """Replace one node by whatever its pods need, within the budgets for Drifted, or reject it.

    ``reported_reason`` is the reason to report.
    """
    refusal = candidate.refusal(eventual=True)
    if refusal is not None:
        work.refuse(candidate, reported_reason, refusal)
    elif work.allowed_disruptions(candidate, DisruptionReason.DRIFTED) == 0:
        work.defer_for_budget(candidate, DisruptionReason.DRIFTED, reported_reason=reported_reason)
    elif work.has_work_left("drift"):
        outcome = work.simulation.simulate_removal([candidate], consolidating=False)
        if outcome.failure is not None:
            work.refuse(
                candidate,
                reported_reason,
                CandidateRefusal(BlockCode.UNSCHEDULABLE, outcome.failure),
            )
            return
        claims = outcome.placement.claims
        delay = retry_delay([candidate], work.now) if claims else None
        if delay is not None:
            work.defer(candidate, reported_reason, Hold(WaitsFor.POLICY, *delay))
            return
        work.start(reported_reason, [candidate], replacements=claims, placement=outcome.placement)


def drifted_since(claim: NodeClaim) -> datetime | None:
    """Return since when a claim has been drifted: from our records, or else Karpenter's."""
    for kind in (DRIFT_SEEN, "Drifted"):
        condition = claim.condition(kind)
        if condition is not None and condition.status == "True":
            return condition.last_transition_time
    return None


def _drift_age_key(candidate: Candidate) -> tuple[bool, datetime, str]:
    since = drifted_since(candidate.claim) or _JUST_DETECTED
    return bool(candidate.reschedulable), since, candidate.name
