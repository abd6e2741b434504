"""Replace several nodes by several cheaper ones, which Karpenter does not do.

Karpenter's rules apply to every replacement: it must certainly be cheaper than the removed nodes,
and must not have the type of one of them unless it is cheaper than that node; spot-to-spot requires
the feature gate. In addition, all replacements together must certainly be cheaper, whichever
offerings are launched.

A set need not be removed completely: nodes that are better retained are left out, and the rest is
evaluated again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.memory import returns
from reconciler.disruption.consolidation.multinode import cheapest_alike
from reconciler.disruption.consolidation.pricing import least_launch, may_be_spot
from reconciler.disruption.consolidation.proposal import (
    Proposal,
    cheaper,
    spot_to_spot,
    sure_of_price,
)
from reconciler.disruption.consolidation.recall import RefusedSet, set_question
from reconciler.disruption.deliberation import Deliberation
from reconciler.model.karpenter.labels import CAPACITY_TYPE
from reconciler.model.resources import PODS, Resources
from reconciler.model.settings import FeatureGate
from reconciler.placement.question import Placement, PlannedClaim

# Selecting the nodes of a set to retain, so that the others can be removed.
#
# A large set nearly always contains nodes that prevent the removal of the rest: their pods do not
# fit, a replacement would have the same type, it would need the spot-to-spot gate, or it would cost
# as much as they do. Without them the set is evaluated again.


LEAST_SAVED: Final = 0.05
"""The minimum share of its price that a node must save in a set; otherwise it is retained."""
_TURNS_TOGETHER: Final = 3
"""Number of turns in which hosts for pods behind the gate are chosen for a complete NodePool."""
_TURNS_ONE_BY_ONE: Final = 4
"""Number of turns in which a claim retains only one node of its possible types; then all."""


class Going:
    """The nodes of a set that is being evaluated, and where their pods are."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self.source = {pod.key: c for c in candidates for pod in c.moving}
        self._by_kind: dict[str, list[Candidate]] = {}
        for candidate in sorted(candidates, key=_dearest_last):
            if candidate.kind is not None:
                self._by_kind.setdefault(candidate.kind.name, []).append(candidate)

    @property
    def price(self) -> float:
        """The price of all of them in USD an hour."""
        return sum(candidate.price for candidate in self.candidates)

    def of(self, claim: PlannedClaim) -> list[Candidate]:
        """Return the nodes whose pods a claim takes, by name."""
        names = {self.source[pod].name: self.source[pod] for pod in claim.pods}
        return [names[name] for name in sorted(names)]

    def alike(self, claim: PlannedClaim) -> Iterator[tuple[float, Candidate]]:
        """Yield the nodes whose offering a claim could have, with the price of that offering.

        These have a type and a capacity type that the claim allows, and belong to its NodePool or
        to that of a node whose pods it takes.
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
    """Return the names of the nodes to leave out before the set is evaluated again.

    An empty result means that the rest can be removed. ``homeless`` are pods that did not fit.
    ``worth`` is the part of a new node's price that each of its pods has to bear. More nodes are
    retained at once as ``turn`` increases. ``gate`` is whether spot nodes may replace spot nodes.
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
    """Return whether a claim that may be spot replaces only spot nodes.

    This depends on the pods that it takes: an on-demand node in the set must not allow spot-to-spot
    for others.
    """
    return may_be_spot(claim) and all(candidate.is_spot for candidate in going.of(claim))


def _bought_back(claim: PlannedClaim, going: Going, kept: Collection[str], most: int) -> list[str]:
    """Return nodes that a claim could only replace by the same offering at no lower price.

    The cheapest come first. A claim accounts for one node: others that are alike may still be
    removed.
    """
    price = least_launch(claim)
    same = [c.name for cost, c in going.alike(claim) if cost <= price and c.name not in kept]
    return same[:most]


def _hosts(claims: Iterable[PlannedClaim], going: Going, *, together: bool) -> set[str]:
    """Return the nodes that are retained for the pods of claims that must not be launched.

    They are chosen for each complete NodePool, or for each claim separately.
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
    """Return cheap nodes that together have room for the amounts.

    The next node is always the one that covers most of the remainder for its price. Nodes that turn
    out not to be needed are dropped at the end.
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
"""Maximum number of nodes that one command may launch: all of them must become ready first."""
_TURNS_MAX: Final = 10
"""How often a set is evaluated, each time without the nodes to retain."""
_TOO_DEAR: Final = CandidateRefusal(BlockCode.NOT_CHEAPER, "Can't replace with cheaper nodes")


@dataclass(frozen=True, slots=True)
class ReducedSet:
    """A set without the nodes that are better retained, and its proposal.

    It is empty if no part of the set can be removed.
    """

    candidates: tuple[Candidate, ...]
    proposal: Proposal | CandidateRefusal


def compute_several(
    candidates: Sequence[Candidate],
    work: Deliberation,
    worth: Mapping[str, float],
    closed: Collection[str] = (),
) -> ReducedSet:
    """Return which of the nodes can be removed together, and how, or the rejection.

    ``worth`` is the part of a new node's price that each of its pods has to bear. Nodes that are
    ``closed`` take none of the pods.
    """
    simulation = work.simulation
    question = set_question(candidates, simulation, worth, closed)
    known = work.refusals.known(question) if question is not None else None
    if known is not None and simulation.spent + simulation.price(known.toll) < work.work_max:
        simulation.bear(known.toll)
        return ReducedSet(tuple(c for c in candidates if c.name in known.left), known.refusal)
    before = simulation.toll
    found = _reduced(candidates, work, worth, closed)
    if (
        question is not None
        and isinstance(found.proposal, CandidateRefusal)
        and simulation.spent < work.work_max
    ):
        left = frozenset(candidate.name for candidate in found.candidates)
        refused = RefusedSet(left, found.proposal, simulation.toll.since(before))
        work.refusals.keep(question, refused)
    return found


def _reduced(
    candidates: Sequence[Candidate],
    work: Deliberation,
    worth: Mapping[str, float],
    closed: Collection[str],
) -> ReducedSet:
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
    """Return the proposal with each claim narrowed to cheap enough types, or the rejection.

    A set contains the names of nodes without which a proposal may be possible.
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
    refusal = returns(going.candidates, together, work.now) if len(together) > 1 else None
    return refusal or proposal


def _narrowed(
    claim: PlannedClaim, going: Going, work: Deliberation
) -> PlannedClaim | CandidateRefusal:
    """Return one claim narrowed by the rules for a single replacement."""
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
    """Return the claims with types of which any choice costs less than ``price`` in total.

    The difference to the cheapest choice is shared equally.
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
