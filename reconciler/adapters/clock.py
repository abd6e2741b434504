"""The system clock, which follows the clock of the API server where that differs.

Ages are differences to times that the cluster states: when a pod started, since when a node is
unhealthy. They are wrong by as much as the two clocks differ.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

_GLANCE_S: Final = 0.05
_RESOLUTION: Final = timedelta(seconds=1)
"""An HTTP response states its time in complete seconds."""
_TOLERANCE: Final = timedelta(seconds=1)
"""A difference that is not corrected, so that the time of a well-kept clock is never changed."""
_LOG: Final = logging.getLogger(__name__)


class SystemClock:
    """The time of this machine; waiting checks its condition twenty times a second.

    With ``start`` the clock begins at that time.
    """

    def __init__(self, start: datetime | None = None) -> None:
        assert start is None or start.tzinfo is not None, "a moment without a zone is no moment"
        self._ahead = start - datetime.now(UTC) if start is not None else timedelta()
        self._is_set = start is not None

    def now(self) -> datetime:
        """Return the current time in UTC."""
        return datetime.now(UTC) + self._ahead

    def follow(self, stated: datetime, sent: datetime, received: datetime) -> None:
        """Continue with the time of a server if this machine's differs by more than a second.

        ``stated`` is the time in a response, in complete seconds; ``sent`` and ``received`` are
        the times of this machine at the request and at the response. A clock that was set does not
        follow.
        """
        least, most = stated - received - _TOLERANCE, stated + _RESOLUTION - sent + _TOLERANCE
        if self._is_set or least <= self._ahead <= most:
            return
        self._ahead = timedelta() if least <= timedelta() <= most else (least + most) / 2
        if self._ahead:
            side = "behind" if self._ahead > timedelta() else "ahead of"
            _LOG.warning(
                "the clock of this machine is %.0f s %s that of the API server, whose time is used "
                "from now on: synchronize it, for example with NTP",
                abs(self._ahead.total_seconds()),
                side,
            )

    def wait(self, seconds: float, until: Callable[[], bool]) -> None:
        """Return after ``seconds``, or as soon as ``until`` returns True."""
        deadline = time.monotonic() + seconds
        while not until():
            left = deadline - time.monotonic()
            if left <= 0:
                return
            time.sleep(min(left, _GLANCE_S))
