"""All inputs of a plan, read beforehand by the caller."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol

import msgspec

from reconciler.catalog.adjusted.discovered import Discoveries
from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads.scaled import ScaledWorkload
from reconciler.model.decision.policy import Policy
from reconciler.model.diagnostics import Diagnostic
from reconciler.model.grouping import BY_NAMESPACE, Grouping
from reconciler.model.json import JsonObject
from reconciler.observed.state import ClusterState
from reconciler.plan.make.facts import Given
from reconciler.plan.make.pools import ClassKey

if TYPE_CHECKING:
    from reconciler.catalog.adjusted.adjustment import RefusedOffering
    from reconciler.diff.nodeclass import LiveInstance
    from reconciler.plan.value.costs import AtRest

Object = JsonObject


class ChangeSimulation(Protocol):
    """Simulates a change with the engine and every latency until nothing is left to do."""

    def __call__(self, *, has_effect: bool) -> AtRest | None:
        """Return the cost of the change over several seeds.

        None if it does not come to rest within a limit of passes. A change without an effect is not
        simulated: both fleets are that of the base.
        """


class Inputs(Given, frozen=True, kw_only=True):
    """All that one plan depends on.

    ``fleet`` is the desired state in git, without a single error. ``base`` are the objects to
    compare it with, None if there are none. ``live`` are the cluster's own NodePools, NodeOverlays
    and EC2NodeClasses; of these only the resolved resources (``status``) are used. ``any_class``
    takes every node class as known and ready, as with a catalog file. ``unavailable`` are offerings
    that EC2 refused recently. ``allow_removal`` are NodePools that may be removed because they were
    deleted from git. ``memory`` is the measured memory of nodes, now and before. ``instances`` are
    the instances as observed in EC2, by provider id; instances that were not read are omitted, and
    do not drift. ``against`` are the same inputs for the base, to compute the cost of the change
    itself; ``simulation`` simulates that change if possible. ``finds_steady_state`` is whether to
    compute what later plans lead to, where this one is not the result, and what CronJobs need at
    their peak. ``unready_classes`` are the kind and name of node classes that are not ready.
    ``base_policies`` are the policies of the base revision. ``region_before`` is the region in
    which the fleet has its nodes, empty if that is unknown. ``scaled`` are the workloads with a
    range of replicas, and ``maximum`` is the cluster with all of them at their maximum, None
    without any. ``cost_by`` is how the cost of a change is divided among workloads. ``durations``
    are how long the pods of CronJobs run, by ``namespace/name`` or by name, where that is stated.
    """

    fleet: Fleet
    base: Sequence[Object] | None = None
    live: Sequence[Object] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    any_class: bool = False
    unavailable: Collection[RefusedOffering] = ()
    memory: Discoveries = msgspec.field(default_factory=dict)
    allow_removal: frozenset[str] = frozenset()
    instances: Mapping[str, LiveInstance] = {}
    against: Inputs | None = None
    simulation: ChangeSimulation | None = None
    finds_steady_state: bool = False
    withheld: str = ""
    unready_classes: frozenset[ClassKey] = frozenset()
    base_policies: tuple[Policy, ...] = ()
    region_before: str = ""
    scaled: tuple[ScaledWorkload, ...] = ()
    maximum: ClusterState | None = None
    cost_by: Grouping = BY_NAMESPACE
    durations: Mapping[str, timedelta] = {}

    @property
    def known_before(self) -> tuple[Object, ...]:
        """The objects of the cluster and of the base, those of the base last."""
        return (*self.live, *(self.base or ()))

    @property
    def left_region(self) -> str:
        """The region that the fleet leaves with its nodes, empty if it stays where it is.

        It is the recorded one, else that of the base.
        """
        against = self.against.settings.region if self.against is not None else ""
        before = self.region_before or against
        return "" if before == self.settings.region else before


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionPair:
    """Both sides of a change: what ``base`` and ``head`` are planned from."""

    base: Inputs
    head: Inputs
