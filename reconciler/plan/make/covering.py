"""The part of a cluster that the user's commitments cover, for the prices of launches and nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, ZONE
from reconciler.plan.value.plan import PlanFinding

if TYPE_CHECKING:
    from reconciler.catalog.catalog import Catalog
    from reconciler.catalog.commitments.coverage import Cover, Coverage, RunningNode
    from reconciler.model.settings import Settings
    from reconciler.observed.state import ClusterState
    from reconciler.placement.question import LaunchPool, PlannedClaim


def covering(
    settings: Settings, cluster: ClusterState, catalog: Catalog, now: datetime
) -> Coverage | None:
    """Return what commitments cover besides the running nodes, None without commitments."""
    commitments = settings.commitments
    if commitments is None:
        return None
    from reconciler.catalog.commitments.coverage import coverage_of

    return coverage_of(commitments, _running(cluster, catalog), settings.region, now)


def _running(cluster: ClusterState, catalog: Catalog) -> Iterator[RunningNode]:
    """Yield the running on-demand capacity; instances without a price use no commitment."""
    from reconciler.catalog.commitments.coverage import RunningNode

    for node in cluster.nodes:
        labels = node.labels
        if labels.get(CAPACITY_TYPE) != ON_DEMAND:
            continue
        kind, zone = catalog.get(labels.get(INSTANCE_TYPE, "")), labels.get(ZONE, "")
        price = kind.price_of(zone, ON_DEMAND) if kind is not None else None
        if kind is not None and price:
            yield RunningNode(node.name, kind.name, zone, price)


def with_paid(cluster: ClusterState, coverage: Coverage) -> ClusterState:
    """Return the cluster, with the remaining cost of covered nodes."""
    nodes = tuple(
        replace(node, paid=coverage.paid[node.name]) if node.name in coverage.paid else node
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def of_commitments(coverage: Coverage) -> Iterator[PlanFinding]:
    """Report the commitments whose utilization is unknown."""
    for name in coverage.unknown:
        yield PlanFinding(
            severity="warning",
            code="commitment-use-unknown",
            message=f"{name} does not affect prices: its utilization is unknown",
            hint="set usedElsewhere or utilizationPercent",
        )


def settled(
    claims: Sequence[PlannedClaim],
    covers: Sequence[Cover],
    plain: Callable[[], Mapping[str, LaunchPool]],
) -> tuple[PlannedClaim, ...]:
    """Return the claims, each priced by a commitment while that has unused capacity.

    The claims use the commitments in their order. When nothing is left, a claim is priced as
    without commitments, and its types are sorted again; ``plain`` has those types, by NodePool.
    """
    rooms = {c.note: float(c.decision.count) if c.room is None else c.room for c in covers}
    whole = {c.note for c in covers if c.room is None}
    begun: set[str] = set()
    made: list[PlannedClaim] = []
    for claim in claims:
        kind, offering = claim.launch
        note = offering.origin.note if offering.origin is not None else ""
        if note not in rooms:
            made.append(claim)
            continue
        bare = plain()[claim.node_pool.name].types.get(kind.name)
        price = bare.price_of(offering.zone, ON_DEMAND) if bare is not None else None
        asked = 1.0 if note in whole else price or 0.0
        if note in begun and rooms[note] < asked:
            made.append(_uncovered(claim, plain()[claim.node_pool.name]))
            continue
        begun.add(note)
        rooms[note] -= asked
        made.append(claim)
    return tuple(made)


def _uncovered(claim: PlannedClaim, pool: LaunchPool) -> PlannedClaim:
    """Return the claim with its types at prices without commitments, cheapest first."""

    def price(kind: InstanceType) -> tuple[float, str]:
        offering = kind.cheapest(claim.requirements)
        return (offering.price if offering is not None else float("inf"), kind.name)

    kinds = [kind for known in claim.types if (kind := pool.types.get(known.name)) is not None]
    return replace(claim, types=sorted(kinds, key=price))


class Covering:
    """What commitments cover, according to the last observation of the cluster."""

    def __init__(self) -> None:
        self.covers: Sequence[Cover] = ()

    def look(
        self, settings: Settings, cluster: ClusterState, catalog: Catalog, now: datetime
    ) -> None:
        """Record an observation."""
        found = covering(settings, cluster, catalog, now)
        self.covers = () if found is None else found.covers
