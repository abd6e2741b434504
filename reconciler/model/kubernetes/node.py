"""Nodes of the cluster, in the API's spelling."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import msgspec

from reconciler.model.kubernetes.metadata import Condition, Metadata, true_types
from reconciler.model.kubernetes.pod import Amounts
from reconciler.model.kubernetes.taint import Taint


class NodeSpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    provider_id: str = msgspec.field(default="", name="providerID")
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeSystemInfo(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a kubelet reports about its machine; each boot has another ``boot_id``."""

    boot_id: str = msgspec.field(default="", name="bootID")


class NodeStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, dict=True):
    capacity: Amounts = {}
    allocatable: Amounts = {}
    conditions: tuple[Condition, ...] = ()
    node_info: NodeSystemInfo = NodeSystemInfo()

    @cached_property
    def true_conditions(self) -> frozenset[str]:
        """The types of its conditions that are True."""
        return true_types(self.conditions)


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
        return "Ready" in self.status.true_conditions

    @property
    def boot_id(self) -> str:
        """The id of its current boot, empty if its kubelet has not reported one."""
        return self.status.node_info.boot_id

    def has_taint(self, key: str) -> bool:
        """Return whether it has a taint with the key."""
        return any(taint.key == key for taint in self.spec.taints)


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
