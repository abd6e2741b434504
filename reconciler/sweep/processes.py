"""Evaluates in this process, or in several processes of this machine.

Each process has a thread that waits for it. A process that is killed is replaced, and evaluates
again only what it was evaluating. Requests and replies are pickles on its standard input and
output, each after its length.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import struct
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from threading import Lock, Thread, local
from typing import IO, Final, Generic

from reconciler.adapters import processes
from reconciler.model.errors import ReconcilerError
from reconciler.sweep.evaluation import Evaluated, Evaluations, K, V

_LENGTH: Final = struct.Struct(">Q")
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
        self._end_workers: Callable[[], None] = _no_workers
        self._is_ended = False

    def end(self) -> None:
        """End what runs, from any thread: each key without a result has a ``CancelledError``.

        Without this, the end of the program waits for all keys: Python joins threads of executors.
        """
        self._is_ended = True
        self._end_workers()

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
        with processes.private_folder() as folder:
            yield from self._outcomes(_WorkerPool(work, folder), keys)

    def _outcomes(
        self, workers: _WorkerPool[K, V], keys: Sequence[K]
    ) -> Generator[tuple[int, Evaluated[V]], None, None]:
        # processes inherit that their threads never get SIGINT: only this process is interrupted
        threads = ThreadPoolExecutor(min(self._count, len(keys)), initializer=_block_interrupts)
        self._end_workers = workers.end
        try:
            if self._is_ended:
                workers.end()
            futures = {threads.submit(workers.evaluate, key): i for i, key in enumerate(keys)}
            for future in as_completed(futures):
                yield futures[future], future
        finally:
            self._end_workers = _no_workers
            workers.end()
            threads.shutdown(cancel_futures=True)
            workers.close()


class _WorkerPool(Generic[K, V]):
    """A process for each thread, which evaluates the keys of the thread."""

    def __init__(self, work: Evaluations[K, V], folder: str) -> None:
        self._work = work
        self._folder = folder
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

    def close(self) -> None:
        """Reap the processes, after the threads that used them have ended."""
        for worker in self._started:
            worker.close()

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
            self._started.append(_Worker(self._work, self._folder))
            return self._started[-1]


class _LostError(Exception):
    pass


class _Worker:
    """A process that evaluates keys in sequence; it starts in the empty ``folder``."""

    def __init__(self, work: Evaluations[K, V], folder: str) -> None:
        self._process = processes.start(
            processes.python_function(__name__, serve.__name__),
            cwd=folder,
            variables=processes.environment(),
            stdin=processes.PIPE,
            stderr=processes.INHERITED,
            new_session=False,
        )
        self._unsent: object = (os.getcwd(), work)

    def evaluate(self, key: object) -> object:
        """Return the result of a key.

        Raises:
            _LostError: the process has ended.
            ReconcilerError: there is no result.
        """
        requests, replies = self._process.stdin, self._process.stdout
        assert requests is not None
        assert replies is not None
        try:
            if self._unsent is not None:
                _send(requests, self._unsent)
                self._unsent = None
            _send(requests, key)
            result, error = pickle.loads(_receive(replies))  # noqa: S301 - from our own process
        except (EOFError, OSError, ValueError) as gone:
            raise _LostError from gone
        if error is not None:
            raise error
        return result

    def end(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Reap the process; nothing uses it any more."""
        processes.end(self._process)


def _send(file: IO[bytes], message: object) -> None:
    content = pickle.dumps(message)
    file.write(_LENGTH.pack(len(content)))
    file.write(content)
    file.flush()


def _receive(file: IO[bytes]) -> bytes:
    """Return the next message.

    Raises:
        EOFError: the other process has ended.
    """
    head = file.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    content = file.read(length)
    if len(content) < length:
        raise EOFError
    return content


def _no_workers() -> None:
    """Do nothing: no process runs."""


def _block_interrupts() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


# In a process.


def serve() -> None:
    """Evaluate the keys that arrive, until the process that sends them ends.

    The first message has the current folder of that process, because what is evaluated may contain
    relative paths. By then nothing is imported from the current folder any more.
    """
    gc.set_threshold(200_000, 20, 20)  # as in the commands: nearly all values live to the end
    with open(os.devnull, "rb") as nothing:
        requests, replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        os.dup2(nothing.fileno(), 0)
        os.dup2(2, 1)  # what an evaluation prints is not a reply
    arrived: SimpleQueue[bytes] = SimpleQueue()
    Thread(target=_read_requests, args=(requests, arrived), daemon=True).start()
    folder, work = pickle.loads(arrived.get())  # noqa: S301 - from the process that started this one
    os.chdir(folder)
    while True:
        key = pickle.loads(arrived.get())  # noqa: S301 - as above
        result: object = None
        failure: Exception | None = None
        try:
            result = work.evaluate(key)
        except Exception as error:  # noqa: BLE001 - it is raised where the result is wanted
            failure = error
        _send(replies, (result, failure))


def _read_requests(file: IO[bytes], arrived: SimpleQueue[bytes]) -> None:
    """Read requests, and end this process with the one that sends them: a key may take hours."""
    while True:
        try:
            arrived.put(_receive(file))
        except EOFError:
            os._exit(0)
