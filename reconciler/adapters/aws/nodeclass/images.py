"""Select the image of a type, and group types that can share a launch template."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from reconciler.adapters.aws.bootstrap.kubelet import Reserved, resolve_reserved
from reconciler.catalog.aws.devices import EFA_DRIVER
from reconciler.catalog.aws.machine import image_for
from reconciler.catalog.catalog import Catalog
from reconciler.catalog.classfacts import class_facts
from reconciler.model.errors import CloudError
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import REQUESTED_DRIVERS
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.resources import MILLI, PODS, parse_resources
from reconciler.model.settings import Settings
from reconciler.ports.cloud import Launch

Types = Callable[[str], InstanceType | None]
"""Finds an instance type of the catalog by its name."""

TypesOf = Callable[[EC2NodeClass], Types]
"""Finds the types resolved for a node class."""

EFA: Final = "vpc.amazonaws.com/efa"


@dataclass(frozen=True, slots=True, order=True)
class Build:
    """The key that distinguishes the launch templates of a claim.

    ``reservation`` is empty except for reserved capacity; ``market`` is the corresponding market
    type, empty for the usual one; ``reserved`` are the kubelet's reservations.
    """

    image: str
    max_pods: int
    efa_interfaces: int = 0
    reservation: str = ""
    market: str = ""
    reserved: Reserved = ()


def types_of(catalog: Catalog, settings: Settings) -> TypesOf:
    """Return a function that finds the types of a catalog for each node class."""

    def for_class(node_class: EC2NodeClass) -> Types:
        return catalog.for_node_class(class_facts(node_class, settings)).get

    return for_class


def build_of(
    launch: Launch, kind: InstanceType, reservation: str, market: str, *, expressions: bool
) -> Build | None:
    """Return the build of a machine of that type, None if no image of the class matches.

    Raises:
        CloudError: an expression in the class's kubelet settings has no value for the type.
    """
    ami = image_for(launch.node_class.status.amis, kind)
    if ami is None:
        return None
    claim = launch.node_claim
    drivers = claim.metadata.annotations.get(REQUESTED_DRIVERS, "").split(",")
    asks = parse_resources(claim.spec.resources.requests).get(EFA, 0) > 0 or EFA_DRIVER in drivers
    return Build(
        ami.id,
        _capacity_count(kind.capacity, PODS),
        _capacity_count(kind.capacity, EFA) if asks else 0,
        reservation,
        market,
        _reserved_resources(launch.node_class, kind, expressions=expressions),
    )


def _reserved_resources(
    node_class: EC2NodeClass, kind: InstanceType, *, expressions: bool
) -> Reserved:
    try:
        return resolve_reserved(node_class.spec.kubelet, kind, expressions=expressions)
    except ValueError as error:
        raise CloudError(
            f"EC2NodeClass {node_class.name}: spec.kubelet for {kind.name}: {error}",
            remedy="use a quantity, or an expression of vcpus, memory_mib and max_pods",
        ) from error


def _capacity_count(capacity: Mapping[str, int], name: str) -> int:
    return capacity.get(name, 0) // MILLI
