"""When the eviction of a pod that was blocked is tried again.

A PodDisruptionBudget may block a pod for days. Each pod has its own pause, as in Karpenter's queue
of evictions (``node/termination/terminator/eviction.go``): 100 ms after the first time, twice as
long after each further one, and 10 seconds at most. A budget that allows evictions again ends all
pauses.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.model.decode import decode_json
from reconciler.model.kubernetes.cluster import PodDisruptionBudgetStatus
from reconciler.observed.reflector import CachedObject

_FIRST: Final = timedelta(milliseconds=100)
_LONGEST: Final = timedelta(seconds=10)
_DOUBLINGS_MAX: Final = 7
"""The longest pause is reached by then."""


class BlockedEvictions:
    """The pods whose eviction was blocked, by uid; used by several threads.

    ``retries`` is the number of times that all pauses were ended.
    """

    def __init__(self) -> None:
        self.retries = 0
        self._lock = threading.Lock()
        self._paused: dict[str, tuple[int, datetime]] = {}

    def is_due(self, uid: str, now: datetime) -> bool:
        """Return whether the eviction of a pod may be tried now."""
        with self._lock:
            known = self._paused.get(uid)
            return known is None or now >= known[1]

    def record(self, uid: str, now: datetime) -> None:
        """Record that an eviction was blocked at a time."""
        with self._lock:
            times = self._paused.get(uid, (0, now))[0]
            pause = min(_FIRST * 2 ** min(times, _DOUBLINGS_MAX), _LONGEST)
            self._paused[uid] = times + 1, now + pause

    def forget(self, uid: str) -> None:
        """Record that an eviction was not blocked."""
        with self._lock:
            self._paused.pop(uid, None)

    def keep_only(self, uids: Collection[str]) -> None:
        """Forget all pods except these, which still exist."""
        with self._lock:
            self._paused = {uid: known for uid, known in self._paused.items() if uid in uids}

    def retry(self) -> bool:
        """End all pauses, and return whether there was any."""
        with self._lock:
            paused = bool(self._paused)
            self._paused.clear()
            self.retries += paused
            return paused


class _Budget(msgspec.Struct, frozen=True):
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


class BudgetWatch:
    """Ends the pauses when a PodDisruptionBudget allows evictions again, and reports that."""

    def __init__(self, blocked: BlockedEvictions, report: Callable[[], None]) -> None:
        self._blocked = blocked
        self._report = report
        self._allowing: dict[str, bool] = {}

    def record_budgets(self, budgets: Sequence[CachedObject], is_complete: bool) -> None:
        """Record what budgets allow; ``is_complete`` means there are no others."""
        found = {budget.uid: _allows_evictions(budget.content) for budget in budgets}
        reopened = any(
            allows and not self._allowing.get(uid, False) for uid, allows in found.items()
        )
        self._allowing = found if is_complete else {**self._allowing, **found}
        if reopened and self._blocked.retry():
            self._report()


def _allows_evictions(content: bytes) -> bool:
    """Return whether a budget allows an eviction now; a pass reports those that are invalid."""
    try:
        return decode_json(content, _Budget).status.disruptions_allowed > 0
    except msgspec.MsgspecError:
        return False
