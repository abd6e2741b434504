"""Which image a type boots, and which types can share a launch template."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.model.instancetype import InstanceType
from reconciler.model.labels import WELL_KNOWN_AWS
from reconciler.model.nodeclass import AMI
from reconciler.model.nodepool import requirements_of
from reconciler.model.quantity import MILLI
from reconciler.model.resources import PODS, parse_resources
from reconciler.ports import Launch

Types = Callable[[str], InstanceType | None]
"""Finds an instance type of the catalogue by its name."""

EFA: Final = "vpc.amazonaws.com/efa"


@dataclass(frozen=True, slots=True, order=True)
class Build:
    """What distinguishes one launch template of a claim from another: the machine's make.

    ``reservation`` is empty but for reserved capacity; ``market`` is the market type that goes
    with it, empty for the usual one.
    """

    image: str
    max_pods: int
    efa_interfaces: int = 0
    reservation: str = ""
    market: str = ""


def image_for(amis: Iterable[AMI], kind: InstanceType) -> AMI | None:
    """Return the first image whose requirements the type meets; the status lists newest first."""
    return next(
        (
            ami
            for ami in amis
            if kind.requirements.compatible(requirements_of(ami.requirements), WELL_KNOWN_AWS)
        ),
        None,
    )


def build_of(launch: Launch, kind: InstanceType, reservation: str, market: str) -> Build | None:
    """Return the make of a machine of that type, None if no image of the class fits it."""
    ami = image_for(launch.node_class.status.amis, kind)
    if ami is None:
        return None
    asks = parse_resources(launch.node_claim.spec.resources.requests).get(EFA, 0) > 0
    return Build(
        ami.id,
        _count(kind.capacity, PODS),
        _count(kind.capacity, EFA) if asks else 0,
        reservation,
        market,
    )


def _count(capacity: Mapping[str, int], name: str) -> int:
    return capacity.get(name, 0) // MILLI
