"""Thorough consolidation: evaluate sets of nodes that Karpenter's prefix search does not try.

The replacement of a set is packed for cost and may be several nodes. The sets include single nodes:
one may be replaced by two cheaper ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.consolidation.multinode import within_budget
from reconciler.disruption.consolidation.proposal import REASON, Proposal, consolidatable, scored
from reconciler.disruption.consolidation.sets import ReducedSet, compute_several
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.gates.guards import resting
from reconciler.model.karpenter.labels import ZONE
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import ConsolidationSearch

_SMALL: Final = (16, 8, 4, 2, 1)
_LARGE: Final = (64, 32)
_GOOD_PART: Final = 0.4
_WORTH_ASKING: Final = 0.05
"""The minimum share of its price that a node or a set must waste to be evaluated."""


def by_waste(candidates: Iterable[Candidate], worth: Mapping[str, float]) -> dict[str, float]:
    """Return the waste of each node by name: its price above the minimum for its pods."""
    return {c.name: c.price - sum(worth.get(pod.key, 0.0) for pod in c.moving) for c in candidates}


def wasteful(candidates: Iterable[Candidate], waste: Mapping[str, float]) -> list[Candidate]:
    """Return the nodes that are worth evaluating, most wasteful first."""
    found = [c for c in candidates if waste[c.name] > _WORTH_ASKING * c.price]
    return _most_wasteful_first(found, waste)


def _most_wasteful_first(
    candidates: Iterable[Candidate], waste: Mapping[str, float]
) -> list[Candidate]:
    return sorted(candidates, key=lambda c: (-waste[c.name], c.name))


def parts(candidates: Sequence[Candidate]) -> list[Sequence[Candidate]]:
    """Return the nodes by NodePool; if there is only one NodePool, in two halves."""
    by_pool = list(_parted(candidates, _pool))
    if len(by_pool) > 1:
        return sorted(by_pool, key=lambda part: part[0].pool.name)
    middle = len(candidates) // 2
    return [candidates[:middle], candidates[middle:]]


def small_sets(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield small sets worth evaluating, most wasteful first, without duplicates."""
    return _rated(_cut(_groups(candidates, waste), _SMALL), waste)


