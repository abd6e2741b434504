"""The price limit of a replacement, and the options of a claim below that limit.

Prices are compared as in Karpenter: strictly, without an epsilon, as floats.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import takewhile
from math import inf

from reconciler.model.karpenter.instancetype import LAUNCH_PREFERENCE, InstanceType, Offering
from reconciler.model.karpenter.labels import CAPACITY_TYPE, SPOT, ZONE
from reconciler.model.karpenter.requirements import Requirement, Requirements, equals
from reconciler.placement.question import PlannedClaim


class OfferingChoice:
    """The offerings that a claim with these requirements may use."""

    def __init__(self, requirements: Requirements) -> None:
        self._requirements = requirements
        self._zone = requirements.requirement_on(ZONE)
        self._capacity_type = requirements.requirement_on(CAPACITY_TYPE)
        self._known: dict[object, bool] = {}
        self._available: dict[int, tuple[InstanceType, list[Offering]]] = {}

    def allows(self, offering: Offering) -> bool:
        """Return whether the claim may use the offering, available or not.

        Hundreds of types share a few kinds of offerings, so each kind is evaluated once.
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

    def available_offerings(self, kind: InstanceType) -> list[Offering]:
        """Return the offerings of the type that can be launched now and that the claim may use."""
        known = self._available.get(id(kind))
        if known is None:  # the type is kept, so that no other one gets its id
            found = [o for o in kind.offerings if o.is_launchable and self.allows(o)]
            known = self._available[id(kind)] = (kind, found)
        return known[1]

    def cheapest_price(self, kind: InstanceType) -> float:
        """Return the lowest price of the type, infinity without an offering."""
        return min((o.price for o in self.available_offerings(kind)), default=inf)

    def worst_launch_price(self, kind: InstanceType) -> float:
        """Return the highest price that a launch of the type may have, infinity if none exists.

        A launch uses the first available capacity type of reserved, spot and on-demand; the zone is
        not known in advance.
        """
        offerings = self.available_offerings(kind)
        for capacity_type in LAUNCH_PREFERENCE:
            prices = [o.price for o in offerings if o.capacity_type == capacity_type]
            if prices:
                return max(prices)
        return inf


def order_by_price(claim: PlannedClaim, choice: OfferingChoice | None = None) -> PlannedClaim:
    """Return the claim with its types sorted by their cheapest allowed offering, then by name.

    ``choice`` are the offerings that its requirements allow, if the caller has evaluated them.
    """
    choice = choice or OfferingChoice(claim.requirements)
    types = sorted(claim.types, key=lambda kind: (choice.cheapest_price(kind), kind.name))
    return replace(claim, types=tuple(types))


def restrict_to_capacity_type(claim: PlannedClaim, capacity_type: str) -> PlannedClaim:
    """Return the claim restricted to one capacity type and the types available with it."""
    requirements = claim.requirements.with_requirements([equals(CAPACITY_TYPE, capacity_type)])
    choice = OfferingChoice(requirements)
    types = tuple(kind for kind in claim.types if choice.available_offerings(kind))
    narrowed = replace(claim, requirements=requirements, types=types, types_total=len(types))
    return order_by_price(narrowed, choice)


def keep_cheaper_types(claim: PlannedClaim, price: float) -> PlannedClaim:
    """Return the claim with the types whose most expensive launch costs less than ``price``.

    The types are sorted by their cheapest offering, so the rest is not evaluated once that is too
    expensive: most nodes that consolidation considers have no cheaper replacement.
    """
    choice, types = OfferingChoice(claim.requirements), []
    for kind in claim.types:
        if choice.cheapest_price(kind) >= price:
            break
        if choice.worst_launch_price(kind) < price:
            types.append(kind)
    return replace(claim, types=tuple(types), types_total=len(types))


def with_affordable_types(claim: PlannedClaim, price: float) -> PlannedClaim:
    """Return the claim with the types that have any offering of less than ``price``.

    The types are sorted by their cheapest offering. That leaves few of a claim that any type could
    serve, whatever else is asked of them.
    """
    choice = OfferingChoice(claim.requirements)
    types = tuple(takewhile(lambda kind: choice.cheapest_price(kind) < price, claim.types))
    return replace(claim, types=types, types_total=len(types))


def lowest_worst_launch_price(claim: PlannedClaim) -> float:
    """Return the lowest of the types' most expensive launches.

    The types are sorted by their cheapest offering, so only a few have to be evaluated.
    """
    choice, least = OfferingChoice(claim.requirements), inf
    for kind in claim.types:
        if choice.cheapest_price(kind) >= least:
            break
        least = min(least, choice.worst_launch_price(kind))
    return least


def may_be_spot(claim: PlannedClaim) -> bool:
    """Return whether the claim may launch as spot."""
    return claim.requirements.requirement_on(CAPACITY_TYPE).has(SPOT)


def expected_price(claim: PlannedClaim) -> float:
    """Return the price of the cheapest offering of the claim's first type, 0 without one."""
    if not claim.types:
        return 0.0
    price = OfferingChoice(claim.requirements).cheapest_price(claim.types[0])
    return 0.0 if price == inf else price


def estimated_savings(prices: Iterable[float], replacements: Iterable[PlannedClaim]) -> float:
    """Return the price of the removed nodes minus that of their replacements, in USD an hour."""
    return sum(prices) - sum(expected_price(claim) for claim in replacements)


def unmet_min_values(types: Sequence[InstanceType], requirements: Requirements) -> list[str]:
    """Return the label keys for which the types have fewer values than ``minValues`` requires."""
    required = [r for r in requirements.values() if r.min_values is not None]
    return sorted(r.key for r in required if len(_values(types, r)) < (r.min_values or 0))


def min_values_prefix(types: Sequence[InstanceType], requirements: Requirements) -> int:
    """Return how many types, in order, are needed to satisfy every ``minValues``."""
    required = [r for r in requirements.values() if r.min_values is not None]
    seen: dict[str, set[str]] = {r.key: set() for r in required}
    if not required:
        return 0
    for count, kind in enumerate(types, start=1):
        for wanted in required:
            seen[wanted.key] |= _values((kind,), wanted)
        if all(len(seen[r.key]) >= (r.min_values or 0) for r in required):
            return count
    return len(types)


def _values(types: Iterable[InstanceType], wanted: Requirement) -> set[str]:
    """Return the values of the types that the requirement allows."""
    values: set[str] = set()
    for kind in types:
        known = kind.requirements.get(wanted.key)
        if known is not None and not known.complement:
            values |= {value for value in known.values if wanted.has(value)}
    return values
