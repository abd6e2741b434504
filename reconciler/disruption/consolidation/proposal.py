"""Consolidation: fewer or cheaper nodes for the same pods. What its two searches share.

Whether some nodes can go together is one question to the scheduler and one to the price list
(Karpenter ``computeConsolidation``): their pods fit on what is there, or on one new node that is
surely cheaper than all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal, price_refusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.balanced import evaluate
from reconciler.disruption.consolidation.memory import undoes
from reconciler.disruption.consolidation.pricing import (
    cheaper_than,
    estimated_savings,
    may_be_spot,
    min_values_prefix,
    min_values_unmet,
    narrowed_to,
    ordered,
)
from reconciler.disruption.deliberation import Deliberation, with_claims
from reconciler.disruption.gates.consolidatable import is_consolidatable
from reconciler.disruption.gates.policy import too_little, too_young
from reconciler.disruption.gates.retries import resting
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ON_DEMAND, SPOT
from reconciler.model.karpenter.nodepool import WHEN_EMPTY
from reconciler.model.settings import FeatureGate
from reconciler.placement.question import Placement, PlannedClaim

SPOT_FLEXIBILITY: Final = 15
"""How many cheaper types a spot node needs for its replacement by another spot node.

With fewer, each launch would be consolidated again as soon as a cheaper pool has room.
"""

REASON: Final = DisruptionReason.UNDERUTILIZED


@dataclass(frozen=True, slots=True)
class Proposal:
    """Nodes that may go together, with what replaces them and where their pods go.

    ``fitting`` are the names of all types that the replacement could be of, were price no object.
    """

    candidates: tuple[Candidate, ...]
    placement: Placement
    replacements: tuple[PlannedClaim, ...] = ()
    fitting: frozenset[str] = frozenset()
    score: float | None = None

    @property
    def savings(self) -> float:
        """USD an hour."""
        return estimated_savings((c.price for c in self.candidates), self.replacements)

    def start(self, work: Deliberation) -> None:
        """Make it a command of the pass."""
        work.start(
            REASON,
            self.candidates,
            replacements=self.replacements,
            placement=with_claims(self.placement, self.replacements),
            score=self.score,
        )


def consolidatable(work: Deliberation) -> list[Candidate]:
    """Return the nodes that consolidation may look at, keeping the refusals of the others.

    What protects a node is told before what is wrong with it, and both though it is not quiet
    yet: the author has to act on either. It is told of nodes to which a command of the pass moves
    pods as well, though those are left alone. Empty nodes are the subject of Emptiness.
    """
    found: list[Candidate] = []
    taken = {name for command in work.commands for name in command.nodes}
    for candidate in work.roster.candidates:
        if candidate.pool.is_static or candidate.name in taken:
            continue
        problem = price_refusal(candidate) or _disabled(candidate)
        if problem is None and candidate.is_empty:
            continue
        problem = problem or _only_when_empty(candidate)
        refusal = candidate.refusal(eventual=False) or problem
        if refusal is not None:
            work.refuse(candidate, REASON, refusal)
        elif work.is_free(candidate) and is_consolidatable(
            candidate.claim, candidate.pool, work.now
        ):
            hold = work.holds.get((candidate.pool.name, REASON))
            hold = hold or too_young(candidate, work.settings, work.now)
            if hold is None:
                found.append(candidate)
            else:
                work.defer(candidate, REASON, hold)
    return found


def _disabled(candidate: Candidate) -> CandidateRefusal | None:
    if candidate.pool.spec.disruption.consolidates_after is not None:
        return None
    text = f'NodePool "{candidate.pool.name}" has consolidation disabled'
    return CandidateRefusal(BlockCode.CONSOLIDATION_DISABLED, text)


def _only_when_empty(candidate: Candidate) -> CandidateRefusal | None:
    if candidate.pool.spec.disruption.consolidation_policy != WHEN_EMPTY:
        return None
    text = (
        f'NodePool "{candidate.pool.name}" has consolidation policy WhenEmpty, '
        "but node is not empty"
    )
    return CandidateRefusal(BlockCode.WHEN_EMPTY, text)


def compute(candidates: Sequence[Candidate], work: Deliberation) -> Proposal | CandidateRefusal:
    """Return how the nodes can go together, or why not."""
    outcome = work.simulation.without(candidates, consolidating=True)
    if outcome.failure is not None:
        return CandidateRefusal(BlockCode.UNSCHEDULABLE, outcome.failure)
    claims = outcome.placement.claims
    if not claims:
        return Proposal(tuple(candidates), outcome.placement)
    if len(claims) > 1:
        text = f"Can't remove without creating {len(claims)} candidates"
        return CandidateRefusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    price = sum(candidate.price for candidate in candidates)
    claim = ordered(claims[0])
    if all(candidate.is_spot for candidate in candidates) and may_be_spot(claim):
        narrowed = spot_to_spot(claim, price, work, single=len(candidates) == 1)
    else:
        narrowed = cheaper(claim, price)
        if isinstance(narrowed, PlannedClaim):
            narrowed = sure_of_price(narrowed)
    if isinstance(narrowed, CandidateRefusal):
        return narrowed
    fitting = frozenset(kind.name for kind in claim.types)
    return Proposal(tuple(candidates), outcome.placement, (narrowed,), fitting)


def cheaper(claim: PlannedClaim, price: float) -> PlannedClaim | CandidateRefusal:
    """Return the claim with the types that surely cost less than ``price``, or why none is left."""
    narrowed = cheaper_than(claim, price)
    if not narrowed.types:
        return CandidateRefusal(BlockCode.NOT_CHEAPER, "Can't replace with a cheaper node")
    unmet = min_values_unmet(narrowed.types, claim.requirements)
    if unmet:
        labels = " ".join(unmet)
        text = f"minValues requirement is not met for label(s) (label(s)=[{labels}])"
        return CandidateRefusal(BlockCode.MIN_VALUES, f"Filtering by price: {text}")
    return narrowed


def sure_of_price(claim: PlannedClaim) -> PlannedClaim:
    """Pin a claim that could be spot or on-demand to spot, on whose price it was chosen.

    Without spot capacity the launch then fails and the node stays, rather than coming back as a
    dearer on-demand node. Where none of the types can be had as spot, they were chosen on their
    price on demand, and are pinned to that (Karpenter pins those to spot too: none can launch).
    """
    allowed = claim.requirements.allowed(CAPACITY_TYPE)
    if not (allowed.has(SPOT) and allowed.has(ON_DEMAND)):
        return claim
    pinned = (narrowed_to(claim, capacity_type) for capacity_type in (SPOT, ON_DEMAND))
    return next((choice for choice in pinned if choice.types), claim)


def spot_to_spot(
    claim: PlannedClaim, price: float, work: Deliberation, *, single: bool
) -> PlannedClaim | CandidateRefusal:
    """Return the claim pinned to spot and cheaper than ``price``, where the gate lets it be.

    ``single`` is for one spot node: then enough types must be left.
    """
    if not work.settings.gate(FeatureGate.SPOT_TO_SPOT_CONSOLIDATION):
        text = "SpotToSpotConsolidation is disabled, can't replace a spot node with a spot node"
        return CandidateRefusal(BlockCode.SPOT_TO_SPOT, text)
    narrowed = cheaper(narrowed_to(claim, SPOT), price)
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


def scored(proposal: Proposal, work: Deliberation) -> Proposal | CandidateRefusal:
    """Return the proposal with the least score of the Balanced pools it touches, or their «no».

    Before them the config is asked how much a move must save at least, and what it must not undo;
    and what was tried in vain of late rests.
    """
    refusal = too_little(proposal.candidates, proposal.savings, work.settings)
    rest = resting(proposal.candidates, work.now) if proposal.replacements else None
    if refusal is None and rest is not None:
        until, text = rest
        refusal = CandidateRefusal(BlockCode.UNSCHEDULABLE, text, until)
    for claim in proposal.replacements:
        refusal = refusal or undoes(proposal.candidates, claim, work.settings, work.now)
    if refusal is not None:
        return refusal
    balanced = any(
        c.pool.spec.disruption.consolidation_policy == "Balanced" for c in proposal.candidates
    )
    if not balanced:
        return proposal
    scores = evaluate(proposal.candidates, proposal.savings, work.totals)
    for name, score in scores.items():
        if not score.approved:
            return CandidateRefusal(BlockCode.SCORE, f'NodePool "{name}": {score}')
    return replace(proposal, score=min(score.value for score in scores.values()))
