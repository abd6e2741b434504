"""What advice is asked for, and the answer: the fleet at rest and proposals for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from reconciler.cli.shared.request import SweepRequest
from reconciler.plan.rest.compare import Exposure
from reconciler.plan.value.costs import WaitingSeconds

if TYPE_CHECKING:
    from reconciler.cli.shared.request import FleetRequest

CANDIDATES: Final = 100
BACKTESTED: Final = 3
SPOT_PERCENT: Final = 50.0
WAITING_SECONDS: Final = 120.0
EVICTIONS_PER_POD_DAY: Final = 1.0


@dataclass(frozen=True, slots=True)
class AdviceRequest:
    """The fleet, how changes to it are searched for, and the limits that they must keep.

    With ``has_new_nodes``, fleets of new nodes are compared. At most ``most``
    candidates are judged, where ``sweep`` says. ``policies`` are files of the operator.
    ``zones`` is None for as many as the fleet has now. The ``backtested`` best proposals are
    replayed on the workload in the file ``trace``; only then do the last two limits count.
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


Level = Literal["low", "medium", "high"]


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part of the output; the fields have the names of the JSON."""


class AdviceLimits(_Part, frozen=True, kw_only=True):
    """What a change may lead to; what the fleet has now is allowed where that is more.

    ``spot_percent`` is the share of pods on spot nodes; ``zones`` the least number of zones with
    pods. The others count with a trace: seconds of the 99th percentile of pods' waiting, and
    evictions for each pod and day.
    """

    spot_percent: float
    zones: int
    waiting_seconds: float
    evictions_per_pod_day: float


class FleetNow(_Part, frozen=True, kw_only=True):
    """The fleet with its present files, at rest; money is USD."""

    nodes: int
    per_hour: float
    per_month: float
    is_at_rest: bool
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


class Advice(_Part, frozen=True, kw_only=True):
    """A change, or several made together, that saves and keeps all limits.

    ``per_month`` is the change of the cost at rest in USD, negative where it saves; ``bounds`` the
    interval of it if the limit of work ended the search. ``risks`` are what the change leads to or
    asks for. ``warnings`` are policies that warn of it. ``parts`` are the changes by their ids.
    """

    id: str
    rank: int
    topic: str
    title: str
    per_month: float
    percent: float
    bounds: tuple[float, float] | None
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
    refused: tuple[RefusedAdvice, ...]
    no_effect: tuple[str, ...]
    not_tried: tuple[NotTried, ...]
    evaluations: int
