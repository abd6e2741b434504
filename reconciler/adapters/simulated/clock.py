"""Time that passes only when it is waited for."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

START: Final = datetime(2026, 1, 1, tzinfo=UTC)


class SimulatedClock:
    """A clock that stands still until someone waits."""

    def __init__(self, start: datetime = START) -> None:
        assert start.tzinfo is not None, "a moment without a time zone is no moment"
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """Return the present time of the simulation."""
        return self._now

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Let ``seconds`` pass at once, unless ``until`` holds already."""
        if not until():
            self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass."""
        assert seconds >= 0, "time does not run backwards"
        self._now += timedelta(seconds=seconds)
