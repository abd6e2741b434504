"""Stopping in good order: a signal lets the pass in hand finish."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event

from reconciler.ports.progress import Progress


class Silence:
    """Informs nobody."""

    def notify(self, progress: Progress) -> None:
        """Say nothing."""


@contextmanager
def on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a question that is true once SIGTERM or SIGINT has come; a second one interrupts."""
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
