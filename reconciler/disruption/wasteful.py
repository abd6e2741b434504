"""Nodes by what they waste, and the sets in which they are asked about.

Sets are made of the most wasteful nodes of the fleet, of a NodePool, of a NodePool in a zone, of
nodes whose pods need the same, and of neighbours in price.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.model.labels import ZONE

_SIZES: Final = (16, 8, 4, 2, 1)
_WORTH_ASKING: Final = 0.05
"""The least share of its price that a node or a set wastes before it is asked about."""


def by_waste(candidates: Iterable[Candidate], worth: Mapping[str, float]) -> dict[str, float]:
    """Return by how much each node costs more than new nodes for its pods need to, by name."""
    return {c.name: c.price - sum(worth.get(pod.key, 0.0) for pod in c.moving) for c in candidates}


def wasteful(candidates: Iterable[Candidate], waste: Mapping[str, float]) -> list[Candidate]:
    """Return the nodes that are worth asking about, the most wasteful first."""
    found = [c for c in candidates if waste[c.name] > _WORTH_ASKING * c.price]
    return sorted(found, key=lambda c: (-waste[c.name], c.name))


def parts(candidates: Sequence[Candidate]) -> list[Sequence[Candidate]]:
    """Return the nodes by NodePool, those of one NodePool in two halves."""
    by_pool = list(_parted(candidates, _pool))
    if len(by_pool) > 1:
        return sorted(by_pool, key=lambda part: part[0].pool.name)
    middle = len(candidates) // 2
    return [candidates[:middle], candidates[middle:]]


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
    ordered = sorted(candidates, key=lambda c: (-waste[c.name], c.name))
    for key in (_fleet, _pool, _pool_and_zone, _need):
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


def _need(candidate: Candidate) -> Hashable:
    """Return what the pods of a node ask of any node, as far as their specs name it."""
    return frozenset(
        (tuple(sorted(pod.spec.node_selector.items())), pod.spec.tolerations)
        for pod in candidate.moving
    )
