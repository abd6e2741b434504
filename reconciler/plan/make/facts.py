"""The facts of one plan: those that are given, and those gathered beforehand (``gather``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.model.decision.changes import Change
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.state import ClusterState
from reconciler.plan.make.pools import PoolTypes
from reconciler.plan.value.costs import AtRest, Cost
from reconciler.plan.value.nodes import OffersChange
from reconciler.plan.value.plan import (
    ComparedWith,
    InputDigests,
    ObservationSource,
    PlanActor,
    PlannedLock,
    Revision,
    digest_of,
)

if TYPE_CHECKING:
    from reconciler.catalog.commitments.coverage import Cover
    from reconciler.model.decision.changes import DriftedClaim
    from reconciler.model.history import History
    from reconciler.placement.pods.headroom import Headroom
    from reconciler.placement.question import LaunchPool


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a plan that are facts of it as they are.

    ``catalog`` prices the nodes of removed pools. ``interrupted`` are NodeClaims that EC2
    interrupts, with the event. ``nominated`` are NodeClaims whose pods are still moving from
    disrupted nodes, ``checked`` those of a command that was computed before and is now checked
    again, and ``unsettled`` those that consolidation removes and whose pods have not all moved.
    ``history`` is the history for the rate limits, None without records. ``lists_blockers`` is
    whether to compute what blocks nodes, the forgone savings, and the exact reason of each
    rejection. ``compared_with`` describes what the desired state is compared with. ``observation``
    is the source of ``cluster``, ``observed_at`` the time at which a snapshot of it was captured,
    if known, and ``observed`` what an approval of the plan covers: a fingerprint for each object.
    ``actor`` is who acts: empty for this engine, ``karpenter`` where Karpenter does.
    """

    now: datetime
    settings: Settings
    catalog: Catalog
    cluster: ClusterState
    interrupted: Mapping[str, str] = {}
    nominated: frozenset[str] = frozenset()
    checked: frozenset[str] = frozenset()
    unsettled: frozenset[str] = frozenset()
    history: History | None = None
    lists_blockers: bool = True
    revision: Revision = Revision()
    compared_with: ComparedWith = ""
    actor: PlanActor = ""
    serial: int = 0
    digests: InputDigests = InputDigests()
    observation: ObservationSource | None = None
    observed_at: datetime | None = None
    observed: Mapping[str, str] = {}

    def given(self) -> JsonDict:
        """Return these facts by name."""
        return {name: getattr(self, name) for name in Given.__struct_fields__}


class BaseCost(msgspec.Struct, frozen=True):
    """The cost of a change since a base, and the cost after the base's own plan.

    ``offers`` are the NodePools for which the change leaves other offerings.
    """

    at_rest: AtRest
    base: Cost
    offers: Mapping[str, OffersChange] = {}


class Facts(Given, frozen=True, kw_only=True):
    """The facts of one plan, in the values of the model.

    Of the desired state: the NodePools, their ``classes`` as looked up, and the ``types`` that they
    may launch. ``covers`` are the commitments with unused capacity; ``uncovered`` has the types at
    prices without them.

    Of the cluster: its pods include those of ``headroom``. ``vanished`` are NodePools that were
    deleted from git; the nodes of the ``removable`` ones may be removed.

    Of both: the NodeClaims that drifted, what git ``changes``, and what the change since a base
    costs (``base_cost``). ``findings`` are about these facts; those of CapacityBuffers are
    separate, because they come last in a plan. ``left_region`` is the region that the fleet leaves
    with its nodes, empty if it stays. ``withheld`` is the reason why nothing may be launched or
    removed now, empty if there is none. ``states_pods`` is whether the files state what runs.
    """

    pools: tuple[NodePool, ...]
    classes: Mapping[str, EC2NodeClass]
    types: PoolTypes
    covers: tuple[Cover, ...] = ()
    uncovered: Callable[[], Mapping[str, LaunchPool]] = dict
    lock: PlannedLock | None = None
    headroom: tuple[Headroom, ...] = ()
    vanished: tuple[NodePool, ...] = ()
    removable: frozenset[str] = frozenset()
    states_reasons: bool = True
    drift: tuple[DriftedClaim, ...] = ()
    changes: tuple[Change, ...] = ()
    base_cost: BaseCost | None = None
    findings: tuple[PlanFinding, ...] = ()
    buffer_findings: tuple[PlanFinding, ...] = ()
    left_region: str = ""
    withheld: str = ""
    states_pods: bool = True

    @property
    def inputs_digest(self) -> str:
        """One digest of all inputs."""
        return digest_of(self.digests)

    @property
    def salt(self) -> str:
        """The part of the inputs that determines the names of new NodeClaims."""
        return f"{self.inputs_digest}\n{self.serial}"

    @property
    def virtual(self) -> frozenset[str]:
        """The pods that CapacityBuffers stand for."""
        return frozenset(pod.key for room in self.headroom for pod in room.pods)
