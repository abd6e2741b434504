"""A limit of processor time in units of this machine, so that a slow one fails no test."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


def million_turns() -> float:
    """Return the processor time of a million turns of an almost empty loop, in seconds."""
    begin, total = time.process_time(), 0
    for number in range(1_000_000):
        total += number & 3
    return time.process_time() - begin


@contextmanager
def soon(millions: int = 400) -> Iterator[None]:
    """Fail if the block takes longer than this number of million turns of a loop."""
    before, begin = million_turns(), time.process_time()
    yield
    spent = time.process_time() - begin
    turn = max(before, million_turns())
    assert spent < millions * turn, f"it took {spent / turn:.0f} million turns"
