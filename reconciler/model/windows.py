"""When disruption is allowed: windows that open by a schedule, and suspensions by their owners."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from reconciler.model.duration import Duration
from reconciler.model.schedule import next_change, parse_schedule, steady_until, time_zone

if TYPE_CHECKING:
    from reconciler.model.karpenter.budget import DisruptionReason


@dataclass(frozen=True, slots=True)
class Suspension:
    """A suspension of disruption by its owner, until a moment or until it is removed."""

    owner: str
    until: datetime | None = None
    node_pools: tuple[str, ...] = ()
    reasons: tuple[DisruptionReason, ...] = ()
    note: str = ""

    def covers(self, node_pool: str, reason: DisruptionReason) -> bool:
        """Return whether it is about the pool and the reason; none named means all."""
        return _covers(self.node_pools, node_pool) and _covers(self.reasons, reason)

    def is_active(self, now: datetime) -> bool:
        """Return whether it still holds; the moment of its end counts as past."""
        return self.until is None or now < self.until


@dataclass(frozen=True, slots=True)
class Window:
    """A time in which disruption is allowed; ``time_zone`` is an IANA name, UTC without one."""

    schedule: str
    duration: Duration
    time_zone: str | None = None
    node_pools: tuple[str, ...] = ()
    reasons: tuple[DisruptionReason, ...] = ()
    owner: str = ""

    def covers(self, node_pool: str, reason: DisruptionReason) -> bool:
        """Return whether it is about the pool and the reason; none named means all."""
        return _covers(self.node_pools, node_pool) and _covers(self.reasons, reason)

    def is_open(self, now: datetime) -> bool:
        """Return whether it is open; it never is if its schedule never fires.

        Raises:
            ValueError: schedule or time zone cannot be read.
        """
        opened_at = parse_schedule(self.schedule).next_after(
            (now - self.duration).replace(microsecond=0), time_zone(self.time_zone)
        )
        return opened_at is not None and opened_at <= now

    def next_change(self, now: datetime) -> datetime | None:
        """Return when it opens or closes next, None if never.

        Raises:
            ValueError: schedule or time zone cannot be read.
        """
        schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
        if schedule.next_after(now - self.duration, zone) is None:
            return None
        return next_change(schedule, self.duration, now, zone)

    def steady_until(self, now: datetime) -> datetime:
        """Return when ``is_open`` may first differ from its result at ``now``.

        Raises:
            ValueError: schedule or time zone cannot be read.
        """
        schedule, zone = parse_schedule(self.schedule), time_zone(self.time_zone)
        return steady_until(schedule, self.duration, now, zone)


def _covers(named: tuple[str, ...], name: str) -> bool:
    return not named or name in named
