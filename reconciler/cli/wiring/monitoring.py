"""What watches a daemon: its log and, where it listens, metrics, health checks and a dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING

from reconciler.cli.output.log import LogNotifier

if TYPE_CHECKING:
    from reconciler.cli.commands.acting.run import RunRequest
    from reconciler.engine.desired import Desired
    from reconciler.engine.reconcile import Pass
    from reconciler.engine.world import World
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import Notifier
    from reconciler.web.observer import WebObserver


@dataclass
class DaemonObserver:
    """Feeds the log and the web pages from the passes (``engine.loop.PassObserver``)."""

    log: LogNotifier
    web: WebObserver | None = None
    _world: World | None = None
    _started: datetime | None = None

    def watching(self, world: World) -> World:
        """Return a world whose plans are named in the log before they are applied."""
        keep = world.keep_reasons

        def keep_reasons(plan: Plan) -> None:
            self.log.context.plan = plan.digest
            keep(plan)

        self._world = replace(world, keep_reasons=keep_reasons)
        return self._world

    def started(self) -> None:
        """Note when the pass starts."""
        self._started = self._world.clock.now() if self._world is not None else None
        if self.web is not None:
            self.web.started()

    def ended(self, world: World, desired: Desired, result: Pass) -> None:
        """Log which problems are over, and show the pass."""
        context = self.log.context
        context.fleet, context.revision = desired.settings.fleet, desired.revision
        if self._started is not None:
            self.log.passed(self._started)
        if self.web is not None:
            self.web.ended(world, desired, result)

    def failed(self, problem: str) -> None:
        """Show the failure."""
        if self.web is not None:
            self.web.failed(problem)


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The notifier, the observer and the ``stop`` of a daemon that is watched."""

    notifier: Notifier
    observer: DaemonObserver
    stop: Callable[[], bool]


@contextmanager
def monitored(
    request: RunRequest, log: LogNotifier, stop: Callable[[], bool]
) -> Iterator[Monitoring]:
    """Serve what watches the daemon for as long as the block lasts.

    Raises:
        UsageError: the address is invalid or in use, or the extra ``web`` is not installed.
    """
    from reconciler.cli.shared.sources import fleet_name

    log.context.fleet = fleet_name(request.fleet)
    if not request.listen:
        yield Monitoring(log, DaemonObserver(log), stop)
        return
    _expect_web()
    from reconciler.cli.wiring.account import connections
    from reconciler.web.dashboard import Dashboard, DashboardAccess
    from reconciler.web.health import DaemonHealth
    from reconciler.web.metrics import FleetMetrics
    from reconciler.web.observer import WebNotifier, WebObserver, reporting_alive
    from reconciler.web.server import app_of, is_loopback_address, listening

    metrics, health = FleetMetrics(), DaemonHealth()
    dashboard = Dashboard(log.context.fleet, health)
    access = DashboardAccess(is_loopback_address(request.listen), request.token, request.header)
    connections().meter = metrics.called
    with listening(request.listen, app_of(metrics, health, dashboard, access)):
        yield Monitoring(
            WebNotifier(log, metrics, health, dashboard),
            DaemonObserver(log, WebObserver(metrics, health, dashboard)),
            reporting_alive(stop, health),
        )


def _expect_web() -> None:
    from importlib.util import find_spec

    from reconciler.model.errors import UsageError

    if not all(map(find_spec, ("jinja2", "prometheus_client", "starlette", "uvicorn"))):
        raise UsageError(
            "--listen needs the extra `web`",
            where="--listen",
            remedy="pip install 'reconciler[web]'",
        )
