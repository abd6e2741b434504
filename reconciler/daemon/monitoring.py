"""Monitoring of several fleets in one process: one log, one address, one notification queue."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Final, TextIO

from reconciler.assembly.monitoring import (
    DaemonObserver,
    Monitoring,
    expect_web,
    export_traces,
    meter_of,
    serve_pages,
)
from reconciler.notifications.log import FORMATS, LogContext, LogFormat, LogNotifier
from reconciler.notifications.stream import has_colour

if TYPE_CHECKING:
    from reconciler.assembly.inputs.request import RunRequest, ServingRequest
    from reconciler.assembly.monitoring import PassTraces
    from reconciler.notifications.delivery import DeliveryQueue
    from reconciler.ports.clock import Clock
    from reconciler.web.fleets import WatchedFleets
    from reconciler.web.health import DaemonHealth

BEATING_FOR_S: Final = 60.0
"""How long a fleet may give no sign of life before the heartbeat of the process stops."""


class LockedStream:
    """A stream to which several threads write, each text at once."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._lock = Lock()

    def write(self, text: str) -> int:
        """Write a text; return how many characters were given."""
        with self._lock:
            return self._out.write(text)

    def flush(self) -> None:
        """Flush the buffer."""
        with self._lock:
            self._out.flush()


@dataclass
class FleetsMonitoring:
    """Creates the observers of each fleet; ``log`` is that of the process."""

    log: LogNotifier
    clock: Clock
    form: LogFormat
    out: LockedStream
    is_coloured: bool
    deliveries: DeliveryQueue
    traces: PassTraces | None = None
    web: WatchedFleets | None = None
    _healths: dict[str, DaemonHealth] = field(default_factory=dict, init=False)

    def for_fleet(self, name: str, stop: Callable[[], bool]) -> Monitoring:
        """Return the notifier, the observer and the ``stop`` of a fleet."""
        from reconciler.notifications.observer import NoticeNotifier, NoticeObserver
        from reconciler.web.health import DaemonHealth, with_heartbeat

        context = LogContext(fleet=name)
        log = LogNotifier(
            self.out, self.clock, self.form, context, colour=self.is_coloured, names_fleet=True
        )
        health = self._healths[name] = DaemonHealth()
        alive = with_heartbeat(stop, health)
        notices = NoticeObserver(self.deliveries)
        traces = self.traces.for_fleet(name) if self.traces is not None else None
        notifier = NoticeNotifier(log, notices)
        if self.web is None:
            return Monitoring(notifier, DaemonObserver(log, notices, traces=traces), alive)
        from reconciler.web.observer import WebNotifier, WebObserver

        fleet = self.web.add(name, health)
        shown = (fleet.metrics, fleet.health, fleet.dashboard)
        observer = DaemonObserver(log, notices, WebObserver(*shown), traces)
        return Monitoring(WebNotifier(notifier, *shown), observer, alive)

    def forget(self, name: str) -> None:
        """Remove a fleet that is no longer served."""
        self._healths.pop(name, None)
        if self.web is not None:
            self.web.remove(name)

    def set_fleet_count(self, count: int) -> None:
        """Record that all ``count`` fleets are shown; until then the process is not ready."""
        if self.web is not None:
            self.web.expected = count

    def are_alive(self) -> bool:
        """Return whether the loop of every fleet is alive."""
        return all(health.age_s < BEATING_FOR_S for health in self._healths.values())


@contextmanager
def serve_fleets_monitoring(
    request: RunRequest, clock: Clock, out: TextIO
) -> Iterator[FleetsMonitoring]:
    """Serve the monitoring of the fleets while the block runs.

    Raises:
        UsageError: the address is invalid or in use, or the extra ``web`` is not installed.
    """
    from reconciler.assembly.account import connections
    from reconciler.notifications.delivery import DeliveryQueue

    form = next(known for known in FORMATS if known == request.log_format)
    locked, is_coloured = LockedStream(out), has_colour(out)
    log = LogNotifier(locked, clock, form, colour=is_coloured)
    with ExitStack() as stack:
        deliveries = stack.enter_context(DeliveryQueue(clock))
        traces = stack.enter_context(export_traces("", os.environ))
        serving = request.serving
        web = stack.enter_context(_serve_pages(serving)) if serving.is_wanted else None
        meter = meter_of(web.calls.record_call if web is not None else None, traces)
        if meter is not None:
            connections().meter = meter
        yield FleetsMonitoring(log, clock, form, locked, is_coloured, deliveries, traces, web)


@contextmanager
def _serve_pages(request: ServingRequest) -> Iterator[WatchedFleets]:
    expect_web()
    from reconciler.web.fleets import WatchedFleets
    from reconciler.web.server import make_fleets_app

    fleets = WatchedFleets()
    with serve_pages(request, lambda access: make_fleets_app(fleets, access), fleets):
        yield fleets
