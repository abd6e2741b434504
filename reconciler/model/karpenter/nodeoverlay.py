"""NodeOverlays: corrections to the price or capacity of instance types."""

from __future__ import annotations

import msgspec

from reconciler.model.karpenter.nodepool import NodeSelectorRequirement
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.resources import Resources, parse_resources


class NodeOverlaySpec(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    requirements: tuple[NodeSelectorRequirement, ...] = ()
    price: str | None = None
    price_adjustment: str | None = None
    capacity: dict[str, str | int | float] = {}
    weight: int | None = None


class NodeOverlayStatus(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    conditions: tuple[Condition, ...] = ()


class NodeOverlay(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A NodeOverlay as desired in git."""

    metadata: Metadata
    spec: NodeOverlaySpec = NodeOverlaySpec()
    status: NodeOverlayStatus = NodeOverlayStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def weight(self) -> int:
        return self.spec.weight or 0

    def capacity(self) -> Resources:
        """Return the extended resources that it adds, in thousandths."""
        return parse_resources(self.spec.capacity)
