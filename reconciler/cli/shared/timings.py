"""The duration of a command in seconds by phase, for ``--timings``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Final

PHASES: Final = ("read", "catalog", "placement", "disruption", "render")


class Timings:
    """Counts the seconds of each phase; the total also has what is between them.

    Phases may stand in each other: time counts for the innermost one. ``entered`` is called with
    each phase that begins.
    """

    def __init__(self, entered: Callable[[str], None] = lambda _: None) -> None:
        self._seconds = dict.fromkeys(PHASES, 0.0)
        self._start = self._since = perf_counter()
        self._running: list[str] = []
        self._entered = entered

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        """Count the time of the block as ``phase``."""
        self._book()
        self._running.append(phase)
        self._entered(phase)
        try:
            yield
        finally:
            self._book()
            self._running.pop()

    def _book(self) -> None:
        now = perf_counter()
        if self._running:
            self._seconds[self._running[-1]] += now - self._since
        self._since = now

    def to_json(self) -> str:
        """Return the seconds so far as one JSON object."""
        import json

        total = perf_counter() - self._start
        return json.dumps({k: round(v, 6) for k, v in (*self._seconds.items(), ("total", total))})
