"""What our config adds to disruption for a whole fleet: suspensions and windows.

Neither is Karpenter's. A suspension says no until it ends, a window says no outside itself; both
hold for every voluntary reason that they name, or for all where they name none.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.model.duration import parse_duration
from reconciler.model.schedule import next_change, parse_schedule, steady_until, time_zone


@dataclass(frozen=True, slots=True)
class Suspension:
    """A «no» that someone has said: until a moment, or until it is taken out again."""

    owner: str
    until: datetime | None = None
    node_pools: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    note: str = ""

    def covers(self, node_pool: str, reason: str) -> bool:
        """Return whether it is about the pool and the reason; none named means all."""
        return _covers(self.node_pools, node_pool) and _covers(self.reasons, reason)

    def is_active(self, now: datetime) -> bool:
        """Return whether it still holds; the moment of its end counts as past."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which disruption is allowed; ``time_zone`` is an IANA name, UTC without one."""

    schedule: str
    duration: str
    time_zone: str | None = None
    node_pools: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    owner: str = ""

    def covers(self, node_pool: str, reason: str) -> bool:
        """Return whether it is about the pool and the reason; none named means all."""
        return _covers(self.node_pools, node_pool) and _covers(self.reasons, reason)

    def is_open(self, now: datetime) -> bool:
        """Return whether it is open; one whose schedule never hits never is.

        Raises:
            ValueError: schedule, duration or time zone cannot be read.
        """
        length = self._length
        began = parse_schedule(self.schedule).next_after(
            (now - length).replace(microsecond=0), time_zone(self.time_zone)
        )
        return began is not None and began <= now

    def next_change(self, now: datetime) -> datetime | None:
        """Return when it opens or closes next, None if never.

        Raises:
            ValueError: schedule, duration or time zone cannot be read.
        """
        schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
        if schedule.next_after(now - self._length, zone) is None:
            return None
        return next_change(schedule, self._length, now, zone)

    def steady_until(self, now: datetime) -> datetime:
        """Return when it may first answer otherwise than at ``now``.

        Raises:
            ValueError: schedule, duration or time zone cannot be read.
        """
        schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
        return steady_until(schedule, self._length, now, zone)

    @property
    def _length(self) -> timedelta:
        return parse_duration(self.duration)


def _covers(named: tuple[str, ...], one: str) -> bool:
    return not named or one in named
