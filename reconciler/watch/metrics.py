"""The scores of predictions as Prometheus metrics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.metrics_core import Metric

from reconciler.model.karpenter.prediction import KarpenterActionKind, Score, verdicts_of


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
