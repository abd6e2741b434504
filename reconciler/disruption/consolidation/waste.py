"""Compute the waste of nodes, and the sets of nodes to evaluate.

Small sets contain the most wasteful nodes of the fleet, of a NodePool, of a NodePool in a zone, of
nodes whose pods have the same requirements, and of nodes with similar prices. Large sets contain
nodes that share a good part of their pods' requirements.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from reconciler.disruption.candidates import Candidate
from reconciler.model.karpenter.labels import ZONE
from reconciler.model.kubernetes.pod import Pod

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
