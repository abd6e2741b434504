"""Thorough consolidation: evaluate sets of nodes that Karpenter's prefix search does not try.

The replacement of a set is packed for cost and may be several nodes. The sets include single nodes:
one may be replaced by two cheaper ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.consolidation.multinode import select_within_budget
from reconciler.disruption.consolidation.proposal import (
    REASON,
    Proposal,
    consolidation_candidates,
    score_proposal,
)
from reconciler.disruption.consolidation.sets import ReducedSet, propose_set_removal
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.guards import retry_hold
from reconciler.model.grouping import group_by
from reconciler.model.karpenter.labels import ZONE
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import ConsolidationSearch

_SMALL_SIZES: Final = (16, 8, 4, 2, 1)
_LARGE_SIZES: Final = (64, 32)
_MINIMUM_PART: Final = 0.4
_MINIMUM_WASTE: Final = 0.05
"""The minimum share of its price that a node or a set must waste to be evaluated."""
_MINIMUM_WASTE_BY_DEFAULT: Final = 0.15
"""The same for the default search: what wastes less often moves pods for nothing (decision 21)."""

EVALUATED_MAX: Final = 24
"""Maximum number of sets that a pass evaluates in one way."""
_NODES_MAX: Final = 400
"""Maximum number of nodes that are evaluated at once."""
_NODES_LEAST: Final = 8
"""A set of this size or smaller is removed completely or not at all."""
_SINGLE_NODES: Final = 3
"""How many single nodes the default search evaluates for a replacement by several nodes."""
_SHARE_OF_WORK: Final = 0.75
"""The share of a pass's remaining work that may be spent on evaluating sets."""
_SEARCH_NAME: Final = "thorough consolidation"


def waste_by_node(
    candidates: Iterable[Candidate], pod_values: Mapping[str, float]
) -> dict[str, float]:
    """Return the waste of each node by name: its price above the minimum for its pods."""
    return {
        c.name: c.price - sum(pod_values.get(pod.key, 0.0) for pod in c.moving_pods)
        for c in candidates
    }


def wasteful_candidates(
    candidates: Iterable[Candidate], waste: Mapping[str, float]
) -> list[Candidate]:
    """Return the nodes that are worth evaluating, most wasteful first."""
    found = [c for c in candidates if waste[c.name] > _MINIMUM_WASTE * c.price]
    return _sort_by_waste(found, waste)


def _sort_by_waste(candidates: Iterable[Candidate], waste: Mapping[str, float]) -> list[Candidate]:
    return sorted(candidates, key=lambda c: (-waste[c.name], c.name))


def split_into_parts(candidates: Sequence[Candidate]) -> list[Sequence[Candidate]]:
    """Return the nodes by NodePool; if there is only one NodePool, in two halves."""
    by_pool = list(group_by(candidates, _pool).values())
    if len(by_pool) > 1:
        return sorted(by_pool, key=lambda part: part[0].pool.name)
    middle = len(candidates) // 2
    return [candidates[:middle], candidates[middle:]]


def small_sets(
    candidates: Sequence[Candidate], waste: Mapping[str, float], minimum: float = _MINIMUM_WASTE
) -> Iterator[tuple[Candidate, ...]]:
    """Yield small sets that waste more than a share, most wasteful first, without duplicates."""
    sets = _overlapping_windows(_candidate_orders(candidates, waste), _SMALL_SIZES)
    return _rank_sets(sets, waste, minimum)


