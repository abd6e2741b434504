"""The plan: actions, their order, reasons and cost."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Annotated, ClassVar, Final, Literal

import msgspec

from reconciler.model.decision.changes import Change, DriftedClaim
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.decision.part import Part
from reconciler.model.decision.verdicts import ComparedValue
from reconciler.model.decision.waiting import Blocker, DeferredClaim, PoolBudget
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import UnreadableError
from reconciler.plan.value.actions import Action, BlockedNode, PlannedCommand
from reconciler.plan.value.costs import (
    AtRest,
    Backtest,
    Cost,
    FleetAtMaximum,
    FleetAtPeak,
    PlannedGap,
    PlannedWorkload,
    SteadyState,
)
from reconciler.plan.value.nodes import (
    OffersChange,
    PlacedPod,
    PlannedHeadroom,
    PlannedNodeClaim,
    PlannedNodeClass,
    UnschedulablePod,
)

PolicyResult = Literal["passed", "failed", "exempted"]

API_VERSION: Final = "reconciler/v1"

DIGEST_LENGTH: Final = 12


class PlannedExemption(Part, frozen=True, kw_only=True):
    """The exemption that applies to a plan, or the last one that has expired."""

    owner: str
    expires: datetime
    expired: bool
    reason: str = ""

    left_out: ClassVar = ("reason",)


class JudgedPolicy(Part, frozen=True, kw_only=True):
    """One policy and whether the plan complies; ``message`` and ``values`` are empty if it does.

    ``values`` are those that the policy has compared. ``source`` is who set the policy. A failed
    policy with severity ``error`` forbids the plan.
    """

    name: str
    severity: Literal["error", "warning"]
    result: PolicyResult
    message: str = ""
    source: Literal["operator", "base", "head"]
    file: str | None = None
    line: int | None = None
    column: int | None = None
    exemption: PlannedExemption | None = None
    values: tuple[ComparedValue, ...] = ()

    left_out: ClassVar = ("exemption", "values")
    parts: ClassVar = ("exemption", "values")

    @property
    def forbids(self) -> bool:
        """Whether the plan must not be merged or applied."""
        return self.result == "failed" and self.severity == "error"


ObservationSource = Literal["cluster", "embedded", "snapshot", "workloads"]
"""The source of the observed cluster: a real or simulated one, a file, or none. Without a cluster
the workloads in the fleet folder are planned."""

ComparedWith = Literal["", "base", "records", "cluster"]

PlanActor = Literal["", "karpenter"]
"""Who acts: this engine, or the Karpenter that runs in the cluster."""


class Revision(Part, frozen=True, kw_only=True):
    """The planned commit and its repository; ``head`` is None outside a repository."""

    head: str | None = None
    base: str | None = None
    repo: str | None = None
    path: str | None = None
    dirty: bool = False


class InputDigests(Part, frozen=True, kw_only=True):
    """A digest of each input, so that a stale plan can name those that changed."""

    git: str = ""
    snapshot: str = ""
    catalog: str = ""
    settings: str = ""
    engine: str = ""

    def changed(self, current: InputDigests) -> list[str]:
        """Return the names of the inputs that differ, in a fixed order."""
        return [
            name for name in self.__struct_fields__ if getattr(self, name) != getattr(current, name)
        ]


class PlannedLock(Part, frozen=True, kw_only=True):
    """The lock file that provides images, subnets and prices: its time and digest.

    ``catalog`` is the version of the bundled instance types when it was written.
    """

    at: datetime
    digest: str
    catalog: str = ""


class Plan(Part, frozen=True, kw_only=True):
    """A plan. Equal facts give equal plans, and equal plans equal bytes and an equal ``digest``.

    ``serial`` is that of the recorded state. ``compared_with`` names what the ``changes`` are
    relative to: another commit, our records, or the cluster's own objects. ``actor`` is left out
    where this engine acts. ``headroom`` is left out
    without CapacityBuffers. ``node_classes`` are those of the launches. ``at_rest`` is the cost of
    the change since a base. ``steady_state`` is the fleet that this plan and later ones lead to, if
    this plan alone is not the result. ``observation`` names the source of the cluster, and
    ``observed_at`` is when a snapshot of it was captured, if that is known. ``observed`` has a
    fingerprint of each object that decisions depend on, so that a rejected approval can name what
    has changed. ``approved_as`` is the digest of the saved plan that approved this one.
    ``policies`` are the verdicts of its policies. ``backtest`` is what a recorded workload would
    have cost with and without the change since a base. ``workloads`` are those
    that are scaled, and ``at_maximum`` is the fleet with all of them at their maximum.
    ``at_peak`` is the fleet in the worst hour of the day of its CronJobs. ``offers`` are the
    NodePools for which the change since a base leaves other offerings.
    """

    api_version: str = API_VERSION
    kind: str = "Plan"
    fleet: str = ""
    at: Annotated[datetime, msgspec.Meta(tz=True)]
    serial: int = 0
    revision: Revision = Revision()
    inputs_digest: str = ""
    inputs: InputDigests = InputDigests()
    changes: tuple[Change, ...] = ()
    compared_with: ComparedWith = ""
    actor: PlanActor = ""
    node_claims: tuple[PlannedNodeClaim, ...] = ()
    placements: tuple[PlacedPod, ...] = ()
    unschedulable: tuple[UnschedulablePod, ...] = ()
    headroom: tuple[PlannedHeadroom, ...] = ()
    drift: tuple[DriftedClaim, ...] = ()
    commands: tuple[PlannedCommand, ...] = ()
    blocked: tuple[BlockedNode, ...] = ()
    budgets: tuple[PoolBudget, ...] = ()
    actions: tuple[Action, ...] = ()
    deferred: tuple[DeferredClaim, ...] = ()
    cost: Cost
    diagnostics: tuple[PlanFinding, ...] = ()
    blockers: tuple[Blocker, ...] = ()
    lock: PlannedLock | None = None
    node_classes: tuple[PlannedNodeClass, ...] = ()
    approved_as: str | None = None
    at_rest: AtRest | None = None
    steady_state: SteadyState | None = None
    observation: ObservationSource | None = None
    observed_at: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    observed: dict[str, str] = msgspec.field(default_factory=dict)
    policies: tuple[JudgedPolicy, ...] = ()
    backtest: Backtest | None = None
    workloads: tuple[PlannedWorkload, ...] = ()
    at_maximum: FleetAtMaximum | None = None
    at_peak: FleetAtPeak | None = None
    offers: dict[str, OffersChange] = msgspec.field(default_factory=dict)
    gap: PlannedGap | None = None

    left_out: ClassVar = (
        "actor",
        "headroom",
        "blockers",
        "lock",
        "node_classes",
        "approved_as",
        "at_rest",
        "steady_state",
        "observation",
        "observed_at",
        "observed",
        "policies",
        "backtest",
        "workloads",
        "at_maximum",
        "at_peak",
        "offers",
        "gap",
    )
    parts: ClassVar = (
        "node_claims",
        "deferred",
        "placements",
        "commands",
        "actions",
        "cost",
        "policies",
        "at_rest",
        "steady_state",
    )

    @property
    def digest(self) -> str:
        """The first characters of a hash over the complete plan, which a reviewer approves.

        A plan that is applied under an approval has the approved digest.
        """
        if self.approved_as is not None:
            return self.approved_as
        return content_digest(to_json(self))

    def findings_of(self, *codes: str) -> list[PlanFinding]:
        """Return the findings of these codes."""
        return [finding for finding in self.diagnostics if finding.code in codes]

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do now."""
        return not self.actions


