"""Selects which of the next calls are affected: a number of calls, after skipping others."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

EVERY_CALL: Final = "*"

What = TypeVar("What")


@dataclass
class Turn(Generic[What]):
    """``what`` happens to the next calls of a name.

    ``call`` is an operation, or ``*`` for every one; ``times`` None is for ever; the first ``skip``
    calls are spared.
    """

    call: str
    what: What
    times: int | None
    skip: int = 0


def taken(turns: Iterable[Turn[What]], call: str) -> What | None:
    """Return what happens to a call, by the first turn that it uses up; None where nothing does."""
    for turn in turns:
        if turn.call not in (call, EVERY_CALL) or turn.times == 0:
            continue
        if turn.skip:
            turn.skip -= 1
            continue
        if turn.times is not None:
            turn.times -= 1
        return turn.what
    return None
