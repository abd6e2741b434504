"""How long to wait before a call is tried again."""

from __future__ import annotations

import hashlib

from reconciler.ports import Clock

_FIRST_S = 0.2
_MOST_S = 5.0


def backoff_s(token: str, attempt: int) -> float:
    """Return seconds to wait after failure number ``attempt`` (from 0), doubling up to 5 s.

    The jitter, between half and the whole of it, follows from the token: claims that fail
    together do not come back together, and a test sees the same waits each time.
    """
    whole: float = min(_FIRST_S * 2**attempt, _MOST_S)
    digest = hashlib.sha256(f"{token}/{attempt}".encode()).digest()
    share = int.from_bytes(digest[:2], "big") / 0xFFFF
    return whole * (0.5 + 0.5 * share)


def pause(clock: Clock, token: str, attempt: int) -> None:
    """Wait this time on the clock of the engine."""
    clock.wait(backoff_s(token, attempt), lambda: False)
