"""The common part of consolidation: whether some nodes can be removed together.

This takes one scheduling simulation and one price comparison (Karpenter ``computeConsolidation``):
the pods must fit on existing nodes, or on one new node that is certainly cheaper than all removed
ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal, price_refusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.balanced import score_by_pool
from reconciler.disruption.consolidation.flapdamping import undo_refusal
from reconciler.disruption.consolidation.pricing import (
    estimated_savings,
    keep_cheaper_types,
    may_be_spot,
    min_values_prefix,
    restrict_to_capacity_type,
    unmet_min_values,
    with_affordable_types,
)
from reconciler.disruption.consolidation.rejections import RefusedSet, set_question
from reconciler.disruption.disruptionpass import DisruptionPass, with_claims
from reconciler.disruption.gates.consolidatable import is_consolidatable
from reconciler.disruption.gates.evictioncost import eviction_cost_refusal, hourly_eviction_cost
from reconciler.disruption.gates.guards import retry_hold
from reconciler.disruption.gates.policy import minimum_age_hold, minimum_savings_refusal
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ON_DEMAND, SPOT
from reconciler.model.karpenter.nodepool import WHEN_EMPTY
from reconciler.model.settings import FeatureGate
from reconciler.placement.question import Placement, PlannedClaim

SPOT_FLEXIBILITY: Final = 15
"""How many cheaper types are required to replace a spot node by another spot node.

