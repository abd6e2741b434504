"""How much of a fleet at rest depends on spot capacity, zones and instance types."""

from __future__ import annotations

import msgspec

from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, INSTANCE_TYPE, SPOT, ZONE
from reconciler.plan.rest.continuation import RestResult


class Exposure(msgspec.Struct, frozen=True, rename="camel"):
    """Facts about the nodes of NodePools and their pods.

    ``spot_percent`` is the share of pods on spot nodes, ``largest_zone_percent`` that of the zone
    with most pods. ``architectures`` and ``instance_types`` are those that run.
    """

    spot_percent: float
    zones: int
    largest_zone_percent: float
    architectures: tuple[str, ...]
    instance_types: tuple[str, ...]


def exposure_of(rest: RestResult) -> Exposure:
    """Return how much of the fleet depends on spot capacity, zones and instance types."""
    pods = spot = 0
    by_zone: dict[str, int] = {}
    architectures: set[str] = set()
    types: set[str] = set()
    for node in rest.world.cluster.nodes:
        if not node.is_managed or node.is_deleting:
            continue
        count = len(node.reschedulable)
        labels = node.labels
        pods += count
        spot += count if labels.get(CAPACITY_TYPE) == SPOT else 0
        zone = labels.get(ZONE, "")
        by_zone[zone] = by_zone.get(zone, 0) + count
        architectures.add(labels.get(ARCH, ""))
        types.add(labels.get(INSTANCE_TYPE, ""))
    return Exposure(
        spot_percent=_percent(spot, pods),
        zones=sum(1 for zone, count in by_zone.items() if zone and count),
        largest_zone_percent=_percent(max(by_zone.values(), default=0), pods),
        architectures=tuple(sorted(architectures - {""})),
        instance_types=tuple(sorted(types - {""})),
    )


def _percent(part: int, total: int) -> float:
    return round(100 * part / total, 2) if total else 0.0
