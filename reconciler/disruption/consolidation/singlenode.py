"""Single-node consolidation: one node goes, for nothing or for one that is cheaper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from math import sqrt
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode, WaitsFor
from reconciler.disruption.consolidation.balanced import is_balanced, may_pass, score_move
from reconciler.disruption.consolidation.proposal import (
    REASON,
    Proposal,
    compute,
    consolidatable,
    scored,
)
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.gates.policy import Hold
from reconciler.disruption.methods.emptiness import by_ratio

COMMANDS_MAX: Final = 10
"""How many nodes go one by one in a pass.

Each command takes room and leaves nodes alone that the next ones would have used; after some, it
is better to look again. Ten end at a cheaper fleet with fewer commands than one (Karpenter) or
as many as there are.
"""


class SingleNodeConsolidation:
    """Asks of each node by itself, and starts what saves most for what it disturbs first.

    Karpenter starts the first that saves anything, and then moves the same pods again when it
    comes to a node that saves more. Equals keep its order: the best candidates of every pool in
    turn.
    """

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if work.has_merged:
            return
        found: list[Proposal] = []
        for candidate in in_turn(consolidatable(work)):
            if not work.is_free(candidate) or work.left(candidate, self.reason) == 0:
                continue
            if not work.has_work_left("single-node consolidation"):
                break
            proposal = self._asked(candidate, work)
            if proposal is not None:
                found.append(proposal)
        found.sort(key=_gain, reverse=True)
        self._start(found, work)

    def _start(self, found: Iterable[Proposal], work: Deliberation) -> None:
        """Start the proposals in order, each as it is after those before it."""
        started = 0
        for proposal in found:
            (candidate,) = proposal.candidates
            if not work.is_free(candidate) or work.left(candidate, self.reason) == 0:
                continue
            current: Proposal | None = proposal
            if started:
                if not work.has_work_left("single-node consolidation"):
                    return
                current = self._asked(candidate, work)
            if current is not None:
                current.start(work)
                started += 1
            if started == COMMANDS_MAX:
                return

    def _asked(self, candidate: Candidate, work: Deliberation) -> Proposal | None:
        """Return how the node can go by itself; None with a «no» that is kept."""
        if is_balanced(candidate):
            totals = work.totals.get(candidate.pool.name)
            if totals is not None and not may_pass(candidate.price, candidate.cost, totals):
                score = score_move(candidate.price, candidate.cost, totals)
                text = f'NodePool "{candidate.pool.name}": {score}'
                work.refuse(candidate, self.reason, CandidateRefusal(BlockCode.SCORE, text))
                return None
        proposal = compute([candidate], work)
        if not isinstance(proposal, CandidateRefusal):
            proposal = scored(proposal, work)
        if isinstance(proposal, Proposal):
            return proposal
        if proposal.until is not None:
            hold = Hold(WaitsFor.POLICY, proposal.until, proposal.message)
            work.defer(candidate, self.reason, hold)
        else:
            work.refuse(candidate, self.reason, proposal)
        return None


def _gain(proposal: Proposal) -> float:
    """Return by what moves are ordered: dollars for the square root of the disruption.

    By dollars alone pods move oftener, by dollars for each pod the fleet ends dearer.
    """
    (candidate,) = proposal.candidates
    return proposal.savings / sqrt(candidate.cost)


def in_turn(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the best of each pool, then the second best of each; pools by name.

    No pool has to wait until another, larger one has been looked through.
    """
    by_pool: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=by_ratio):
        by_pool.setdefault(candidate.pool.name, []).append(candidate)
    for row in zip_longest(*(by_pool[name] for name in sorted(by_pool))):
        yield from (candidate for candidate in row if candidate is not None)
