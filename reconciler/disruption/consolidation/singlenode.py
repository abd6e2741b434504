"""Single-node consolidation: delete one node, or replace it by a cheaper one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from math import sqrt
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode
from reconciler.disruption.consolidation.balanced import is_balanced, may_pass, score_move
from reconciler.disruption.consolidation.proposal import (
    NOT_CHEAPER,
    REASON,
    Proposal,
    consolidation_candidates,
    propose_removal,
    score_proposal,
)
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.policy import Hold
from reconciler.disruption.methods.emptiness import savings_ratio_key
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.settings import ConsolidationSearch, FeatureGate

COMMANDS_MAX: Final = 20
"""Maximum number of single-node commands in a pass.

Each command uses room and excludes nodes that later ones would have used, so after some commands a
new pass is better. Twenty give a cheaper fleet with fewer passes than one (as in Karpenter) or an
unlimited number.
"""


class SingleNodeConsolidation:
    """Evaluates each node separately, and starts with the highest savings for the disruption.

    Karpenter starts the first node that saves anything, and then moves the same pods again when it
    reaches a node that saves more. Ties keep Karpenter's order: the best candidate of each pool in
    turn. The search ends with a node of a NodePool that asks for Karpenter's, as Karpenter's does.
    """

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        if work.has_merged:
            return
        found: list[Proposal] = []
        for candidate in interleave_pools(consolidation_candidates(work)):
            if not work.is_free(candidate) or work.allowed_disruptions(candidate, self.reason) == 0:
                continue
            if not work.has_work_left("single-node consolidation"):
                break
            proposal = self._evaluate(candidate, work)
            if proposal is not None:
                found.append(proposal)
                if _ends_search(candidate, work):
                    break
        found.sort(key=lambda proposal: _move_gain(proposal, work), reverse=True)
        self._start(found, work)

    def _start(self, found: Iterable[Proposal], work: DisruptionPass) -> None:
        """Start the proposals in order, each recomputed after the previous ones."""
        started = 0
        for proposal in found:
            (candidate,) = proposal.candidates
            if not work.is_free(candidate) or work.allowed_disruptions(candidate, self.reason) == 0:
                continue
            current: Proposal | None = proposal
            if started:
                if not work.has_work_left("single-node consolidation"):
                    return
                current = self._evaluate(candidate, work)
            if current is not None:
                current.start(work)
                started += 1
            if started == COMMANDS_MAX:
                return

    def _evaluate(self, candidate: Candidate, work: DisruptionPass) -> Proposal | None:
        """Return how the node can be removed by itself, or None after recording the rejection."""
        if is_balanced(candidate):
            totals = work.totals.get(candidate.pool.name)
            if totals is not None and not may_pass(candidate.price, candidate.cost, totals):
                score = score_move(candidate.price, candidate.cost, totals)
                text = f'NodePool "{candidate.pool.name}": {score}'
                work.refuse(candidate, self.reason, CandidateRefusal(BlockCode.SCORE, text))
                return None
        if not work.states_reasons and _saves_nothing(candidate, work):
            work.refuse(candidate, self.reason, NOT_CHEAPER)
            return None
        proposal = propose_removal([candidate], work)
        if not isinstance(proposal, CandidateRefusal):
            proposal = score_proposal(proposal, work)
        if isinstance(proposal, Proposal):
            return proposal
        if proposal.until is not None:
            hold = Hold(WaitsFor.POLICY, proposal.until, proposal.message, proposal.rule)
            work.defer(candidate, self.reason, hold)
        else:
            work.refuse(candidate, self.reason, proposal)
        return None


def _saves_nothing(candidate: Candidate, work: DisruptionPass) -> bool:
    """Return whether a replacement certainly saves nothing, or may not be launched.

    Only a simulation shows which of the two.
    """
    spot_for_spot = work.settings.gate(FeatureGate.SPOT_TO_SPOT_CONSOLIDATION)
    spot = spot_for_spot or not candidate.is_spot
    return work.simulation.exceeds_price(candidate, spot=spot)


def _ends_search(candidate: Candidate, work: DisruptionPass) -> bool:
    """Return whether no node is evaluated after one that saves something, as in Karpenter."""
    search = work.search_of(candidate.pool.name)
    return work.starts_one_command or search is ConsolidationSearch.KARPENTER


def _move_gain(proposal: Proposal, work: DisruptionPass) -> float:
    """Return the sort key of moves: net savings divided by the square root of the disruption cost.

    Sorting by savings alone moves pods more often; savings for each pod end at a costlier fleet.
    """
    (candidate,) = proposal.candidates
    return proposal.net_savings(work) / sqrt(candidate.cost)


def interleave_pools(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the best candidate of each pool, then the second best of each; pools by name.

    No pool has to wait until a larger one is finished.
    """
    by_pool: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=savings_ratio_key):
        by_pool.setdefault(candidate.pool.name, []).append(candidate)
    for row in zip_longest(*(by_pool[name] for name in sorted(by_pool))):
        yield from (candidate for candidate in row if candidate is not None)
