"""Several nodes go for several cheaper ones: what Karpenter's one replacement cannot say.

The rules are Karpenter's, each asked of every replacement: surely cheaper than what goes, never
what one of the nodes already is unless cheaper than that one, spot for spot behind its gate. That
all of them together are surely cheaper is asked besides, however dear each launch comes out.

A set need not go as a whole: nodes that are better kept are left out, and the rest is asked about
again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.multinode import cheapest_alike
from reconciler.disruption.consolidation.pricing import least_launch, may_be_spot
from reconciler.disruption.consolidation.proposal import (
    Proposal,
    cheaper,
    spot_to_spot,
    sure_of_price,
)
from reconciler.disruption.deliberation import Deliberation
from reconciler.model.karpenter.labels import CAPACITY_TYPE
from reconciler.model.resources import PODS, Resources
from reconciler.model.settings import FeatureGate
from reconciler.placement.question import Placement, PlannedClaim

# Which nodes of a set are better kept, so that the others can go.
#
# A set that is asked about as a whole nearly always holds nodes that stand in the way of the
# rest: their pods find no place, a replacement would only buy them back, it is behind the spot
# gate, or it costs as much as they do. Without them the same question is asked again.


LEAST_SAVED: Final = 0.05
"""The least share of its price that a node saves in a set, else it is kept."""
_TURNS_TOGETHER: Final = 3
"""In how many turns the hosts of pods behind the gate are chosen for a NodePool at once."""
_TURNS_ONE_BY_ONE: Final = 4
"""In how many turns a claim keeps only one of the nodes that it could be; after that, all."""


class Going:
    """The nodes of a set that are asked about, and where their pods are."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self.source = {pod.key: c for c in candidates for pod in c.moving}
        self._by_kind: dict[str, list[Candidate]] = {}
        for candidate in sorted(candidates, key=_dearest_last):
            if candidate.kind is not None:
                self._by_kind.setdefault(candidate.kind.name, []).append(candidate)

    @property
    def price(self) -> float:
        """USD an hour of all of them."""
        return sum(candidate.price for candidate in self.candidates)

    def of(self, claim: PlannedClaim) -> list[Candidate]:
        """Return the nodes whose pods a claim takes, by name."""
        names = {self.source[pod].name: self.source[pod] for pod in claim.pods}
        return [names[name] for name in sorted(names)]

    def alike(self, claim: PlannedClaim) -> Iterator[tuple[float, Candidate]]:
        """Yield the nodes that a claim could become again, with what such a node costs.

        These are of a type and a capacity type that it may have, and of its NodePool or of that of
        a node whose pods it takes.
        """
        allowed = claim.requirements.allowed(CAPACITY_TYPE)
        pools = {claim.node_pool.name, *(candidate.pool.name for candidate in self.of(claim))}
        for kind in claim.types:
            for candidate in self._by_kind.get(kind.name, ()):
                same = allowed.has(candidate.node.labels.get(CAPACITY_TYPE, ""))
                if same and candidate.pool.name in pools:
                    yield cheapest_alike(candidate, kind), candidate


def _dearest_last(candidate: Candidate) -> tuple[float, int, str]:
    return candidate.price, -len(candidate.moving), candidate.name


def worth_keeping(
    going: Going,
    claims: Sequence[PlannedClaim],
    homeless: Collection[str],
    worth: Mapping[str, float],
    turn: int,
    *,
    gate: bool,
) -> set[str]:
    """Return the names of the nodes without which the set is asked about again.

    None of them means that the rest can go as far as can be told. ``homeless`` are pods that found
    no place. ``worth`` says which part of a new node's price each of its pods has to bear. As
    ``turn`` grows, more is kept at once. ``gate`` says whether spot nodes may replace spot nodes.
    """
    kept = {going.source[pod].name for pod in homeless}
    shut = [] if gate else [claim for claim in claims if is_spot_for_spot(claim, going)]
    kept |= _hosts(shut, going, together=turn < _TURNS_TOGETHER)
    barred = {claim.name for claim in shut}
    for claim in claims:
        if claim.name not in barred:
            most = 1 if turn < _TURNS_ONE_BY_ONE else len(going.candidates)
            kept.update(_bought_back(claim, going, kept, most))
    return kept or _dear(claims, going, worth)


