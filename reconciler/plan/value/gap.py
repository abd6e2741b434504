"""What each constraint costs, as a part of a plan."""

from __future__ import annotations

import msgspec

from reconciler.model.decision.part import Part


class GapCost(Part, frozen=True, kw_only=True):
    """What one constraint costs in USD an hour, and the smallest change that saves it.

    ``owner`` is the workload or NodePool that has it, empty for the fleet.
    """

    constraint: str
    owner: str
    price_per_hour: float
    change: str


class PlannedGap(Part, frozen=True, kw_only=True):
    """The cost of a fleet and its minimum in USD an hour, and the parts between, which add up.

    The fields are those of ``explain gap`` (``docs/cost-of-constraints.md``).
    """

    pods: int
    unschedulable: int
    price_per_hour: float
    lower_bound: float
    minimum: float
    limited: bool
    costs: tuple[GapCost, ...] = msgspec.field(name="parts")
