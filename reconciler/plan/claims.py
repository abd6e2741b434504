"""From what the scheduler planned to the NodeClaims of a plan, under names of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.model.instancetype import Offering
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodepool import NodeSelectorRequirement, requirements_of
from reconciler.model.requirement import RequirementSpec
from reconciler.model.resources import format_resources
from reconciler.placement.problem import LaunchCatalog, LaunchPool
from reconciler.placement.result import PlannedClaim
from reconciler.plan.actions import UnlaunchedClaim
from reconciler.plan.plan import LaunchOffering, PlannedNodeClaim, PriceSource

TYPES_MAX: Final = 60
"""How many instance types a launch request names: CreateFleet takes no more."""

_NAME_MAX: Final = 63


class Namer:
    """Gives NodeClaims names that no other has: the name that was planned, where it is free."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def name(self, planned: str) -> str:
        """Return ``planned``, or the first variation of it that is free."""
        name, number = planned, 1
        while name in self._taken:
            number += 1
            suffix = f"-{number}"
            name = planned[: _NAME_MAX - len(suffix)] + suffix
        self._taken.add(name)
        return name


def planned_node_claim(
    claim: PlannedClaim, name: str, reason: str, catalog: LaunchCatalog, pods: Iterable[str]
) -> PlannedNodeClaim:
    """Return the claim as the plan lists it.

    ``pods`` are those of its pods that no other part of the plan places.
    """
    kind, offering = claim.launch
    ref = claim.node_pool.spec.template.spec.node_class_ref
    return PlannedNodeClaim(
        name=name,
        node_pool=claim.node_pool.name,
        node_class=ref.name or None,
        reason=reason,
        pods=tuple(pods),
        requests=format_resources(claim.requests),
        requirements=tuple(map(_entry, claim.requirements.specs())),
        instance_types=tuple(t.name for t in claim.types[:TYPES_MAX]),
        instance_types_total=claim.types_total,
        labels=dict(sorted(claim.labels.items())),
        taints=claim.taints,
        startup_taints=claim.startup_taints,
        launch=launch_offering(kind.name, offering, catalog),
    )


def _entry(spec: RequirementSpec) -> NodeSelectorRequirement:
    return NodeSelectorRequirement(spec.key, spec.operator, spec.values, spec.min_values)


def launch_offering(
    instance_type: str, offering: Offering, catalog: LaunchCatalog
) -> LaunchOffering:
    """Return an offering as a launch is expected to yield it."""
    return LaunchOffering(
        instance_type=instance_type,
        zone=offering.zone,
        capacity_type=offering.capacity_type,
        price=offering.price,
        base_price=_base_price(instance_type, offering, catalog),
        estimated=offering.estimated,
        price_source=price_source(offering),
    )


def price_source(offering: Offering) -> PriceSource | msgspec.UnsetType:
    """Return whence an offering's price comes; nothing where a catalogue file states it."""
    origin = offering.origin
    if origin is None:
        return msgspec.UNSET
    return PriceSource(
        source=origin.source,
        at=origin.at if origin.at is not None else msgspec.UNSET,
        basis=origin.basis or msgspec.UNSET,
        note=origin.note or msgspec.UNSET,
    )


def _base_price(instance_type: str, offering: Offering, catalog: LaunchCatalog) -> float | None:
    """Return the price before commitments and overlays, None where none changed it."""
    if not isinstance(catalog, Catalog) or instance_type not in catalog.price_overlaid:
        return None
    from reconciler.catalog.overlaid import OverlaidCatalog

    if not isinstance(catalog, OverlaidCatalog):
        return None
    base = catalog.base
    while isinstance(base, OverlaidCatalog):
        base = base.base
    kind = base.get(instance_type)
    return kind.price_of(offering.zone, offering.capacity_type) if kind is not None else None


def unlaunched_claim(claim: NodeClaim, pool: LaunchPool | None) -> UnlaunchedClaim:
    """Return a claim without an instance, with the cheapest that it may become."""
    if pool is None:
        return UnlaunchedClaim(claim.name, claim.node_pool, None)
    requirements = requirements_of(claim.spec.requirements)
    found: list[tuple[float, str, Offering]] = []
    for kind in pool.types.types:
        if not kind.requirements.intersects(requirements):
            continue
        offering = kind.cheapest(requirements)
        if offering is not None:
            found.append((offering.price, kind.name, offering))
    if not found:
        return UnlaunchedClaim(claim.name, claim.node_pool, None)
    _, name, offering = min(found, key=lambda item: item[:2])
    launch = LaunchOffering(
        instance_type=name,
        zone=offering.zone,
        capacity_type=offering.capacity_type,
        price=offering.price,
        estimated=offering.estimated,
        price_source=price_source(offering),
    )
    return UnlaunchedClaim(claim.name, claim.node_pool, launch)
