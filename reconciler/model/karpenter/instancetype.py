"""Instance types, and the offerings in which each is available."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import ClassVar

from reconciler.model.decision.part import Part
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    ON_DEMAND,
    RESERVATION_ID,
    RESERVED,
    SPOT,
    ZONE,
    ZONE_ID,
)
from reconciler.model.karpenter.requirements import (
    NO_REQUIREMENTS,
    Requirement,
    Requirements,
    equals,
)
from reconciler.model.kubernetes.devices import DeviceTemplate
from reconciler.model.resources import HUGEPAGES, MEMORY, Resources, subtract_resources

LAUNCH_PREFERENCE = (RESERVED, SPOT, ON_DEMAND)
"""The order in which a launch tries the capacity types that its claim allows."""


@lru_cache(maxsize=4096)
def _labels(
    zone: str,
    capacity_type: str,
    zone_id: str | None,
    reservation_id: str | None,
    extra: tuple[Requirement, ...],
) -> Requirements:
    """Return the labels of an offering; thousands of offerings share a few sets of them."""
    items = [equals(ZONE, zone), equals(CAPACITY_TYPE, capacity_type)]
    if zone_id:
        items.append(equals(ZONE_ID, zone_id))
    if reservation_id:
        items.append(equals(RESERVATION_ID, reservation_id))
    return Requirements([*items, *extra])


class PriceOrigin(Part, frozen=True):
    """The source of a price.

    ``source`` is one of ``bundled`` (the list in the release), ``live`` (AWS's price list),
    ``spot-history``, ``estimate``, ``reservation`` (already paid for), ``book`` (the user's price
    book), ``commitment`` (a savings plan or reserved instances with unused capacity) or
    ``overlay``. ``at`` is when it was read or published, and ``basis`` the source of the price that
    a book, a commitment or an overlay changed. ``note`` names the commitment.
    """

    source: str
    at: datetime | None = None
    basis: str = ""
    note: str = ""

    left_out: ClassVar = ("at", "basis", "note")


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to launch an instance type: a zone, a capacity type, a price in USD an hour.

    ``estimated`` marks a price that is an estimate and not a quote. ``extra`` are further
    requirements that the offering puts on its node (a reservation, a placement group). ``origin``
    is the source of the price, if it is known.
    """

    zone: str
    capacity_type: str
    price: float
    available: bool = True
    zone_id: str | None = None
    reservation_id: str | None = None
    reservation_capacity: int | None = None
    extra: tuple[Requirement, ...] = ()
    estimated: bool = False
    origin: PriceOrigin | None = None

    @property
    def is_launchable(self) -> bool:
        """Whether it is available, and not a reservation that is full.

        A full reservation is offered: a node that leaves it makes room for the next.
        """
        return self.available and self.reservation_capacity != 0

    @property
    def requirements(self) -> Requirements:
        """The labels of a node launched from this offering."""
        return _labels(self.zone, self.capacity_type, self.zone_id, self.reservation_id, self.extra)

    def satisfies(self, requirements: Requirements) -> bool:
        """Return whether a claim with these requirements may use this offering.

        Keys that the claim does not mention are unrestricted: labels of offerings count as
        well-known.
        """
        return requirements.intersects(self.requirements)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type, its size, and the labels of its nodes.

    ``allocatable`` is what pods can use: ``capacity`` minus ``overhead``, and minus memory set
    aside as huge pages. It may be negative, and then nothing fits. ``volume_limit`` is how many EBS
    volumes of pods can be attached, None if that is unknown. ``devices`` can be claimed.
    """

    name: str
    capacity: Resources
    overhead: Resources
    requirements: Requirements = NO_REQUIREMENTS
    offerings: tuple[Offering, ...] = ()
    volume_limit: int | None = None
    devices: tuple[DeviceTemplate, ...] = ()
    allocatable: Resources = field(init=False, compare=False)

    def __post_init__(self) -> None:
        amounts = subtract_resources(self.capacity, self.overhead)
        pages = sum(v for name, v in self.capacity.items() if name.startswith(HUGEPAGES))
        if pages and MEMORY in amounts:
            amounts[MEMORY] = max(amounts[MEMORY] - pages, 0)
        object.__setattr__(self, "allocatable", amounts)

    def available_offerings(self, requirements: Requirements = NO_REQUIREMENTS) -> list[Offering]:
        """Return the offerings that can be launched now and satisfy ``requirements``."""
        return [o for o in self.offerings if o.is_launchable and o.satisfies(requirements)]

    def cheapest_offering(self, requirements: Requirements = NO_REQUIREMENTS) -> Offering | None:
        """Return the cheapest available offering; ties are resolved by order."""
        return min(self.available_offerings(requirements), key=lambda o: o.price, default=None)

    def price_of(self, zone: str, capacity_type: str) -> float | None:
        """Return the price of a running node: its first offering of that zone and capacity type.

        Availability does not matter, because the node already runs (Karpenter ``Candidate`` price).
        """
        for offering in self.offerings:
            if (offering.zone, offering.capacity_type) == (zone, capacity_type):
                return offering.price
        return None
