"""Multi-node consolidation: replace as many nodes as possible by one new node, or by none."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.consolidation.proposal import (
    REASON,
    Proposal,
    consolidation_candidates,
    filter_by_price,
    propose_removal,
    score_proposal,
)
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.evictioncost import hourly_eviction_cost
from reconciler.disruption.methods.emptiness import savings_ratio_key
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ZONE
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.settings import ConsolidationSearch
from reconciler.placement.question import PlannedClaim

BATCH_MAX: Final = 100
"""The number of nodes that Karpenter considers together; its search in fact reaches one more."""


class MultiNodeConsolidation:
    """Searches the longest prefix of the best candidates that can be removed together.

    As in Karpenter, this is a binary search over the prefix, so the result is good but not optimal.
    One merge ends the consolidation of a pass, because it moves many pods; the other nodes are
    evaluated after those have settled. Continuing immediately ends at a more expensive fleet.
    """

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        if work.has_merged or not work.has_work_left("multi-node consolidation"):
            return
        candidates = sorted(consolidation_candidates(work), key=savings_ratio_key)
        proposal = longest_prefix(select_within_budget(candidates, work), work)
        if proposal is not None:
            proposal.start(work)
            work.has_merged = True


class CheckedConsolidation:
    """Checks a command again that was computed before: these NodeClaims, all of them or none.

    Karpenter does so when a command has waited for 15 seconds (``disruption/validation.go``).
    """

    reason: Final = REASON

    def __init__(self, node_claims: frozenset[str]) -> None:
        self._node_claims = node_claims

    def decide(self, work: DisruptionPass) -> None:
        found = [c for c in consolidation_candidates(work) if c.claim.name in self._node_claims]
        allowed = select_within_budget(sorted(found, key=savings_ratio_key), work)
        if len(allowed) < len(self._node_claims):
            return
        proposal = _evaluate_prefix(allowed, work)
        if proposal is not None:
            proposal.start(work)


class MultiNodeOfOnePool:
    """The same search within each NodePool, if nothing else was found.

    The best candidates of the fleet may fail together because of one of them; those of one NodePool
    are more alike. The proposal with the highest savings is started. Karpenter does not do this
    search, and neither do NodePools that ask for Karpenter's.
    """

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        if any(command.reason is REASON for command in work.commands):
            return
        pools: dict[str, list[Candidate]] = {}
        for candidate in sorted(consolidation_candidates(work), key=savings_ratio_key):
            pools.setdefault(candidate.pool.name, []).append(candidate)
        if len(pools) < 2:
            return
        found: list[Proposal] = []
        more = (p for p in pools if work.search_of(p) is not ConsolidationSearch.KARPENTER)
        for name in sorted(more):
            if not work.has_work_left("multi-node consolidation"):
                break
            proposal = longest_prefix(select_within_budget(pools[name], work), work)
            if proposal is not None:
                found.append(proposal)
        if found:
            max(found, key=lambda proposal: proposal.net_savings(work)).start(work)
            work.has_merged = True


def longest_prefix(candidates: Sequence[Candidate], work: DisruptionPass) -> Proposal | None:
    """Return the largest proposal for a prefix found by binary search; at least two nodes."""
    best: Proposal | None = None
    low, high = 1, (len(candidates) - 1 if len(candidates) <= BATCH_MAX else BATCH_MAX)
    while low <= high:
        middle = (low + high) // 2
        proposal = _evaluate_prefix(candidates[: middle + 1], work)
        if proposal is None:
            high = middle - 1
        else:
            best, low = proposal, middle + 1
    return best


def _evaluate_prefix(candidates: Sequence[Candidate], work: DisruptionPass) -> Proposal | None:
    several = len(candidates) > 1
    if several and work.simulation.cannot_share(candidates, sum(c.price for c in candidates)):
        return None
    proposal = propose_removal(candidates, work)
    if several and isinstance(proposal, Proposal) and proposal.replacements:
        narrowed = without_own_types(proposal.replacements[0], proposal.fitting, candidates)
        if isinstance(narrowed, CandidateRefusal):
            return None
        proposal = replace(proposal, replacements=(narrowed,))
    if isinstance(proposal, CandidateRefusal):
        return None
    approved = score_proposal(proposal, work)
    return approved if isinstance(approved, Proposal) else None


def select_within_budget(candidates: Iterable[Candidate], work: DisruptionPass) -> list[Candidate]:
    """Return the candidates that the budgets allow to be disrupted together, in order.

    A node whose moves cost more than the node itself is left out: no set saves more on it.
    """
    trial = work.ledger.copy()
    chosen: list[Candidate] = []
    for candidate in candidates:
        pool = candidate.pool.name
        if not work.is_free(candidate) or trial.allowed_disruptions(pool, REASON) == 0:
            continue
        if hourly_eviction_cost([candidate], work.settings, work.now) <= candidate.price:
            trial.count_disruption(pool, REASON)
            chosen.append(candidate)
    return chosen


def without_own_types(
    claim: PlannedClaim, fitting: Collection[str], candidates: Sequence[Candidate]
) -> PlannedClaim | CandidateRefusal:
    """Return the claim with only types cheaper than any removed node whose type it could have.

    Without this, two large nodes and a small one could be replaced by a small one, although
    deleting the two large ones is enough. ``fitting`` are the types that could hold the pods.
    """
    bound = inf
    for candidate in candidates:
        kind = candidate.kind
        assert kind is not None, "consolidation considers only nodes of a known type"
        if kind.name in fitting:
            bound = min(bound, cheapest_matching_price(candidate, kind))
    return filter_by_price(claim, bound)


def cheapest_matching_price(candidate: Candidate, kind: InstanceType) -> float:
    """Return the price of the cheapest offering, available or not, that matches the node's labels.

    It is 0 if there is none: without a price there are no savings.
    """
    known = candidate.matching_prices.get(kind.name)
    if known is None or known[0] is not kind:
        zone, capacity_type = (candidate.node.labels.get(key) for key in (ZONE, CAPACITY_TYPE))
        alike = [o for o in kind.offerings if (o.zone, o.capacity_type) == (zone, capacity_type)]
        labels = Requirements.from_labels(candidate.node.labels)
        prices = [o.price for o in alike if labels.intersects(o.requirements)]
        known = candidate.matching_prices[kind.name] = (kind, min(prices, default=0.0))
    return known[1]
