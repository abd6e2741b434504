"""Monitoring of a daemon: log, notifications, OpenTelemetry traces, metrics and a dashboard.

A trace has a span for each pass, its steps, and the calls of APIs.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from reconciler import __version__
from reconciler.model.errors import UsageError
from reconciler.notifications.log import LogNotifier

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span, Tracer
    from starlette.types import ASGIApp

    from reconciler.assembly.assembly import Assembly
    from reconciler.assembly.inputs.request import RunRequest, ServingRequest
    from reconciler.engine.planning import PlannedFleet
    from reconciler.engine.reconcile import Pass
    from reconciler.engine.world import World
    from reconciler.notifications.observer import NoticeObserver
    from reconciler.plan.value.plan import Plan
    from reconciler.ports.progress import CallMeter, Notifier
    from reconciler.web.dashboard import Dashboard, DashboardAccess
    from reconciler.web.health import DaemonHealth
    from reconciler.web.metrics import FleetMetrics
    from reconciler.web.observer import WebObserver
    from reconciler.web.server import Probed

ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_DISABLED: Final = "OTEL_SDK_DISABLED"
_PACKAGE: Final = "opentelemetry.exporter.otlp.proto.http"
_LOG: Final = logging.getLogger(__name__)


@dataclass
class PassTraces:
    """The spans of the passes of one daemon; the loop's thread opens and ends them."""

    tracer: Tracer
    fleet: str = ""
    _open: AbstractContextManager[Span] | None = field(default=None, init=False)

    def for_fleet(self, fleet: str) -> PassTraces:
        """Return the spans of one fleet among several of a process."""
        return PassTraces(self.tracer, fleet)

    def span(self, name: str) -> AbstractContextManager[object]:
        """Return a span around a step of a pass."""
        return self.tracer.start_as_current_span(name)

    def pass_started(self) -> None:
        """Open the span of a pass."""
        attributes = {"reconciler.fleet": self.fleet} if self.fleet else None
        self._open = self.tracer.start_as_current_span("pass", attributes=attributes)
        self._open.__enter__()

    def pass_ended(self, attributes: Mapping[str, str | int | float]) -> None:
        """End the span of the pass with what it decided."""
        from opentelemetry.trace import get_current_span

        if self._open is not None:
            get_current_span().set_attributes(attributes)
            self._open.__exit__(None, None, None)
            self._open = None

    def pass_failed(self, problem: str) -> None:
        """End the span of a pass that failed."""
        from opentelemetry.trace import Status, StatusCode, get_current_span

        if self._open is not None:
            get_current_span().set_status(Status(StatusCode.ERROR, problem))
            self.pass_ended({})

    def record_call(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Add the span of a call that has ended now (``ports.progress.CallMeter``)."""
        from opentelemetry.trace import SpanKind, Status, StatusCode

        now = time.time_ns()
        span = self.tracer.start_span(
            f"{service} {operation}",
            kind=SpanKind.CLIENT,
            attributes={"rpc.service": service, "rpc.method": operation},
            start_time=now - int(seconds * 1e9),
        )
        if outcome != "ok":
            span.set_attribute("error.type", outcome)
            span.set_status(Status(StatusCode.ERROR, outcome))
        span.end(now)


@contextmanager
def export_traces(fleet: str, environ: Mapping[str, str]) -> Iterator[PassTraces | None]:
    """Export traces while the block runs; None if no endpoint is set."""
    endpoint = next((name for name in ENDPOINTS if environ.get(name)), "")
    if not endpoint or environ.get(_DISABLED, "").lower() == "true":
        yield None
        return
    if not _is_installed():
        from reconciler.installation import install_remedy

        # Operators of OpenTelemetry set the variable in every pod: no reason not to start.
        _LOG.warning("%s is set, but no traces are sent: %s", endpoint, install_remedy("otel"))
        yield None
        return
    provider = _provider(fleet)
    try:
        yield PassTraces(provider.get_tracer("reconciler"))
    finally:
        provider.shutdown()


def _is_installed() -> bool:
    try:
        return find_spec(_PACKAGE) is not None
    except ModuleNotFoundError:
        return False


def _provider(fleet: str) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    ours = {"service.name": "reconciler", "service.version": __version__}
    if fleet:
        ours["reconciler.fleet"] = fleet
    resource = Resource(ours).merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


@dataclass
class DaemonObserver:
    """Feeds log, pages, traces and notifications from the passes (``engine.loop.PassObserver``)."""

    log: LogNotifier
    notices: NoticeObserver
    web: WebObserver | None = None
    traces: PassTraces | None = None
    _world: World | None = None
    _started: datetime | None = None

    def attach(self, assembly: Assembly) -> World:
        """Return its world, whose plans are logged before they are applied."""
        self.notices.follow(assembly.state.shelf, assembly.settings)
        world = assembly.world
        keep = world.keep_reasons

        def keep_reasons(plan: Plan) -> None:
            self.log.context.plan = plan.digest
            keep(plan)

        self._world = replace(world, keep_reasons=keep_reasons)
        if self.traces is not None:
            self._world = replace(self._world, span=self.traces.span)
        return self._world

    def pass_started(self) -> None:
        """Record when the pass starts."""
        self._started = self._world.clock.now() if self._world is not None else None
        if self.traces is not None:
            self.traces.pass_started()
        if self.web is not None:
            self.web.pass_started()

    def pass_ended(self, world: World, desired: PlannedFleet, result: Pass) -> None:
        """Log which problems have ended, and show the pass."""
        if self.traces is not None:
            self.traces.pass_ended(_attributes(desired, result))
        context = self.log.context
        context.fleet, context.revision = desired.settings.fleet, desired.revision
        if self._started is not None:
            self.log.log_resolved(self._started)
        self.notices.pass_ended(world, desired, result)
        if self.web is not None:
            self.web.pass_ended(world, desired, result)

    def pass_failed(self, problem: str) -> None:
        """Show the failure."""
        if self.traces is not None:
            self.traces.pass_failed(problem)
        self.notices.pass_failed()
        if self.web is not None:
            self.web.pass_failed(problem)


def _attributes(desired: PlannedFleet, result: Pass) -> dict[str, str | int | float]:
    """Return the attributes of the span of a pass."""
    plan = result.plan
    versions = result.seen.snapshot.versions
    return {
        "reconciler.revision": desired.revision,
        "reconciler.plan": plan.digest,
        "reconciler.actions": len(plan.actions),
        "reconciler.nodes": len(result.seen.claims),
        "reconciler.unschedulable_pods": len(plan.unschedulable),
        "reconciler.dollars_per_hour": plan.cost.before,
        **{f"reconciler.resource_version.{name}": at for name, at in versions.items()},
    }


@dataclass(frozen=True, slots=True)
class Monitoring:
    """The notifier, the observer and the ``stop`` of a daemon that is watched."""

    notifier: Notifier
    observer: DaemonObserver
    stop: Callable[[], bool]


@contextmanager
def serve_monitoring(
    request: RunRequest, log: LogNotifier, stop: Callable[[], bool]
) -> Iterator[Monitoring]:
    """Serve the monitoring of the daemon while the block runs.

    Raises:
        UsageError: the address is invalid or in use, or the extra ``web`` is not installed.
    """
    from reconciler.adapters.clock import SystemClock
    from reconciler.assembly.account import connections
    from reconciler.assembly.inputs.sources import fleet_name
    from reconciler.notifications.delivery import DeliveryQueue
    from reconciler.notifications.observer import NoticeNotifier, NoticeObserver

    log.context.fleet = fleet_name(request.fleet)
    with ExitStack() as stack:
        notices = NoticeObserver(stack.enter_context(DeliveryQueue(SystemClock())))
        traces = stack.enter_context(export_traces(log.context.fleet, os.environ))
        notifier = NoticeNotifier(log, notices)
        web = (
            stack.enter_context(_serve_pages(request.serving, log.context.fleet))
            if request.serving.is_wanted
            else None
        )
        meter = meter_of(web.metrics.record_call if web is not None else None, traces)
        if meter is not None:
            connections().meter = meter
        if web is None:
            yield Monitoring(notifier, DaemonObserver(log, notices, traces=traces), stop)
            return
        yield Monitoring(
            web.wrap_notifier(notifier),
            DaemonObserver(log, notices, web.observer, traces),
            web.report_alive(stop),
        )


def meter_of(metrics: CallMeter | None, traces: PassTraces | None) -> CallMeter | None:
    """Return the meter for the calls of the process, None if it is not needed."""
    if metrics is None or traces is None:
        return metrics or (traces.record_call if traces is not None else None)

    def called(service: str, operation: str, outcome: str, seconds: float) -> None:
        metrics(service, operation, outcome, seconds)
        traces.record_call(service, operation, outcome, seconds)

    return called


@dataclass(frozen=True, slots=True)
class _WebPages:
    """The served pages of a daemon, and their data source."""

    metrics: FleetMetrics
    health: DaemonHealth
    dashboard: Dashboard

    @property
    def observer(self) -> WebObserver:
        from reconciler.web.observer import WebObserver

        return WebObserver(self.metrics, self.health, self.dashboard)

    def wrap_notifier(self, notifier: Notifier) -> Notifier:
        from reconciler.web.observer import WebNotifier

        return WebNotifier(notifier, self.metrics, self.health, self.dashboard)

    def report_alive(self, stop: Callable[[], bool]) -> Callable[[], bool]:
        from reconciler.web.health import with_heartbeat

        return with_heartbeat(stop, self.health)


@contextmanager
def _serve_pages(request: ServingRequest, fleet: str) -> Iterator[_WebPages]:
    """Serve metrics, health checks and the dashboard while the block runs."""
    expect_web()
    from reconciler.web.dashboard import Dashboard
    from reconciler.web.health import DaemonHealth
    from reconciler.web.metrics import FleetMetrics
    from reconciler.web.server import make_app

    metrics, health = FleetMetrics(), DaemonHealth()
    dashboard = Dashboard(fleet, health)
    with serve_pages(request, lambda access: make_app(metrics, health, dashboard, access), health):
        yield _WebPages(metrics, health, dashboard)


@contextmanager
def serve_pages(
    request: ServingRequest, make: Callable[[DashboardAccess], ASGIApp], probed: Probed
) -> Iterator[str]:
    """Serve pages, and probes at an address of their own, while the block runs.

    Yield the URL of the pages, empty if there are none.

    Raises:
        UsageError: an address is invalid or in use.
    """
    from reconciler.web.server import dashboard_access, make_probes_app, serve_in_thread

    with ExitStack() as stack:
        url = ""
        if request.listen:
            access = dashboard_access(request.listen, request.token, request.header, request.hosts)
            url = stack.enter_context(serve_in_thread(request.listen, make(access)))
        if request.probes:
            app = make_probes_app(probed)
            stack.enter_context(serve_in_thread(request.probes, app, option="--listen-probes"))
        yield url


def expect_web() -> None:
    """Refuse to listen without the packages that serve pages.

    Raises:
        UsageError: the extra ``web`` is not installed.
    """
    if not all(map(find_spec, ("jinja2", "prometheus_client", "starlette", "uvicorn"))):
        from reconciler.installation import install_remedy

        raise UsageError(
            "--listen needs the extra `web`",
            where="--listen",
            remedy=install_remedy("web"),
        )
