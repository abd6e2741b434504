"""Thorough consolidation: sets of nodes that a search of prefixes never looks at together.

What replaces a set is packed for its price and may be several nodes. Single nodes are among the
sets: one may go for two that are cheaper.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.consolidation import REASON, consolidatable
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.vain import resting

if TYPE_CHECKING:
    from reconciler.disruption.search import Search

THOROUGH: Final = "thorough"


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
    from reconciler.disruption.search import Search  # few configs want it

    return Search(free, work)


def _may_go(candidate: Candidate, work: Deliberation) -> bool:
    """Return whether no command touches the node, and it need not rest from one in vain."""
    return work.is_free(candidate) and resting([candidate], work.now) is None


def _is_wanted(work: Deliberation) -> bool:
    names = work.pools.keys()
    return any(work.settings.option(name, "consolidation_search") == THOROUGH for name in names)


def is_thorough(candidate: Candidate, work: Deliberation) -> bool:
    """Return whether the config asks for the thorough search of the node's NodePool."""
    return bool(work.settings.option(candidate.pool.name, "consolidation_search") == THOROUGH)
