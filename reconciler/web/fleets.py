"""The metrics, health checks and dashboards of several fleets in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Lock
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from reconciler.web.dashboard import (
    Dashboard,
    dashboard_routes,
    render_page,
    static_files,
    stream_changes,
)
from reconciler.web.health import DaemonHealth, ProbeCode, ProbeResult
from reconciler.web.metrics import CallMetrics, FleetMetrics
from reconciler.web.view import FleetView

LABEL: Final = "fleet"


class ShownMetrics(Protocol):
    """The metrics of one fleet among several."""

    def families(self) -> Sequence[Metric]:
        """Return all metrics with their samples."""


class ShownFleet(Protocol):
    """What the list of fleets and the pages of one of them read."""

    @property
    def metrics(self) -> ShownMetrics:
        """The metrics of the fleet."""

    @property
    def health(self) -> DaemonHealth:
        """The heartbeats of its loop."""

    @property
    def dashboard(self) -> Dashboard:
        """What its pages show."""

    @property
    def app(self) -> ASGIApp:
        """Its pages."""


@dataclass(frozen=True, slots=True)
class WatchedFleet:
    """What is shown of one fleet among several."""

    metrics: FleetMetrics
    health: DaemonHealth
    dashboard: Dashboard
    app: ASGIApp


@dataclass(frozen=True, slots=True)
class FleetRow:
    """A fleet in the list of fleets; ``view`` is None before its first pass in this process."""

    name: str
    ready: ProbeResult
    view: FleetView | None


@dataclass
class WatchedFleets:
    """The fleets of a process by name; threads add and remove them, the server's thread reads.

    ``expected`` is how many there are to be, None before all of them are shown.
    """

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    expected: int | None = None
    calls: CallMetrics = field(init=False)
    _lock: Lock = field(default_factory=Lock, init=False)
    _fleets: dict[str, ShownFleet] = field(default_factory=dict, init=False)
    _changes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        """Register what belongs to the process, and the fleets as one collector."""
        self.calls = CallMetrics(self.registry)
        self.registry.register(_LabelledMetrics(self.fleets))

    def add(self, name: str, health: DaemonHealth) -> WatchedFleet:
        """Show a fleet."""
        dashboard = Dashboard(name, health, is_one_of_several=True)
        app = Router(routes=dashboard_routes(dashboard))
        fleet = WatchedFleet(FleetMetrics(self.calls), health, dashboard, app)
        self.show(name, fleet)
        return fleet

    def show(self, name: str, fleet: ShownFleet) -> None:
        """Show a fleet that has pages of its own."""
        with self._lock:
            self._fleets[name] = fleet
            self._changes += 1

    def remove(self, name: str) -> None:
        """Stop showing a fleet."""
        with self._lock:
            self._fleets.pop(name, None)
            self._changes += 1

    def fleets(self) -> dict[str, ShownFleet]:
        """Return the fleets in order of their names."""
        with self._lock:
            return dict(sorted(self._fleets.items()))

    @property
    def serial(self) -> int:
        """A number that grows with every change of any fleet."""
        fleets = self.fleets().values()
        return self._changes + sum(fleet.dashboard.serial for fleet in fleets)

    def text(self) -> bytes:
        """Return the metrics of all fleets, each with the label ``fleet``."""
        return generate_latest(self.registry)

    def alive(self) -> ProbeResult:
        """Return whether the loops of all fleets are running."""
        return self._probe_all(DaemonHealth.alive, ProbeCode.ALIVE)

    def ready(self) -> ProbeResult:
        """Return whether all fleets are served here or by another replica."""
        if self.expected is None:
            return ProbeResult(False, "the fleets are being started", ProbeCode.STARTING)
        return self._probe_all(DaemonHealth.ready, ProbeCode.READY)

    def rows(self) -> list[FleetRow]:
        """Return the list of fleets."""
        return [
            FleetRow(name, fleet.health.ready(), fleet.dashboard.view())
            for name, fleet in self.fleets().items()
        ]

    def _probe_all(
        self, probe: Callable[[DaemonHealth], ProbeResult], good: ProbeCode
    ) -> ProbeResult:
        results = {name: probe(fleet.health) for name, fleet in self.fleets().items()}
        bad = {name: result for name, result in results.items() if not result.is_good}
        if bad:
            reasons = [f"fleet {name}: {result.reason}" for name, result in bad.items()]
            return ProbeResult(False, "\n".join(reasons), next(iter(bad.values())).code)
        return ProbeResult(True, f"{len(results)} fleets", good)


class _LabelledMetrics(Collector):
    """The metrics of all fleets: one family for each name, whose samples name their fleet."""

    def __init__(self, fleets: Callable[[], dict[str, ShownFleet]]) -> None:
        self._fleets = fleets

    def describe(self) -> list[Metric]:
        """Return nothing: the names are known only once there are fleets."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of all fleets."""
        families: dict[str, Metric] = {}
        for name, fleet in self._fleets().items():
            for family in fleet.metrics.families():
                merged = families.get(family.name)
                if merged is None:
                    merged = Metric(family.name, family.documentation, family.type, family.unit)
                    families[family.name] = merged
                merged.samples += [
                    sample._replace(labels={LABEL: name, **sample.labels})
                    for sample in family.samples
                ]
        yield from families.values()


def _count_unready(rows: Sequence[FleetRow], ready: ProbeResult) -> ProbeResult:
    """Return the number of fleets that are not ready; the rows state the reasons."""
    bad = sum(not row.ready.is_good for row in rows)
    return ready._replace(is_good=False, reason=f"{bad} of {len(rows)} fleets") if bad else ready


def fleets_routes(fleets: WatchedFleets) -> list[BaseRoute]:
    """Return the list of fleets, and the dashboard of each below ``/fleets/NAME``."""

    def overview(request: Request) -> Response:
        serial = fleets.serial  # read first: what changes meanwhile is reported to the page
        rows = fleets.rows()
        views = [row.view for row in rows if row.view is not None]
        return render_page(
            "fleets",
            request,
            serial=serial,
            fleet="All fleets",
            view=None,
            ready=_count_unready(rows, fleets.ready()),
            rows=rows,
            nodes=sum(len(view.nodes) for view in views),
            per_month=sum(view.per_month for view in views),
            is_one_of_several=False,
        )

    async def stream(request: Request) -> Response:
        return stream_changes(lambda: fleets.serial, request)

    async def serve_fleet(scope: Scope, receive: Receive, send: Send) -> None:
        fleet = fleets.fleets().get(scope["path_params"]["name"])
        answer: ASGIApp = PlainTextResponse("Unknown fleet.\n", 404)
        await (fleet.app if fleet is not None else answer)(scope, receive, send)

    return [
        Route("/", overview),
        Route("/stream", stream),
        Mount("/static", static_files()),
        Mount("/fleets/{name}", serve_fleet),
    ]
