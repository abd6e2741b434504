"""A thread that listens for as long as a block lasts.

It is a daemon: a call that waits for an answer keeps no process from ending.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_ENDS_WITHIN_S: Final = 0.2
"""How long the end of a block waits for its thread before it abandons it."""


def _nothing() -> None:
    """Do nothing at the end."""


@contextmanager
def listening(
    name: str,
    listen: Callable[[threading.Event], None],
    at_the_end: Callable[[], None] = _nothing,
) -> Iterator[None]:
    """Let a thread ``listen`` until the event that it is given is set, which the block's end does.

    What is to be done ``at_the_end`` is done before the thread is waited for.
    """
    stop = threading.Event()
    thread = threading.Thread(target=listen, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        at_the_end()
        thread.join(_ENDS_WITHIN_S)
