"""What the user has committed to pay AWS for: savings plans and reserved instances.

How much of each is used outside this fleet has to be known before its room steers a launch. It is
told as ``used_elsewhere``, to which the fleet's own nodes are added, or as the
``utilization_percent`` that AWS bills, which has them in it already; told neither way, the
commitment is as good as used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

COMPUTE: Final = "Compute"
EC2_INSTANCE: Final = "EC2Instance"


@dataclass(frozen=True, slots=True)
class SavingsPlanTerms:
    """A savings plan; money is USD an hour at the plan's own rates.

    ``type`` is AWS' word, ``Compute`` or ``EC2Instance``; only the latter has a ``family``. No
    ``region`` is the fleet's. ``discount_percent`` is what the plan takes off the price on demand.
    """

    type: str
    commitment: float
    family: str = ""
    region: str = ""
    discount_percent: float = 0.0
    used_elsewhere: float | None = None
    utilization_percent: float | None = None
    until: datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class ReservedInstancesTerms:
    """Reserved instances of one type; with a ``zone`` they hold there alone."""

    instance_type: str
    count: int
    region: str = ""
    zone: str = ""
    used_elsewhere: int | None = None
    utilization_percent: float | None = None
    until: datetime | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Commitments:
    """All of them, and from which use on (in percent) a group of plans steers nothing more."""

    savings_plans: tuple[SavingsPlanTerms, ...] = ()
    reserved_instances: tuple[ReservedInstancesTerms, ...] = ()
    threshold_percent: float = 95.0

    @property
    def ends(self) -> tuple[datetime, ...]:
        """The moments at which one of them ends."""
        every = (
            *(plan.until for plan in self.savings_plans),
            *(reserved.until for reserved in self.reserved_instances),
        )
        return tuple(end for end in every if end is not None)
