"""Plays the sides of a backtest, one after the other or in several processes.

A play depends on nothing but its side and its seed, so the results are the same in any number of
processes.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Thread
from typing import Final

from reconciler.cli.backtest.replay import Replay
from reconciler.cli.backtest.sides import PlayedSide, karpenter_defaults, play_side
from reconciler.cli.backtest.trace import Trace
from reconciler.cli.shared.request import FleetRequest
from reconciler.cli.simulation.building import Setting, SimulatedFleet, built
from reconciler.cli.simulation.script import Script
from reconciler.model.errors import ReconcilerError
from reconciler.plan.make.decide import Phase, untimed
from reconciler.plan.value.backtest import BASE, HEAD, KARPENTER

Play = tuple[str, int]
"""A side and a seed."""


@dataclass(frozen=True, slots=True)
class Replays:
    """What all plays share: the fleet, and the trace from ``start`` to ``end``."""

    fleet: FleetRequest
    script: Script
    trace: Trace
    start: datetime
    end: datetime

    def play(self, side: str, seed: int, phase: Phase = untimed) -> PlayedSide:
        """Replay the trace against a side.

        Raises:
            ReconcilerError: an input cannot be read, or it takes too many passes.
        """

        def build(replay: Replay) -> Setting:
            return built(self.fleet, phase, self.script, seed, replay)

        return play_side(build, _SIDES[side], self.trace, self.start, self.end)

    def play_all(self, plays: Sequence[Play], workers: int, phase: Phase) -> list[PlayedSide]:
        """Return the results of plays in their order, played in ``workers`` processes.

        Raises:
            ReconcilerError: as for the first play that fails, or a process was killed.
        """
        if min(workers, len(plays)) < 2:
            return [self.play(side, seed, phase) for side, seed in plays]
        try:
            with _processes(self, min(workers, len(plays))) as pool:
                with _interrupts_held():  # the processes inherit that: only we are interrupted
                    futures = [pool.submit(_play, *play) for play in plays]
                return [future.result() for future in futures]
        except BrokenProcessPool as error:
            raise ReconcilerError(
                "a process that replayed the trace was killed",
                where="--workers",
                remedy="use fewer processes if memory is short",
            ) from error


def _head(setting: Setting) -> SimulatedFleet:
    return setting.head


def _base(setting: Setting) -> SimulatedFleet:
    assert setting.base is not None, "there is a base where one is asked for"
    return setting.base


def _karpenter(setting: Setting) -> SimulatedFleet:
    return karpenter_defaults(setting.head)


_SIDES: Final[Mapping[str, Callable[[Setting], SimulatedFleet]]] = {
    HEAD: _head,
    BASE: _base,
    KARPENTER: _karpenter,
}


@contextmanager
def _processes(replays: Replays, count: int) -> Iterator[ProcessPoolExecutor]:
    """Yield processes that know the replays; they end at once if anything goes wrong here."""
    others = set(active_children())
    with ProcessPoolExecutor(count, get_context("spawn"), _learn, (replays,)) as pool:
        try:
            yield pool
        except BaseException:
            for child in set(active_children()) - others:
                child.terminate()
            raise


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold back SIGINT for the time being; processes that start meanwhile never get it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_known: Replays | None = None


def _learn(replays: Replays) -> None:
    """Prepare a process."""
    global _known  # noqa: PLW0603 - what a process is given at its start has no other place
    _known = replays
    gc.set_threshold(200_000, 20, 20)  # as in the command: nearly all values live to the end
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: a play may take hours."""
    parent = parent_process()
    assert parent is not None, "only processes that were started know replays"
    wait([parent.sentinel])
    os._exit(1)


def _play(side: str, seed: int) -> PlayedSide:
    assert _known is not None, "a process knows the replays from its start on"
    return _known.play(side, seed)
