"""Removal: nodes of a NodePool that has gone from git.

A pool that vanished may be a mistake, or a checkout that went wrong, so nothing goes before
someone has said so by name. Then its nodes leave as drifted ones do: within the pool's last
budgets, past no PodDisruptionBudget, and only when their pods have another place. Karpenter
deletes them all at once, without a budget.
"""

from __future__ import annotations

from typing import Final

from reconciler.disruption.candidates import Candidate, Refusal
from reconciler.disruption.command import BlockCode, ForcefulReason
from reconciler.disruption.deliberation import Deliberation
from reconciler.model.budget import DisruptionReason


class Removal:
    """Empties a removed pool, node by node; those without pods first."""

    reason: Final = DisruptionReason.DRIFTED

    def decide(self, work: Deliberation) -> None:
        for candidate in sorted(work.roster.removals, key=_emptiest):
            if not work.is_free(candidate):
                continue
            refusal = candidate.refusal(eventual=True)
            if refusal is not None:
                work.refuse(candidate, ForcefulReason.NODE_POOL_DELETED, refusal)
            elif work.left(candidate, self.reason) == 0:
                work.defer_for_budget(candidate, self.reason)
            elif work.has_work_left("removal"):
                self._remove(candidate, work)

    def _remove(self, candidate: Candidate, work: Deliberation) -> None:
        outcome = work.simulation.without([candidate], consolidating=False)
        reason = ForcefulReason.NODE_POOL_DELETED
        if outcome.failure is not None:
            work.refuse(candidate, reason, Refusal(BlockCode.UNSCHEDULABLE, outcome.failure))
            return
        claims = outcome.placement.claims
        work.start(reason, [candidate], replacements=claims, placement=outcome.placement)


def _emptiest(candidate: Candidate) -> tuple[float, str]:
    return candidate.cost, candidate.name
