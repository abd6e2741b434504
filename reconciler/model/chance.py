"""Reproducible randomness: a draw is derived from the seed and its purpose.

No draw depends on earlier draws, so an additional node does not change the fate of others.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Final

_RANGE: Final = 2**53


@dataclass(frozen=True, slots=True)
class Chance:
    """The random draws of one seed."""

    seed: int = 0

    def share(self, *what: str) -> float:
        """Return a number from 0 up to, but excluding, 1."""
        text = "\0".join((str(self.seed), *what))
        digest = hashlib.sha256(text.encode()).digest()
        return (int.from_bytes(digest[:8], "big") >> 11) / _RANGE

    def seconds_between(self, low: float, high: float, *what: str) -> float:
        """Return a number of seconds from ``low`` to ``high``, to the millisecond."""
        return round(low + (high - low) * self.share(*what), 3)

    def seconds_until_event(self, rate_per_hour: float, *what: str) -> float | None:
        """Return the seconds until the first event of a process with a constant rate.

        None means never: the rate is zero.
        """
        if rate_per_hour <= 0:
            return None
        return round(-math.log1p(-self.share(*what)) / rate_per_hour * 3600, 3)
