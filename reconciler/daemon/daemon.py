"""The daemon of one fleet: it holds the lease and runs pass after pass, until it is stopped."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reconciler.assembly.inputs.request import Environment, RunRequest, clock_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from reconciler.assembly.monitoring import DaemonObserver
    from reconciler.assembly.standby import Standby
    from reconciler.daemon.sharing import FleetSharing
    from reconciler.model.errors import ReconcilerError
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import EventKind, Notifier


_RETRY_S: Final = 5.0
"""How long a daemon waits before it restarts after an error of its state or its folder."""

_HEARTBEAT_S: Final = 5.0


@dataclass(frozen=True)
class FleetDaemon:
    """Keeps a fleet in sync with git until ``stop``, which is called between passes, is true.

    ``alive`` is called again and again within a pass, also during a placement. If replicas share
    fleets, ``sharing`` has the connections, and decides when a lease is acquired and released.
    """

    request: RunRequest
    notifier: Notifier
    stop: Callable[[], bool]
    environment: Environment | None = None
    observer: DaemonObserver | None = None
    sharing: FleetSharing | None = None
    alive: Callable[[], object] = lambda: None

    def run(self) -> None:
        """Act for the fleet.

        If another process holds the lease, it waits or ends, as requested. Once it has acted or
        waited, no error of the lease, the state or the clock ends it: it restarts, as after a
        crash.

        Raises:
            LeaseHeldError: another process holds the lease, and it does not wait.
        """
        from reconciler.assembly.standby import Standby
        from reconciler.model.errors import (
            ClockSetBackError,
            LeaseHeldError,
            LeaseLostError,
            ReconcilerError,
            SettingsChangedError,
        )
        from reconciler.ports.progress import EventKind, Progress

        environment, notifier, stop = self.environment, self.notifier, self.stop
        clock = environment.clock if environment is not None else clock_of(self.request.fleet)
        standby = Standby(notifier, stop, self.sharing) if self.request.waits else None
        has_begun = False

        def begin() -> None:
            nonlocal has_begun
            has_begun = True

        while not stop():
            try:
                self._run_passes(standby, begin)
                if self.sharing is not None and not stop():
                    why = "gave up the lease: another replica has fewer fleets"
                    notifier.notify(Progress(clock.now(), EventKind.STANDBY, why))
            except (LeaseLostError, SettingsChangedError, ClockSetBackError) as error:
                notifier.notify(Progress(clock.now(), *_restart_notice(error)))
            except LeaseHeldError:
                if stop():
                    return
                raise
            except ReconcilerError as error:
                if not has_begun and not (standby is not None and standby.has_waited):
                    raise
                notifier.notify(Progress(clock.now(), EventKind.RETRYING, str(error)))
                clock.wait(_RETRY_S, stop)

    def _run_passes(self, standby: Standby | None, begin: Callable[[], None]) -> None:
        """Hold the lease and run pass after pass; ``begin`` is called once it is held."""
        from reconciler.adapters.threads import background_thread
        from reconciler.assembly.assembly import assemble_world
        from reconciler.assembly.fleetsource import follow_commits
        from reconciler.assembly.mandate import mandate_of
        from reconciler.engine.loop import PassIntervals
        from reconciler.engine.loop import run as keep_passing
        from reconciler.engine.steps.urgent import FirstResponse

        request, observer = self.request, self.observer
        fleet = request.fleet if request.acts_on_files else follow_commits(request.fleet)
        world = assemble_world(fleet, self.notifier, self.environment, sleeps=True, standby=standby)
        with world as assembly, assembly.source.watch_changes():
            begin()
            sharing = standby.sharing if standby is not None else None

            def ends() -> bool:
                return self.stop() or (
                    sharing is not None and sharing.should_release(assembly.state)
                )

            watched = observer.attach(assembly) if observer is not None else assembly.world
            response = FirstResponse(watched)
            aside = (
                background_thread("reclaims", response.listen)
                if assembly.has_threads
                else nullcontext()
            )
            with aside:
                keep_passing(
                    watched,
                    assembly.source,
                    mandate_of(assembly.settings),
                    intervals=PassIntervals(quiet=request.interval.total_seconds()),
                    stop=ends,
                    next_change=next_change,
                    observer=observer,
                    observed=response.set_observation,
                    alive=self.alive,
                )


def _restart_notice(error: ReconcilerError) -> tuple[EventKind, str]:
    """Return how the log states why the daemon begins again."""
    from reconciler.model.errors import LeaseLostError, SettingsChangedError
    from reconciler.ports.progress import EventKind

    if isinstance(error, SettingsChangedError):
        return EventKind.REVISION, f"{error.message}; starting again with the new values"
    if isinstance(error, LeaseLostError):
        return EventKind.LEASE_LOST, f"stopped acting: {error.message}"
    return EventKind.CLOCK_SET_BACK, str(error)


def next_change(plan: Plan) -> datetime | None:
    """Return the next time at which a schedule or a deadline of the plan has an effect."""
    moments = [d.not_before for d in plan.deferred] + [b.next_change for b in plan.budgets]
    return min((m for m in moments if m is not None and m > plan.at), default=None)


def with_heartbeat(file: str | None, stop: Callable[[], bool]) -> Callable[[], bool]:
    """Return a ``stop`` that also touches ``file``, at most once every few seconds.

    The loop calls it between passes, while it waits, at each step of a pass, and during placements.

    Raises:
        StateError: its path is a link, or not a regular file.
    """
    if file is None:
        return stop
    touched = float("-inf")

    def touch_and_ask() -> bool:
        nonlocal touched
        now = time.monotonic()
        if now - touched >= _HEARTBEAT_S:
            touched = now
            _touch_file(file)
        return stop()

    return touch_and_ask


def _touch_file(file: str) -> None:
    from reconciler.adapters.nofollow import open_file
    from reconciler.model.errors import StateError

    try:
        descriptor = open_file(file, os.O_WRONLY | os.O_CREAT, 0o644)
    except OSError as error:
        why = f"the heartbeat cannot be written: {error.strerror}"
        raise StateError(why, where=file, remedy="name a file in a folder that exists") from error
    os.utime(descriptor)
    os.close(descriptor)
