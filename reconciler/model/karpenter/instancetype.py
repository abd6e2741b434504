"""What EC2 sells: instance types, and the offerings in which each can be had."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache

import msgspec

from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
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
from reconciler.model.resources import HUGEPAGES, MEMORY, Resources, subtract

LAUNCH_PREFERENCE = (RESERVED, SPOT, ON_DEMAND)
"""Which capacity type a launch takes first where its claim allows several."""


@lru_cache(maxsize=4096)
def _labels(
    zone: str,
    capacity_type: str,
    zone_id: str | None,
    reservation_id: str | None,
    extra: tuple[Requirement, ...],
) -> Requirements:
    """Return the labels of an offering; thousands of offerings bear the same few."""
    items = [equals(ZONE, zone), equals(CAPACITY_TYPE, capacity_type)]
    if zone_id:
        items.append(equals(ZONE_ID, zone_id))
    if reservation_id:
        items.append(equals(RESERVATION_ID, reservation_id))
    return Requirements([*items, *extra])


class PriceOrigin(msgspec.Struct, frozen=True):
    """Whence a price comes.

    ``source`` is one of ``bundled`` (the list that the release brings along), ``live`` (AWS'
    price list), ``spot-history``, ``estimate``, ``reservation`` (paid for already), ``book`` (the
    user's price book), ``commitment`` (a savings plan or reserved instances that have room) or
    ``overlay``; ``at`` is when it was read or published, and ``basis`` the source of the price that
    a book, a commitment or an overlay changed. ``note`` says which commitment.
    """

    source: str
    at: datetime | None = None
    basis: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Offering:
    """One way to have an instance type: a zone, a capacity type, a price in USD an hour.

    ``estimated`` marks a price that is an estimate and not a quotation. ``extra`` are further
    requirements that the offering puts on its node (a reservation, a placement group).
    ``origin`` says whence the price comes, where that is known.
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
    def requirements(self) -> Requirements:
        """The labels that a node launched from this offering bears."""
        return _labels(self.zone, self.capacity_type, self.zone_id, self.reservation_id, self.extra)

    def satisfies(self, requirements: Requirements) -> bool:
        """Return whether a claim with these requirements may take this offering.

        What the claim does not mention is free: labels that offerings bear count as well known.
        """
        return requirements.intersects(self.requirements)


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type, its size, and the labels that its nodes bear.

    ``allocatable`` is what pods may use: ``capacity`` less ``overhead``, and less memory set
    aside as huge pages. It may be negative, and then nothing fits.
    """

    name: str
    capacity: Resources
    overhead: Resources
    requirements: Requirements = NO_REQUIREMENTS
    offerings: tuple[Offering, ...] = ()
    allocatable: Resources = field(init=False, compare=False)

    def __post_init__(self) -> None:
        amounts = subtract(self.capacity, self.overhead)
        pages = sum(v for name, v in self.capacity.items() if name.startswith(HUGEPAGES))
        if pages and MEMORY in amounts:
            amounts[MEMORY] = max(amounts[MEMORY] - pages, 0)
        object.__setattr__(self, "allocatable", amounts)

    def available(self, requirements: Requirements = NO_REQUIREMENTS) -> list[Offering]:
        """Return the offerings that can be had now and satisfy ``requirements``."""
        return [o for o in self.offerings if o.available and o.satisfies(requirements)]

    def cheapest(self, requirements: Requirements = NO_REQUIREMENTS) -> Offering | None:
        """Return the cheapest offering that can be had; of equals, the first in order."""
        return min(self.available(requirements), key=lambda o: o.price, default=None)

    def worst_launch_price(self, requirements: Requirements) -> float:
        """Return the most that a launch could cost, infinity if there is no offering.

        A launch takes the first capacity type of reserved, spot, on-demand that it can have; in
        which zone is not known beforehand, so the dearest of that capacity type counts
        (Karpenter ``WorstLaunchPrice``).
        """
        offerings = self.available(requirements)
        for capacity_type in LAUNCH_PREFERENCE:
            prices = [o.price for o in offerings if o.capacity_type == capacity_type]
            if prices:
                return max(prices)
        return float("inf")

    def price_of(self, zone: str, capacity_type: str) -> float | None:
        """Return what a running node costs: its first offering of that zone and capacity type.

        Availability does not matter: the node already runs (Karpenter ``Candidate`` price).
        """
        for offering in self.offerings:
            if (offering.zone, offering.capacity_type) == (zone, capacity_type):
                return offering.price
        return None


def by_price(types: Iterable[InstanceType], requirements: Requirements) -> list[InstanceType]:
    """Return the types by their cheapest offering for ``requirements``, then by name."""

    def key(kind: InstanceType) -> tuple[float, str]:
        offering = kind.cheapest(requirements)
        return (offering.price if offering else float("inf"), kind.name)

    return sorted(types, key=key)


def name_requirement(name: str) -> Requirement:
    """Return the requirement that the instance type is ``name``."""
    return equals(INSTANCE_TYPE, name)
