"""Replace several nodes by several cheaper ones, which Karpenter does not do.

Karpenter's rules apply to every replacement: it must certainly be cheaper than the removed nodes,
and must not have the type of one of them unless it is cheaper than that node; spot-to-spot requires
the feature gate. In addition, all replacements together must certainly be cheaper, whichever
offerings are launched.

A set need not be removed completely: nodes that are better retained are left out, and the rest is
evaluated again. A large set nearly always contains nodes that prevent the removal of the rest:
their pods do not fit, a replacement would have the same type, it would need the spot-to-spot gate,
or it would cost as much as they do.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.flapdamping import repeat_refusal
from reconciler.disruption.consolidation.multinode import cheapest_matching_price
from reconciler.disruption.consolidation.pricing import (
    keep_cheaper_types,
    lowest_worst_launch_price,
    may_be_spot,
    restrict_to_capacity_type,
)
from reconciler.disruption.consolidation.proposal import (
    SPOT_FLEXIBILITY,
    Proposal,
    filter_by_price,
    pin_capacity_type,
    restrict_to_cheaper_spot,
)
from reconciler.disruption.consolidation.rejections import RefusedSet, set_question
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.evictioncost import least_savings
from reconciler.model.karpenter.labels import CAPACITY_TYPE, ON_DEMAND, SPOT
from reconciler.model.resources import PODS, Resources
from reconciler.model.settings import ConsolidationSearch, FeatureGate
from reconciler.placement.question import Placement, PlannedClaim

MINIMUM_SAVED: Final = 0.05
"""The minimum share of its price that a node must save in a set; otherwise it is retained."""
_SPOT_SHARE_MAX: Final = 0.5
"""The share of the price of spot nodes that spot nodes in their place may cost behind the gate."""
_TURNS_TOGETHER: Final = 3
"""Number of turns in which hosts for pods behind the gate are chosen for a complete NodePool."""
_TURNS_ONE_BY_ONE: Final = 4
"""Number of turns in which a claim retains only one node of its possible types; then all."""

REPLACEMENTS_MAX: Final = 48
"""Maximum number of nodes that one command may launch: all of them must become ready first."""
_TURNS_MAX: Final = 10
"""How often a set is evaluated, each time without the nodes to retain."""
_NOT_CHEAPER: Final = CandidateRefusal(BlockCode.NOT_CHEAPER, "Can't replace with cheaper nodes")


class EvaluatedSet:
    """The nodes of a set that is being evaluated, and where their pods are."""

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self.candidates = candidates
        self.source = {pod.key: c for c in candidates for pod in c.moving_pods}
        self._by_kind: dict[str, list[Candidate]] = {}
        for candidate in sorted(candidates, key=_price_key):
            if candidate.kind is not None:
                self._by_kind.setdefault(candidate.kind.name, []).append(candidate)

    @property
    def price(self) -> float:
        """The price of all of them in USD an hour."""
        return sum(candidate.price for candidate in self.candidates)

    def nodes_of(self, claim: PlannedClaim) -> list[Candidate]:
        """Return the nodes whose pods a claim takes, by name."""
        names = {self.source[pod].name: self.source[pod] for pod in claim.pods}
        return [names[name] for name in sorted(names)]

    def matching_nodes(self, claim: PlannedClaim) -> Iterator[tuple[float, Candidate]]:
        """Yield the nodes whose offering a claim could have, with the price of that offering.

        These have a type and a capacity type that the claim allows, and belong to its NodePool or
        to that of a node whose pods it takes.
        """
        allowed = claim.requirements.requirement_on(CAPACITY_TYPE)
        pools = {claim.node_pool.name, *(candidate.pool.name for candidate in self.nodes_of(claim))}
        for kind in claim.types:
            for candidate in self._by_kind.get(kind.name, ()):
                same = allowed.has(candidate.node.labels.get(CAPACITY_TYPE, ""))
                if same and candidate.pool.name in pools:
                    yield cheapest_matching_price(candidate, kind), candidate


def _price_key(candidate: Candidate) -> tuple[float, int, str]:
    return candidate.price, -len(candidate.moving_pods), candidate.name


def nodes_to_retain(
    evaluated: EvaluatedSet,
    claims: Sequence[PlannedClaim],
    unplaced: Collection[str],
    pod_values: Mapping[str, float],
    turn: int,
    *,
    gate: bool,
    least: Mapping[str, float],
) -> set[str]:
    """Return the names of the nodes to leave out before the set is evaluated again.

    An empty result means that the rest can be removed. ``unplaced`` are pods that did not fit.
    ``pod_values`` are each pod's share of the price of a new node. More nodes are retained at once
    as ``turn`` increases. ``gate`` is whether spot nodes may replace spot nodes. ``least`` is what
    each node has to save.
    """
    retained = {evaluated.source[pod].name for pod in unplaced}
    gated = [] if gate else [claim for claim in claims if is_spot_to_spot(claim, evaluated)]
    retained |= _hosts_to_retain(gated, evaluated, by_pool=turn < _TURNS_TOGETHER)
    gated_names = {claim.name for claim in gated}
    for claim in claims:
        if claim.name not in gated_names:
            limit = 1 if turn < _TURNS_ONE_BY_ONE else len(evaluated.candidates)
            retained.update(_same_offering_nodes(claim, evaluated, retained, limit))
    return retained or _unprofitable_nodes(claims, evaluated, pod_values, least)


def is_spot_to_spot(claim: PlannedClaim, evaluated: EvaluatedSet) -> bool:
    """Return whether a claim that may be spot replaces only spot nodes.

    This depends on the pods that it takes: an on-demand node in the set must not allow spot-to-spot
    for others.
    """
    return may_be_spot(claim) and all(candidate.is_spot for candidate in evaluated.nodes_of(claim))


def _may_renew_spot(candidates: Sequence[Candidate], work: DisruptionPass) -> bool:
    """Return whether spot nodes in place of these nodes need no gate.

    The default search keeps to Karpenter's rule.
    """
    searches = (work.search_of(candidate.pool.name) for candidate in candidates)
    return ConsolidationSearch.THOROUGH in searches


def _spot_limits(
    claims: Sequence[PlannedClaim], evaluated: EvaluatedSet
) -> Mapping[str, float] | None:
    """Return below which price each spot node that replaces spot nodes is launched, by claim.

    None if they do not save enough to be launched without the gate, whose purpose is to end chains
    of launches in ever cheaper and scarcer spot pools. Spot nodes that cost at most half of those
    that they replace end such a chain as well, after a few launches. Each has to be as flexible as
    Karpenter requires of a single one, so that it is not launched in a scarce pool.
    """
    pinned = {
        claim.name: restrict_to_capacity_type(claim, SPOT)
        for claim in claims
        if is_spot_to_spot(claim, evaluated)
    }
    nodes = {node.name: node for claim in pinned.values() for node in evaluated.nodes_of(claim)}
    least = {name: lowest_worst_launch_price(claim) for name, claim in pinned.items()}
    total = sum(least.values())
    most = _SPOT_SHARE_MAX * sum(node.price for node in nodes.values())
    if not total or total > most:
        return None
    limits = {name: price * most / total for name, price in least.items()}
    flexible = all(
        len(keep_cheaper_types(claim, limits[name]).types) >= SPOT_FLEXIBILITY
        for name, claim in pinned.items()
    )
    return limits if flexible else None


def _on_demand_instead(claim: PlannedClaim, evaluated: EvaluatedSet) -> PlannedClaim:
    """Return a claim that the gate keeps from being spot as on-demand, if that saves enough.

    Spot nodes of a type that few pods need would otherwise stay for as long as these run. The gate
    is against chains of launches in ever cheaper and scarcer spot pools, which on-demand nodes do
    not continue: one costs less than a spot node only if it is several times smaller.
    """
    if not is_spot_to_spot(claim, evaluated):
        return claim
    pinned = restrict_to_capacity_type(claim, ON_DEMAND)
    most = sum(node.price for node in evaluated.nodes_of(claim)) * (1 - MINIMUM_SAVED)
    return pinned if pinned.types and lowest_worst_launch_price(pinned) <= most else claim


def _same_offering_nodes(
    claim: PlannedClaim, evaluated: EvaluatedSet, retained: Collection[str], limit: int
) -> list[str]:
    """Return nodes that a claim could only replace by the same offering at no lower price.

    The cheapest come first. A claim accounts for one node: others that are alike may still be
    removed.
    """
    price = lowest_worst_launch_price(claim)
    same = [
        c.name
        for cost, c in evaluated.matching_nodes(claim)
        if cost <= price and c.name not in retained
    ]
    return same[:limit]


def _hosts_to_retain(
    claims: Iterable[PlannedClaim], evaluated: EvaluatedSet, *, by_pool: bool
) -> set[str]:
    """Return the nodes that are retained for the pods of claims that must not be launched.

    They are chosen for each complete NodePool, or for each claim separately.
    """
    groups: dict[str, tuple[dict[str, int], dict[str, Candidate]]] = {}
    for claim in claims:
        key = claim.node_pool.name if by_pool else claim.name
        amounts, nodes = groups.setdefault(key, ({}, {}))
        for name, amount in claim.requests.items():
            amounts[name] = amounts.get(name, 0) + amount
        nodes.update((candidate.name, candidate) for candidate in evaluated.nodes_of(claim))
    found: set[str] = set()
    for amounts, nodes in groups.values():
        found |= _cheapest_nodes_for(amounts, list(nodes.values()))
    return found


def _cheapest_nodes_for(amounts: Resources, candidates: Iterable[Candidate]) -> set[str]:
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


def _unprofitable_nodes(
    claims: Sequence[PlannedClaim],
    evaluated: EvaluatedSet,
    pod_values: Mapping[str, float],
    least: Mapping[str, float],
) -> set[str]:
    """Return the nodes that save too little: their pods would cost about as much on new nodes."""
    if not claims:
        return set()
    new_costs = {candidate.name: 0.0 for candidate in evaluated.candidates}
    for claim in claims:
        price = lowest_worst_launch_price(claim)
        total = sum(pod_values.get(pod, 0.0) for pod in claim.pods)
        for pod in claim.pods:
            share = pod_values.get(pod, 0.0) / total if total else 1 / len(claim.pods)
            new_costs[evaluated.source[pod].name] += price * share
    share_max = 1 - MINIMUM_SAVED
    return {
        c.name
        for c in evaluated.candidates
        if new_costs[c.name] > min(c.price * share_max, c.price - least[c.name])
    }


@dataclass(frozen=True, slots=True)
class ReducedSet:
    """A set without the nodes that are better retained, and its proposal.

    It is empty if no part of the set can be removed.
    """

    candidates: tuple[Candidate, ...]
    proposal: Proposal | CandidateRefusal


def propose_set_removal(
    candidates: Sequence[Candidate],
    work: DisruptionPass,
    pod_values: Mapping[str, float],
    closed: Collection[str] = (),
) -> ReducedSet:
    """Return which of the nodes can be removed together, and how, or the rejection.

    ``pod_values`` are each pod's share of the price of a new node. Nodes that are ``closed`` take
    none of the pods.
    """
    simulation = work.simulation
    least = {c.name: least_savings(c, work.settings, work.now) for c in candidates}
    question = None
    if work.refusals.compares():
        question = set_question(candidates, simulation, pod_values, closed, least)
    cached = work.refusals.find(question) if question is not None else None
    if (
        cached is not None
        and simulation.spent + simulation.examined_nodes(cached.effort) < work.work_max
    ):
        simulation.count_effort(cached.effort)
        return ReducedSet(tuple(c for c in candidates if c.name in cached.left), cached.refusal)
    before = simulation.effort
    reduced = _reduce_set(candidates, work, pod_values, closed, least)
    if (
        question is not None
        and isinstance(reduced.proposal, CandidateRefusal)
        and simulation.spent < work.work_max
    ):
        left = frozenset(candidate.name for candidate in reduced.candidates)
        refused = RefusedSet(left, reduced.proposal, simulation.effort.since(before))
        work.refusals.store(question, refused)
    return reduced


def _reduce_set(
    candidates: Sequence[Candidate],
    work: DisruptionPass,
    pod_values: Mapping[str, float],
    closed: Collection[str],
    least: Mapping[str, float],
) -> ReducedSet:
    gate = work.settings.gate(FeatureGate.SPOT_TO_SPOT_CONSOLIDATION)
    chosen = tuple(candidates)
    for turn in range(_TURNS_MAX):
        if not chosen or work.simulation.spent >= work.work_max:
            break
        outcome = work.simulation.simulate_removal(
            chosen, consolidating=True, closed=closed, pod_values=pod_values
        )
        evaluated = EvaluatedSet(chosen)
        claims = outcome.placement.claims
        open_to_spot = not gate and _may_renew_spot(chosen, work)
        limits = _spot_limits(claims, evaluated) if open_to_spot else None
        if not gate and limits is None and len(chosen) > 1:
            claims = tuple(_on_demand_instead(claim, evaluated) for claim in claims)
        retained = nodes_to_retain(
            evaluated,
            claims,
            outcome.unplaced,
            pod_values,
            turn,
            gate=gate or limits is not None,
            least=least,
        )
        if not retained:
            if len(claims) > REPLACEMENTS_MAX:
                text = f"Can't remove without creating {len(claims)} candidates"
                return ReducedSet(chosen, CandidateRefusal(BlockCode.SEVERAL_REPLACEMENTS, text))
            found = _narrow_claims(evaluated, claims, outcome.placement, work, limits or {})
            if not isinstance(found, set):
                return ReducedSet(chosen, found)
            retained = found
        chosen = tuple(candidate for candidate in chosen if candidate.name not in retained)
    return ReducedSet((), _NOT_CHEAPER)


def _narrow_claims(
    evaluated: EvaluatedSet,
    claims: Sequence[PlannedClaim],
    placement: Placement,
    work: DisruptionPass,
    spot_limits: Mapping[str, float],
) -> Proposal | CandidateRefusal | set[str]:
    """Return the proposal with each claim narrowed to cheap enough types, or the rejection.

    ``spot_limits`` are the prices below which spot nodes replace spot nodes without the gate. A set
    contains the names of nodes without which a proposal may be possible.
    """
    narrowed: list[PlannedClaim] = []
    retained: set[str] = set()
    for claim in claims:
        found = _narrow_claim(claim, evaluated, work, spot_limits.get(claim.name))
        if isinstance(found, CandidateRefusal):
            retained.update(candidate.name for candidate in evaluated.nodes_of(claim))
        else:
            narrowed.append(found)
    if retained:
        return retained
    limited = _limit_total_price(narrowed, evaluated.price)
    if isinstance(limited, CandidateRefusal):
        return limited
    proposal = Proposal(tuple(evaluated.candidates), placement, limited)
    if len(limited) > 1 and proposal.savings < evaluated.price * MINIMUM_SAVED:
        text = f"the replacements save less than {MINIMUM_SAVED:.0%} of the cost"
        return CandidateRefusal(BlockCode.SEVERAL_REPLACEMENTS, text)
    refusal = repeat_refusal(evaluated.candidates, limited, work.now) if len(limited) > 1 else None
    return refusal or proposal


def _narrow_claim(
    claim: PlannedClaim,
    evaluated: EvaluatedSet,
    work: DisruptionPass,
    spot_limit: float | None,
) -> PlannedClaim | CandidateRefusal:
    """Return one claim narrowed by the rules for a single replacement."""
    found: PlannedClaim | CandidateRefusal
    if spot_limit is not None:
        found = filter_by_price(restrict_to_capacity_type(claim, SPOT), spot_limit)
    elif is_spot_to_spot(claim, evaluated):
        found = restrict_to_cheaper_spot(
            claim, evaluated.price, work, single=len(evaluated.nodes_of(claim)) == 1
        )
    else:
        found = filter_by_price(claim, evaluated.price)
        if isinstance(found, PlannedClaim):
            found = pin_capacity_type(found)
    if isinstance(found, CandidateRefusal) or len(evaluated.candidates) == 1:
        return found
    bound = min((price for price, _ in evaluated.matching_nodes(claim)), default=inf)
    return filter_by_price(found, bound)


def _limit_total_price(
    claims: Sequence[PlannedClaim], price: float
) -> tuple[PlannedClaim, ...] | CandidateRefusal:
    """Return the claims, with types of which any choice costs less than ``price`` in total.

    The difference to the cheapest choice is shared equally among them.
    """
    if not claims:
        return ()
    least = [lowest_worst_launch_price(claim) for claim in claims]
    spare = (price - sum(least)) / len(claims)
    if spare <= 0:
        return _NOT_CHEAPER
    found: list[PlannedClaim] = []
    for claim, lowest in zip(claims, least, strict=True):
        narrowed = filter_by_price(claim, lowest + spare)
        if isinstance(narrowed, CandidateRefusal):
            return narrowed
        found.append(replace(narrowed, types_total=len(narrowed.types)))
    return tuple(found)
