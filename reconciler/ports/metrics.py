"""What a server of metrics answers to a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from reconciler.model.errors import UnreadableError


class TooMuchDataError(UnreadableError):
    """An answer is more than the server computes or we read; a shorter range may work."""


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One series of an answer: its labels, without the name of the metric, and its value."""

    labels: Mapping[str, str]
    value: float


class Metrics(Protocol):
    """Answers queries in PromQL."""

    def query(self, expression: str, at: int) -> Sequence[MetricSample]:
        """Return the vector that an expression has at a time, in seconds since 1970.

        Raises:
            TooMuchDataError: the result is too large for one answer.
            UnreadableError: there is no answer, or it cannot be read.
        """
