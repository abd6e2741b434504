"""Feeds the metrics, the health checks and the dashboard from the loop and its events."""

from __future__ import annotations

import time
from typing import Final

from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.shown.past import ENTRIES_MAX, LaunchPrices, commit_views
from reconciler.engine.world import World
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.steadystate import has_waiting_nodes
from reconciler.ports.progress import EventKind, Notifier, Progress
from reconciler.web.dashboard import Dashboard
from reconciler.web.health import DaemonHealth
from reconciler.web.metrics import FleetMetrics

FORESEEN_NODES_MAX: Final = 300
"""Up to how many nodes the dashboard shows what consolidation does later."""


class WebObserver:
    """Watches the passes of a daemon (``engine.loop.PassObserver``)."""

    def __init__(
        self, metrics: FleetMetrics, health: DaemonHealth, dashboard: Dashboard | None = None
    ) -> None:
        self._metrics = metrics
        self._health = health
        self._dashboard = dashboard
        self._started = time.perf_counter()
        self._prices: LaunchPrices | None = None

    def pass_started(self) -> None:
        """Record when the pass starts."""
        self._started = time.perf_counter()
        self._metrics.record_start()

    def pass_ended(self, world: World, desired: PlannedFleet, result: Pass) -> None:
        """Show what the pass observed and decided."""
        self._metrics.record_pass(world, desired, result, time.perf_counter() - self._started)
        self._health.record_pass()
        if self._dashboard is not None:
            entries = world.journal.entries(limit=ENTRIES_MAX)
            oldest = min((entry.intent.at for entry in entries), default=result.seen.at)
            commands = world.store.commands_since(oldest)
            self._prices = self._prices or LaunchPrices(world.store.plan)
            commits = commit_views(entries, result.seen.at, commands, self._prices)
            self._dashboard.show_pass(desired, result, commits, _foreseen(world, desired, result))

    def pass_failed(self, problem: str) -> None:
        """Count the failure; the metrics keep showing the last pass that succeeded."""
        self._metrics.record_failure()
        self._health.record_failure(problem)


def _foreseen(world: World, desired: PlannedFleet, result: Pass) -> Inputs | None:
    """Return the inputs of the last plan if a node waits for ``consolidateAfter``."""
    seen, store = result.seen, world.store
    nodes = [node for node in seen.state().nodes if node.is_managed]
    if len(nodes) > FORESEEN_NODES_MAX or not has_waiting_nodes(nodes, desired.node_pools, seen.at):
        return None
    return desired.inputs(seen, store.unavailable(seen.at), store.objects(), store.serial())


class WebNotifier:
    """Passes events on to another notifier, and shows them in metrics and health checks."""

    def __init__(
        self,
        then: Notifier,
        metrics: FleetMetrics,
        health: DaemonHealth,
        dashboard: Dashboard | None = None,
    ) -> None:
        self._then = then
        self._dashboard = dashboard
        self._metrics = metrics
        self._health = health

    def notify(self, progress: Progress) -> None:
        """Show the event and pass it on."""
        self._metrics.record_event(progress)
        if self._dashboard is not None:
            self._dashboard.record_event(progress)
        if progress.kind is EventKind.STANDBY:
            self._health.record_standby()
        self._then.notify(progress)
