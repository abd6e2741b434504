"""The input of a scheduling pass: NodePools, what they can launch, and pods; and its result.

These are the values that enter and leave the package, without a reference to the scheduler that
created them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.resources import Resources
from reconciler.placement.work import WorkLimit

TYPES_MAX = 600
"""Maximum number of instance types in a NodeClaim (Karpenter ``MaxInstanceTypes``)."""


@dataclass(frozen=True, slots=True)
class PlannedClaim:
    """A NodeClaim that a pass would create, and the pods it is for.

    ``pods`` are keys ``namespace/name`` without DaemonSet pods; ``requests`` is their sum plus the
    minimum that DaemonSets add. ``types`` are cheapest first for ``requirements``, ties by name, at
    most 600 of ``types_total``; each one is created on access. ``device_drivers`` are those whose
    devices the pods claim.
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
    device_drivers: tuple[str, ...] = ()

    @property
    def launch(self) -> tuple[InstanceType, Offering]:
        """The cheapest option: the expected result of the launch."""
        kind = self.types[0]
        return kind, min(
            (
                o
                for o in kind.offerings
                if o.is_launchable and self.requirements.intersects(o.requirements)
            ),
            key=lambda o: o.price,
        )


class Rejection(msgspec.Struct, frozen=True):
    """One rejection: a stable code, a sentence that suggests a fix, and supporting facts.

    ``node_pool`` is None if the reason does not depend on a pool. ``facts`` hold the funnel: how
    many instance types were left after each filter.
    """

    code: str
    message: str
    node_pool: str | None = None
    facts: Mapping[str, str | int | float] = {}


class DroppedPreferences(msgspec.Struct, frozen=True):
    """Preferences of pods (``namespace/name``) that were dropped because they cost too much.

    ``saving`` is the amount saved, in USD an hour, including node costs on top of the price.
    """

    preferences: Mapping[str, tuple[str, ...]]
    saving: float


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each pod of a pass is placed, by its key ``namespace/name``.

    ``deferred`` pods wait for reserved capacity and are not unschedulable: the next pass tries
    again. ``relaxed`` lists the preferences that a pod dropped, including those ``given_up`` for
    their cost. ``uninitialized_targets`` are pods placed on nodes that are still starting.
    ``work_limit`` is the limit that was reached, if pods were not served because of it.
    """

    claims: tuple[PlannedClaim, ...] = ()
    on_nodes: Mapping[str, str] = field(default_factory=dict)
    unschedulable: Mapping[str, tuple[Rejection, ...]] = field(default_factory=dict)
    deferred: Mapping[str, tuple[Rejection, ...]] = field(default_factory=dict)
    relaxed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    given_up: DroppedPreferences | None = None
    uninitialized_targets: frozenset[str] = frozenset()
    work_limit: WorkLimit | None = None


class Question(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """Which pods to place, and how the cluster differs from the one that the scheduler knows.

    Nodes named in ``without`` are left out, and their capacity is returned to limits. Nodes that
    are ``closed`` take no new pods, though the pods on them count. Without
    ``strict_reservations``, a pod that could use reserved capacity takes other capacity instead of
    waiting when none is left. ``freed_reservation`` has one more slot. ``consolidation_guard``
    keeps running pods off nodes whose pods changed recently. ``pod_values`` is the cost of each pod
    on new nodes, USD an hour. With it, new nodes are packed for cost regardless of the settings,
    and the most expensive pods get the existing room.
    """

    pods: Sequence[Pod]
    without: frozenset[str] = frozenset()
    closed: frozenset[str] = frozenset()
    strict_reservations: bool = True
    freed_reservation: str | None = None
    consolidation_guard: bool = False
    pod_values: Mapping[str, float] | None = None

    @property
    def is_launched(self) -> bool:
        """Whether the new nodes are launched, and not only part of a simulated removal."""
        return self.strict_reservations and self.freed_reservation is None


class LaunchCatalog(Protocol):
    """What a NodePool can launch: the instance types after its node class and overlays."""

    @property
    def types(self) -> Sequence[InstanceType]:
        """All instance types, with their offerings and prices."""
        ...

    @property
    def well_known(self) -> frozenset[str]:
        """The label keys that a pod may use although no NodePool defines them."""
        ...

    def get(self, name: str) -> InstanceType | None:
        """Return the instance type with that name, or None."""
        ...

    def __hash__(self) -> int:
        """A catalog is a value: its tables are cached by it."""
        ...


class LaunchPool(msgspec.Struct, frozen=True):
    """A NodePool and what it can launch.

    Pools that share a catalog should hold the same object, because its tables are built once.
    """

    node_pool: NodePool
    types: LaunchCatalog
