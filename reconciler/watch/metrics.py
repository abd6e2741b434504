"""The scores of predictions as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Counter, make_asgi_app

from reconciler.model.karpenter.prediction import KarpenterActionKind, PredictionVerdict

if TYPE_CHECKING:
    from reconciler.model.karpenter.prediction import Score


class PredictionMetrics:
    """Counts scores by kind and verdict; every combination is there from the start."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._scored = Counter(
            "reconciler_prediction",
            "Actions of Karpenter by kind (launch or command) and verdict on the prediction.",
            ["kind", "verdict"],
            registry=self.registry,
        )
        for kind in KarpenterActionKind:
            for verdict in PredictionVerdict:
                self._scored.labels(kind.value, verdict.value)

    def count(self, score: Score) -> None:
        """Count a score."""
        self._scored.labels(score.action.kind.value, score.verdict.value).inc()


@contextmanager
def serve_metrics(address: str, metrics: PredictionMetrics) -> Iterator[str]:
    """Serve the metrics while the block runs, and yield the URL.

    Raises:
        UsageError: the server cannot listen at ``address``.
    """
    from reconciler.web.server import serve_in_thread

    with serve_in_thread(address, make_asgi_app(metrics.registry)) as url:
        yield url
