"""Multi-node consolidation: as many nodes as possible go for one new node, or for none."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from reconciler.disruption.candidates import Candidate, Refusal
from reconciler.disruption.consolidation import (
    REASON,
    Proposal,
    cheaper,
    compute,
    consolidatable,
    scored,
)
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.emptiness import by_ratio
from reconciler.model.instancetype import InstanceType
from reconciler.model.labels import CAPACITY_TYPE, ZONE
from reconciler.model.requirements import Requirements
from reconciler.placement.result import PlannedClaim

BATCH_MAX: Final = 100
"""How many nodes Karpenter looks at together; its search in fact reaches one more."""


class MultiNodeConsolidation:
    """Searches the longest prefix of the best candidates that can go together.

    A binary search over the prefix, as Karpenter's: what is found is good, not the best there is.
    One merge ends the consolidation of a pass: it moves many pods, and what the other nodes are
    worth is asked when they have settled. Going on at once ends at a dearer fleet.
    """

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if not work.has_work_left("multi-node consolidation"):
            return
        wanted = sorted(consolidatable(work), key=by_ratio)
        proposal = self._search(self._within_budget(wanted, work), work)
        if proposal is not None:
            proposal.start(work)
            work.has_merged = True

    def _within_budget(self, wanted: Sequence[Candidate], work: Deliberation) -> list[Candidate]:
        trial = work.ledger.copy()
        chosen: list[Candidate] = []
        for candidate in wanted:
            pool = candidate.pool.name
            if work.is_free(candidate) and trial.left(pool, self.reason) > 0:
                trial.take(pool, self.reason)
                chosen.append(candidate)
        return chosen

    def _search(self, candidates: Sequence[Candidate], work: Deliberation) -> Proposal | None:
        best: Proposal | None = None
        low, high = 1, (len(candidates) - 1 if len(candidates) <= BATCH_MAX else BATCH_MAX)
        while low <= high:
            middle = (low + high) // 2
            proposal = self._together(candidates[: middle + 1], work)
            if proposal is None:
                high = middle - 1
            else:
                best, low = proposal, middle + 1
        return best

    def _together(self, candidates: Sequence[Candidate], work: Deliberation) -> Proposal | None:
        proposal = compute(candidates, work)
        if isinstance(proposal, Proposal) and proposal.replacement is not None:
            narrowed = without_own_types(proposal.replacement, proposal.fitting, candidates)
            if isinstance(narrowed, Refusal):
                return None
            proposal = replace(proposal, replacement=narrowed)
        if isinstance(proposal, Refusal):
            return None
        approved = scored(proposal, work)
        return approved if isinstance(approved, Proposal) else None


def without_own_types(
    claim: PlannedClaim, fitting: Collection[str], candidates: Sequence[Candidate]
) -> PlannedClaim | Refusal:
    """Return the claim with only what is cheaper than any node of a type that it could become.

    Two large nodes and a small one must not become «one small one»: then the two are deleted and
    the small one stays. ``fitting`` are the types that could hold the pods.
    """
    bound = inf
    for candidate in candidates:
        kind = candidate.kind
        assert kind is not None, "consolidation looks only at nodes of a known type"
        if kind.name in fitting:
            bound = min(bound, _cheapest_alike(candidate, kind))
    return cheaper(claim, bound)


def _cheapest_alike(candidate: Candidate, kind: InstanceType) -> float:
    """Return the cheapest offering, available or not, that the node's labels could be of.

    0 where there is none: what is not priced cannot be beaten.
    """
    zone, capacity_type = (candidate.node.labels.get(key) for key in (ZONE, CAPACITY_TYPE))
    alike = [o for o in kind.offerings if (o.zone, o.capacity_type) == (zone, capacity_type)]
    labels = Requirements.from_labels(candidate.node.labels)
    prices = [o.price for o in alike if labels.intersects(o.requirements)]
    return min(prices, default=0.0)
