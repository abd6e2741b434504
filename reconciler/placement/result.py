"""What a pass of the scheduler answers: new NodeClaims, places on nodes, and every «no».

Plain values: nothing here refers back to the scheduler that made them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from reconciler.model.instancetype import InstanceType, Offering
from reconciler.model.nodepool import NodePool
from reconciler.model.requirements import Requirements
from reconciler.model.resources import Resources
from reconciler.model.taint import Taint

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


class GivenUp(msgspec.Struct, frozen=True):
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
    given_up: GivenUp | None = None
    uninitialized_targets: frozenset[str] = frozenset()
