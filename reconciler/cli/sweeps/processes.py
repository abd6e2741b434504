"""Evaluates in this process, or in several processes of this machine.

Each process has a thread that waits for it. A process that is killed is replaced, and evaluates
again only what it was evaluating.
"""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from threading import Lock, Thread, local
from typing import Final, Generic

from reconciler.cli.sweeps.evaluation import Evaluated, Evaluations, K, V
from reconciler.model.errors import ReconcilerError

_ATTEMPTS: Final = 3
"""How many processes may be killed by one evaluation."""


class InThisProcess:
    """Evaluates the keys in sequence (``evaluation.Executor``)."""

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
        workers = _WorkerPool(work)
        # processes inherit that their threads never get SIGINT: only this process is interrupted
        threads = ThreadPoolExecutor(min(self._count, len(keys)), initializer=_block_interrupts)
        try:
            futures = {threads.submit(workers.evaluate, key): i for i, key in enumerate(keys)}
            for future in as_completed(futures):
                yield futures[future], future
        finally:
            workers.end()
            threads.shutdown(cancel_futures=True)


class _WorkerPool(Generic[K, V]):
    """A process for each thread, which evaluates the keys of the thread."""

    def __init__(self, work: Evaluations[K, V]) -> None:
        self._work = work
        self._own = local()
        self._starting = Lock()
        self._started: list[_Worker] = []
        self._is_ended = False

    def end(self) -> None:
        """End all processes at once; none is started afterwards."""
        with self._starting:
            self._is_ended = True
            for worker in self._started:
                worker.end()

    def evaluate(self, key: K) -> V:
        """Return the result of a key, evaluated in the process of this thread."""
        for _ in range(_ATTEMPTS):
            worker: _Worker | None = getattr(self._own, "worker", None)
            if worker is None:
                worker = self._own.worker = self._start_worker()
            try:
                return worker.evaluate(key)  # type: ignore[return-value]
            except _LostError:
                self._own.worker = None
        raise ReconcilerError(
            "the evaluation process was killed",
            where="--workers",
            remedy="use fewer processes if memory is short",
        )

    def _start_worker(self) -> _Worker:
        with self._starting:
            if self._is_ended:
                raise CancelledError
            self._started.append(_Worker(self._work))
            return self._started[-1]


class _LostError(Exception):
    pass


class _Worker:
    """A process that evaluates keys in sequence."""

    def __init__(self, work: Evaluations[K, V]) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, work), daemon=True)
        self._process.start()
        theirs.close()  # so that the end of the process ends the connection

    def evaluate(self, key: object) -> object:
        """Return the result of a key.

        Raises:
            _LostError: the process has ended.
            ReconcilerError: there is no result.
        """
        try:
            self._connection.send(key)
            result, error = self._connection.recv()
        except (EOFError, OSError) as gone:
            raise _LostError from gone
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self._process.kill()


def _block_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


# In a process.


def _serve(connection: Connection, work: Evaluations[K, V]) -> None:
    """Evaluate the received keys until the connection ends."""
    gc.set_threshold(200_000, 20, 20)  # as in the commands: nearly all values live to the end
    Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            key = connection.recv()
        except EOFError:
            return
        result: V | None = None
        failure: Exception | None = None
        try:
            result = work.evaluate(key)
        except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
            failure = error
        connection.send((result, failure))


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: an evaluation may take hours."""
    parent = parent_process()
    assert parent is not None, "only processes that were started have something to evaluate"
    wait([parent.sentinel])
    os._exit(1)