def sets_by_need(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield sets of nodes whose pods have the same requirements, most wasteful first, unique."""
    by_need: dict[Hashable, list[Candidate]] = {}
    for candidate in _most_wasteful_first(candidates, waste):
        counts = Counter(_need(pod) for pod in candidate.moving)
        for need, count in counts.items():
            if count >= _GOOD_PART * len(candidate.moving):
                by_need.setdefault(need, []).append(candidate)
    return _rated(_cut(by_need.values(), _LARGE), waste)


def _cut(
    groups: Iterable[Sequence[Candidate]], sizes: Sequence[int]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield windows of neighbours in each group, each overlapping the next by half."""
    for group in groups:
        for size in sizes:
            for start in range(0, max(len(group) - size, 0) + 1, max(size // 2, 1)):
                yield tuple(group[start : start + size])


def _rated(
    chosen: Iterable[tuple[Candidate, ...]], waste: Mapping[str, float]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield each set worth evaluating once, most wasteful first."""
    found = {frozenset(c.name for c in one): one for one in chosen}
    rated: list[tuple[float, tuple[str, ...], tuple[Candidate, ...]]] = []
    for members, one in found.items():
        names = tuple(sorted(members))
        total = sum(waste[name] for name in names)
        if total > _WORTH_ASKING * sum(c.price for c in one):
            rated.append((-total, names, one))
    rated.sort(key=lambda row: row[:2])
    return (one for _, _, one in rated)


def _groups(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[Sequence[Candidate]]:
    """Yield candidates in the orders from which sets are taken."""
    ordered = _most_wasteful_first(candidates, waste)
    for key in (_fleet, _pool, _pool_and_zone, _needs):
        yield from _parted(ordered, key)
    by_price = sorted(candidates, key=lambda c: (c.price, c.name))
    yield from _parted(by_price, _pool)


def _parted(
    candidates: Iterable[Candidate], key: Callable[[Candidate], Hashable]
) -> Iterable[list[Candidate]]:
    found: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        found.setdefault(key(candidate), []).append(candidate)
    return found.values()


def _fleet(_: Candidate) -> Hashable:
    return None


def _pool(candidate: Candidate) -> str:
    return candidate.pool.name


def _pool_and_zone(candidate: Candidate) -> Hashable:
    return candidate.pool.name, candidate.node.labels.get(ZONE)


def _needs(candidate: Candidate) -> Hashable:
    """Return the requirements that the pods of a node have on any node."""
    return frozenset(map(_need, candidate.moving))


def _need(pod: Pod) -> Hashable:
    """Return the requirements that a pod's spec has on any node."""
    return tuple(sorted(pod.spec.node_selector.items())), pod.spec.tolerations


# The search of thorough consolidation.
#
# The linear program behind the bound gives the value of each pod: what new nodes for it add to the
# minimum cost. A node that costs more than the value of its pods wastes the difference. First all
# wasteful nodes are evaluated at once, as if their pods were placed from scratch, and those that
# are better retained are left out. If the rest needs more new nodes than one command may launch, it
# is split into parts. If that finds nothing, sets of nodes whose pods have the same requirements
# are evaluated, and if nothing else is found, small sets, most wasteful first.


ASKED_MAX: Final = 24
"""Maximum number of sets that a pass evaluates in one way."""
_NODES_MAX: Final = 400
"""Maximum number of nodes that are evaluated at once."""
_NODES_LEAST: Final = 8
"""A set of this size or smaller is removed completely or not at all."""
_SHARE_OF_WORK: Final = 0.75
"""The share of a pass's remaining work that may be spent on evaluating sets."""
_DOING: Final = "thorough consolidation"


class Search:
    """The search of one pass; some work is reserved for single nodes, which are evaluated later."""

    def __init__(self, free: Sequence[Candidate], work: Deliberation) -> None:
        self.has_started = False
        self._work = work
        self._free = free
        self._worth = work.simulation.worth([pod for c in free for pod in c.moving])
        self._waste = by_waste(free, self._worth)
        spent = work.simulation.spent
        self._most = spent + (work.work_max - spent) * _SHARE_OF_WORK

    def at_once(self) -> None:
        """Evaluate all wasteful nodes, and start what can be removed.

        A part does not place pods on nodes that belong to another part, because they would move
        twice.
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
        """Evaluate nodes whose pods have the same requirements; start the sets that save most."""
        self._among(sets_by_need(self._free, self._waste))

    def by_sets(self) -> None:
        """Evaluate small sets, and start those that save most."""
        self._among(small_sets(self._free, self._waste))

    def by_one_set(self) -> None:
        """Evaluate only the most wasteful set of several nodes."""
        several = (chosen for chosen in small_sets(self._free, self._waste) if len(chosen) > 1)
        self._among(islice(several, 1))

    def _among(self, every: Iterable[Sequence[Candidate]]) -> None:
        """All sets are evaluated before any is started: small savings may prevent larger ones."""
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
        """Return the set's proposal after earlier commands, None if they affect its nodes."""
        if len(within_budget(proposal.candidates, self._work)) < len(proposal.candidates):
            return None
        if not self.has_started:
            return proposal
        if not self._work.has_work_left(_DOING):
            return None
        again = self._asked(proposal.candidates).proposal
        return again if isinstance(again, Proposal) else None

    def _asked(self, candidates: Sequence[Candidate], closed: Collection[str] = ()) -> ReducedSet:
        """Return how nodes can be removed, after the checks of settings and Balanced pools."""
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
    """Evaluates all wasteful nodes at once, then those whose pods have the same requirements.

    It only considers nodes of NodePools with ``consolidation.search: thorough``.
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
    """Evaluates small sets of nodes, if no other consolidation method found anything."""

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if any(command.reason is REASON for command in work.commands):
            return
        search = _search(work)
        if search is not None:
            search.by_sets()


class MostWastefulSet:
    """Evaluates the most wasteful set of the nodes with the default search, if all else failed.

    Karpenter stops here. One set in each pass finds much of what is left to save, in a fraction of
    the time of the thorough search.
    """

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if any(command.reason is REASON for command in work.commands):
            return
        if work.simulation.spent >= work.work_max:
            return
        free = _free(work, ConsolidationSearch.DEFAULT)
        if len(free) > 1:
            Search(free, work).by_one_set()


def _search(work: Deliberation) -> Search | None:
    """Return the search over the nodes with thorough consolidation, None without such nodes."""
    if not _is_wanted(work):
        return None
    free = _free(work, ConsolidationSearch.THOROUGH)
    return Search(free, work) if free else None


def _free(work: Deliberation, search: ConsolidationSearch) -> list[Candidate]:
    """Return the candidates with a search that no command affects, and no failure delays."""
    return [
        candidate
        for candidate in consolidatable(work)
        if work.search_of(candidate.pool.name) is search
        and work.is_free(candidate)
        and resting([candidate], work.now) is None
    ]


def _is_wanted(work: Deliberation) -> bool:
    return any(work.search_of(name) is ConsolidationSearch.THOROUGH for name in work.pools)
