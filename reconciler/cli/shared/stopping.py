"""Graceful stops: after a signal, the current pass is finished."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from reconciler.ports.progress import Progress


class Silence:
    """Informs nobody."""

    def notify(self, progress: Progress) -> None:
        """Do nothing."""


@contextmanager
def on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that is true after SIGTERM or SIGINT; a second signal interrupts."""
    asked = Event()

    def note(number: int, frame: object) -> None:
        del frame
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
