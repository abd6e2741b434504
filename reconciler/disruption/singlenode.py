"""Single-node consolidation: one node goes, for nothing or for one that is cheaper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import Final

from reconciler.disruption.balanced import is_balanced, may_pass, score_move
from reconciler.disruption.candidates import Candidate, Refusal
from reconciler.disruption.command import BlockCode, WaitsFor
from reconciler.disruption.consolidation import REASON, compute, consolidatable, scored
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.emptiness import by_ratio
from reconciler.disruption.policy import Hold


class SingleNodeConsolidation:
    """Asks of each node by itself, the best candidates of every pool in turn."""

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if work.has_merged:
            return
        for candidate in in_turn(consolidatable(work)):
            if not work.is_free(candidate) or work.left(candidate, self.reason) == 0:
                continue
            if not work.has_work_left("single-node consolidation"):
                return
            self._consolidate(candidate, work)

    def _consolidate(self, candidate: Candidate, work: Deliberation) -> None:
        if is_balanced(candidate):
            totals = work.totals.get(candidate.pool.name)
            if totals is not None and not may_pass(candidate.price, candidate.cost, totals):
                score = score_move(candidate.price, candidate.cost, totals)
                text = f'NodePool "{candidate.pool.name}": {score}'
                work.refuse(candidate, self.reason, Refusal(BlockCode.SCORE, text))
                return
        proposal = compute([candidate], work)
        if not isinstance(proposal, Refusal):
            proposal = scored(proposal, work)
        if isinstance(proposal, Refusal) and proposal.until is not None:
            work.defer(
                candidate,
                self.reason,
                Hold(WaitsFor.POLICY, proposal.until, proposal.message),
            )
        elif isinstance(proposal, Refusal):
            work.refuse(candidate, self.reason, proposal)
        else:
            proposal.start(work)


def in_turn(candidates: Iterable[Candidate]) -> Iterator[Candidate]:
    """Yield the best of each pool, then the second best of each; pools by name.

    No pool has to wait until another, larger one has been looked through.
    """
    by_pool: dict[str, list[Candidate]] = {}
    for candidate in sorted(candidates, key=by_ratio):
        by_pool.setdefault(candidate.pool.name, []).append(candidate)
    for row in zip_longest(*(by_pool[name] for name in sorted(by_pool))):
        yield from (candidate for candidate in row if candidate is not None)
