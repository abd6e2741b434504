"""What advice is asked for, and the defaults that the command line states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from reconciler.cli.shared.request import SweepRequest

if TYPE_CHECKING:
    from reconciler.cli.shared.request import FleetRequest

CANDIDATES: Final = 100
BACKTESTED: Final = 3
SPOT_PERCENT: Final = 50.0
WAITING_SECONDS: Final = 120.0
EVICTIONS_PER_POD_DAY: Final = 1.0
COMPUTE_PLAN_PERCENT: Final = 27.0
INSTANCE_PLAN_PERCENT: Final = 37.0
"""What plans for one year without upfront payment take off the prices of general-purpose types."""


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
