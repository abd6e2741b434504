"""Several nodes go for several cheaper ones: what Karpenter's one replacement cannot say.

The rules are Karpenter's, each asked of every replacement: surely cheaper than what goes, never
what one of the nodes already is unless cheaper than that one, spot for spot behind its gate. That
all of them together are surely cheaper is asked besides, however dear each launch comes out.

A set need not go as a whole: nodes that are better kept are left out, and the rest is asked about
again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from reconciler.disruption.candidates import Candidate, Refusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation import Proposal, cheaper, spot_to_spot, sure_of_price
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.kept import LEAST_SAVED, Going, better_kept, is_spot_for_spot
from reconciler.disruption.pricing import least_launch
from reconciler.placement.result import Placement, PlannedClaim

REPLACEMENTS_MAX: Final = 48
"""How many nodes one command may launch: each is one more that must become ready first."""
_TURNS_MAX: Final = 10
"""How often a set is asked about, each time without the nodes that are better kept."""
_TOO_DEAR: Final = Refusal(BlockCode.NOT_CHEAPER, "Can't replace with cheaper nodes")


@dataclass(frozen=True, slots=True)
class Answer:
    """What is left of a set when nodes that are better kept were left out, and how it can go.

    Nothing is left where no part of the set can go.
    """

    candidates: tuple[Candidate, ...]
    proposal: Proposal | Refusal


def compute_several(
    candidates: Sequence[Candidate],
    work: Deliberation,
    worth: Mapping[str, float],
    closed: Collection[str] = (),
) -> Answer:
    """Return which of the nodes can go together, and how, or why not.

    ``worth`` says which part of a new node's price each of its pods has to bear. Nodes that are
    ``closed`` take none of the pods.
    """
    gate = work.settings.gate("SpotToSpotConsolidation")
    chosen = tuple(candidates)
    for turn in range(_TURNS_MAX):
        if not chosen or work.simulation.spent >= work.work_max:
            break
        outcome = work.simulation.without(chosen, consolidating=True, closed=closed, worth=worth)
        claims, going = outcome.placement.claims, Going(chosen)
        kept = better_kept(going, claims, outcome.homeless, worth, turn, gate=gate)
        if not kept:
            if len(claims) > REPLACEMENTS_MAX:
                text = f"Can't remove without creating {len(claims)} candidates"
                return Answer(chosen, Refusal(BlockCode.SEVERAL_REPLACEMENTS, text))
            found = _priced(going, claims, outcome.placement, work)
            if not isinstance(found, set):
                return Answer(chosen, found)
            kept = found
        chosen = tuple(candidate for candidate in chosen if candidate.name not in kept)
    return Answer((), _TOO_DEAR)


def _priced(
    going: Going, claims: Sequence[PlannedClaim], placement: Placement, work: Deliberation
) -> Proposal | Refusal | set[str]:
    """Return the proposal with each claim narrowed to what is cheap enough, or why it is not.

    A set are the names of nodes without which it may be.
    """
    narrowed: list[PlannedClaim] = []
    kept: set[str] = set()
    for claim in claims:
        found = _narrowed(claim, going, work)
        if isinstance(found, Refusal):
            kept.update(candidate.name for candidate in going.of(claim))
        else:
            narrowed.append(found)
    if kept:
        return kept
    together = _cheaper_together(narrowed, going.price)
    if isinstance(together, Refusal):
        return together
    proposal = Proposal(tuple(going.candidates), placement, together)
    if len(together) > 1 and proposal.savings < going.price * LEAST_SAVED:
        text = f"the replacements save less than {LEAST_SAVED:.0%} of the cost"
        return Refusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    return proposal


def _narrowed(claim: PlannedClaim, going: Going, work: Deliberation) -> PlannedClaim | Refusal:
    """Return one claim as the rules about one replacement leave it."""
    if is_spot_for_spot(claim, going):
        found = spot_to_spot(claim, going.price, work, single=len(going.of(claim)) == 1)
    else:
        found = cheaper(claim, going.price)
        if isinstance(found, PlannedClaim):
            found = sure_of_price(found)
    if isinstance(found, Refusal) or len(going.candidates) == 1:
        return found
    bound = min((price for price, _ in going.alike(claim)), default=inf)
    return cheaper(found, bound)


def _cheaper_together(
    claims: Sequence[PlannedClaim], price: float
) -> tuple[PlannedClaim, ...] | Refusal:
    """Return the claims with types of which any choice costs less than ``price`` in sum.

    What is left over the cheapest choice is shared out equally.
    """
    if not claims:
        return ()
    least = [least_launch(claim) for claim in claims]
    spare = (price - sum(least)) / len(claims)
    if spare <= 0:
        return _TOO_DEAR
    found: list[PlannedClaim] = []
    for claim, lowest in zip(claims, least, strict=True):
        narrowed = cheaper(claim, lowest + spare)
        if isinstance(narrowed, Refusal):
            return narrowed
        found.append(replace(narrowed, types_total=len(narrowed.types)))
    return tuple(found)
