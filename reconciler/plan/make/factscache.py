"""The results that a loop of passes reuses, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from reconciler.desired.fleet import Fleet
from reconciler.desired.hash import object_hash
from reconciler.disruption.consolidation.rejections import RejectionCache
from reconciler.placement.nodes.existing import SchedulerMemory
from reconciler.plan.make.pools import TypesCache
from reconciler.source.resource import Resource

if TYPE_CHECKING:
    from reconciler.diff.drift import DriftCache


class HashCache:
    """The drift hashes of the last fleet, which depend on its objects alone."""

    def __init__(self) -> None:
        self._last: tuple[tuple[Resource, ...], str, Mapping[tuple[str, str], str]] | None = None

    def get(self, fleet: Fleet, ca_bundle: str) -> Mapping[tuple[str, str], str]:
        """Return the hash of each NodePool and EC2NodeClass by its kind and name."""
        objects = (*fleet.node_pools, *fleet.node_classes)
        if self._last is None or self._last[:2] != (objects, ca_bundle):
            found = {}
            for resource in objects:
                bundle = ca_bundle if resource.kind == "EC2NodeClass" else ""
                hashed = object_hash(resource.data, bundle)
                if hashed is not None:
                    found[resource.kind, resource.name] = hashed[0]
            self._last = (objects, ca_bundle, found)
        return self._last[2]


class FactsCache:
    """The results for the last inputs of a loop of passes, for inputs that are similar.

    ``schedulers`` may be the memory of another loop with the same pods. ``refusals`` are what
    consolidation had rejected. ``disruption_work`` is that of all decisions, in evaluated nodes.
    """

    def __init__(self, schedulers: SchedulerMemory | None = None) -> None:
        self.schedulers = schedulers if schedulers is not None else SchedulerMemory()
        self.types = TypesCache()
        self.hashes = HashCache()
        self.refusals = RejectionCache()
        self.disruption_work = 0

    @cached_property
    def drift(self) -> DriftCache:
        """What had drifted; loaded on use, like drift itself."""
        from reconciler.diff.drift import DriftCache

        return DriftCache()
