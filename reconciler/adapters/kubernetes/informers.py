"""A copy of the cluster's objects, kept up to date by one list and watch of each kind.

Named after the informers of client-go. Each kind has a thread that drives its ``Reflector``. A copy
is used only while its watch works and it was confirmed within ``stale_after_s``; otherwise the kind
is listed. So an unreachable API server is the same error with the copy as without it, and a copy
that lags is never used (decision 28).

A watch lasts two thirds of that limit: its regular end confirms the copy of a kind that does not
change. Once the server has sent a bookmark for the kind, a watch lasts as long as the server
allows, at most until the next complete list, because the bookmarks that follow every minute confirm
the copy. (A server sends none if its etcd does not report progress.)
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import (
    FORBIDDEN,
    GONE,
    SILENT,
    Api,
    ApiError,
    ObjectList,
    list_objects,
    resource_of,
)
from reconciler.adapters.kubernetes.evictions import BlockedEvictions, BudgetWatch
from reconciler.adapters.kubernetes.kinds import POD, POD_DISRUPTION_BUDGET, WATCHED, Kind
from reconciler.model.decode import decode_json
from reconciler.model.errors import ClusterError
from reconciler.model.settings import Settings
from reconciler.observed.reflector import CachedObject, Reflector

_NOT_ALLOWED: Final = 405
_REFUSED_PAUSE_S: Final = 60.0
_ENDS_WITHIN_S: Final = 0.5
_LOG: Final = logging.getLogger(__name__)

OnObjects = Callable[[Sequence[CachedObject], bool], None]
"""Receives new and changed objects; True if these are all objects of the kind."""


@dataclass(frozen=True, slots=True)
class Freshness:
    """How up to date a copy must be, in seconds.

    ``resync_s`` is the interval of complete lists. A copy that was not confirmed for
    ``stale_after_s`` is not used. The first list may take ``first_list_s``. The server sends
    bookmarks every ``bookmark_s`` (``defaultBookmarkFrequency`` of kube-apiserver).
    """

    resync_s: float = 600.0
    stale_after_s: float = 90.0
    first_list_s: float = 30.0
    bookmark_s: float = 60.0

    @classmethod
    def of_settings(cls, settings: Settings) -> Freshness:
        """Return what the settings of a fleet require."""
        return cls(
            resync_s=settings.kube_resync_interval.total_seconds(),
            stale_after_s=settings.kube_stale_after.total_seconds(),
            first_list_s=settings.kube_timeout.total_seconds(),
        )

    @property
    def short_watch_s(self) -> int:
        """How long a watch lasts whose end confirms the copy."""
        return max(1, int(self.stale_after_s * 2 / 3))

    @property
    def silence_s(self) -> float:
        """How long a watch may be silent until its connection counts as broken."""
        return max(self.short_watch_s + 1.0, self.stale_after_s * 5 / 6)

    @property
    def allows_bookmarks(self) -> bool:
        """Whether bookmarks come often enough to confirm a copy, even if one is a little late."""
        return self.silence_s > self.bookmark_s * 1.1


class _Uid(msgspec.Struct, frozen=True):
    uid: str = ""


class _Deletion(msgspec.Struct, frozen=True):
    preconditions: _Uid = _Uid()


class _Victim(msgspec.Struct, frozen=True):
    name: str
    namespace: str


class _Eviction(msgspec.Struct, frozen=True):
    metadata: _Victim
    options: _Deletion = msgspec.field(name="deleteOptions")


class _AnswerKind(msgspec.Struct, frozen=True):
    kind: str = ""


def _ignore_objects(objects: Sequence[CachedObject], is_complete: bool) -> None:
    del objects, is_complete


class Informer:
    """Keeps the copy of one kind; ``elapsed`` returns seconds of a monotonic clock.

    ``complaints`` are the current problems by resource. One that all kinds have is logged once.
    """

    def __init__(
        self,
        api: Api,
        kind: Kind,
        freshness: Freshness,
        elapsed: Callable[[], float],
        complaints: dict[str, str],
        on_objects: OnObjects,
    ) -> None:
        self.kind = kind
        self._api = api
        self._freshness = freshness
        self._elapsed = elapsed
        self._on_objects = on_objects
        self._reflector = Reflector(
            f"GET {kind.path}", freshness.resync_s, freshness.stale_after_s / 3
        )
        self._changed = threading.Condition()
        self._is_tried = self._is_broken = False
        self._min_version = 0
        self._complaints = complaints

    def read(self, api: Api) -> ObjectList:
        """Return the copy, or a list through ``api`` while the copy may not be used.

        The first call waits until the first list was read, or has failed. After a list, the copy is
        used once it has reached the version of that list, so that observations never go back.

        Raises:
            ClusterError: the list could not be read to its end.
        """
        found = self._current_copy()
        if found is None:
            found = list_objects(api, self.kind)
            with self._changed:
                self._min_version = int(found.version) if found.version.isdecimal() else 0
        return found

    def _current_copy(self) -> ObjectList | None:
        """Return the copy, None while it may not be used."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_tried, self._freshness.first_list_s)
            age_s = self._reflector.age_s(self._elapsed())
            if self._is_broken or age_s is None or age_s > self._freshness.stale_after_s:
                return None
            version = self._reflector.version or 0
            if self._reflector.is_behind or version < self._min_version:
                return None
            return ObjectList(self._reflector.objects(), str(version) if version else "")

    def accept(self, content: bytes) -> None:
        """Add an object that our own call returned."""
        with self._changed:
            self._reflector.accept(content)

    def forget(self, uid: str) -> None:
        """Remove an object that our own call deleted."""
        with self._changed:
            self._reflector.forget(uid)

    def expect_termination(self, key: str, uid: str) -> None:
        """Record that a call of ours evicted an object: until the copy shows it, it is not used."""
        with self._changed:
            self._reflector.expect_termination(key, uid)

    def advance(self, stop: threading.Event | None = None) -> float:
        """Read one list, or one watch to its end, and return the seconds to pause."""
        try:
            if self._reflector.needs_list(self._elapsed()):
                return self._list()
            return self._watch(stop)
        except ClusterError as error:
            if stop is not None and stop.is_set():
                return 0.0
            if isinstance(error, ApiError) and error.reason == SILENT and self._lasts_long:
                self._reflector.has_bookmarks = False  # a short watch tells whether it is there
                return 0.0
            return self._record_failure(error)

    def run(self, stop: threading.Event) -> None:
        """Keep the copy up to date until ``stop`` is set."""
        while not stop.is_set():
            try:
                pause_s = self.advance(stop)
            except Exception as error:  # noqa: BLE001 - without this thread every pass lists
                _LOG.exception("internal error while watching %s", self.kind.resource)
                self._reflector.expire()
                pause_s = self._record_failure(ClusterError(f"internal error: {error}"))
            stop.wait(pause_s)

    def _list(self) -> float:
        with self._changed:
            self._reflector.begin_list(self._elapsed())
        found = list_objects(self._api, self.kind)
        with self._changed:
            self._reflector.complete_list(found.items, found.version or "0")
            if not found.version:
                self._reflector.expire()  # nothing can be watched until the kind exists
            self._is_tried, self._is_broken = True, False
            self._on_objects(self._reflector.cached_objects(), True)
            self._changed.notify_all()
        return 0.0 if found.version else float(self._freshness.short_watch_s)

    def _watch(self, stop: threading.Event | None) -> float:
        with self._changed:
            now_s = self._elapsed()
            self._reflector.begin_watch(now_s)
            version = str(self._reflector.version)
            left_s = max(1, math.ceil(self._reflector.list_due_s(now_s)))
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(left_s if self._lasts_long else self._freshness.short_watch_s),
        }
        with closing(
            self._api.stream_lines(self.kind.path, query, self._freshness.silence_s)
        ) as lines:
            for line in lines:
                self._receive(line)
                if stop is not None and stop.is_set():
                    return 0.0
        with self._changed:
            self._record_success()
            return self._reflector.end_watch(self._elapsed())

    @property
    def _lasts_long(self) -> bool:
        """Whether bookmarks confirm the copy in time, so that no watch has to end for it."""
        return self._reflector.has_bookmarks and self._freshness.allows_bookmarks

    def _receive(self, line: bytes) -> None:
        with self._changed:
            news = self._reflector.receive(line, self._elapsed())
            self._record_success()
            if news is not None:
                self._on_objects([news], False)

    def _record_success(self) -> None:
        self._is_broken = False
        self._complaints.pop(self.kind.resource, None)

    def _record_failure(self, error: ClusterError) -> float:
        """Record that the copy is not up to date, and return the seconds to pause."""
        status = error.status if isinstance(error, ApiError) else 0
        with self._changed:
            if status == GONE:
                self._reflector.expire()
            pause_s = self._reflector.fail()
            self._is_broken = self._is_tried = True
            self._changed.notify_all()
        problem = error.reason if isinstance(error, ApiError) else error.message
        if problem not in self._complaints.values():
            _LOG.warning(
                "cannot watch %s; each pass lists them until the watch works again: %s",
                self.kind.resource,
                error,
            )
        self._complaints[self.kind.resource] = problem
        return _REFUSED_PAUSE_S if status in (FORBIDDEN, _NOT_ALLOWED) else pause_s


