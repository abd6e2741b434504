"""When budgets, disruption windows and suspensions allow disruption in the coming week."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Final

from reconciler.disruption.gates.policy import holds_of, policy_changes
from reconciler.model.karpenter.budget import DisruptionReason, allowance, next_change_of
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings

AHEAD: Final = timedelta(days=7)
WIDTH: Final = 1000
"""The length of the week, in the units of the drawing."""
_PERIODS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class PeriodView:
    """A time in which a NodePool may lose ``allowed`` of its nodes at a time."""

    began: datetime
    ended: datetime
    allowed: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class CalendarRow:
    """The coming week of one NodePool, for the reasons that its budgets treat alike."""

    node_pool: str
    reasons: tuple[str, ...]
    total: int
    periods: tuple[PeriodView, ...]

    @property
    def closed(self) -> timedelta:
        """How long no node may go."""
        return sum((p.ended - p.began for p in self.periods if not p.allowed), timedelta())


def calendar_of(
    pools: Iterable[NodePool], totals: Mapping[str, int], settings: Settings, now: datetime
) -> tuple[CalendarRow, ...]:
    """Return the coming week of each NodePool, where the number of allowed disruptions changes.

    ``totals`` are the numbers of nodes by NodePool, on which budgets in percent depend. A week with
    more than two hundred changes is cut short.
    """
    return tuple(
        row for pool in pools for row in _rows(pool, totals.get(pool.name, 0), settings, now)
    )


def _rows(pool: NodePool, total: int, settings: Settings, now: datetime) -> Iterator[CalendarRow]:
    alike: dict[tuple[PeriodView, ...], list[str]] = {}
    for reason in DisruptionReason:
        periods = tuple(_periods(pool, reason, total, settings, now))
        alike.setdefault(periods, []).append(reason.value)
    if any(len(periods) > 1 for periods in alike):
        for periods, reasons in alike.items():
            yield CalendarRow(pool.name, tuple(reasons), total, periods)


def _periods(
    pool: NodePool, reason: DisruptionReason, total: int, settings: Settings, now: datetime
) -> Iterator[PeriodView]:
    budgets = (*settings.fleet_budgets, *pool.spec.disruption.budgets)
    mine = [budget for budget in budgets if budget.applies_to(reason)]
    moments = [now]
    while len(moments) < _PERIODS_MAX:
        changes = (next_change_of(mine, moments[-1]), *policy_changes(settings, moments[-1]))
        following = min((at for at in changes if at is not None and at > moments[-1]), default=None)
        if following is None or following >= now + AHEAD:
            moments.append(now + AHEAD)
            break
        moments.append(following)
    merged: list[tuple[datetime, datetime, int]] = []
    for began, ended in pairwise(moments):
        allowed = min(allowance(budgets, reason, total, began).nodes, total)
        if (pool.name, reason) in holds_of([pool.name], settings, began):
            allowed = 0
        if merged and merged[-1][2] == allowed:
            merged[-1] = (merged[-1][0], ended, allowed)
        else:
            merged.append((began, ended, allowed))
    for began, ended, allowed in merged:
        start, end = _place(began - now), _place(ended - now)
        yield PeriodView(began, ended, allowed, start, max(1, end - start))


def days_of(now: datetime) -> tuple[tuple[int, str], ...]:
    """Return where each day (UTC) of the week begins on the drawing, with its name."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = (midnight + timedelta(days=n) for n in range(1, AHEAD.days + 1))
    return tuple((_place(day - now), f"{day:%a}") for day in days)


def _place(after: timedelta) -> int:
    return round(after / AHEAD * WIDTH)
