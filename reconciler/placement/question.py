"""What a pass of the scheduler is asked: the pools, what they may launch, and the pods.

The values that cross the door of this floor into it; ``result.py`` has those that leave it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import Resources

# What a pass of the scheduler answers: new NodeClaims, places on nodes, and every «no».
#
# Plain values: nothing here refers back to the scheduler that made them.


TYPES_MAX = 600
"""How many instance types a NodeClaim names at most (Karpenter ``MaxInstanceTypes``)."""


@dataclass(frozen=True, slots=True)
class PlannedClaim:
    """A NodeClaim that a pass would make, and the pods it is for.

    ``pods`` are keys ``namespace/name``, DaemonSet pods left out; ``requests`` is their sum and
    the least that DaemonSets add. ``types`` are cheapest first for ``requirements``, ties by
    name, at most 600 of ``types_total``; each is made when it is looked at.
    """

    name: str
    node_pool: NodePool
    pods: tuple[str, ...]
    requests: Resources
    requirements: Requirements
    types: Sequence[InstanceType]
    types_total: int
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    startup_taints: tuple[Taint, ...] = ()
    min_values_relaxed: bool = False

    @property
    def launch(self) -> tuple[InstanceType, Offering]:
        """The cheapest option: what the launch is expected to yield."""
        kind = self.types[0]
        return kind, min(
            (
                o
                for o in kind.offerings
                if o.available and self.requirements.intersects(o.requirements)
            ),
            key=lambda o: o.price,
        )


class Rejection(msgspec.Struct, frozen=True):
    """One «no»: a stable code, one sentence that says what would help, and the facts behind it.

    ``node_pool`` is None where the answer does not depend on a pool. ``facts`` hold the funnel:
    how many instance types were left after each filter.
    """

    code: str
    message: str
    node_pool: str | None = None
    facts: Mapping[str, str | int | float] = {}


class DroppedPreferences(msgspec.Struct, frozen=True):
    """Preferences that pods (``namespace/name``) were not asked for, because they are dear.

    ``saving`` is what that saves, in USD an hour, what nodes cost beside their price included.
    """

    preferences: Mapping[str, tuple[str, ...]]
    saving: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each pod of a pass goes, by its key ``namespace/name``.

    ``deferred`` pods wait for reserved capacity and are not unschedulable: the next pass asks
    again. ``relaxed`` says in words which preferences a pod had to drop, those that were
    ``given_up`` for their cost among them.
    ``uninitialized_targets`` are pods put on nodes that still start up.
    """

    claims: tuple[PlannedClaim, ...] = ()
    on_nodes: Mapping[str, str] = field(default_factory=dict)
    unschedulable: Mapping[str, tuple[Rejection, ...]] = field(default_factory=dict)
    deferred: Mapping[str, tuple[Rejection, ...]] = field(default_factory=dict)
    relaxed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given_up: DroppedPreferences | None = None
    uninitialized_targets: frozenset[str] = frozenset()


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
