"""Threads of the adapters: background threads of a block, and calls that run beside a pass.

All of them are daemon threads: a call that waits for an answer never keeps a process from ending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, cast

from reconciler.model.errors import LeaseLostError, ReconcilerError
from reconciler.ports.calls import Answer, Call, T, UnansweredError

_ENDS_WITHIN_S: Final = 0.2
"""How long the end of a block waits for its thread before it abandons it."""

WORKERS: Final = 16
"""How many short calls, and how many long ones, run at a time."""
WITHIN_S: Final = 2.0
"""How long a pass waits for short calls, in total."""
PATIENT_S: Final = 60.0
"""How long it waits for calls on which interruptions do not depend."""
_AT_LEAST_S: Final = 0.1
"""How long it waits for a group of calls even when that time is used up."""


def _no_cleanup() -> None:
    """Do nothing when the block ends."""


@contextmanager
def background_thread(
    name: str,
    work: Callable[[threading.Event], None],
    on_exit: Callable[[], None] = _no_cleanup,
) -> Iterator[None]:
    """Run ``work`` in a thread while the block runs.

    The end of the block sets the event that ``work`` receives, and calls ``on_exit`` before it
    waits for the thread.
    """
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), name=name, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        on_exit()
        thread.join(_ENDS_WITHIN_S)


def start_thread(name: str, work: Callable[[], T]) -> Future[T]:
    """Start the work in a thread that the end of this process does not wait for."""
    made: Future[T] = Future()
    run = copy_context().run
    threading.Thread(target=run, args=(_run, made, work), name=name, daemon=True).start()
    return made


def _run(future: Future[T], work: Callable[[], T]) -> None:
    """Do the work of a future, unless it was cancelled."""
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 - it is raised where the result is wanted
        future.set_exception(error)


class _Workers:
    """At most ``count`` threads that make calls, in the order in which they were submitted.

    The end of the process waits for each thread of ``concurrent.futures``, and so for a server that
    does not answer. It does not wait for these.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count = count
        self._name = name
        self._waiting: SimpleQueue[tuple[Future[object], Callable[[], None]] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._started = 0
        self._lock = threading.Lock()

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make a call in the context of the caller, once a thread is free."""
        made: Future[T] = Future()
        run = partial(copy_context().run, _run, made, call)
        self._waiting.put((cast("Future[object]", made), run))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._started < self._count:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return made

    def close(self) -> None:
        """Cancel what waits; the threads end after the calls that they make now."""
        with suppress(Empty):
            while True:
                waiting = self._waiting.get_nowait()
                if waiting is not None:
                    waiting[0].cancel()
        for _ in range(self._started):
            self._waiting.put(None)

    def _work(self) -> None:
        while (waiting := self._waiting.get()) is not None:
            waiting[1]()
            del waiting  # or the answer would live until the next call
            self._idle.release()


class ThreadedCalls:
    """The port ``Calls`` over pools of threads, so that drains do not hold up taints.

    A call keeps the context of its caller, which traces need.
    """

    def __init__(self, workers: int = WORKERS, within_s: float = WITHIN_S) -> None:
        self._short = _Workers(workers, "short-call")
        self._long = _Workers(workers, "long-call")
        self._reader = _Workers(1, "read-call")
        self._within_s = within_s
        self._left_s = within_s
        self._late: dict[str, Future[object]] = {}
        self._open: dict[str, Future[object]] = {}
        self._reads: dict[str, Future[object]] = {}
        self._lock = threading.Lock()

    def begin_pass(self) -> None:
        """Record that a pass begins: it may wait again."""
        self._left_s = self._within_s

    def call_all(
        self, calls: Mapping[str, Call], within_s: float | None = None
    ) -> Mapping[str, Answer]:
        """Make short calls; a call without an answer in time gets an ``UnansweredError``.

        A call that was not started in time is not made. One that was started continues, and no call
        of its name is started before it has ended.
        """
        begin = time.monotonic()
        futures = {name: self._short.submit(call) for name, call in self._idle_calls(calls).items()}
        left_s = self._left_s if within_s is None else min(self._left_s, within_s)
        wait(futures.values(), timeout=max(left_s, _AT_LEAST_S))
        self._left_s -= time.monotonic() - begin
        answers = {}
        for name in calls:
            future = futures.get(name)
            if future is not None and future.done():
                answers[name] = _answer(future)
                continue
            answers[name] = Answer(error=UnansweredError(name))
            if future is not None and not future.cancel():
                with self._lock:
                    self._late[name] = future
        return answers

    def read(self, name: str, call: Callable[[], T], within_s: float | None) -> T | None:
        """Return what a call returns, or None if it has not ended within that time."""
        known = self._reads.pop(name, None)
        if known is None or (known.done() and known.exception() is not None):
            future = self._reader.submit(call)
        else:
            future = cast("Future[T]", known)
        wait([future], timeout=within_s)
        if future.done():
            return future.result()
        self._reads[name] = cast("Future[object]", future)
        return None

    def start(self, name: str, call: Call) -> None:
        """Start a long call, unless one of that name runs or its answer was not read."""
        with self._lock:
            if name not in self._open:
                self._open[name] = self._long.submit(call)

    def is_open(self, name: str) -> bool:
        """Return whether a long call of that name is running, or has an unread answer."""
        with self._lock:
            return name in self._open

    def answer(self, name: str) -> Answer | None:
        """Return the answer of a long call, once; None while there is none."""
        with self._lock:
            future = self._open.get(name)
            if future is None or not future.done():
                return None
            del self._open[name]
        return _answer(future)

    def close(self) -> None:
        """Start no more calls; running calls end by themselves."""
        for workers in (self._short, self._long, self._reader):
            workers.close()

    def _idle_calls(self, calls: Mapping[str, Call]) -> dict[str, Call]:
        """Return the calls of which no earlier one still runs."""
        with self._lock:
            self._late = {name: f for name, f in self._late.items() if not f.done()}
            return {name: call for name, call in calls.items() if name not in self._late}


def _answer(future: Future[object]) -> Answer:
    """Return the answer of a call that has ended; unexpected exceptions are raised."""
    try:
        return Answer(future.result())
    except LeaseLostError:
        raise
    except ReconcilerError as error:
        return Answer(error=error)


@contextmanager
def threaded_calls(workers: int = WORKERS, within_s: float = WITHIN_S) -> Iterator[ThreadedCalls]:
    """Make calls on threads while the block runs."""
    calls = ThreadedCalls(workers, within_s)
    try:
        yield calls
    finally:
        calls.close()
