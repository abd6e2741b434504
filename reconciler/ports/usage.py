"""What each node costs and how much of it is used, as the last pass observed it."""

from __future__ import annotations

from datetime import datetime
from typing import Final

import msgspec

SHELF: Final = "usage"
"""The name of the record on the shelf of a fleet."""


class NodeUsage(msgspec.Struct, frozen=True, rename="camel"):
    """One node: USD an hour (None if unknown), its pods, and what they request of it.

    ``requested`` and ``allocatable`` are CPU and memory in thousandths of their unit. Finished
    pods do not count.
    """

    price: float | None
    pods: int
    requested: dict[str, int]
    allocatable: dict[str, int]

    def share(self, resource: str) -> float | None:
        """Return how much of a resource is requested, from 0; None if the node has none of it."""
        total = self.allocatable.get(resource, 0)
        return self.requested.get(resource, 0) / total if total else None


class FleetUsage(msgspec.Struct, frozen=True, rename="camel"):
    """The usage of each node by the name of its NodeClaim, as observed ``at`` a time."""

    at: datetime
    nodes: dict[str, NodeUsage]