def content_digest(*parts: bytes) -> str:
    """Return a short digest for names; see ``input_digest``."""
    return input_digest(*parts)[:DIGEST_LENGTH]


def digest_of(digests: InputDigests) -> str:
    """Return one digest of all inputs."""
    names = digests.__struct_fields__
    return content_digest(*(getattr(digests, name).encode() for name in names))


def input_digest(*parts: bytes) -> str:
    """Return a collision-resistant digest of parts.

    The length of each part is included, so that different parts never look alike.
    """
    digest = sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def to_json(plan: Plan) -> bytes:
    """Return the plan as one line of JSON: keys sorted, floats in their shortest decimal form."""
    return msgspec.json.encode(plan.omit_empty(), order="sorted")


def from_json(content: bytes, source: str = "the plan") -> Plan:
    """Return the plan that ``to_json`` wrote.

    Raises:
        UnreadableError: it is not a plan of this version.
    """
    try:
        plan = decode_json(content, Plan)
    except msgspec.MsgspecError as error:
        raise UnreadableError(
            f"not a plan: {describe_mismatch(error)}",
            where=source,
            remedy="save one with `reconciler plan --out FILE`",
        ) from error
    if (plan.api_version, plan.kind) != (API_VERSION, "Plan"):
        raise UnreadableError(
            f"not a plan of {API_VERSION}: found {plan.kind} of {plan.api_version}",
            where=source,
            remedy="run `reconciler plan --out FILE` again with this release",
        )
    fault = _fault_of_order(plan)
    if fault:
        raise UnreadableError(
            f"not a plan: {fault}",
            where=source,
            remedy="save one with `reconciler plan --out FILE`",
        )
    return plan


def _fault_of_order(plan: Plan) -> str:
    """Return why the actions have no order, empty if they have: each waits for earlier waves."""
    waves = {action.id: action.wave for action in plan.actions}
    if len(waves) < len(plan.actions):
        return "two actions have the same id"
    is_ordered = all(
        waves.get(before, action.wave) < action.wave
        for action in plan.actions
        for before in action.depends_on
    )
    return (
        "" if is_ordered else "an action waits for one that is missing, or not in an earlier wave"
    )
