"""Evaluates in this process, or in several processes of this machine.

Each process has a thread that waits for it. A process that is killed is replaced, and evaluates
again only what it was evaluating.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Sequence
from concurrent.futures import (
    CancelledError,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import active_children, get_context, parent_process
from multiprocessing.connection import wait
from threading import Lock, Thread, local
from typing import Final, Generic

from reconciler.cli.sweeps.evaluation import Evaluated, Evaluations, K, V
from reconciler.model.errors import ReconcilerError

_ATTEMPTS: Final = 3
"""How many processes may be killed by one evaluation."""


class InThisProcess:
    """Evaluates one key after the other (``evaluation.Executor``)."""

    def outcomes(
        self, work: Evaluations[K, V], keys: Sequence[K]
    ) -> Generator[tuple[int, Evaluated[V]], None, None]:
        """Yield the outcomes in the order of the keys."""
        for index, key in enumerate(keys):
            outcome: Future[V] = Future()
            try:
                outcome.set_result(work.evaluate(key))
            except ReconcilerError as error:
                outcome.set_exception(error)
            yield index, outcome


class Processes:
    """Evaluates in at most ``count`` processes at once (``evaluation.Executor``)."""

    def __init__(self, count: int) -> None:
        self._count = count

    def outcomes(
        self, work: Evaluations[K, V], keys: Sequence[K]
    ) -> Generator[tuple[int, Evaluated[V]], None, None]:
        """Yield the outcomes as they come; one key alone is not worth another process.

        Raises:
            ReconcilerError: an evaluation was killed in each of several processes.
        """
        if len(keys) < 2:
            yield from InThisProcess().outcomes(work, keys)
            return
        others, lanes = set(active_children()), _Lanes(work)
        # processes inherit that their threads never get SIGINT: only this process is interrupted
        threads = ThreadPoolExecutor(min(self._count, len(keys)), initializer=_hold_interrupts)
        try:
            futures = {threads.submit(lanes.evaluated, key): i for i, key in enumerate(keys)}
            for future in as_completed(futures):
                yield futures[future], future
        finally:
            lanes.end()
            threads.shutdown(wait=False, cancel_futures=True)
            for child in set(active_children()) - others:
                child.terminate()
            threads.shutdown()


class _Lanes(Generic[K, V]):
    """A process for each thread, which evaluates what the thread is asked for."""

    def __init__(self, work: Evaluations[K, V]) -> None:
        self._work = work
        self._own = local()
        self._starting = Lock()
        self._is_ended = False

    def end(self) -> None:
        """Start no process from here on; those that are started by now are known."""
        with self._starting:
            self._is_ended = True

    def evaluated(self, key: K) -> V:
        """Return the result of a key, evaluated in the process of this thread."""
        for _ in range(_ATTEMPTS):
            try:
                return self._submitted(key).result()
            except BrokenProcessPool:
                self._own.pool = None
        raise ReconcilerError(
            "the process that evaluated was killed",
            where="--workers",
            remedy="use fewer processes if memory is short",
        )

    def _submitted(self, key: K) -> Future[V]:
        """Give a key to the process of this thread, which is started if there is none."""
        with self._starting:
            if self._is_ended:
                raise CancelledError
            if getattr(self._own, "pool", None) is None:
                context = get_context("spawn")
                self._own.pool = ProcessPoolExecutor(1, context, _learn, (self._work,))
            submitted: Future[V] = self._own.pool.submit(_evaluate, key)
            return submitted


def _hold_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


# In a process.


_known: Evaluations | None = None  # type: ignore[type-arg]  # of any kind


def _learn(work: Evaluations[K, V]) -> None:
    """Prepare the process."""
    global _known  # noqa: PLW0603 - what a process is given at its start has no other place
    _known = work
    gc.set_threshold(200_000, 20, 20)  # as in the commands: nearly all values live to the end
    Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: an evaluation may take hours."""
    parent = parent_process()
    assert parent is not None, "only processes that were started have something to evaluate"
    wait([parent.sentinel])
    os._exit(1)


def _evaluate(key: object) -> object:
    assert _known is not None, "a process is prepared before it evaluates"
    return _known.evaluate(key)
