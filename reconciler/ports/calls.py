"""How a pass makes its calls: at the same time, within limits, and without waiting for long.

A pass waits for short calls (a taint, a tag) only until its time is used up, and does not wait for
long ones (a launch, a drain) at all: it starts them, and a later pass reads what came of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from reconciler.model.errors import LeaseLostError, ReconcilerError, TransientCloudError

SHORT_WAIT_S: Final = 0.5
"""How long a pass waits for calls whose answers do not affect its decisions."""

Call = Callable[[], object]
T = TypeVar("T")


class UnansweredError(TransientCloudError):
    """A call that is running, or waits for a free worker: its outcome is not known yet."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name}: no answer yet", remedy="the next pass checks it")


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a call: what it returned, or the error that it raised."""

    value: object = None
    error: ReconcilerError | None = None

    @property
    def is_refusal(self) -> bool:
        """Whether the call failed for a reason that an immediate retry would not change."""
        return self.error is not None and not isinstance(self.error, TransientCloudError)


class Calls(Protocol):
    """Makes calls. Each has a name, and never runs twice at the same time under it."""

    def begin_pass(self) -> None:
        """Record that a pass begins: it may wait again."""

    def call_all(
        self, calls: Mapping[str, Call], within_s: float | None = None
    ) -> Mapping[str, Answer]:
        """Make short calls; one without an answer in time has an ``UnansweredError``.

        ``within_s`` is how long to wait at most for calls that can also be answered later.

        Raises:
            LeaseLostError: another process acts for the fleet.
        """

    def read(self, name: str, call: Callable[[], T], within_s: float | None) -> T | None:
        """Return what a call returns, or None if it has not ended within that time.

        In that case the call continues, and the next ``read`` of that name returns its result. With
        None as the time, the result is waited for. An earlier call that failed is made again.

        Raises:
            ReconcilerError: the call failed.
        """

    def start(self, name: str, call: Call) -> None:
        """Start a long call, unless one of that name runs or its answer was not read."""

    def is_open(self, name: str) -> bool:
        """Return whether a long call of that name is running, or has an unread answer."""

    def answer(self, name: str) -> Answer | None:
        """Return the answer of a long call, once; None while there is none.

        Raises:
            LeaseLostError: another process acts for the fleet.
        """


class InlineCalls:
    """Calls one after another, each answered before the next: where time is simulated."""

    def __init__(self) -> None:
        self._answers: dict[str, Answer] = {}

    def begin_pass(self) -> None:
        """Do nothing: no call is waited for."""

    def call_all(
        self, calls: Mapping[str, Call], within_s: float | None = None
    ) -> Mapping[str, Answer]:
        """Make the calls in their order."""
        del within_s
        return {name: _make_call(call) for name, call in calls.items()}

    def read(self, name: str, call: Callable[[], T], within_s: float | None) -> T | None:
        """Make the call."""
        del name, within_s
        return call()

    def start(self, name: str, call: Call) -> None:
        """Make the call at once."""
        if name not in self._answers:
            self._answers[name] = _make_call(call)

    def is_open(self, name: str) -> bool:
        """Return whether the call has an unread answer."""
        return name in self._answers

    def answer(self, name: str) -> Answer | None:
        """Return the answer of a call, once."""
        return self._answers.pop(name, None)


def _make_call(call: Call) -> Answer:
    try:
        return Answer(call())
    except LeaseLostError:
        raise
    except ReconcilerError as error:
        return Answer(error=error)
