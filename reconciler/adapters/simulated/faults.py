"""What shall go wrong, where and how often: a script that EmbeddedEC2 follows to the letter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

# Selects which of the next calls are affected: a number of calls, after skipping others.


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
    """Return the fault of a call, from the first rule that it uses up; None without one."""
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


class Fault(StrEnum):
    """How a call fails. ``BEFORE``: it has no effect. ``AFTER``: it has, but the answer is lost."""

    THROTTLE = "throttle"
    SERVER_ERROR = "server-error"
    SERVER_ERROR_AFTER = "server-error-after"
    RESET_BEFORE = "reset-before"
    RESET_AFTER = "reset-after"
    TIMEOUT_BEFORE = "timeout-before"
    TIMEOUT_AFTER = "timeout-after"
    DENIED = "denied"

    @property
    def takes_effect(self) -> bool:
        """Whether the call takes effect nevertheless."""
        return self in (Fault.SERVER_ERROR_AFTER, Fault.RESET_AFTER, Fault.TIMEOUT_AFTER)

    @property
    def answer(self) -> tuple[int, str, str] | None:
        """The HTTP status, code and message that the caller reads; None where it reads nothing."""
        return _ANSWERS.get(self)


_ANSWERS = {
    Fault.THROTTLE: (503, "RequestLimitExceeded", "Request limit exceeded."),
    Fault.SERVER_ERROR: (500, "InternalError", "An internal error has occurred"),
    Fault.SERVER_ERROR_AFTER: (500, "InternalError", "An internal error has occurred"),
    Fault.DENIED: (
        403,
        "UnauthorizedOperation",
        "You are not authorized to perform this operation.",
    ),
}


class Faults:
    """Rules in the order in which they were added; a call uses up the first that matches it."""

    def __init__(self) -> None:
        self._rules: list[Turn[Fault]] = []

    def add(self, call: str, fault: Fault, *, times: int | None = 1, skip: int = 0) -> None:
        """Let the next calls fail.

        ``call`` is an operation such as ``CreateFleet``, or ``*``; ``times`` None means for ever;
        the first ``skip`` calls still succeed.
        """
        self._rules.append(Turn(call, fault, times, skip))

    def clear(self) -> None:
        """Forget all rules."""
        self._rules.clear()

    def take(self, call: str) -> Fault | None:
        """Return what shall happen to a call, and count it."""
        return taken(self._rules, call)
