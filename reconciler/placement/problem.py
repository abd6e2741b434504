"""What a pass of the scheduler is asked: the pools, what they may launch, and the pods.

The values that cross the door of this floor into it; ``result.py`` has those that leave it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from reconciler.model.instancetype import InstanceType
from reconciler.model.nodepool import NodePool


class LaunchCatalog(Protocol):
    """What a NodePool may launch: the instance types as resolved for its class and overlays."""

    @property
    def types(self) -> Sequence[InstanceType]:
        """Every instance type, with its offerings and prices."""
        ...

    @property
    def well_known(self) -> frozenset[str]:
        """The label keys that a pod may ask for though no NodePool mentions them."""
        ...

    def get(self, name: str) -> InstanceType | None:
        """Return the type of that name, or None."""
        ...

    def __hash__(self) -> int:
        """A catalogue is a value: the tables of one are made once and found again by it."""
        ...


class LaunchPool(msgspec.Struct, frozen=True):
    """A NodePool and what it may launch.

    Pools that share one catalogue should hold the same object: its tables are made once.
    """

    node_pool: NodePool
    types: LaunchCatalog
