"""The user's own prices: discounts on the public ones, or fixed prices, from a contract with AWS.

The first rule that matches an offering applies. The flat discount is applied after that of a rule,
and never to a fixed price, which is the actual price. Reserved capacity is already paid for, so no
rule matches it.

Commitments are savings plans and reserved instances. How much of each is used outside this fleet
has to be known before its unused part can influence a launch. It is stated as ``used_elsewhere``,
to which the fleet's own nodes are added, or as the ``utilization_percent`` that AWS bills, which
already includes them. If neither is stated, the commitment counts as used up.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Final

from reconciler.model.karpenter.labels import ON_DEMAND, SPOT

HOURS_A_MONTH: Final = 730

COMPUTE: Final = "Compute"
EC2_INSTANCE: Final = "EC2Instance"


@dataclass(frozen=True, slots=True)
class SavingsPlanTerms:
    """A savings plan; money is USD an hour at the plan's own rates.

    ``type`` is AWS's name, ``Compute`` or ``EC2Instance``; only the latter has a ``family``.
    Without a ``region``, that of the fleet applies. ``discount_percent`` is the plan's discount on
    the on-demand price.
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
    """Reserved instances of one type; with a ``zone`` they apply only there."""

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
    """All commitments, and the utilization in percent from which savings plans have no effect."""

    savings_plans: tuple[SavingsPlanTerms, ...] = ()
    reserved_instances: tuple[ReservedInstancesTerms, ...] = ()
    threshold_percent: float = 95.0

    @property
    def ends(self) -> tuple[datetime, ...]:
        """The times at which one of them ends."""
        every = (
            *(plan.until for plan in self.savings_plans),
            *(reserved.until for reserved in self.reserved_instances),
        )
        return tuple(end for end in every if end is not None)


_DIGITS = 9


@dataclass(frozen=True, slots=True)
class PriceRule:
    """A rule for the offerings that match every list that it has.

    ``families`` are such as ``m7g``. Either ``price`` (USD an hour) or ``discount_percent`` is
    set; a negative discount is a surcharge.
    """

    families: tuple[str, ...] = ()
    instance_types: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    capacity_types: tuple[str, ...] = ()
    discount_percent: float | None = None
    price: float | None = None
    note: str = ""

    def covers(self, region: str, capacity_type: str) -> bool:
        """Return whether the rule is for a region and a capacity type; an empty list means all."""
        return (not self.regions or region in self.regions) and (
            not self.capacity_types or capacity_type in self.capacity_types
        )


@dataclass(frozen=True)
class PriceBook:
    """Rules in order, and a flat discount in percent.

    A rule can name many families and types, and is compared with each offering of a catalog.
    """

    rules: tuple[PriceRule, ...] = ()
    discount_percent: float = 0.0

    def __bool__(self) -> bool:
        return bool(self.rules or self.discount_percent)

    def price(self, name: str, region: str, capacity_type: str, base: float | None) -> float | None:
        """Return the price of an offering, in USD an hour to the billionth.

        ``base`` is the public price, None if unknown; then a discounted price is unknown, too.
        """
        if capacity_type not in (ON_DEMAND, SPOT):
            return base
        rule = self._rule(name, region, capacity_type)
        if rule is not None and rule.price is not None:
            return rule.price
        if base is None:
            return None
        percent = rule.discount_percent if rule is not None else None
        if not percent and not self.discount_percent:
            return base
        share = (1 - (percent or 0.0) / 100) * (1 - self.discount_percent / 100)
        return round(base * share, _DIGITS)

    def is_fixed(self, name: str, region: str, capacity_type: str) -> bool:
        """Return whether a rule fixes the price of the offering."""
        rule = self._rule(name, region, capacity_type)
        return rule is not None and rule.price is not None

    def _rule(self, name: str, region: str, capacity_type: str) -> PriceRule | None:
        family = name.partition(".")[0]
        return next(
            (
                rule
                for rule, families, types in self._named
                if (not families or family in families)
                and (not types or name in types)
                and rule.covers(region, capacity_type)
            ),
            None,
        )

    @cached_property
    def _named(self) -> list[tuple[PriceRule, frozenset[str], frozenset[str]]]:
        return [(r, frozenset(r.families), frozenset(r.instance_types)) for r in self.rules]
