"""Writes overlays periodically while Karpenter launches the nodes."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

from reconciler.cli.shared.stopping import on_signal
from reconciler.model.errors import ReconcilerError
from reconciler.model.text.visible import one_line

if TYPE_CHECKING:
    from reconciler.ports.clock import Clock

Round = Callable[[], tuple[list[str], list[str]]]
"""Writes once; returns what was changed, and what is wrong."""


def repeat(write: Round, interval: timedelta, clock: Clock) -> None:
    """Write at every interval until a signal.

    What was changed is printed, and what is wrong once: when it begins, and when it has ended. A
    round that fails changes nothing about the next one.
    """
    known: list[str] = []
    with on_signal() as is_stopped:
        while not is_stopped():
            try:
                changed, wrong = write()
            except ReconcilerError as error:
                changed, wrong = [], [str(error)]
            for line in changed:
                _tell(clock, "info", line)
            for line in wrong:
                if line not in known:
                    _tell(clock, "warning", line)
            for line in known:
                if line not in wrong:
                    _tell(clock, "info", f"no longer: {line}")
            known = wrong
            clock.wait(interval.total_seconds(), is_stopped)


def _tell(clock: Clock, level: str, text: str) -> None:
    print(one_line(f"{clock.now():%Y-%m-%dT%H:%M:%SZ} {level} {text}"), flush=True)
