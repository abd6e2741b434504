"""The record of predictions: written before Karpenter acts, with their scores."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from reconciler.model.karpenter.prediction import Prediction, Score


class PredictionLog(Protocol):
    """Append-only and durable: a prediction survives any crash after the call returns."""

    def record(self, prediction: Prediction) -> Prediction:
        """Append a prediction, and return it with its number."""

    def score(self, scores: Sequence[Score]) -> None:
        """Append the scores of predictions, all or none."""

    def scores(self, since: datetime) -> Sequence[Score]:
        """Return the scores of actions since a time, oldest first."""

    def predictions(self, since: datetime) -> Sequence[Prediction]:
        """Return the predictions since a time, oldest first."""

    def forget(self, before: datetime) -> None:
        """Remove predictions and scores from before a time, and all but the last 20,000 of each."""
