"""What a replacement may cost, and what of its choice is left under a price.

Prices are compared as Karpenter compares them: strictly, without an epsilon, in floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from reconciler.model.karpenter.instancetype import LAUNCH_PREFERENCE, InstanceType, Offering
from reconciler.model.karpenter.labels import CAPACITY_TYPE, SPOT, ZONE
from reconciler.model.karpenter.requirements import Requirements, equals
from reconciler.placement.question import PlannedClaim


class OfferingChoice:
    """Which offerings a claim of these requirements may take."""

    def __init__(self, requirements: Requirements) -> None:
        self._requirements = requirements
        self._zone = requirements.allowed(ZONE)
        self._capacity_type = requirements.allowed(CAPACITY_TYPE)
        self._known: dict[object, bool] = {}

    def allows(self, offering: Offering) -> bool:
        """Return whether the claim may take the offering, available or not.

        Hundreds of types share a few kinds of offerings, so each kind is asked about once.
        """
        kind = (
            offering.zone,
            offering.capacity_type,
            offering.zone_id,
            offering.reservation_id,
            offering.extra,
        )
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = self._allows(offering)
        return known

    def _allows(self, offering: Offering) -> bool:
        if not self._capacity_type.has(offering.capacity_type):
            return False
        if not self._zone.has(offering.zone):
            return False
        if offering.extra or offering.reservation_id or offering.zone_id:
            return self._requirements.intersects(offering.requirements)
        return True

    def available(self, kind: InstanceType) -> list[Offering]:
        """Return the offerings of the type that the claim may take now."""
        return [o for o in kind.offerings if o.available and self.allows(o)]

    def cheapest(self, kind: InstanceType) -> float:
        """Return the least that the type may cost, infinity where there is no offering."""
        return min((o.price for o in self.available(kind)), default=inf)

    def worst_launch(self, kind: InstanceType) -> float:
        """Return the most that a launch of the type could cost, infinity without an offering.

        A launch takes the first capacity type of reserved, spot, on-demand that it can have; in
        which zone is not known beforehand.
        """
        offerings = self.available(kind)
        for capacity_type in LAUNCH_PREFERENCE:
            prices = [o.price for o in offerings if o.capacity_type == capacity_type]
            if prices:
                return max(prices)
        return inf


def ordered(claim: PlannedClaim) -> PlannedClaim:
    """Return the claim with its types by the cheapest offering that it may take, then by name."""
    choice = OfferingChoice(claim.requirements)
    types = sorted(claim.types, key=lambda kind: (choice.cheapest(kind), kind.name))
    return replace(claim, types=tuple(types))


def narrowed_to(claim: PlannedClaim, capacity_type: str) -> PlannedClaim:
    """Return the claim pinned to one capacity type, with the types that can be had so."""
    requirements = claim.requirements.adding([equals(CAPACITY_TYPE, capacity_type)])
    choice = OfferingChoice(requirements)
    types = tuple(kind for kind in claim.types if choice.available(kind))
    narrowed = replace(claim, requirements=requirements, types=types, types_total=len(types))
    return ordered(narrowed)


def cheaper_than(claim: PlannedClaim, price: float) -> PlannedClaim:
    """Return the claim with only the types whose dearest launch costs less than ``price``."""
    choice = OfferingChoice(claim.requirements)
    types = tuple(kind for kind in claim.types if choice.worst_launch(kind) < price)
    return replace(claim, types=types, types_total=len(types))


def least_launch(claim: PlannedClaim) -> float:
    """Return the least that some type of the claim costs however its launch comes out.

    The types are in order of their cheapest offering, so few have to be looked at.
    """
    choice, least = OfferingChoice(claim.requirements), inf
    for kind in claim.types:
        if choice.cheapest(kind) >= least:
            break
        least = min(least, choice.worst_launch(kind))
    return least


def may_be_spot(claim: PlannedClaim) -> bool:
    """Return whether the claim may launch as spot."""
    return claim.requirements.allowed(CAPACITY_TYPE).has(SPOT)


def expected_price(claim: PlannedClaim) -> float:
    """Return the cheapest offering of the claim's first type, 0 where it has none now."""
    if not claim.types:
        return 0.0
    price = OfferingChoice(claim.requirements).cheapest(claim.types[0])
    return 0.0 if price == inf else price


def estimated_savings(prices: Iterable[float], replacements: Iterable[PlannedClaim]) -> float:
    """Return what nodes of these prices cost less what replaces them, in USD an hour."""
    return sum(prices) - sum(expected_price(claim) for claim in replacements)


def min_values_unmet(types: Sequence[InstanceType], requirements: Requirements) -> list[str]:
    """Return the label keys of which the types offer fewer values than ``minValues`` asks."""
    wanted = {r.key: r.min_values for r in requirements.values() if r.min_values is not None}
    return sorted(key for key, least in wanted.items() if len(_values(types, key)) < least)


def min_values_prefix(types: Sequence[InstanceType], requirements: Requirements) -> int:
    """Return how many types, in order, are needed to satisfy every ``minValues``."""
    wanted = {r.key: r.min_values for r in requirements.values() if r.min_values is not None}
    seen: dict[str, set[str]] = {key: set() for key in wanted}
    if not wanted:
        return 0
    for count, kind in enumerate(types, start=1):
        for key, values in seen.items():
            values |= _values((kind,), key)
        if all(len(seen[key]) >= least for key, least in wanted.items()):
            return count
    return len(types)


def _values(types: Iterable[InstanceType], key: str) -> set[str]:
    values: set[str] = set()
    for kind in types:
        known = kind.requirements.get(key)
        if known is not None and not known.complement:
            values |= known.values
    return values
