"""Commands that run until they are stopped; ``--watch`` prints the view again after each change.

After a signal, the running pass finishes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TextIO

from reconciler.adapters.clock import SystemClock
from reconciler.model.text.visible import Painted
from reconciler.ports.progress import Progress

POLL_S: Final = 2.0
"""How often the recorded state is read."""

_CLEAR: Final = "\x1b[H\x1b[2J"


class NullNotifier:
    """A notifier that discards everything."""

    def notify(self, progress: Progress) -> None:
        """Do nothing."""


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], bool]]:
    """Yield a function that is true after SIGTERM or SIGINT; a second SIGINT interrupts.

    A handler can be interrupted by the next signal, so it takes no lock: an ``Event`` has one.
    """
    is_asked = False

    def note(number: int, frame: object) -> None:
        nonlocal is_asked
        del frame
        if is_asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        is_asked = True

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: is_asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class View(NamedTuple):
    """What is shown: its ``text``, and the ``facts`` in it that count as a change.

    An age in the text grows all the time, and is not a fact. A ``note`` is not part of the text,
    and goes to stderr.
    """

    text: str
    facts: Any
    note: str = ""

    def show(self, out: TextIO) -> None:
        """Print it."""
        if self.note:
            sys.stderr.write(f"{self.note}\n")
        out.write(self.text)
        out.flush()


def watch(
    read: Callable[[], View],
    out: TextIO,
    stop: Callable[[], bool],
    wait: Callable[[float, Callable[[], bool]], None],
) -> None:
    """Print the view, and again after each change, until ``stop`` is true.

    A terminal is cleared before; elsewhere an empty line separates two views.
    """
    shown: View | None = None
    while True:
        view = read()
        if shown is None or view.facts != shown.facts:
            if shown is not None:
                out.write(Painted(_CLEAR) if out.isatty() else "\n")
            view.show(out)
            shown = view
        if stop():
            return
        wait(POLL_S, stop)


def watch_until_stopped(read: Callable[[], View], out: TextIO) -> None:
    """Watch until SIGTERM or SIGINT."""
    with stop_on_signal() as stop:
        watch(read, out, stop, SystemClock().wait)
