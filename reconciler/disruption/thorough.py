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
from reconciler.disruption.deliberation import WORK_MAX, Deliberation
from reconciler.disruption.multinode import within_budget
from reconciler.disruption.several import compute_several
from reconciler.model.labels import ZONE

THOROUGH: Final = "thorough"
ASKED_MAX: Final = 60
"""How many sets a pass asks about."""
_SIZES: Final = (64, 32, 16, 8, 4, 2, 1)
_SHARE_OF_WORK: Final = 0.75
"""How much of the work that a pass has left may go into asking about sets."""
_DOING: Final = "thorough consolidation"
_WORTH_ASKING: Final = 0.05
"""The least share of its price that a set wastes before it is asked about."""


class ThoroughConsolidation:
    """Asks about sets by what they waste, and starts those that save most.

    All are asked before any is started: a first small saving would take nodes from a larger one.
    Only for nodes of NodePools with ``consolidation.search: thorough``.
    """

    reason: Final = REASON

    def decide(self, work: Deliberation) -> None:
        if work.has_merged or not _is_wanted(work):
            return
        free = [c for c in consolidatable(work) if is_thorough(c, work) and work.is_free(c)]
        if not free:
            return
        found = _asked(free, work)
        found.sort(key=lambda proposal: -proposal.savings)
        for proposal in found:
            if not _may_all_go(proposal.candidates, work):
                continue
            current: Proposal | None = proposal
            if work.searched:
                if not work.has_work_left(_DOING):
                    return
                current = _proposed(proposal.candidates, work)
            if current is not None:
                current.start(work)
                work.has_merged = work.searched = True


def _asked(free: Sequence[Candidate], work: Deliberation) -> list[Proposal]:
    """Return how the most wasteful sets can go, each as if it went alone.

    Some work of the pass is kept for single nodes, which come after.
    """
    found: list[Proposal] = []
    most = work.simulation.spent + (WORK_MAX - work.simulation.spent) * _SHARE_OF_WORK
    asked = 0
    for chosen in sets(free, wasted(free, work)):
        allowed = within_budget(chosen, work)
        if not allowed:
            continue
        if asked == ASKED_MAX or work.simulation.spent > most:
            _stop(asked, work)
            break
        asked += 1
        proposal = _proposed(allowed, work)
        if proposal is not None:
            found.append(proposal)
    return found


def _proposed(candidates: Sequence[Candidate], work: Deliberation) -> Proposal | None:
    proposal = compute_several(candidates, work)
    if isinstance(proposal, Proposal):
        proposal = scored(proposal, work)
    return proposal if isinstance(proposal, Proposal) else None


def _may_all_go(candidates: Sequence[Candidate], work: Deliberation) -> bool:
    """Return whether nothing that was started since touches them or their budgets."""
    return len(within_budget(candidates, work)) == len(candidates)


def _is_wanted(work: Deliberation) -> bool:
    names = work.pools.keys()
    return any(work.settings.option(name, "consolidation_search") == THOROUGH for name in names)


def is_thorough(candidate: Candidate, work: Deliberation) -> bool:
    """Return whether the config asks for the thorough search of the node's NodePool."""
    return bool(work.settings.option(candidate.pool.name, "consolidation_search") == THOROUGH)


def _stop(asked: int, work: Deliberation) -> None:
    text = f"{_DOING} asked about the {asked} most wasteful sets, and no more"
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
