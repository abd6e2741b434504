"""Removal: nodes of a NodePool that has gone from git.

A pool that vanished may be a mistake, or a checkout that went wrong, so nothing goes before
someone has said so by name. Then its nodes leave as drifted ones do: within the pool's last
budgets, past no PodDisruptionBudget, and only when their pods have another place. Karpenter
deletes them all at once, without a budget.
"""

from __future__ import annotations

from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.methods.drift import replace_or_refuse
from reconciler.model.karpenter.budget import DisruptionReason


class Removal:
    """Empties a removed pool, node by node; those without pods first."""

    reason: Final = DisruptionReason.DRIFTED

    def decide(self, work: Deliberation) -> None:
        for candidate in sorted(work.roster.removals, key=_emptiest):
            if not work.is_free(candidate):
                continue
            replace_or_refuse(candidate, work, ForcefulReason.NODE_POOL_DELETED)


def _emptiest(candidate: Candidate) -> tuple[float, str]:
    return candidate.cost, candidate.name
