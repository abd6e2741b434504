"""What requirements leave of the instance types, and the cheapest of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from reconciler.assembly.inputs.catalogs import catalog_of
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import class_facts
from reconciler.catalog.regions import region_of_pools
from reconciler.catalog.table import table_of
from reconciler.desired.fleet import Fleet
from reconciler.desired.objects import node_classes
from reconciler.desired.settings.layers import Resolved, resolve
from reconciler.model.decode import decode
from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.labels import SPOT
from reconciler.model.karpenter.nodepool import NodeSelectorRequirement, requirements_of
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.text.counting import format_count
from reconciler.model.text.money import format_monthly


class TypeSelection(NamedTuple):
    """How many instance types of how many are left, and the cheapest with its USD an hour."""

    left: int
    total: int
    cheapest: str = ""
    capacity_type: str = ""
    price: float = 0.0
    is_estimate: bool = False

    def __str__(self) -> str:
        text = f"{self.left:,} of {format_count(self.total, 'type')}"
        if not self.cheapest:
            return text
        kind = "" if self.capacity_type != SPOT else " spot"
        price = f"{format_monthly(self.price)}/month" + (" (estimate)" if self.is_estimate else "")
        return f"{text}, cheapest {self.cheapest}{kind} {price}"


def select_types(catalog: Catalog, requirements: Requirements) -> TypeSelection:
    """Return what the requirements leave of a catalog, at its list prices."""
    table = table_of(catalog)
    offers = table.offers(requirements)
    prices = table.prices(offers)
    mask = table.types_meeting(requirements)
    left = sum(mask >> index & 1 for index in prices)
    first = next(iter(table.cheapest_types(offers, mask, 1)), None)
    if first is None or first not in prices:
        return TypeSelection(0, len(catalog))
    price = prices[first]
    kind = min(o.capacity_type for o in offers if o.prices.get(first) == price)
    is_estimate = kind == SPOT and catalog.spot_is_estimated
    return TypeSelection(left, len(catalog), catalog.names[first], kind, price, is_estimate)


def fleet_catalog(fleet: Fleet, sets: Sequence[str], node_class: str) -> Catalog | None:
    """Return the types that a node class of a fleet resolves to, None if they are not known.

    They are those of the lock or of the bundled data: AWS is not asked.
    """
    try:
        region = region_of_pools(pool.data for pool in fleet.node_pools)
        resolved: Resolved = resolve(fleet.config, os.environ, sets, region=region)
        settings = resolved.settings
        catalog = catalog_of(settings, fleet.lock_for(settings.region))
        known = {one.name: one for one in node_classes(fleet)}
        if node_class not in known:
            return catalog
        return catalog.for_node_class(class_facts(known[node_class], settings))
    except (ReconcilerError, ValueError):
        return None


def read_requirements(data: object) -> Requirements | None:
    """Return the requirements of a list of the API, None if one of them is not valid."""
    if not isinstance(data, list) or not all(isinstance(item, Mapping) for item in data):
        return None
    try:
        return requirements_of([decode(dict(item), NodeSelectorRequirement) for item in data])
    except (msgspec.ValidationError, ReconcilerError, ValueError):
        return None
