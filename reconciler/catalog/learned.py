"""Instance types learned from a cluster's own Nodes and NodeClaims, where no catalogue has them.

Karpenter's providers other than AWS have their own types. A type counts with the capacity and the
labels that its nodes show, in the zones and capacity types where one runs. Types that never ran
here are unknown. A price is the one in the label of a Node or NodeClaim; without it, the price is
estimated from CPU and memory, so that larger nodes cost more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.file import read_catalog
from reconciler.model.karpenter.labels import (
    ARCH,
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    ON_DEMAND,
    OS,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.model.resources import (
    CPU,
    MEMORY,
    Resources,
    format_resources,
    parse_resources,
    subtract_resources,
)
from reconciler.model.text.counting import format_count

SOURCE: Final = "nodes of the cluster"
_PRICE: Final = "eks-node-viewer/instance-price"
"""The label in which a node states its price, as Karpenter's kwok provider sets it."""
_CPU_HOUR: Final = 0.034
_GIB_HOUR: Final = 0.0045
"""USD: about what a vCPU and a GiB of memory cost on demand at the large providers."""
_OF_TYPES: Final = ("karpenter.", ARCH, OS)
"""The beginnings of labels that a type determines: those of a provider (``karpenter.azure.com/``,
``karpenter.k8s.gcp/``), and the platform."""
_NOT_OF_TYPES: Final = ("karpenter.sh/",)


@dataclass
class _Learned:
    """What the nodes of one type have shown; ``allocatable`` is the least of them."""

    capacity: Resources
    allocatable: Resources
    labels: dict[str, set[str]] = field(default_factory=dict)
    offerings: dict[tuple[str, str], float | None] = field(default_factory=dict)

    def add_labels(self, labels: Mapping[str, str]) -> None:
        """Remember the labels of a node that its type determines."""
        for key, value in labels.items():
            if key.startswith(_OF_TYPES) and not key.startswith(_NOT_OF_TYPES):
                self.labels.setdefault(key, set()).add(value)


def learned_catalog(nodes: Iterable[Node], claims: Iterable[NodeClaim]) -> Catalog:
    """Return the types of the nodes that run, or are starting, in a cluster."""
    learned: dict[str, _Learned] = {}
    for claim in claims:
        _learn(learned, claim.metadata.labels, claim.status.capacity, claim.status.allocatable)
    for node in nodes:
        _learn(learned, node.metadata.labels, node.status.capacity, node.status.allocatable)
    content = msgspec.json.encode([_row(name, learned[name]) for name in sorted(learned)])
    found = read_catalog(content, SOURCE)
    traits = found.traits() | {"version": f"{len(learned)} types", "notes": _notes(learned)}
    return Catalog(found.rows, digest=found.digest, **traits)


def _learn(
    learned: dict[str, _Learned],
    labels: Mapping[str, str],
    capacity: Mapping[str, str | int | float],
    allocatable: Mapping[str, str | int | float],
) -> None:
    name, zone = labels.get(INSTANCE_TYPE), labels.get(ZONE)
    if not name or not zone or not capacity:
        return
    try:
        amounts, usable = parse_resources(dict(capacity)), parse_resources(dict(allocatable))
    except (ValueError, OverflowError):
        return
    known = learned.setdefault(name, _Learned(amounts, usable or amounts))
    known.allocatable = {
        key: min(amount, usable.get(key, amount)) for key, amount in known.allocatable.items()
    }
    known.add_labels(labels)
    offering = (zone, labels.get(CAPACITY_TYPE, ON_DEMAND))
    price = _stated_price(labels.get(_PRICE, ""))
    known.offerings[offering] = price or known.offerings.get(offering)


def _stated_price(text: str) -> float | None:
    try:
        price = float(text)
    except ValueError:
        return None
    return price if 0 < price < float("inf") else None


def _row(name: str, known: _Learned) -> dict[str, object]:
    """Return a type as an entry of a catalog file."""
    overhead = subtract_resources(known.capacity, known.allocatable)
    shared = {key: values for key, values in known.labels.items() if len(values) == 1}
    labels = {INSTANCE_TYPE: {name}, **shared}
    zones, kinds = ({o[i] for o in known.offerings} for i in (0, 1))
    labels |= {ZONE: zones, CAPACITY_TYPE: kinds}
    return {
        "name": name,
        "capacity": format_resources(known.capacity),
        "overhead": format_resources({k: v for k, v in overhead.items() if v > 0}),
        "requirements": [
            {"key": key, "operator": "In", "values": sorted(values)}
            for key, values in sorted(labels.items())
        ],
        "offerings": [
            {
                "zone": zone,
                "capacityType": kind,
                "price": price if price is not None else _estimate(known.capacity),
            }
            for (zone, kind), price in sorted(known.offerings.items())
        ],
    }


def _estimate(capacity: Resources) -> float:
    cpus = capacity.get(CPU, 0) / 1000
    gibibytes = capacity.get(MEMORY, 0) / 1000 / 2**30
    return round(cpus * _CPU_HOUR + gibibytes * _GIB_HOUR, 6)


def _notes(learned: Mapping[str, _Learned]) -> tuple[str, ...]:
    """Return what is known of the types, and what is not."""
    without = [n for n, k in learned.items() if any(p is None for p in k.offerings.values())]
    count = format_count(len(learned), "instance type")
    own = f"only the {count} of the cluster's own nodes are known, in the zones where one runs"
    notes = [f"{own}; Karpenter may launch others: pass --catalog to name them"]
    if without:
        notes.append(
            f"prices of {len(without)} of them are not known, and are estimated from CPU and "
            "memory: the cost, and which type is cheapest, are estimates"
        )
    return tuple(notes)
