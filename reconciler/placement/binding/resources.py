"""Whether a node has the resources of a pod, and how well they fit it.

The plugins NodeResourcesFit and NodeResourcesBalancedAllocation of kube-scheduler
(``pkg/scheduler/framework/plugins/noderesources``). Scores are from 0 to 100 and rounded as there.
"""

from __future__ import annotations

from math import sqrt
from typing import Final

from reconciler.model.kubernetes.profile import Plugin, Profile, ResourceWeights, Strategy
from reconciler.placement.binding.host import HostNode
from reconciler.placement.binding.shape import PodRequests

MAX_SCORE: Final = 100
_SHAPE_SCALE: Final = 10
"""A point of a RequestedToCapacityRatio shape has a score of up to 10."""


def has_room(host: HostNode, demand: PodRequests, profile: Profile) -> bool:
    """Return whether a node has room for one more pod, and the resources it requests."""
    total, wanted = host.total, demand.requests
    if len(host.pods) >= total.pods:
        return False
    if wanted.cpu and wanted.cpu > total.cpu - host.cpu:
        return False
    if wanted.memory and wanted.memory > total.memory - host.memory:
        return False
    if wanted.ephemeral and wanted.ephemeral > total.ephemeral - host.ephemeral:
        return False
    return all(
        not amount
        or amount <= total.others.get(name, 0) - host.others[name]
        or _is_ignored(name, profile)
        for name, amount in wanted.others.items()
    )


def _is_ignored(name: str, profile: Profile) -> bool:
    """Return whether the filter ignores an extended resource."""
    group, slash, _ = name.partition("/")
    if not slash or "kubernetes.io" in group:
        return False
    return name in profile.ignored_resources or group in profile.ignored_resource_groups


def resource_score(host: HostNode, demand: PodRequests, profile: Profile) -> int:
    """Return the weighted scores of both plugins."""
    total = 0
    if fit := profile.weight(Plugin.NODE_RESOURCES_FIT):
        total += fit * fit_score(host, demand, profile)
    if balanced := profile.weight(Plugin.NODE_RESOURCES_BALANCED_ALLOCATION):
        total += balanced * balanced_score(host, demand, profile.balanced_resources)
    return total


def fit_score(host: HostNode, demand: PodRequests, profile: Profile) -> int:
    """Return the score of NodeResourcesFit by the strategy of the profile.

    Resources that the node lacks, and extended ones that the pod does not request, do not count.
    """
    strategy = profile.scoring
    score = weights = 0
    for name, weight in strategy.resources:
        capacity = _capacity(host, demand, name)
        if not capacity:
            continue
        used = host.least_used(name) + demand.scored.get(name)
        match strategy.type:
            case Strategy.LEAST_ALLOCATED:
                own = max(capacity - used, 0) * MAX_SCORE // capacity
            case Strategy.MOST_ALLOCATED:
                own = min(used, capacity) * MAX_SCORE // capacity
            case Strategy.REQUESTED_TO_CAPACITY_RATIO:
                own = _shape_score(strategy.shape, used, capacity)
                if own <= 0:
                    continue
        score += own * weight
        weights += weight
    if not weights:
        return 0
    if strategy.type is Strategy.REQUESTED_TO_CAPACITY_RATIO:
        return (2 * score + weights) // (2 * weights)
    return score // weights


def _capacity(host: HostNode, demand: PodRequests, name: str) -> int:
    if name not in ("cpu", "memory", "ephemeral-storage") and not demand.requests.get(name):
        return 0
    return host.total.get(name)


def _shape_score(shape: tuple[tuple[int, int], ...], used: int, capacity: int) -> int:
    """Return the value of the broken line through the points of ``shape`` at a utilization."""
    utilization = MAX_SCORE if used > capacity else used * MAX_SCORE // capacity
    points = [(at, score * (MAX_SCORE // _SHAPE_SCALE)) for at, score in shape]
    before = points[0]
    for point in points:
        if utilization <= point[0]:
            if point is points[0]:
                return point[1]
            rise, run = point[1] - before[1], point[0] - before[0]
            return before[1] + _truncated(rise * (utilization - before[0]), run)
        before = point
    return before[1]


def _truncated(dividend: int, divisor: int) -> int:
    """Divide as Go does, towards zero."""
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def balanced_score(host: HostNode, demand: PodRequests, resources: ResourceWeights) -> int:
    """Return how evenly the resources of the node would be used: 100 less the deviation.

    It is 0 for a pod that requests none of the resources, which the plugin skips.
    """
    if not any(demand.requests.get(name) for name, _ in resources):
        return 0
    fractions: list[float] = []
    for name, _ in resources:
        capacity = _capacity(host, demand, name)
        if capacity:
            used = host.used(name) + demand.requests.get(name)
            fractions.append(min(used / capacity, 1.0))
    deviation = 0.0
    if len(fractions) == 2:
        deviation = abs((fractions[0] - fractions[1]) / 2)
    elif len(fractions) > 2:
        mean = sum(fractions) / len(fractions)
        deviation = sqrt(sum((f - mean) * (f - mean) for f in fractions) / len(fractions))
    return int((1 - deviation) * MAX_SCORE)