def is_spot_for_spot(claim: PlannedClaim, going: Going) -> bool:
    """Return whether a claim that may be spot replaces spot nodes alone.

    That is told by the pods that it takes: a node that is not spot must not open the way from spot
    to spot for others.
    """
    return may_be_spot(claim) and all(candidate.is_spot for candidate in going.of(claim))


def _bought_back(claim: PlannedClaim, going: Going, kept: Collection[str], most: int) -> list[str]:
    """Return nodes that a claim could only become again at no lower price, the cheapest first.

    One node is bought back by one claim: of many that are alike the others may still go.
    """
    price = least_launch(claim)
    same = [c.name for cost, c in going.alike(claim) if cost <= price and c.name not in kept]
    return same[:most]


def _hosts(claims: Iterable[PlannedClaim], going: Going, *, together: bool) -> set[str]:
    """Return the nodes that stay for the pods of claims which must not be launched.

    They are chosen for each NodePool at once, or for each claim by itself.
    """
    wanted: dict[str, tuple[dict[str, int], dict[str, Candidate]]] = {}
    for claim in claims:
        key = claim.node_pool.name if together else claim.name
        amounts, nodes = wanted.setdefault(key, ({}, {}))
        for name, amount in claim.requests.items():
            amounts[name] = amounts.get(name, 0) + amount
        nodes.update((candidate.name, candidate) for candidate in going.of(claim))
    found: set[str] = set()
    for amounts, nodes in wanted.values():
        found |= _cheapest_room(amounts, list(nodes.values()))
    return found


def _cheapest_room(amounts: Resources, candidates: Iterable[Candidate]) -> set[str]:
    """Return nodes that together have room for the amounts, chosen for little money.

    The next is always that which covers most of what is left for its price; in the end those go
    again without which there is room enough.
    """
    left = {name: amount for name, amount in amounts.items() if amount > 0 and name != PODS}
    rest = sorted(candidates, key=lambda c: c.name)
    found: list[Candidate] = []

    def price_of_part(candidate: Candidate) -> float:
        room = candidate.node.allocatable
        covered = (min(room.get(n, 0), a) / amounts[n] for n, a in left.items() if a > 0)
        part = sum(covered)
        return candidate.price / part if part > 0 else inf

    while rest and any(amount > 0 for amount in left.values()):
        best = min(rest, key=price_of_part)
        rest.remove(best)
        found.append(best)
        left = {n: a - best.node.allocatable.get(n, 0) for n, a in left.items()}
    for candidate in sorted(found, key=lambda c: (-c.price, c.name)):
        without = {n: a + candidate.node.allocatable.get(n, 0) for n, a in left.items()}
        if all(amount <= 0 for amount in without.values()):
            found.remove(candidate)
            left = without
    return {candidate.name for candidate in found}


def _dear(claims: Sequence[PlannedClaim], going: Going, worth: Mapping[str, float]) -> set[str]:
    """Return the nodes whose pods cost about as much on the new nodes."""
    if not claims:
        return set()
    borne = {candidate.name: 0.0 for candidate in going.candidates}
    for claim in claims:
        price = least_launch(claim)
        total = sum(worth.get(pod, 0.0) for pod in claim.pods)
        for pod in claim.pods:
            share = worth.get(pod, 0.0) / total if total else 1 / len(claim.pods)
            borne[going.source[pod].name] += price * share
    most = 1 - LEAST_SAVED
    return {c.name for c in going.candidates if borne[c.name] > c.price * most}


