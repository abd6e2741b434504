"""Drift: replace nodes that differ from the desired state, one at a time.

Prices, ``consolidateAfter`` and the consolidation policy do not matter here. Empty nodes come
first, then those that drifted longest ago, and last those whose drift was just detected. A node
whose pods do not fit anywhere is skipped.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, NamedTuple

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode, Reason
from reconciler.disruption.disruptionpass import DisruptionPass, with_claims
from reconciler.disruption.gates.guards import retry_hold
from reconciler.disruption.methods.staticdrift import RESERVATION_FULL, reservation_of
from reconciler.disruption.simulation import RemovalOutcome
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.settings import FeatureGate

DRIFT_SEEN: Final = "DriftSeen"
"""Condition of a claim in our records: since when it has been drifted, for any reason."""

_JUST_DETECTED: Final = datetime.max.replace(tzinfo=UTC)


class DriftMethod:
    """Replaces each drifted node by whatever its pods need."""

    reason: Final = DisruptionReason.DRIFTED

    def decide(self, work: DisruptionPass) -> None:
        drifted = work.candidates(lambda c: c.drift is not None and not c.pool.is_static)
        for candidate in sorted(drifted, key=drift_age_key):
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
    else:
        replace_node(candidate, work, NodeReplacement(reported_reason))


class NodeReplacement(NamedTuple):
    """Why a node of a dynamic pool is replaced, and how.

    ``gate`` lets a node in a full reservation be terminated first. ``bounded`` is whether its drain
    ends with a deadline, so that protected pods move as well.
    """

    reported_reason: Reason
    gate: FeatureGate = FeatureGate.TERMINATE_FIRST_DRIFT
    message: str = ""
    drain_limit: timedelta | None = None
    bounded: bool = False


def replace_node(candidate: Candidate, work: DisruptionPass, replacement: NodeReplacement) -> None:
    """Replace one node by whatever its pods need, or reject it."""
    reason = replacement.reported_reason
    if not work.has_work_left("drift"):
        return
    outcome, goes_first = _simulate(candidate, work, replacement)
    if outcome.failure is not None:
        refusal = CandidateRefusal(BlockCode.UNSCHEDULABLE, outcome.failure)
        work.refuse(candidate, reason, refusal)
        return
    placement = outcome.placement
    if goes_first:  # the next pass launches what it needs in the slot that it frees
        placement = with_claims(placement, ())
    hold = retry_hold([candidate], work.now) if placement.claims else None
    if hold is not None:
        work.defer(candidate, reason, hold)
        return
    why = RESERVATION_FULL if goes_first else ""
    work.start(
        reason,
        [candidate],
        replacements=placement.claims,
        placement=placement,
        message="; ".join(filter(None, (replacement.message, why))),
        drain_limit=replacement.drain_limit,
    )


def _simulate(
    candidate: Candidate, work: DisruptionPass, replacement: NodeReplacement
) -> tuple[RemovalOutcome, bool]:
    """Return what becomes of the node's pods, and whether it must be terminated first.

    That is so if they only fit into the slot that the node has in a full reservation, and the gate
    allows it (Karpenter 1.15 ``disruption/helpers.go``).
    """
    simulate = partial(
        work.simulation.simulate_removal,
        [candidate],
        consolidating=False,
        bounded_drain=replacement.bounded,
    )
    outcome = simulate()
    reservation = reservation_of(candidate)
    if outcome.failure is None or not reservation or not work.settings.gate(replacement.gate):
        return outcome, False
    freed = simulate(freed_reservation=reservation)
    return (outcome, False) if freed.failure is not None else (freed, True)


def drifted_since(claim: NodeClaim) -> datetime | None:
    """Return since when a claim has been drifted: from our records, or else Karpenter's."""
    for kind in (DRIFT_SEEN, "Drifted"):
        condition = claim.condition(kind)
        if condition is not None and condition.status == "True":
            return condition.last_transition_time
    return None


def drift_age_key(candidate: Candidate) -> tuple[bool, datetime, str]:
    """Return the key that sorts drifted nodes: empty ones first, then by the age of the drift."""
    since = drifted_since(candidate.claim) or _JUST_DETECTED
    return bool(candidate.reschedulable), since, candidate.name
