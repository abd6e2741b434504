"""Nodes of the cluster, in the API's spelling."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from reconciler.model.kubernetes.metadata import Condition, Metadata, is_true
from reconciler.model.kubernetes.pod import Amounts
from reconciler.model.kubernetes.taint import Taint


class NodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    provider_id: str = msgspec.field(default="", name="providerID")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: tuple[Condition, ...] = ()


class Node(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A machine that runs pods."""

    metadata: Metadata
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_ready(self) -> bool:
        return is_true(self.status.conditions, "Ready")


class CSINodeAllocatable(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    count: int | None = None


class CSINodeDriver(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    name: str
    allocatable: CSINodeAllocatable | None = None


class CSINodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    drivers: tuple[CSINodeDriver, ...] = ()


class CSINode(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The attachment limits of the node with the same name, by CSI driver."""

    metadata: Metadata
    spec: CSINodeSpec = CSINodeSpec()

    def limits(self) -> dict[str, int]:
        """Return the number of volumes by driver; a driver that is not included has no limit."""
        return {
            d.name: d.allocatable.count
            for d in self.spec.drivers
            if d.allocatable is not None and d.allocatable.count is not None
        }


def csi_node(name: str, limits: Mapping[str, int]) -> CSINode:
    """Return the CSINode of a node whose drivers report these limits."""
    drivers = tuple(
        CSINodeDriver(driver, CSINodeAllocatable(count)) for driver, count in limits.items()
    )
    return CSINode(Metadata(name=name), CSINodeSpec(drivers))
