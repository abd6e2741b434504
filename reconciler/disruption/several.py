"""Several nodes go for several cheaper ones: what Karpenter's one replacement cannot say.

The rules are Karpenter's, each asked of every replacement: surely cheaper than what goes, never of
a type that one of the nodes has unless cheaper than that one, spot for spot behind its gate. That
all of them together are surely cheaper is asked besides, however dear each launch comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reconciler.disruption.candidates import Candidate, Refusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation import Proposal, cheaper, spot_to_spot, sure_of_price
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.multinode import cheapest_alike, without_own_types
from reconciler.disruption.pricing import Choice, expected_price, may_be_spot, ordered
from reconciler.placement.result import Placement, PlannedClaim

REPLACEMENTS_MAX: Final = 48
"""How many nodes one command may launch: each is one more that must become ready first."""
SHARE_FOR_SEVERAL: Final = 0.05
"""The least share of what goes that a command saves where it launches more than one node."""
_LEFT_OUT_MAX: Final = 3
"""How often a set is asked about again without the nodes that it would only buy back."""


def compute_several(candidates: Sequence[Candidate], work: Deliberation) -> Proposal | Refusal:
    """Return how nodes can go together, some of them left out if they are better kept, or why not.

    A node is better kept where a replacement could be of its type and would cost as much.
    """
    chosen = list(candidates)
    for _ in range(_LEFT_OUT_MAX):
        if not chosen:
            break
        outcome = work.simulation.without(chosen, consolidating=True, cheapest=True)
        if outcome.failure is not None:
            return Refusal(BlockCode.UNSCHEDULABLE, outcome.failure)
        claims = [ordered(claim) for claim in outcome.placement.claims]
        kept = _bought_back(claims, chosen)
        if not kept:
            return _priced(chosen, claims, outcome.placement, work)
        chosen = [candidate for candidate in chosen if candidate.name not in kept]
    return Refusal(BlockCode.NOT_CHEAPER, "Can't replace with cheaper nodes")


def _bought_back(claims: Iterable[PlannedClaim], candidates: Sequence[Candidate]) -> set[str]:
    """Return the nodes that could be what a claim becomes, at no higher price."""
    kept: set[str] = set()
    for claim in claims:
        price = expected_price(claim)
        fitting = {kind.name for kind in claim.types}
        kept.update(
            c.name
            for c in candidates
            if c.kind is not None and c.kind.name in fitting and cheapest_alike(c, c.kind) <= price
        )
    return kept


def _priced(
    candidates: Sequence[Candidate],
    claims: Sequence[PlannedClaim],
    placement: Placement,
    work: Deliberation,
) -> Proposal | Refusal:
    """Return the proposal with each claim narrowed to what is cheap enough, or why it is not."""
    if len(claims) > REPLACEMENTS_MAX:
        text = f"Can't remove without creating {len(claims)} candidates"
        return Refusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    price = sum(candidate.price for candidate in candidates)
    source = {pod.key: c for c in candidates for pod in c.moving}
    narrowed: list[PlannedClaim] = []
    for claim in claims:
        found = _narrowed(claim, candidates, source, price, work)
        if isinstance(found, Refusal):
            return found
        narrowed.append(found)
    together = _cheaper_together(narrowed, price)
    if isinstance(together, Refusal):
        return together
    proposal = Proposal(tuple(candidates), placement, together)
    if len(together) > 1 and proposal.savings < price * SHARE_FOR_SEVERAL:
        text = f"several replacements save less than {SHARE_FOR_SEVERAL:.0%} of what goes"
        return Refusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    return proposal


def _narrowed(
    claim: PlannedClaim,
    candidates: Sequence[Candidate],
    source: Mapping[str, Candidate],
    price: float,
    work: Deliberation,
) -> PlannedClaim | Refusal:
    """Return one claim as the rules about one replacement leave it.

    Whether it replaces spot nodes is told by the pods that it takes: a node that is not spot must
    not open the way from spot to spot for others.
    """
    from_ = {source[pod].name: source[pod] for pod in claim.pods if pod in source}
    is_spot = all(candidate.is_spot for candidate in from_.values() or candidates)
    if is_spot and may_be_spot(claim):
        found = spot_to_spot(claim, price, work, single=len(from_) == 1)
    else:
        found = cheaper(claim, price)
        if isinstance(found, PlannedClaim):
            found = sure_of_price(found)
    if isinstance(found, Refusal) or len(candidates) == 1:
        return found
    fitting = {kind.name for kind in claim.types}
    return without_own_types(found, fitting, candidates)


def _cheaper_together(
    claims: Sequence[PlannedClaim], price: float
) -> tuple[PlannedClaim, ...] | Refusal:
    """Return the claims with types of which any choice costs less than ``price`` in sum.

    What is left over the cheapest choice is shared out equally.
    """
    if not claims:
        return ()
    least: list[float] = []
    for claim in claims:
        choice = Choice(claim.requirements)
        least.append(min(choice.worst_launch(kind) for kind in claim.types))
    spare = (price - sum(least)) / len(claims)
    if spare <= 0:
        return Refusal(BlockCode.NOT_CHEAPER, "Can't replace with cheaper nodes")
    found: list[PlannedClaim] = []
    for claim, lowest in zip(claims, least, strict=True):
        narrowed = cheaper(claim, lowest + spare)
        if isinstance(narrowed, Refusal):
            return narrowed
        found.append(replace(narrowed, types_total=len(narrowed.types)))
    return tuple(found)
