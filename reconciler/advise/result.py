"""The request for advice, and the report: the fleet at rest and proposals for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal

import msgspec

from reconciler.assembly.inputs.request import FleetRequest, SweepRequest
from reconciler.catalog.commitments.purchases import Purchase
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.plan.rest.exposure import Exposure
from reconciler.plan.value.costs import AtRest, WaitingSeconds
from reconciler.plan.value.ranges import FleetRange

CANDIDATES: Final = 100
BACKTESTED: Final = 3
SPOT_PERCENT: Final = 50.0
WAITING_SECONDS: Final = 120.0
EVICTIONS_PER_POD_DAY: Final = 1.0
COMPUTE_PLAN_PERCENT: Final = 27.0
INSTANCE_PLAN_PERCENT: Final = 37.0
"""The discounts of one-year plans without upfront payment on general-purpose types."""


@dataclass(frozen=True, slots=True)
class AdviceRequest:
    """The fleet, how changes to it are searched for, and the limits that they must keep.

    With ``has_new_nodes``, fleets of new nodes are compared. At most ``most``
    candidates are judged, where ``sweep`` says. ``policies`` are files of the operator.
    ``zones`` is None for as many as the fleet has now. The ``backtested`` best proposals are
    replayed on the workload in the file ``trace``; only then do the limits on waiting and evictions
    count. The last two are the discounts of savings plans that could be bought.
    """

    fleet: FleetRequest
    has_new_nodes: bool = False
    policies: tuple[str, ...] = ()
    most: int = CANDIDATES
    seed: int = 0
    sweep: SweepRequest = field(default_factory=SweepRequest)
    trace: str | None = None
    backtested: int = BACKTESTED
    spot_percent: float = SPOT_PERCENT
    zones: int | None = None
    waiting_seconds: float = WAITING_SECONDS
    evictions_per_pod_day: float = EVICTIONS_PER_POD_DAY
    compute_plan_percent: float = COMPUTE_PLAN_PERCENT
    instance_plan_percent: float = INSTANCE_PLAN_PERCENT


Level = Literal["low", "medium", "high"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the output; the fields have the names of the JSON."""


class AdviceLimits(_Part, frozen=True, kw_only=True):
    """The limits of a change; the current values of the fleet are allowed if they are higher.

    ``spot_percent`` is the share of pods on spot nodes; ``zones`` the minimum number of zones with
    pods. The others count with a trace: seconds of the 99th percentile of pods' waiting, and
    evictions for each pod and day.
    """

    spot_percent: float
    zones: int
    waiting_seconds: float
    evictions_per_pod_day: float


class FleetNow(_Part, frozen=True, kw_only=True):
    """The fleet with its present files, at rest; money is USD, numbers are means over the seeds.

    ``simulated`` is whether it and the best changes of it are simulated, as by ``plan --base``.
    """

    nodes: int
    per_hour: float
    per_month: float
    is_at_rest: bool
    simulated: bool
    range: FleetRange
    exposure: Exposure


class BacktestedSide(_Part, frozen=True, kw_only=True):
    """One side of a backtest, over its seeds."""

    dollars_per_month: float
    waiting_seconds: WaitingSeconds
    evictions_per_pod_day: float
    unplaced: int


class AdviceBacktest(_Part, frozen=True, kw_only=True):
    """The trace replayed with the change and without; ``per_month`` is the difference, USD."""

    per_month: float
    base: BacktestedSide
    head: BacktestedSide


class SavingRange(_Part, frozen=True, kw_only=True):
    """The change of the cost over pairs of runs with the same seed, USD a month.

    ``beyond_chance`` is whether all runs agree on the sign.
    """

    seeds: int
    low: float
    high: float
    beyond_chance: bool


def saving_range(change: AtRest) -> SavingRange | None:
    """Return the range of a change that was repeated, None if it was carried to rest once."""
    found, fleets = change.difference, change.range
    if found is None or fleets is None:
        return None
    return SavingRange(
        seeds=fleets.seeds,
        low=round(found.low * HOURS_A_MONTH, 6),
        high=round(found.high * HOURS_A_MONTH, 6),
        beyond_chance=found.beyond_chance,
    )


class Advice(_Part, frozen=True, kw_only=True):
    """A change, or several made together, that saves and keeps all limits.

    ``per_month`` is the change of the cost at rest in USD, negative if it saves; ``bounds`` is its
    interval if the work limit ended the search, ``range`` that over several seeds. ``risks`` are
    the consequences and requirements of the change. ``warnings`` are policies that warn of it.
    ``parts`` are the changes by their ids.
    """

    id: str
    rank: int
    topic: str
    title: str
    per_month: float
    percent: float
    bounds: tuple[float, float] | None
    range: SavingRange | None
    risk: Level
    risks: tuple[str, ...]
    confidence: Level
    reasons: tuple[str, ...]
    nodes: int
    replaced: int
    rollout: str | None
    exposure: Exposure
    warnings: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    backtest: AdviceBacktest | None = None
    files: tuple[str, ...] = ()
    patch: str = ""


class WorkloadAdvice(_Part, frozen=True, kw_only=True):
    """A constraint that increases the cost; the owner of the workload decides about it.

    ``per_month`` is the change of the cost at rest in USD without it, ``pods`` how many the owner
    has, ``risk`` what that asks of them, ``range`` the change over several seeds.
    """

    id: str
    owner: str
    constraint: str
    title: str
    per_month: float
    percent: float
    range: SavingRange | None
    pods: int
    risk: str
    nodes: int
    exposure: Exposure


class CommitmentAdvice(Purchase, frozen=True, kw_only=True, rename="camel"):
    """A commitment that is worth buying.

    ``basis`` is the usage that it is judged by. Commitments for the same nodes are alternatives.
    """

    rank: int
    title: str
    confidence: Level
    basis: str


class RefusedAdvice(_Part, frozen=True, kw_only=True):
    """A change that saves but is not proposed; ``reason`` names the limit or the policy."""

    id: str
    topic: str
    title: str
    per_month: float
    reason: str


class NotTried(_Part, frozen=True, kw_only=True):
    """Changes that were not judged, and why."""

    what: str
    reason: str


class AdviceReport(_Part, frozen=True, kw_only=True):
    """All advice for a fleet. ``together`` are the changes that save the most when combined.

    With ``new_nodes``, fleets of new nodes are compared.
    ``workloads`` are constraints for their owners to decide, ``commitments`` what could be bought.
    ``no_effect`` are the ids of candidates that save nothing, ``evaluations`` the number of fleets
    that were carried to rest.
    """

    api_version: str = "reconciler/v1"
    kind: str = "Advice"
    at: datetime
    fleet: str
    seed: int
    new_nodes: bool
    base: FleetNow
    limits: AdviceLimits
    advice: tuple[Advice, ...]
    together: Advice | None
    workloads: tuple[WorkloadAdvice, ...]
    commitments: tuple[CommitmentAdvice, ...]
    refused: tuple[RefusedAdvice, ...]
    no_effect: tuple[str, ...]
    not_tried: tuple[NotTried, ...]
    evaluations: int