REPLACEMENTS_MAX: Final = 48
"""How many nodes one command may launch: each is one more that must become ready first."""
_TURNS_MAX: Final = 10
"""How often a set is asked about, each time without the nodes that are better kept."""
_TOO_DEAR: Final = CandidateRefusal(BlockCode.NOT_CHEAPER, "Can't replace with cheaper nodes")


@dataclass(frozen=True, slots=True)
class ReducedSet:
    """What is left of a set when nodes that are better kept were left out, and how it can go.

    Nothing is left where no part of the set can go.
    """

    candidates: tuple[Candidate, ...]
    proposal: Proposal | CandidateRefusal


def compute_several(
    candidates: Sequence[Candidate],
    work: Deliberation,
    worth: Mapping[str, float],
    closed: Collection[str] = (),
) -> ReducedSet:
    """Return which of the nodes can go together, and how, or why not.

    ``worth`` says which part of a new node's price each of its pods has to bear. Nodes that are
    ``closed`` take none of the pods.
    """
    gate = work.settings.gate(FeatureGate.SPOT_TO_SPOT_CONSOLIDATION)
    chosen = tuple(candidates)
    for turn in range(_TURNS_MAX):
        if not chosen or work.simulation.spent >= work.work_max:
            break
        outcome = work.simulation.without(chosen, consolidating=True, closed=closed, worth=worth)
        claims, going = outcome.placement.claims, Going(chosen)
        kept = worth_keeping(going, claims, outcome.homeless, worth, turn, gate=gate)
        if not kept:
            if len(claims) > REPLACEMENTS_MAX:
                text = f"Can't remove without creating {len(claims)} candidates"
                return ReducedSet(chosen, CandidateRefusal(BlockCode.SEVERAL_REPLACEMENTS, text))
            found = _priced(going, claims, outcome.placement, work)
            if not isinstance(found, set):
                return ReducedSet(chosen, found)
            kept = found
        chosen = tuple(candidate for candidate in chosen if candidate.name not in kept)
    return ReducedSet((), _TOO_DEAR)


def _priced(
    going: Going, claims: Sequence[PlannedClaim], placement: Placement, work: Deliberation
) -> Proposal | CandidateRefusal | set[str]:
    """Return the proposal with each claim narrowed to what is cheap enough, or why it is not.

    A set are the names of nodes without which it may be.
    """
    narrowed: list[PlannedClaim] = []
    kept: set[str] = set()
    for claim in claims:
        found = _narrowed(claim, going, work)
        if isinstance(found, CandidateRefusal):
            kept.update(candidate.name for candidate in going.of(claim))
        else:
            narrowed.append(found)
    if kept:
        return kept
    together = _cheaper_together(narrowed, going.price)
    if isinstance(together, CandidateRefusal):
        return together
    proposal = Proposal(tuple(going.candidates), placement, together)
    if len(together) > 1 and proposal.savings < going.price * LEAST_SAVED:
        text = f"the replacements save less than {LEAST_SAVED:.0%} of the cost"
        return CandidateRefusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    return proposal


def _narrowed(
    claim: PlannedClaim, going: Going, work: Deliberation
) -> PlannedClaim | CandidateRefusal:
    """Return one claim as the rules about one replacement leave it."""
    if is_spot_for_spot(claim, going):
        found = spot_to_spot(claim, going.price, work, single=len(going.of(claim)) == 1)
    else:
        found = cheaper(claim, going.price)
        if isinstance(found, PlannedClaim):
            found = sure_of_price(found)
    if isinstance(found, CandidateRefusal) or len(going.candidates) == 1:
        return found
    bound = min((price for price, _ in going.alike(claim)), default=inf)
    return cheaper(found, bound)


def _cheaper_together(
    claims: Sequence[PlannedClaim], price: float
) -> tuple[PlannedClaim, ...] | CandidateRefusal:
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
        if isinstance(narrowed, CandidateRefusal):
            return narrowed
        found.append(replace(narrowed, types_total=len(narrowed.types)))
    return tuple(found)
