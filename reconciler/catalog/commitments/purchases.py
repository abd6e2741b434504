"""Commitments worth buying for on-demand usage: how much of each, and what it saves.

A commitment is paid for in every hour, and saves only in hours that use it. With a discount d it
costs 1 - d of what it replaces, so each further dollar is worth buying where usage reaches it in
more than the share 1 - d of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from math import floor, fsum
from typing import Final

import msgspec

from reconciler.model.billing import COMPUTE, EC2_INSTANCE, HOURS_A_MONTH
from reconciler.model.grouping import group_by

_DIGITS: Final = 6


class PurchaseKind(StrEnum):
    """What can be bought."""

    COMPUTE_PLAN = COMPUTE
    INSTANCE_PLAN = EC2_INSTANCE
    RESERVED_INSTANCES = "ReservedInstances"


class UsageStep(msgspec.Struct, frozen=True):
    """On-demand usage that nothing covers, for some hours: USD an hour by instance type."""

    hours: float
    dollars: Mapping[str, float]


class Purchase(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A commitment and its cost and savings; money is USD.

    ``name`` is the family or the instance type, empty for a compute savings plan. ``commitment`` is
    the payment an hour, ``count`` the number of reserved instances, 0 for a plan. ``replaces`` is
    the on-demand usage an hour that it covers, of which ``used_percent`` is used over time. Below
    ``break_even_percent`` it costs more than it saves.
    """

    kind: PurchaseKind
    name: str
    commitment: float
    count: int
    replaces: float
    used_percent: float
    break_even_percent: float
    per_month: float


def purchases(
    steps: Sequence[UsageStep],
    price: Callable[[str], float | None],
    compute_percent: float,
    instance_percent: float,
) -> tuple[Purchase, ...]:
    """Return the commitments worth buying, the largest saving first; they are alternatives.

    ``price`` is that of an instance type on demand. ``compute_percent`` is the discount of compute
    savings plans, ``instance_percent`` that of EC2 instance savings plans and reserved instances.
    """
    kinds = sorted({kind for step in steps for kind in step.dollars})
    families = group_by(kinds, lambda kind: kind.partition(".")[0])
    found = [_plan_purchase(PurchaseKind.COMPUTE_PLAN, "", _levels(steps, kinds), compute_percent)]
    found += [
        _plan_purchase(
            PurchaseKind.INSTANCE_PLAN, family, _levels(steps, members), instance_percent
        )
        for family, members in families.items()
    ]
    found += [
        _reserved_purchase(kind, _levels(steps, [kind]), amount, instance_percent)
        for kind in kinds
        if (amount := price(kind))
    ]
    profitable = [purchase for purchase in found if purchase is not None and purchase.per_month < 0]
    return tuple(
        sorted(profitable, key=lambda purchase: (purchase.per_month, purchase.kind, purchase.name))
    )


_Level = tuple[float, float]
"""Hours, and USD an hour."""


def _levels(steps: Iterable[UsageStep], kinds: Sequence[str]) -> list[_Level]:
    return [(step.hours, fsum(step.dollars.get(kind, 0.0) for kind in kinds)) for step in steps]


def _plan_purchase(
    kind: PurchaseKind, name: str, levels: Sequence[_Level], percent: float
) -> Purchase | None:
    return _purchase(kind, name, levels, _usage_worth_covering(levels, percent), percent)


def _reserved_purchase(
    name: str, levels: Sequence[_Level], price: float, percent: float
) -> Purchase | None:
    count = floor(_usage_worth_covering(levels, percent) / price + 1e-9)
    return _purchase(
        PurchaseKind.RESERVED_INSTANCES, name, levels, count * price, percent, count=count
    )


def _usage_worth_covering(levels: Sequence[_Level], percent: float) -> float:
    """Return the largest usage that is reached long enough to pay for a commitment to it."""
    total = fsum(hours for hours, _ in levels)
    needed, reached = (1 - percent / 100) * total, 0.0
    for hours, usage in sorted(levels, key=lambda level: -level[1]):
        reached += hours
        if reached > needed:
            return usage
    return 0.0


def _purchase(
    kind: PurchaseKind,
    name: str,
    levels: Sequence[_Level],
    covered: float,
    percent: float,
    *,
    count: int = 0,
) -> Purchase | None:
    total = fsum(hours for hours, _ in levels)
    if covered <= 0 or total <= 0:
        return None
    used = fsum(hours * min(usage, covered) for hours, usage in levels) / total
    commitment = covered * (1 - percent / 100)
    return Purchase(
        kind=kind,
        name=name,
        commitment=round(commitment, _DIGITS),
        count=count,
        replaces=round(covered, _DIGITS),
        used_percent=round(100 * used / covered, 2),
        break_even_percent=round(100 - percent, 2),
        per_month=round((commitment - used) * HOURS_A_MONTH, _DIGITS),
    )
