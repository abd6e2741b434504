"""Reports new unbound pods, so that a pass starts at once.

Nothing from here is used for a decision: it only wakes the loop, and the pass observes the cluster.
Without it, a pod waits for the next interval. New pods are reported by the informer of the
cluster's cache (decision 28), or by a watch of unbound pods if there is no cache.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import Api
from reconciler.adapters.kubernetes.kinds import POD
from reconciler.adapters.threads import background_thread
from reconciler.model.decode import decode, decode_json, describe_mismatch
from reconciler.model.errors import ClusterError
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.reflector import CachedObject
from reconciler.ports.clock import Clock

WATCH_S: Final = 120
"""The duration of a watch; one that lasts longer has lost its connection."""

_PAUSE_S: Final = 1.0
_PAUSE_MAX_S: Final = 600.0
_LATE_S: Final = 10
_UNBOUND: Final = "spec.nodeName="
_LOG: Final = logging.getLogger(__name__)


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Binding(msgspec.Struct, frozen=True):
    node: str = msgspec.field(default="", name="nodeName")


class _Scheduled(msgspec.Struct, frozen=True):
    spec: _Binding = _Binding()


class PendingPods:
    """The port ``Arrivals``: pods that are bound to no node and wait for one.

    Pods tend to arrive together, and nodes for all of them together are better nodes: a pass starts
    when none has arrived for ``idle``, or ``max_wait`` after the first (Karpenter's batch windows).
    """

    def __init__(self, api: Api, clock: Clock, *, idle: timedelta, max_wait: timedelta) -> None:
        self._api = api
        self._clock = clock
        self._idle = idle
        self._max_wait = max_wait
        self._lock = threading.Lock()
        self._known: dict[str, int] = {}
        self._watch = 0
        self._first: datetime | None = None
        self._last: datetime | None = None
        self._problem = ""
        self._is_woken = False

    def wake(self) -> None:
        """Report that pods which could not leave their nodes can now."""
        with self._lock:
            self._is_woken = True

    def has_events(self) -> bool:
        """Return whether pods have arrived, and no more are arriving now; or pods can leave."""
        with self._lock:
            if self._is_woken:
                return True
            if self._first is None or self._last is None:
                return False
            now = self._clock.now()
            return now - self._last >= self._idle or now - self._first >= self._max_wait

    def acknowledge(self) -> None:
        """Forget the pods that have arrived so far."""
        with self._lock:
            self._first = self._last = None
            self._is_woken = False

    def record_pods(self, pods: Sequence[CachedObject], is_complete: bool) -> None:
        """Record which of these pods are pending; ``is_complete`` means there are no others."""
        waiting = {pod.uid for pod in pods if _is_pending(pod.content)}
        with self._lock:
            if is_complete:
                self._known = {uid: seen for uid, seen in self._known.items() if uid in waiting}
            else:
                for bound in {pod.uid for pod in pods} - waiting:
                    self._known.pop(bound, None)
        for uid in waiting:
            self._record_pending(uid)

    def run_in_background(self) -> AbstractContextManager[None]:
        """Watch in a thread while the block runs."""
        return background_thread("pending-pods", self._watch_until_stopped)

    def watch_once(self) -> bool:
        """Watch once, until the API ends it; return whether it ended regularly."""
        self._watch += 1
        query = {"watch": "1", "fieldSelector": _UNBOUND, "timeoutSeconds": str(WATCH_S)}
        try:
            for line in self._api.stream_lines(POD.path, query, WATCH_S + _LATE_S):
                self._receive(line)
        except ClusterError as error:
            self._log_problem(error)
            return False
        with self._lock:  # every watch begins with all pending pods: missing ones are gone
            self._known = {uid: seen for uid, seen in self._known.items() if seen == self._watch}
        self._problem = ""
        return True

    def _watch_until_stopped(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            failures = 0 if self.watch_once() else failures + 1
            stop.wait(min(_PAUSE_S * 2.0 ** min(failures, 10), _PAUSE_MAX_S))

    def _receive(self, line: bytes) -> None:
        """Record a pending pod when it is first reported.

        Raises: ClusterError: the API ends the watch with an error, or sends something that is not
        an event.
        """
        try:
            event = decode_json(line, _Event)
            if event.type not in ("ADDED", "MODIFIED"):
                if event.type == "ERROR":
                    raise ClusterError(
                        bytes(event.object).decode(errors="replace")[:300], where=f"GET {POD.path}"
                    )
                return
        except msgspec.MsgspecError as error:
            what = f"invalid watch event: {describe_mismatch(error)}"
            raise ClusterError(what, where=f"GET {POD.path}") from error
        try:
            pod = decode(decode_json(event.object), Pod)
        except msgspec.MsgspecError:  # the pass reports it
            return
        if pod.is_provisionable:
            self._record_pending(pod.metadata.uid)

    def _record_pending(self, uid: str) -> None:
        with self._lock:
            if uid not in self._known:
                self._last = self._clock.now()
                self._first = self._first or self._last
            self._known[uid] = self._watch

    def _log_problem(self, error: ClusterError) -> None:
        """Log a problem, once while it is the same."""
        if error.message != self._problem:
            _LOG.warning("cannot watch pods; pending pods are noticed in the next pass: %s", error)
        self._problem = error.message


def _is_pending(content: bytes) -> bool:
    """Return whether a pod waits for a node; the pass reports pods that cannot be read."""
    try:
        if decode_json(content, _Scheduled).spec.node:
            return False
        return decode(decode_json(content), Pod).is_provisionable
    except msgspec.MsgspecError:
        return False
