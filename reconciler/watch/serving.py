"""The dashboard of a watched cluster: that of our own engine, with predictions and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from threading import Lock
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import Metric
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from reconciler.model.karpenter.prediction import (
    KarpenterActionKind,
    PredictionVerdict,
    verdicts_of,
)
from reconciler.ports.progress import EventKind, Progress
from reconciler.watch.report import describe_action, describe_prediction, describe_score, report_of
from reconciler.web.dashboard import Dashboard, dashboard_routes
from reconciler.web.health import DaemonHealth
from reconciler.web.observer import FORESEEN_NODES_MAX

if TYPE_CHECKING:
    from reconciler.model.karpenter.prediction import Prediction, Score
    from reconciler.watch.observed import WatchedPass

SHOWN: Final = timedelta(days=30)
"""How far back the pages look."""


class PredictionMetrics:
    """Counts scores by kind and verdict; every possible combination is there from the start."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._scored = Counter(
            "reconciler_prediction",
            "What Karpenter did by kind (launch, command or end) and verdict on the prediction.",
            ["kind", "verdict"],
            registry=self.registry,
        )
        for kind in KarpenterActionKind:
            for verdict in verdicts_of(kind):
                self._scored.labels(kind.value, verdict.value)

    def count(self, score: Score) -> None:
        """Count a score."""
        self._scored.labels(score.action.kind.value, score.verdict.value).inc()

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry)

    def families(self) -> Sequence[Metric]:
        """Return all metrics with their samples."""
        return list(self.registry.collect())


class WatchPages:
    """The pages and metrics of one watched cluster; its loop writes them, the server reads them.

    ``scores`` are those that are recorded already.
    """

    def __init__(
        self,
        name: str,
        scores: Sequence[Score],
        now: Callable[[], datetime],
        *,
        is_one_of_several: bool = False,
    ) -> None:
        self.health: Final = DaemonHealth()
        self.metrics: Final = PredictionMetrics()
        self.dashboard: Final = Dashboard(
            name, self.health, is_one_of_several=is_one_of_several, is_of_karpenter=True
        )
        self.app: Final[ASGIApp] = Router(
            routes=[*self.routes(), *dashboard_routes(self.dashboard)]
        )
        self._now = now
        self._lock = Lock()
        self._scores = list(scores)

    def show_pass(self, done: WatchedPass, prediction: Prediction) -> None:
        """Show a plan, and what it predicts."""
        seen = done.result.seen
        foreseen = done.inputs if len(seen.claims) <= FORESEEN_NODES_MAX else None
        self.dashboard.show_pass(done.desired, done.result, (), foreseen)
        self.dashboard.show_expected(describe_prediction(prediction))

    def show_score(self, score: Score) -> None:
        """Show what Karpenter did, and the verdict on its prediction."""
        self.metrics.count(score)
        with self._lock:
            self._scores.append(score)
        is_launch = score.action.kind is KarpenterActionKind.LAUNCH
        kind = EventKind.NODE_CLAIM_CREATED if is_launch else EventKind.COMMAND_STARTED
        self.dashboard.record_event(Progress(score.action.at, kind, describe_score(score)))

    def show_problem(self, problem: object) -> None:
        """Show what could not be read or written."""
        self.health.record_failure(str(problem))
        self.dashboard.record_event(Progress(self._now(), EventKind.RETRYING, str(problem)))

    def routes(self) -> list[BaseRoute]:
        """Return the pages that the dashboard of an engine has not, or has with other content."""

        def predictions(request: Request) -> Response:
            report = report_of(self._recent_scores())
            return self._page("predictions", request, report=report, verdicts=[*PredictionVerdict])

        def history(request: Request) -> Response:
            return self._page("actions", request, scores=self._recent_scores())

        return [Route("/predictions", predictions), Route("/history", history)]

    def _page(self, name: str, request: Request, **facts: object) -> Response:
        return self.dashboard.page(
            name, request, describe=describe_action, days=SHOWN.days, **facts
        )

    def _recent_scores(self) -> Sequence[Score]:
        since = self._now() - SHOWN
        with self._lock:
            self._scores = [score for score in self._scores if score.action.at >= since]
            return list(self._scores)
