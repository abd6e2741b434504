"""Disruption budgets: how many nodes of a NodePool may be disrupted at a time, and when.

The rules are Karpenter's (``pkg/apis/v1/nodepool.go``). A percentage is rounded up. The most
restrictive of all budgets with the reason, or without reasons, applies. A budget outside its window
does not limit. An invalid budget allows nothing in the complete pool, for every reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.model.duration import parse_duration
from reconciler.model.schedule import (
    is_always_open,
    is_open,
    next_change,
    parse_schedule,
    steady_until,
    time_zone,
)
from reconciler.model.text.quoting import quote_value

UNBOUNDED: Final = 2147483647
_SHARE: Final = re.compile(r"(100|[0-9]{1,2})%", re.ASCII)

_CAUSES: Final = {
    "Underutilized": "underutilization",
    "Empty": "emptiness",
    "Drifted": "drift",
    "Unhealthy": "repair",
}


class DisruptionReason(StrEnum):
    """The voluntary reasons, which are subject to budgets.

    Unhealthy nodes are repaired within budgets since Karpenter 1.15.
    """

    UNDERUTILIZED = "Underutilized"
    EMPTY = "Empty"
    DRIFTED = "Drifted"
    UNHEALTHY = "Unhealthy"

    @property
    def cause(self) -> str:
        """The reason as a noun, for sentences: ``drift``."""
        return _CAUSES[self.value]


class Budget(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One entry of ``spec.disruption.budgets``; ``time_zone`` (IANA) is our addition."""

    nodes: str = "10%"
    reasons: tuple[str, ...] | None = None
    schedule: str | None = None
    duration: str | None = None
    time_zone: str | None = None

    def applies_to(self, reason: str) -> bool:
        """Return whether it limits ``reason``; without ``reasons`` it limits all."""
        return self.reasons is None or reason in self.reasons

    @property
    def never_ends(self) -> bool:
        """Whether it applies at all times: each window reaches the next one, or there is none.

        Raises:
            ValueError: schedule or duration is invalid.
        """
        return is_always_open(self.schedule, self.duration)

    def is_active(self, now: datetime) -> bool:
        """Return whether its window is open; without a schedule it always is.

        Raises:
            ValueError: schedule, duration or time zone is invalid, or one of the first two is
                missing.
        """
        if self.schedule is None and self.duration is None:
            return True
        schedule = parse_schedule(self.schedule or "")
        if self.duration is None:
            raise ValueError("a schedule needs a duration")
        zone = time_zone(self.time_zone)
        return is_open(schedule, parse_duration(self.duration), now, zone)

    def allowed_disruptions(self, total: int, now: datetime) -> int:
        """Return how many of ``total`` nodes it allows at a time, ``UNBOUNDED`` outside its window.

        Raises:
            ValueError: it is invalid.
        """
        limit = self._limit(total)
        return limit if self.is_active(now) else UNBOUNDED

    def _limit(self, total: int) -> int:
        share = _SHARE.fullmatch(self.nodes)
        if share:
            return -(-int(share[1]) * total // 100)
        if self.nodes.isascii() and self.nodes.isdigit():
            return int(self.nodes)
        raise ValueError(
            f"not a count or a share of nodes: {quote_value(self.nodes)} (examples: 5, 10%)"
        )

    def next_change(self, now: datetime) -> datetime | None:
        """Return when its window opens or closes next, None if never (or if it is invalid)."""
        if self.schedule is None or self.duration is None:
            return None
        try:
            schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
            return next_change(schedule, parse_duration(self.duration), now, zone)
        except ValueError:
            return None

    def steady_until(self, now: datetime) -> datetime | None:
        """Return when the result may first differ from that at ``now``, None if never."""
        if self.schedule is None or self.duration is None:
            return None
        try:
            schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
            return steady_until(schedule, parse_duration(self.duration), now, zone)
        except ValueError:
            return None


@dataclass(frozen=True, slots=True)
class Allowance:
    """The number of nodes that the budgets of a NodePool allow for one reason.

    ``binding`` is the index of the most restrictive budget, None without a limit; ``error`` is set
    if a budget is invalid and nothing is allowed.
    """

    nodes: int
    binding: int | None = None
    error: str | None = None


def allowance(budgets: Iterable[Budget], reason: str, total: int, now: datetime) -> Allowance:
    """Return the minimum that the budgets for ``reason`` allow of ``total`` nodes.

    An invalid budget, even one for another reason, allows nothing (fail closed).
    """
    least = Allowance(UNBOUNDED)
    for index, budget in enumerate(budgets):
        try:
            nodes = budget.allowed_disruptions(total, now)
        except ValueError as error:
            return Allowance(0, index, str(error))
        if budget.applies_to(reason) and nodes < least.nodes:
            least = Allowance(nodes, index)
    return least


def next_budget_change(budgets: Iterable[Budget], now: datetime) -> datetime | None:
    """Return the next time at which any budget's window opens or closes."""
    changes = [change for b in budgets if (change := b.next_change(now)) is not None]
    return min(changes, default=None)
