"""Whether a daemon is alive and ready, as a probe of Kubernetes asks.

A daemon is alive while its loop runs or waits. It is ready once a pass has ended, for as long as
the last one is not too old. A standby is ready while it waits for the lease: it does its work.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

READY_FOR_S: Final = 300.0
"""How old the last pass of a ready daemon may be."""

ALIVE_FOR_S: Final = 600.0
"""How long a daemon may go without a heartbeat before it should be restarted."""


class ProbeResult(NamedTuple):
    """The answer to a probe, with its reason."""

    is_good: bool
    reason: str


@dataclass
class DaemonHealth:
    """The heartbeats of a daemon, by a monotonic clock.

    ``record_heartbeat`` is called between passes and while the daemon waits, ``record_pass``
    after each pass.
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
            return ProbeResult(
                False, f"no heartbeat for {age:.0f} s (limit {self.alive_for_s:.0f} s)"
            )
        return ProbeResult(True, f"last heartbeat {age:.0f} s ago")

    def ready(self) -> ProbeResult:
        """Return whether the daemon does its work."""
        alive = self.alive()
        if not alive.is_good:
            return alive
        if self._is_standby:
            return ProbeResult(True, "standby: another process holds the lease")
        reason = f"; last failure: {self._failure}" if self._failure else ""
        if self._passed_at is None:
            return ProbeResult(False, f"no pass has ended yet{reason}")
        age = self.monotonic() - self._passed_at
        if age > self.ready_for_s:
            return ProbeResult(
                False, f"no pass has ended for {age:.0f} s (limit {self.ready_for_s:.0f} s){reason}"
            )
        return ProbeResult(True, f"last pass ended {age:.0f} s ago")


def with_heartbeat(stop: Callable[[], bool], health: DaemonHealth) -> Callable[[], bool]:
    """Return ``stop``, extended to record a heartbeat with each call."""

    def record_and_ask() -> bool:
        health.record_heartbeat()
        return stop()

    return record_and_ask
