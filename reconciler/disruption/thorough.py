"""Thorough consolidation: sets of nodes that a search of prefixes never looks at together.

The linear program behind the bound says what each pod is worth: the least that new nodes for it
add to the bill. A node that costs more than its pods are worth is wasteful by the difference.
Sets are made of the most wasteful nodes of the fleet, of a NodePool, of a NodePool in a zone, of
nodes whose pods need the same, and of neighbours in price; those that waste most are asked about
first, and what replaces them is packed for its price and may be several nodes.

It looks when the search of prefixes finds nothing. Single nodes are among its sets: one may go for
two that are cheaper.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.disruption.consolidation import REASON, Proposal, consolidatable, scored
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.multinode import within_budget
from reconciler.disruption.several import compute_several
from reconciler.model.labels import ZONE

THOROUGH: Final = "thorough"
ASKED_MAX: Final = 60
"""How many sets a pass asks about."""
_SIZES: Final = (16, 8, 4, 2, 1)
_WORTH_ASKING: Final = 0.05
"""The least share of its price that a set wastes before it is asked about."""


class ThoroughConsolidation:
    """Asks about sets by what they waste, and starts those that save enough.

    Only for nodes of NodePools with ``consolidation.search: thorough``.
    """

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if work.has_merged or not _is_wanted(work):
            return
        free = [c for c in consolidatable(work) if is_thorough(c, work) and work.is_free(c)]
        if not free:
            return
        waste = wasted(free, work)
        asked = 0
        for chosen in sets(free, waste):
            allowed = within_budget(chosen, work)
            if not allowed or not all(map(work.is_free, chosen)):
                continue
            if asked == ASKED_MAX:
                _stop(work)
                return
            if not work.has_work_left("thorough consolidation"):
                return
            asked += 1
            proposal = compute_several(allowed, work)
            if isinstance(proposal, Proposal):
                proposal = scored(proposal, work)
            if isinstance(proposal, Proposal):
                proposal.start(work)
                work.has_merged = work.searched = True


def _is_wanted(work: Deliberation) -> bool:
    names = work.pools.keys()
    return any(work.settings.option(name, "consolidation_search") == THOROUGH for name in names)


def is_thorough(candidate: Candidate, work: Deliberation) -> bool:
    """Return whether the config asks for the thorough search of the node's NodePool."""
    return bool(work.settings.option(candidate.pool.name, "consolidation_search") == THOROUGH)


def _stop(work: Deliberation) -> None:
    text = f"thorough consolidation asked about the {ASKED_MAX} most wasteful sets, and no more"
    if text not in work.limits_hit:
        work.limits_hit.append(text)


def wasted(candidates: Sequence[Candidate], work: Deliberation) -> dict[str, float]:
    """Return by how much each node costs more than new nodes for its pods need to, by name."""
    worth = work.simulation.worth([pod for c in candidates for pod in c.moving])
    return {c.name: c.price - sum(worth.get(pod.key, 0.0) for pod in c.moving) for c in candidates}


def sets(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[tuple[Candidate, ...]]:
    """Yield sets worth asking about, the most wasteful first; none twice."""
    found: dict[frozenset[str], tuple[Candidate, ...]] = {}
    for group in _groups(candidates, waste):
        for size in _SIZES:
            for start in range(0, max(len(group) - size, 0) + 1, max(size // 2, 1)):
                chosen = tuple(group[start : start + size])
                if chosen:
                    found.setdefault(frozenset(c.name for c in chosen), chosen)
    rated: list[tuple[float, tuple[str, ...], tuple[Candidate, ...]]] = []
    for chosen in found.values():
        total = sum(waste[c.name] for c in chosen)
        if total > _WORTH_ASKING * sum(c.price for c in chosen):
            rated.append((-total, tuple(sorted(c.name for c in chosen)), chosen))
    rated.sort(key=lambda row: row[:2])
    return (chosen for _, _, chosen in rated)


def _groups(
    candidates: Sequence[Candidate], waste: Mapping[str, float]
) -> Iterator[Sequence[Candidate]]:
    """Yield candidates in the orders from which sets are taken."""
    by_waste = sorted(candidates, key=lambda c: (-waste[c.name], c.name))
    for key in (_fleet, _pool, _pool_and_zone, _need):
        yield from _parted(by_waste, key)
    by_price = sorted(candidates, key=lambda c: (c.price, c.name))
    yield from _parted(by_price, _pool)


def _parted(
    candidates: Iterable[Candidate], key: Callable[[Candidate], Hashable]
) -> Iterable[list[Candidate]]:
    parts: dict[Hashable, list[Candidate]] = {}
    for candidate in candidates:
        parts.setdefault(key(candidate), []).append(candidate)
    return parts.values()


def _fleet(_: Candidate) -> Hashable:
    return None


def _pool(candidate: Candidate) -> Hashable:
    return candidate.pool.name


def _pool_and_zone(candidate: Candidate) -> Hashable:
    return candidate.pool.name, candidate.node.labels.get(ZONE)


def _need(candidate: Candidate) -> Hashable:
    """Return what the pods of a node ask of any node, as far as their specs name it."""
    return frozenset(
        (tuple(sorted(pod.spec.node_selector.items())), pod.spec.tolerations)
        for pod in candidate.moving
    )