def _boot_seconds() -> float:
    """Return the seconds of a clock that continues while the machine sleeps, if there is one."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ClusterCache:
    """The informers of all kinds that a pass reads. ``api`` is used by nothing else.

    ``on_objects`` receives the pods. ``on_reopened`` is called when a PodDisruptionBudget allows
    evictions again and one of ``blocked_evictions`` was waiting.
    """

    def __init__(
        self,
        api: Api,
        freshness: Freshness,
        *,
        kinds: Iterable[Kind] = WATCHED,
        elapsed: Callable[[], float] = _boot_seconds,
        on_objects: OnObjects = _ignore_objects,
        on_reopened: Callable[[], None] = lambda: None,
    ) -> None:
        self._api = api
        self.blocked_evictions = BlockedEvictions()
        budgets = BudgetWatch(self.blocked_evictions, on_reopened)
        receivers = {
            POD.resource: on_objects,
            POD_DISRUPTION_BUDGET.resource: budgets.record_budgets,
        }
        complaints: dict[str, str] = {}
        self._informers = {
            kind.resource: Informer(
                api,
                kind,
                freshness,
                elapsed,
                complaints,
                receivers.get(kind.resource, _ignore_objects),
            )
            for kind in kinds
        }

    def read(self, kind: Kind, api: Api) -> ObjectList:
        """Return the objects of a kind: the copy if it is up to date, otherwise a list.

        Raises:
            ClusterError: the list could not be read to its end.
        """
        informer = self._informers.get(kind.resource)
        return informer.read(api) if informer is not None else list_objects(api, kind)

    def advance(self) -> None:
        """Make each informer read one list, or one watch to its end."""
        for informer in self._informers.values():
            informer.advance()

    def record_answer(self, method: str, path: str, body: object, answer: bytes | None) -> None:
        """Process the response to a call about one object, None if that object was not found.

        What we wrote is shown from now on, however late the watch is.
        """
        resource, _, part = resource_of(path).partition("/")
        informer = self._informers.get(resource)
        if informer is None or (path == informer.kind.path and method != "POST"):
            return
        if part == "eviction":
            if answer is not None:
                evicted = msgspec.convert(body, _Eviction)
                key = f"{evicted.metadata.namespace}/{evicted.metadata.name}"
                informer.expect_termination(key, evicted.options.preconditions.uid)
        elif method == "DELETE" and (answer is None or _is_deleted(answer)):
            informer.forget(msgspec.convert(body or {}, _Deletion).preconditions.uid)
        elif answer is not None:
            with suppress(ClusterError):  # the call had its effect; the kind is listed again
                informer.accept(answer)

    @contextmanager
    def run_in_background(self) -> Iterator[None]:
        """Keep the copies up to date while the block runs."""
        stop = threading.Event()
        self._api.wait = lambda seconds: _pause(stop, seconds)
        threads = [
            threading.Thread(
                target=informer.run, args=(stop,), name=f"watch-{resource}", daemon=True
            )
            for resource, informer in self._informers.items()
        ]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            stop.set()
            self._api.interrupt()
            until = time.monotonic() + _ENDS_WITHIN_S
            for thread in threads:
                thread.join(max(0.0, until - time.monotonic()))


def _pause(stop: threading.Event, seconds: float) -> None:
    stop.wait(seconds)


def _is_deleted(answer: bytes) -> bool:
    """Return whether an object is gone: a deletion returns the object while it stays."""
    try:
        return decode_json(answer, _AnswerKind).kind == "Status"
    except msgspec.MsgspecError:
        return False
