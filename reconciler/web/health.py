"""Whether a daemon is alive and ready, as a probe of Kubernetes asks.

A daemon is alive while its loop waits, runs from one step to the next, or places pods. It is ready
once a pass has ended, for as long as the last one is not too old. A standby is ready while it waits
for the lease: it does its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NamedTuple

READY_FOR_S: Final = 300.0
"""How old the last pass of a ready daemon may be."""

ALIVE_FOR_S: Final = 600.0
"""How long a daemon may go without a heartbeat before it should be restarted."""


class ProbeCode(StrEnum):
    """What everybody may know about the result of a probe: no name, no message of another."""

    ALIVE = "alive"
    NO_HEARTBEAT = "no-heartbeat"
    STARTING = "starting"
    FAILING = "failing"
    STALE = "no-recent-pass"
    STANDBY = "standby"
    READY = "ready"


class ProbeResult(NamedTuple):
    """The answer to a probe, with its reason; the reason may contain messages of others."""

    is_good: bool
    reason: str
    code: ProbeCode


@dataclass
class DaemonHealth:
    """The heartbeats of a daemon, by a monotonic clock.

    ``record_heartbeat`` is called between passes, within them, and while the daemon waits,
    ``record_pass`` after each pass.
    """

    ready_for_s: float = READY_FOR_S
    alive_for_s: float = ALIVE_FOR_S
    monotonic: Callable[[], float] = time.monotonic
    _beat_at: float = field(default=0.0, init=False)
    _passed_at: float | None = field(default=None, init=False)
    _failure: str = field(default="", init=False)
    _is_standby: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        """Count from the start of the process."""
        self._beat_at = self.monotonic()

    def record_heartbeat(self) -> None:
        """Record that the daemon is alive."""
        self._beat_at = self.monotonic()

    def record_pass(self) -> None:
        """Record that a pass has ended."""
        self._passed_at, self._failure, self._is_standby = self.monotonic(), "", False
        self.record_heartbeat()

    def record_failure(self, why: str) -> None:
        """Record that a pass has failed."""
        self._failure, self._is_standby = why, False
        self.record_heartbeat()

    def record_standby(self) -> None:
        """Record that another process acts, and that this one waits."""
        self._is_standby, self._passed_at = True, None

    @property
    def age_s(self) -> float:
        """The seconds since the last heartbeat."""
        return self.monotonic() - self._beat_at

    def alive(self) -> ProbeResult:
        """Return whether the loop of the daemon is still running."""
        age = self.age_s
        if age > self.alive_for_s:
            reason = f"no heartbeat for {age:.0f} s (limit {self.alive_for_s:.0f} s)"
            return ProbeResult(False, reason, ProbeCode.NO_HEARTBEAT)
        return ProbeResult(True, f"last heartbeat {age:.0f} s ago", ProbeCode.ALIVE)

    def ready(self) -> ProbeResult:
        """Return whether the daemon does its work."""
        alive = self.alive()
        if not alive.is_good:
            return alive
        if self._is_standby:
            reason = "standby: another process holds the lease"
            return ProbeResult(True, reason, ProbeCode.STANDBY)
        failure = f"; last failure: {self._failure}" if self._failure else ""
        if self._passed_at is None:
            code = ProbeCode.FAILING if failure else ProbeCode.STARTING
            return ProbeResult(False, f"no pass has ended yet{failure}", code)
        age = self.monotonic() - self._passed_at
        if age > self.ready_for_s:
            reason = f"no pass has ended for {age:.0f} s (limit {self.ready_for_s:.0f} s){failure}"
            code = ProbeCode.FAILING if failure else ProbeCode.STALE
            return ProbeResult(False, reason, code)
        return ProbeResult(True, f"last pass ended {age:.0f} s ago", ProbeCode.READY)


def with_heartbeat(stop: Callable[[], bool], health: DaemonHealth) -> Callable[[], bool]:
    """Return ``stop``, extended to record a heartbeat with each call."""

    def record_and_ask() -> bool:
        health.record_heartbeat()
        return stop()

    return record_and_ask
