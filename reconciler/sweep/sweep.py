"""Evaluates the keys of a sweep on the requested executor, and reads known results from a cache."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from datetime import timedelta

from reconciler.assembly.inputs.request import SweepRequest
from reconciler.model.duration import format_duration
from reconciler.sweep.evaluation import Evaluations, Executor, K, V
from reconciler.sweep.processes import InThisProcess, Processes

Progress = Callable[[str], None]
"""Shows the progress of a sweep."""


def no_progress(text: str) -> None:
    """Show nothing."""
    del text


class Sweep:
    """Evaluates keys, the known ones from the cache. The results do not depend on the request.

    Raises:
        UsageError: the place of the cache or the address of the scheduler is wrong.
    """

    def __init__(
        self,
        request: SweepRequest,
        progress: Progress = no_progress,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from reconciler.sweep.cache import cache_at

        self._cache = cache_at(request.cache) if request.cache is not None else None
        self._executor = executor_of(request)
        self._progress = progress
        self._clock = clock

    def evaluate_all(self, work: Evaluations[K, V], keys: Sequence[K]) -> list[V]:
        """Return the results in the order of the keys; each is cached as soon as it is known.

        Raises:
            ReconcilerError: that of the first key that has no result.
        """
        addresses = [work.address(key) if self._cache is not None else None for key in keys]
        found = self._cached_results(addresses, work.result)
        missing = sorted(set(range(len(keys))) - found.keys())
        failed: dict[int, BaseException] = {}
        begin, left = self._clock(), set(missing)
        outcomes = self._executor.outcomes(work, [keys[position] for position in missing])
        with closing(outcomes):
            for index, outcome in outcomes:
                position = missing[index]
                left.remove(position)
                error = outcome.exception()
                if error is None:
                    found[position] = outcome.result()
                    self._store_result(addresses[position], found[position])
                else:
                    failed[position] = error
                if failed and min(failed) < min(left, default=len(keys)):
                    raise failed[min(failed)]
                self._progress(
                    _format_progress(len(missing) - len(left), left, self._clock() - begin)
                )
        return [found[position] for position in range(len(keys))]

    def _cached_results(self, addresses: Iterable[str | None], kind: type[V]) -> dict[int, V]:
        """Return the results that are in the cache, by their position."""
        known = ((n, self._read_cached(address, kind)) for n, address in enumerate(addresses))
        return {position: result for position, result in known if result is not None}

    def _read_cached(self, address: str | None, kind: type[V]) -> V | None:
        if self._cache is None or address is None:
            return None
        return self._cache.read(address, kind)

    def _store_result(self, address: str | None, result: object) -> None:
        if self._cache is not None and address is not None:
            self._cache.write(address, result)


def _format_progress(done: int, left: set[int], seconds: float) -> str:
    """Return how many evaluations are done, and an estimate of the remaining time."""
    text = f"{done} of {done + len(left)} evaluated"
    if not left:
        return text
    return f"{text}, about {format_duration(timedelta(seconds=seconds / done * len(left)))} left"


def executor_of(request: SweepRequest) -> Executor:
    """Return the executor of the evaluations.

    Raises:
        UsageError: the address of the scheduler is wrong, or a package is missing.
    """
    if request.scheduler is not None:
        from reconciler.sweep.daskcluster import DaskCluster

        return DaskCluster(request.scheduler)
    return InThisProcess() if request.workers == 1 else Processes(request.workers)
