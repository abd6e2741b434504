"""Thorough consolidation: sets of nodes that a search of prefixes never looks at together.

What replaces a set is packed for its price and may be several nodes. Single nodes are among the
sets: one may go for two that are cheaper.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.consolidation.multinode import within_budget
from reconciler.disruption.consolidation.proposal import REASON, Proposal, consolidatable, scored
from reconciler.disruption.consolidation.sets import ReducedSet, compute_several
from reconciler.disruption.consolidation.waste import (
    by_waste,
    parts,
    sets_by_need,
    small_sets,
    wasteful,
)
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.gates.retries import resting
from reconciler.model.settings import ConsolidationSearch

# The search behind thorough consolidation.
#
# The linear program behind the bound says what each pod is worth: the least that new nodes for it
# add to the bill. A node that costs more than its pods are worth is wasteful by the difference.
# First all wasteful nodes are asked about at once, as if their pods were placed anew; those that
# are better kept are left out. Where what is left needs more new nodes than one command may
# launch, it goes in parts. When nothing goes like that, nodes are asked about whose pods need the
# same, and when nothing else is found at all, small sets; those that waste most first.


ASKED_MAX: Final = 24
"""How many sets a pass asks about in one way."""
_NODES_MAX: Final = 400
"""How many nodes are asked about at once."""
_NODES_LEAST: Final = 8
"""A set of no more nodes than these goes as a whole or not at all."""
_SHARE_OF_WORK: Final = 0.75
"""How much of the work that a pass has left may go into asking about sets."""
_DOING: Final = "thorough consolidation"


class Search:
    """The search of one pass; some of its work is kept for single nodes, which come after."""

    def __init__(self, free: Sequence[Candidate], work: Deliberation) -> None:
        self.has_started = False
        self._work = work
        self._free = free
        self._worth = work.simulation.worth([pod for c in free for pod in c.moving])
        self._waste = by_waste(free, self._worth)
        spent = work.simulation.spent
        self._most = spent + (work.work_max - spent) * _SHARE_OF_WORK

    def at_once(self) -> None:
        """Ask about all wasteful nodes, and start what can go.

        A part puts no pods on nodes that are to go with another part: they would move twice.
        """
        waiting: list[Sequence[Candidate]] = [wasteful(self._free, self._waste)]
        going: set[str] = set()
        while waiting:
            chosen = within_budget(waiting.pop(0), self._work)
            if len(chosen) > _NODES_MAX:
                waiting[:0] = parts(chosen)
                continue
            if not chosen:
                continue
            if self._is_spent():
                self._stop("reached its work limit before it had considered all wasteful nodes")
                return
            names = {candidate.name for candidate in chosen}
            answer = self._asked(chosen, going - names)
            left = {candidate.name for candidate in answer.candidates}
            going -= names
            if isinstance(answer.proposal, Proposal):
                self._start(answer.proposal)
            elif len(left) > _NODES_LEAST:
                waiting[:0] = parts(answer.candidates)
                going |= left

    def by_need(self) -> None:
        """Ask about nodes whose pods need the same, and start those sets that save most."""
        self._among(sets_by_need(self._free, self._waste))

    def by_sets(self) -> None:
        """Ask about small sets, and start those that save most."""
        self._among(small_sets(self._free, self._waste))

    def _among(self, every: Iterable[Sequence[Candidate]]) -> None:
        """All are asked about before any is started: a small saving may spoil a larger one."""
        found: list[Proposal] = []
        asked = 0
        for chosen in every:
            allowed = within_budget(chosen, self._work)
            if not allowed:
                continue
            if asked == ASKED_MAX or self._is_spent():
                self._stop(f"considered only the {asked} most wasteful sets")
                break
            asked += 1
            proposal = self._asked(allowed).proposal
            if isinstance(proposal, Proposal):
                found.append(proposal)
        found.sort(key=lambda proposal: -proposal.savings)
        for proposal in found:
            current = self._as_it_is_now(proposal)
            if current is not None:
                self._start(current)

    def _as_it_is_now(self, proposal: Proposal) -> Proposal | None:
        """Return how a set can go after what was started, None if that touches it."""
        if len(within_budget(proposal.candidates, self._work)) < len(proposal.candidates):
            return None
        if not self.has_started:
            return proposal
        if not self._work.has_work_left(_DOING):
            return None
        again = self._asked(proposal.candidates).proposal
        return again if isinstance(again, Proposal) else None

    def _asked(self, candidates: Sequence[Candidate], closed: Collection[str] = ()) -> ReducedSet:
        """Return how nodes can go, with the «no» of the config and of Balanced pools."""
        answer = compute_several(candidates, self._work, self._worth, closed)
        if isinstance(answer.proposal, Proposal):
            return ReducedSet(answer.candidates, scored(answer.proposal, self._work))
        return answer

    def _start(self, proposal: Proposal) -> None:
        proposal.start(self._work)
        self._work.has_merged = self.has_started = True

    def _is_spent(self) -> bool:
        return self._work.simulation.spent > self._most

    def _stop(self, text: str) -> None:
        text = f"{_DOING} {text}"
        if text not in self._work.limits_hit:
            self._work.limits_hit.append(text)


class ThoroughConsolidation:
    """Asks about all wasteful nodes at once, and then about those whose pods need the same.

    Only for nodes of NodePools with ``consolidation.search: thorough``.
    """

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        search = None if work.has_merged else _search(work)
        if search is None:
            return
        search.at_once()
        if not search.has_started:
            search.by_need()
        work.searched = search.has_started


class SmallSets:
    """Asks about small sets of nodes, when no other method of consolidation has found anything."""

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if any(command.reason is REASON for command in work.commands):
            return
        search = _search(work)
        if search is not None:
            search.by_sets()


def _search(work: Deliberation) -> Search | None:
    """Return the search among the nodes that are to be searched thoroughly, None without any."""
    if not _is_wanted(work):
        return None
    free = [c for c in consolidatable(work) if is_thorough(c, work) and _may_go(c, work)]
    if not free:
        return None

    return Search(free, work)


def _may_go(candidate: Candidate, work: Deliberation) -> bool:
    """Return whether no command touches the node, and it need not rest from one in vain."""
    return work.is_free(candidate) and resting([candidate], work.now) is None


def _is_wanted(work: Deliberation) -> bool:
    return any(_is_thorough(name, work) for name in work.pools)


def is_thorough(candidate: Candidate, work: Deliberation) -> bool:
    """Return whether the config asks for the thorough search of the node's NodePool."""
    return _is_thorough(candidate.pool.name, work)


def _is_thorough(pool: str, work: Deliberation) -> bool:
    return work.settings.pool(pool).consolidation_search == ConsolidationSearch.THOROUGH
