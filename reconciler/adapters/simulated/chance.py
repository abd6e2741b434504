"""Chance that can be repeated: a draw follows from the seed and from what it is for.

Nobody's draw depends on who drew before, so one more node moves no other node's fate.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

_RANGE = 2**53


@dataclass(frozen=True, slots=True)
class Chance:
    """The draws of one seed."""

    seed: int = 0

    def share(self, *what: str) -> float:
        """Return a number from 0 up to, but not, 1."""
        text = "\0".join((str(self.seed), *what))
        digest = hashlib.sha256(text.encode()).digest()
        return (int.from_bytes(digest[:8], "big") >> 11) / _RANGE

    def between(self, low: float, high: float, *what: str) -> float:
        """Return a number of seconds from ``low`` to ``high``, to the millisecond."""
        return round(low + (high - low) * self.share(*what), 3)

    def waiting_s(self, rate_per_hour: float, *what: str) -> float | None:
        """Return after how many seconds something happens first that comes at a steady rate.

        None means never: the rate is zero.
        """
        if rate_per_hour <= 0:
            return None
        return round(-math.log1p(-self.share(*what)) / rate_per_hour * 3600, 3)