def sets_by_requirements(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield sets of nodes whose pods have the same requirements, most wasteful first, unique."""
    by_need: dict[Hashable, list[Candidate]] = {}
    for candidate in _sort_by_waste(candidates, waste):
        counts = Counter(_pod_requirements(pod) for pod in candidate.moving_pods)
        for need, count in counts.items():
            if count >= _MINIMUM_PART * len(candidate.moving_pods):
                by_need.setdefault(need, []).append(candidate)
    return _rank_sets(_overlapping_windows(by_need.values(), _LARGE_SIZES), waste)


def _overlapping_windows(
    groups: Iterable[Sequence[Candidate]], sizes: Sequence[int]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield windows of neighbours in each group, each overlapping the next by half."""
    for group in groups:
        for size in sizes:
            for start in range(0, max(len(group) - size, 0) + 1, max(size // 2, 1)):
                yield tuple(group[start : start + size])


def _rank_sets(
    sets: Iterable[tuple[Candidate, ...]],
    waste: Mapping[str, float],
    minimum: float = _MINIMUM_WASTE,
) -> Iterator[tuple[Candidate, ...]]:
    """Yield each set that wastes more than a share of its price once, most wasteful first."""
    by_names = {frozenset(c.name for c in members): members for members in sets}
    ranked: list[tuple[float, tuple[str, ...], tuple[Candidate, ...]]] = []
    for key, members in by_names.items():
        names = tuple(sorted(key))
        total = sum(waste[name] for name in names)
        if total > minimum * sum(c.price for c in members):
            ranked.append((-total, names, members))
    ranked.sort(key=lambda row: row[:2])
    return (members for _, _, members in ranked)


def _candidate_orders(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[Sequence[Candidate]]:
    """Yield candidates in the orders from which sets are taken."""
    ordered = _sort_by_waste(candidates, waste)
    for key in (_fleet, _pool, _pool_and_zone, _node_requirements):
        yield from group_by(ordered, key).values()
    by_price = sorted(candidates, key=lambda c: (c.price, c.name))
    yield from group_by(by_price, _pool).values()


def _fleet(_: Candidate) -> Hashable:
    return None


def _pool(candidate: Candidate) -> str:
    return candidate.pool.name


def _pool_and_zone(candidate: Candidate) -> Hashable:
    return candidate.pool.name, candidate.node.labels.get(ZONE)


def _node_requirements(candidate: Candidate) -> Hashable:
    """Return the requirements that the pods of a node have on any node."""
    return frozenset(map(_pod_requirements, candidate.moving_pods))


def _pod_requirements(pod: Pod) -> Hashable:
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


class Search:
    """The search of one pass; some work is reserved for single nodes, which are evaluated later."""

    def __init__(self, candidates: Sequence[Candidate], work: DisruptionPass) -> None:
        self.has_started = False
        self._work = work
        self._free = candidates
        self._pod_values = work.simulation.pod_values(
            [pod for c in candidates for pod in c.moving_pods]
        )
        self._waste = waste_by_node(candidates, self._pod_values)
        spent = work.simulation.spent
        self._most = spent + (work.work_max - spent) * _SHARE_OF_WORK

    def evaluate_all(self) -> None:
        """Evaluate all wasteful nodes, and start what can be removed.

        A part does not place pods on nodes that belong to another part, because they would move
        twice.
        """
        waiting: list[Sequence[Candidate]] = [wasteful_candidates(self._free, self._waste)]
        in_other_parts: set[str] = set()
        while waiting:
            chosen = select_within_budget(waiting.pop(0), self._work)
            if len(chosen) > _NODES_MAX:
                waiting[:0] = split_into_parts(chosen)
                continue
            if not chosen:
                continue
            if self._is_spent():
                self._stop("reached its work limit before it had considered all wasteful nodes")
                return
            names = {candidate.name for candidate in chosen}
            reduced = self._evaluate(chosen, in_other_parts - names)
            left = {candidate.name for candidate in reduced.candidates}
            in_other_parts -= names
            if isinstance(reduced.proposal, Proposal):
                self._start(reduced.proposal)
            elif len(left) > _NODES_LEAST:
                waiting[:0] = split_into_parts(reduced.candidates)
                in_other_parts |= left

    def evaluate_by_requirements(self) -> None:
        """Evaluate nodes whose pods have the same requirements; start the sets that save most."""
        self._evaluate_sets(sets_by_requirements(self._free, self._waste))

    def evaluate_small_sets(self) -> None:
        """Evaluate small sets, and start those that save most."""
        self._evaluate_sets(small_sets(self._free, self._waste))

    def evaluate_most_wasteful_sets(self) -> None:
        """Evaluate only the most wasteful set of several nodes, and a few single nodes."""
        sets = list(small_sets(self._free, self._waste, _MINIMUM_WASTE_BY_DEFAULT))
        several = islice((chosen for chosen in sets if len(chosen) > 1), 1)
        single = islice((chosen for chosen in sets if len(chosen) == 1), _SINGLE_NODES)
        self._evaluate_sets([*several, *single])

    def _evaluate_sets(self, sets: Iterable[Sequence[Candidate]]) -> None:
        """Evaluate all sets before starting any, because small savings may prevent larger ones."""
        found: list[Proposal] = []
        evaluated = 0
        for chosen in sets:
            allowed = select_within_budget(chosen, self._work)
            if not allowed:
                continue
            if evaluated == EVALUATED_MAX or self._is_spent():
                self._stop(f"considered only the {evaluated} most wasteful sets")
                break
            evaluated += 1
            proposal = self._evaluate(allowed).proposal
            if isinstance(proposal, Proposal):
                found.append(proposal)
        found.sort(key=lambda proposal: -proposal.net_savings(self._work))
        for proposal in found:
            current = self._reevaluate(proposal)
            if current is not None:
                self._start(current)

    def _reevaluate(self, proposal: Proposal) -> Proposal | None:
        """Return the set's proposal after earlier commands, None if they affect its nodes."""
        if len(select_within_budget(proposal.candidates, self._work)) < len(proposal.candidates):
            return None
        if not self.has_started:
            return proposal
        if not self._work.has_work_left(_SEARCH_NAME):
            return None
        again = self._evaluate(proposal.candidates).proposal
        return again if isinstance(again, Proposal) else None

    def _evaluate(
        self, candidates: Sequence[Candidate], closed: Collection[str] = ()
    ) -> ReducedSet:
        """Return how nodes can be removed, after the checks of settings and Balanced pools."""
        reduced = propose_set_removal(candidates, self._work, self._pod_values, closed)
        if isinstance(reduced.proposal, Proposal):
            return ReducedSet(reduced.candidates, score_proposal(reduced.proposal, self._work))
        return reduced

    def _start(self, proposal: Proposal) -> None:
        proposal.start(self._work)
        self._work.has_merged = self.has_started = True

    def _is_spent(self) -> bool:
        return self._work.simulation.spent > self._most

    def _stop(self, text: str) -> None:
        text = f"{_SEARCH_NAME} {text}"
        if text not in self._work.limits_hit:
            self._work.limits_hit.append(text)


class ThoroughConsolidation:
    """Evaluates all wasteful nodes at once, then those whose pods have the same requirements.

    It only considers nodes of NodePools with ``consolidation.search: thorough``.
    """

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        search = None if work.has_merged else _search(work)
        if search is None:
            return
        search.evaluate_all()
        if not search.has_started:
            search.evaluate_by_requirements()
        work.used_thorough_search = search.has_started


class SmallSets:
    """Evaluates small sets of nodes, if no other consolidation method found anything."""

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        if any(command.reason is REASON for command in work.commands):
            return
        search = _search(work)
        if search is not None:
            search.evaluate_small_sets()


class MostWastefulSets:
    """Evaluates the most wasteful sets of the nodes with the default search, if all else failed.

    Karpenter stops here. One set of several nodes and a few single nodes in each pass find much of
    what is left to save, in a fraction of the time of the thorough search. A single node often
    wastes money because a rollout has mixed pods on it: one pod needs an on-demand node, and the
    others would run on spot.
    """

    reason: Final = REASON

    def decide(self, work: DisruptionPass) -> None:
        if any(command.reason is REASON for command in work.commands):
            return
        if work.simulation.spent >= work.work_max:
            return
        free = _free_candidates(work, ConsolidationSearch.DEFAULT)
        if free:
            Search(free, work).evaluate_most_wasteful_sets()


def _search(work: DisruptionPass) -> Search | None:
    """Return the search over the nodes with thorough consolidation, None without such nodes."""
    if not any(work.search_of(name) is ConsolidationSearch.THOROUGH for name in work.pools):
        return None
    free = _free_candidates(work, ConsolidationSearch.THOROUGH)
    return Search(free, work) if free else None


def _free_candidates(work: DisruptionPass, search: ConsolidationSearch) -> list[Candidate]:
    """Return the candidates with a search that no command affects, and no failure delays.

    A node with a pod that no other node can take stays, so no set of nodes contains it.
    """
    return [
        candidate
        for candidate in consolidation_candidates(work)
        if work.search_of(candidate.pool.name) is search
        and work.is_free(candidate)
        and retry_hold([candidate], work.now) is None
        and not work.simulation.strands(candidate)
    ]
