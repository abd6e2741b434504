"""A replica that waits for the lease of its fleet, and takes over when it is free."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, Protocol

from reconciler.model.errors import LeaseHeldError, ReconcilerError
from reconciler.ports.clock import Clock
from reconciler.ports.progress import EventKind, Notifier, Progress

if TYPE_CHECKING:
    from reconciler.adapters.database.state import DatabaseState, SharedStates

POLL_S: Final = 1.0
"""How often a standby requests the lease. With its lifetime it bounds the time to take over."""


_TURN_S: Final = 0.25
_SHORT: Final = timedelta(seconds=2)
"""A replica that starts waits for its first heartbeat, which is not worth a message."""


class LeaseTurns(Protocol):
    """Decides which replica acquires a free lease, and which one releases one.

    ``states`` are the recorded states of the fleets of this process.
    """

    @property
    def states(self) -> SharedStates: ...

    def may_acquire(self, state: DatabaseState, *, has_requested: bool) -> bool:
        """Return whether to try to acquire the lease now."""

    def should_release(self, state: DatabaseState) -> bool:
        """Return whether to release the lease after this pass."""


@dataclass
class Standby:
    """Waits while another process holds the lease, until ``stop`` returns True.

    It reports the holder of the lease once, and again when the holder changes. If replicas share
    fleets, ``sharing`` decides when it tries to acquire the lease.
    """

    notifier: Notifier
    stop: Callable[[], bool]
    sharing: LeaseTurns | None = None
    _last_text: str = field(default="", init=False)
    _since: datetime | None = field(default=None, init=False)
    _has_requested: bool = field(default=False, init=False)

    @property
    def has_waited(self) -> bool:
        """Whether the lease was held by another process at the first attempt."""
        return self._since is not None

    def await_turn(self, clock: Clock, state: DatabaseState) -> None:
        """Wait until this replica may request the lease.

        Raises:
            LeaseHeldError: it was stopped meanwhile.
        """
        if self.sharing is None:
            return
        started = clock.now()
        while not self.sharing.may_acquire(state, has_requested=self._has_requested):
            if self.stop():
                raise LeaseHeldError(
                    f"stopped while waiting for the lease of fleet {state.database.fleet}",
                    where=state.database.place,
                )
            now = clock.now()
            if self._since is None and now - started >= _SHORT:
                self._since = now
                text = "waiting for the lease: another replica has fewer fleets"
                self._notify(now, EventKind.STANDBY, text)
            clock.wait(_TURN_S, self.stop)
        self._has_requested = True

    def wait_for_retry(self, clock: Clock, error: ReconcilerError) -> bool:
        """Wait for a moment; return whether to try to acquire the lease again.

        A failing server is retried only after an earlier wait: at the start of a daemon the address
        of the state may be wrong.
        """
        if self.stop() or not (self.has_waited or isinstance(error, LeaseHeldError)):
            return False
        now = clock.now()
        self._since = self._since or now
        text = error.message if isinstance(error, LeaseHeldError) else str(error)
        if text != self._last_text:
            self._last_text = text
            self._notify(now, EventKind.STANDBY, f"waiting for the lease: {text}")
        clock.wait(POLL_S, self.stop)
        return not self.stop()

    def report_acquired(self, clock: Clock) -> None:
        """Report that the lease was acquired, if this process waited for it."""
        self._has_requested = False
        if self._since is None:
            return
        now = clock.now()
        waited_s = (now - self._since).total_seconds()
        self._since, self._last_text = None, ""
        text = f"acquired the lease after {waited_s:.0f} s; recovering as after a crash"
        self._notify(now, EventKind.LEASE_ACQUIRED, text)

    def _notify(self, now: datetime, kind: EventKind, message: str) -> None:
        self.notifier.notify(Progress(now, kind, message))
