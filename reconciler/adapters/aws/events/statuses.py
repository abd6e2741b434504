"""Read the health of instances from EC2: scheduled events and failed status checks.

EventBridge reports only some of these, and only if there is a queue. EC2 is therefore polled once a
minute by a separate thread (aws reference 5.2). An announcement is returned as long as EC2 shows
it, but not again after it was settled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import Failure, boto_errors, failure_of, our_error
from reconciler.adapters.threads import background_thread
from reconciler.model.errors import ReconcilerError
from reconciler.model.text.times import timestamp
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Interruption, InterruptionKind, Interruptions

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, InstanceStatusTypeDef

EVERY_S: Final = 60
"""The polling interval in seconds."""

IMPAIRED_FOR: Final = timedelta(seconds=120)
"""A check that fails for a shorter time may recover by itself."""

_CALL: Final = "ec2:DescribeInstanceStatus"
_ATTEMPTS: Final = 3
_PAUSE_MAX_S: Final = 600.0
_EVENTS: Final = (
    "instance-reboot",
    "system-reboot",
    "system-maintenance",
    "instance-retirement",
    "instance-stop",
)
_OVER: Final = ("[Completed]", "[Canceled]")
"""Prefixes in descriptions of events that EC2 still shows although they are over."""

_QUESTIONS: Final = (
    ("instance-status.status", ("impaired",)),
    ("system-status.status", ("impaired",)),
    ("event.code", _EVENTS),
)
_LOG: Final = logging.getLogger(__name__)


class InterruptionSources:
    """The port ``Interruptions`` over several sources; each recognizes its own ids."""

    def __init__(self, *sources: Interruptions) -> None:
        self._sources = sources

    def pending_events(self) -> Sequence[Interruption]:
        """Return what was received and is not settled, one source after the other."""
        return [
            announcement for source in self._sources for announcement in source.pending_events()
        ]

    def acknowledge(self, received: Sequence[Interruption]) -> None:
        """Mark announcements as handled in all sources."""
        for source in self._sources:
            source.acknowledge(received)

    def has_events(self) -> bool:
        """Return whether ``pending_events`` would return a result."""
        return any(source.has_events() for source in self._sources)

    def problem(self) -> str:
        """Return why some source currently cannot be read, empty if all can."""
        return "; ".join(problem for source in self._sources if (problem := source.problem()))


class InstanceStatuses:
    """The port ``Interruptions`` over DescribeInstanceStatus, for all instances of a region."""

    def __init__(self, connect: Connect, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._connect = connect
        self._clock = clock
        self._every_s = every_s
        self._lock = threading.Lock()
        self._announcements: dict[str, Interruption] = {}
        self._settled: frozenset[str] = frozenset()
        self._problem = self._kind = ""
        self._is_denied = False

    def pending_events(self) -> Sequence[Interruption]:
        """Return the current announcements that are not settled, by instance."""
        with self._lock:
            return [w for _, w in sorted(self._announcements.items()) if w.id not in self._settled]

    def acknowledge(self, received: Sequence[Interruption]) -> None:
        """Mark announcements as handled while EC2 continues to show them."""
        with self._lock:
            self._settled |= {
                announcement.id for announcement in received
            } & self._announcements.keys()

    def has_events(self) -> bool:
        """Return whether ``pending_events`` would return a result."""
        with self._lock:
            return bool(self._announcements.keys() - self._settled)

    def problem(self) -> str:
        """Return why EC2 does not respond; empty if it does, or if polling is not permitted."""
        return self._problem

    def run_in_background(self) -> AbstractContextManager[None]:
        """Poll in a thread while the block runs, or until EC2 denies permission."""
        return background_thread("instance-statuses", self._poll_until_stopped)

    def poll(self) -> bool:
        """Poll once and return whether EC2 responded completely; a partial response is ignored."""
        try:
            announcements = {
                announcement.id: announcement for announcement in self._read_announcements()
            }
        except ReconcilerError as error:
            self._record_problem(str(error), error.message)
            return False
        with self._lock:
            self._announcements = announcements
            self._settled &= announcements.keys()
        self._record_problem("")
        return True

    def _poll_until_stopped(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set() and not self._is_denied:
            failures = 0 if self.poll() else failures + 1
            stop.wait(min(self._every_s * 2.0 ** min(failures, 10), _PAUSE_MAX_S))

    def _record_problem(self, problem: str, kind: str = "") -> None:
        """Record a problem, and log each kind once: each request has its own id."""
        if kind and kind != self._kind:
            _LOG.warning("cannot read the health of instances: %s", problem)
        self._problem, self._kind = "" if self._is_denied else problem, kind

    def _read_announcements(self) -> Iterator[Interruption]:
        now = self._clock.now()
        for name, values in _QUESTIONS:
            for row in self._rows(name, values):
                yield from _failed_checks(row, now)
                yield from _scheduled_events(row, now)

    def _rows(self, name: str, values: Sequence[str]) -> list[InstanceStatusTypeDef]:
        """Return all pages of a response.

        Raises:
            TransientCloudError, CloudError: a page failed.
        """
        ec2 = self._connect("ec2", _ATTEMPTS)
        filters: list[FilterTypeDef] = [{"Name": name, "Values": list(values)}]
        try:
            pages = ec2.get_paginator("describe_instance_status").paginate(Filters=filters)
            return [row for page in pages for row in page["InstanceStatuses"]]
        except boto_errors() as error:
            self._is_denied = failure_of(error) is Failure.UNAUTHORIZED
            raise our_error(_CALL, error) from error


def _failed_checks(row: InstanceStatusTypeDef, now: datetime) -> Iterator[Interruption]:
    """Yield the checks that have failed for long enough; the filter may have been ignored."""
    checks = (("instance", row.get("InstanceStatus")), ("system", row.get("SystemStatus")))
    for name, known in checks:
        status = known or {}
        since = [
            detail["ImpairedSince"].astimezone(UTC)
            for detail in status.get("Details") or []
            if detail.get("Status") == "failed" and detail.get("ImpairedSince") is not None
        ]
        if status.get("Status") != "impaired" or not since or now - min(since) < IMPAIRED_FOR:
            continue
        at = min(since)
        identity = f"status/{row['InstanceId']}/{name}/{at:%Y%m%dT%H%M%SZ}"
        text = f"{name} status check failed"
        yield Interruption(identity, InterruptionKind.IMPAIRED, (row["InstanceId"],), at, text)


def _scheduled_events(row: InstanceStatusTypeDef, now: datetime) -> Iterator[Interruption]:
    """Yield the scheduled events of an instance that are not over."""
    for event in row.get("Events") or []:
        code, description = event.get("Code"), event.get("Description") or ""
        if code not in _EVENTS or description.startswith(_OVER):
            continue
        identity = f"status/{row['InstanceId']}/{event.get('InstanceEventId') or code}"
        at = event.get("NotBefore")
        when = f", not before {timestamp(at)}," if at else ""
        text = f"scheduled {code}{when} announced"
        kind = InterruptionKind.SCHEDULED_CHANGE
        yield Interruption(identity, kind, (row["InstanceId"],), now, text)
