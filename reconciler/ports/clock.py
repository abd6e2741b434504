"""The present."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol


class Clock(Protocol):
    """The only source of the present."""

    def now(self) -> datetime:
        """Return the present time, always in UTC and timezone-aware."""

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Return after ``seconds``, or as soon as ``until`` returns True."""
