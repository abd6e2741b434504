"""Removal: empty the nodes of a NodePool that was deleted from git.

A missing pool may be a mistake or a broken checkout, so nothing is removed until the user allows it
by name. Its nodes are then removed in the same way as drifted ones: within the pool's last known
budgets, respecting PodDisruptionBudgets, and only when their pods fit elsewhere. Karpenter deletes
them all at once, without a budget.
"""

from __future__ import annotations

from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.methods.drift import replace_or_refuse
from reconciler.model.karpenter.budget import DisruptionReason


class Removal:
    """Empties a removed pool node by node, starting with those without pods."""

    reason: Final = DisruptionReason.DRIFTED

    def decide(self, work: DisruptionPass) -> None:
        for candidate in sorted(work.candidate_set.removals, key=_disruption_cost_key):
            if not work.is_free(candidate):
                continue
            replace_or_refuse(candidate, work, ForcefulReason.NODE_POOL_DELETED)


def _disruption_cost_key(candidate: Candidate) -> tuple[float, str]:
    return candidate.cost, candidate.name
