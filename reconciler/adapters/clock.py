"""The system clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

_GLANCE_S: Final = 0.05


class SystemClock:
    """The time of this machine; waiting checks its condition twenty times a second.

    With ``start`` the clock begins at that time.
    """

    def __init__(self, start: datetime | None = None) -> None:
        assert start is None or start.tzinfo is not None, "a moment without a zone is no moment"
        self._ahead = start - datetime.now(UTC) if start is not None else timedelta()

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC) + self._ahead

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Return after ``seconds``, or as soon as ``until`` returns True."""
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _GLANCE_S))
