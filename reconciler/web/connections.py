"""HTTP connections that end: each step of a client has a time limit, and their number is limited.

The server that we use closes a connection only if it is silent after an answer. A client that
never completes its request, sends a byte at a time, or does not read what it asked for would keep
its connection indefinitely, and a hundred of them would keep everybody else out.
"""

from __future__ import annotations

from asyncio import AbstractEventLoop, TimerHandle, Transport
from typing import Final

from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

CONNECTIONS_MAX: Final = 100
"""How many connections are open at a time.

One more closes the oldest that waits for a request. If none waits, it closes the one whose answer
has taken longest: a stream of events, which a browser opens again, or an answer that is not read.
"""

REQUEST_S: Final = 10.0
"""How long a client may take for a complete request, also after an earlier one."""

UNREAD_S: Final = 30.0
"""How long a client may leave an answer unread."""


class TimedConnection(H11Protocol):
    """A connection of one client."""

    request_s: float = REQUEST_S
    unread_s: float = UNREAD_S
    connections_max: int = CONNECTIONS_MAX

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, object],
        _loop: AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._deadline: TimerHandle | None = None
        self._answered_from = 0.0
        self._unread: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Start the time of the first request, and make room for it."""
        super().connection_made(transport)
        self._expect_request(self.request_s)
        if len(self.connections) > self.connections_max:
            others = (c for c in self.connections if isinstance(c, TimedConnection))
            min((c for c in others if c is not self), key=_expendability).abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the time."""
        self._stop_timers()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; only a complete one stops the time."""
        was_waiting = self.is_waiting
        super().data_received(data)
        if was_waiting and not self.is_waiting:
            self._begin_answer()

    def on_response_complete(self) -> None:
        """Start the time of reading the rest of the answer, or of the next request."""
        has_unread = self.transport.get_write_buffer_size() > 0
        self._expect_request(self.unread_s if has_unread else self.request_s)
        super().on_response_complete()
        if not self.is_waiting:
            self._begin_answer()

    def pause_writing(self) -> None:
        """Start the time for reading: more is unread than is kept for a client."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self.unread_s, self.abort)

    def resume_writing(self) -> None:
        """Stop the time for reading."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    @property
    def is_waiting(self) -> bool:
        """Whether the client has not sent a complete request since the last answer."""
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        """Close the connection at once, whatever is unread."""
        self._stop_timers()
        if self.transport is not None:
            self.transport.abort()

    @property
    def ends_at(self) -> float:
        """When the time of the client ends, on the clock of the loop."""
        return self._deadline.when() if self._deadline is not None else 0.0

    @property
    def answered_from(self) -> float:
        """When the request was complete that is being answered, on the clock of the loop."""
        return self._answered_from

    def _begin_answer(self) -> None:
        self._cancel_deadline()
        self._answered_from = self.loop.time()

    def _expect_request(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _stop_timers(self) -> None:
        self._cancel_deadline()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def _expendability(connection: TimedConnection) -> tuple[bool, float]:
    """Return a key by which the connection comes first that is closed if there are too many."""
    if connection.is_waiting:
        return False, connection.ends_at
    return True, connection.answered_from