With fewer, each launch would be consolidated again as soon as a cheaper spot pool has capacity.
"""

REASON: Final = DisruptionReason.UNDERUTILIZED
NOT_CHEAPER: Final = CandidateRefusal(BlockCode.NOT_CHEAPER, "Can't replace with a cheaper node")


@dataclass(frozen=True, slots=True)
class Proposal:
    """Nodes that may be removed together, with their replacements and the placement of their pods.

    ``fitting`` are the names of all types that the replacement could have, ignoring the price;
    where Karpenter's rules decide, those that cost less than the nodes.
    """

    candidates: tuple[Candidate, ...]
    placement: Placement
    replacements: tuple[PlannedClaim, ...] = ()
    fitting: frozenset[str] = frozenset()
    score: float | None = None

    @property
    def savings(self) -> float:
        """The savings in USD an hour."""
        return estimated_savings((c.price for c in self.candidates), self.replacements)

    def net_savings(self, work: DisruptionPass) -> float:
        """Return the savings above what its moves cost, in USD an hour."""
        return self.savings - hourly_eviction_cost(self.candidates, work.settings, work.now)

    def start(self, work: DisruptionPass) -> None:
        """Start it as a command of the pass."""
        work.start(
            REASON,
            self.candidates,
            replacements=self.replacements,
            placement=with_claims(self.placement, self.replacements),
            score=self.score,
        )


def consolidation_candidates(work: DisruptionPass) -> list[Candidate]:
    """Return the nodes that consolidation may consider, and record the rejections of the others.

    Protection is reported before other rejections, and both even before ``consolidateAfter`` has
    passed, because the owner has to act on either. Protection is also reported for nodes that
    receive pods in this pass, although those are not disrupted. Empty nodes are handled by
    Emptiness.
    """
    found: list[Candidate] = []
    removed = {name for command in work.commands for name in command.nodes}
    for candidate in work.candidate_set.candidates:
        if candidate.pool.is_static or candidate.name in removed:
            continue
        problem = price_refusal(candidate) or _disabled_refusal(candidate)
        if problem is None and candidate.is_empty:
            continue
        problem = problem or _when_empty_refusal(candidate)
        refusal = candidate.refusal(eventual=False) or problem
        if refusal is not None:
            work.refuse(candidate, REASON, refusal)
        elif work.is_free(candidate) and is_consolidatable(
            candidate.claim, candidate.pool, work.now
        ):
            hold = work.limits.holds.get((candidate.pool.name, REASON))
            hold = hold or minimum_age_hold(candidate, work.settings, work.now)
            if hold is None:
                found.append(candidate)
            else:
                work.defer(candidate, REASON, hold)
    return found


def _disabled_refusal(candidate: Candidate) -> CandidateRefusal | None:
    if candidate.pool.spec.disruption.consolidates_after is not None:
        return None
    text = f'NodePool "{candidate.pool.name}" has consolidation disabled'
    return CandidateRefusal(BlockCode.CONSOLIDATION_DISABLED, text)


def _when_empty_refusal(candidate: Candidate) -> CandidateRefusal | None:
    if candidate.pool.spec.disruption.consolidation_policy != WHEN_EMPTY:
        return None
    text = (
        f'NodePool "{candidate.pool.name}" has consolidation policy WhenEmpty, '
        "but node is not empty"
    )
    return CandidateRefusal(BlockCode.WHEN_EMPTY, text)


def propose_removal(
    candidates: Sequence[Candidate], work: DisruptionPass
) -> Proposal | CandidateRefusal:
    """Return how the nodes can be removed together, or why they cannot."""
    simulation = work.simulation
    question = set_question(candidates, simulation) if work.refusals.compares() else None
    cached = work.refusals.find(question) if question is not None else None
    if cached is not None:
        simulation.count_effort(cached.effort)
        return cached.refusal
    before = simulation.effort
    result = _simulate_removal(candidates, work)
    if question is not None and isinstance(result, CandidateRefusal):
        refused = RefusedSet(frozenset(), result, simulation.effort.since(before))
        work.refusals.store(question, refused)
    return result


def _simulate_removal(
    candidates: Sequence[Candidate], work: DisruptionPass
) -> Proposal | CandidateRefusal:
    outcome = work.simulation.simulate_removal(candidates, consolidating=True)
    if outcome.failure is not None:
        return CandidateRefusal(BlockCode.UNSCHEDULABLE, outcome.failure)
    claims = outcome.placement.claims
    if not claims:
        return Proposal(tuple(candidates), outcome.placement)
    if len(claims) > 1:
        text = f"Can't remove without creating {len(claims)} candidates"
        return CandidateRefusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    price = sum(candidate.price for candidate in candidates)
    claim = claims[0]
    spot_for_spot = all(candidate.is_spot for candidate in candidates) and may_be_spot(claim)
    if spot_for_spot:
        cheaper = restrict_to_cheaper_spot(claim, price, work, single=len(candidates) == 1)
    else:
        cheaper = filter_by_price(claim, price)
    if isinstance(cheaper, CandidateRefusal):
        return cheaper
    fitting = frozenset(kind.name for kind in (cheaper if work.starts_one_command else claim).types)
    narrowed = cheaper if spot_for_spot else pin_capacity_type(cheaper)
    return Proposal(tuple(candidates), outcome.placement, (narrowed,), fitting)


def filter_by_price(claim: PlannedClaim, price: float) -> PlannedClaim | CandidateRefusal:
    """Return the claim with the types that certainly cost less than ``price``, or the rejection."""
    narrowed = keep_cheaper_types(claim, price)
    if not narrowed.types:
        return NOT_CHEAPER
    unmet = unmet_min_values(narrowed.types, claim.requirements)
    if unmet:
        labels = " ".join(unmet)
        text = f"minValues requirement is not met for label(s) (label(s)=[{labels}])"
        return CandidateRefusal(BlockCode.MIN_VALUES, f"Filtering by price: {text}")
    return narrowed


def pin_capacity_type(claim: PlannedClaim) -> PlannedClaim:
    """Restrict a claim that allows spot and on-demand to spot, whose price was compared.

    If there is no spot capacity, the launch fails and the node stays, instead of being replaced by
    a more expensive on-demand node. If none of the types is available as spot, on-demand prices
    were compared and the claim is restricted to on-demand. Karpenter restricts it to spot even
    then, so that nothing can launch.
    """
    allowed = claim.requirements.requirement_on(CAPACITY_TYPE)
    if not (allowed.has(SPOT) and allowed.has(ON_DEMAND)):
        return claim
    pinned = (
        restrict_to_capacity_type(claim, capacity_type) for capacity_type in (SPOT, ON_DEMAND)
    )
    return next((choice for choice in pinned if choice.types), claim)


def restrict_to_cheaper_spot(
    claim: PlannedClaim, price: float, work: DisruptionPass, *, single: bool
) -> PlannedClaim | CandidateRefusal:
    """Return the claim restricted to spot and cheaper than ``price``, if the gate allows it.

    ``single`` is a replacement of one spot node, which requires a minimum number of types.
    """
    if not work.settings.gate(FeatureGate.SPOT_TO_SPOT_CONSOLIDATION):
        text = "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
        return CandidateRefusal(BlockCode.SPOT_TO_SPOT, text)
    affordable = with_affordable_types(claim, price)
    narrowed = filter_by_price(restrict_to_capacity_type(affordable, SPOT), price)
    if isinstance(narrowed, CandidateRefusal) or not single:
        return narrowed
    count = len(narrowed.types)
    if count < SPOT_FLEXIBILITY:
        text = (
            f"SpotToSpotConsolidation requires {SPOT_FLEXIBILITY} cheaper instance type options "
            f"than the current candidate to consolidate, got {count}"
        )
        return CandidateRefusal(BlockCode.SPOT_TO_SPOT, text)
    kept = max(SPOT_FLEXIBILITY, min_values_prefix(narrowed.types, narrowed.requirements))
    types = narrowed.types[:kept]
    return replace(narrowed, types=types, types_total=len(types))


def score_proposal(proposal: Proposal, work: DisruptionPass) -> Proposal | CandidateRefusal:
    """Return the proposal with its lowest score in a Balanced pool, or the rejection.

    Before that, the minimum savings, the cost of evictions, flap damping, and the delay after
    recent failed attempts are checked.
    """
    nodes, savings, settings = proposal.candidates, proposal.savings, work.settings
    refusal = minimum_savings_refusal(nodes, savings, settings)
    refusal = refusal or eviction_cost_refusal(nodes, savings, settings, work.now)
    hold = retry_hold(proposal.candidates, work.now) if proposal.replacements else None
    if refusal is None and hold is not None:
        code = BlockCode.UNSCHEDULABLE
        refusal = CandidateRefusal(code, hold.message, hold.until, hold.rule)
    for claim in proposal.replacements:
        refusal = refusal or undo_refusal(proposal.candidates, claim, work.settings, work.now)
    if refusal is not None:
        return refusal
    balanced = any(
        c.pool.spec.disruption.consolidation_policy == "Balanced" for c in proposal.candidates
    )
    if not balanced:
        return proposal
    scores = score_by_pool(proposal.candidates, proposal.savings, work.totals)
    for name, score in scores.items():
        if not score.approved:
            return CandidateRefusal(BlockCode.SCORE, f'NodePool "{name}": {score}')
    return replace(proposal, score=min(score.value for score in scores.values()))
