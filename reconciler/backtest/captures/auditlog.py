"""Audit logs of Kubernetes (``audit.k8s.io/v1``), as CloudWatch Logs and its exports have them.

A pod is created by ``create pods``, bound by ``create pods/binding``, and ends with its deletion,
its eviction, or a status that is final. Events may be in any order.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final, NamedTuple

import msgspec

from reconciler.backtest.captures.kubereplay import CapturedPeriod
from reconciler.backtest.captures.pods import (
    MALFORMED,
    CapturedPod,
    CapturedPods,
    expect_years,
    is_name,
    line_error,
)
from reconciler.backtest.trace import TraceClass
from reconciler.model.decode import decode, decode_json, describe_mismatch
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import PodSpec
from reconciler.model.text.counting import format_count

GROUP: Final = "audit.k8s.io/"
_COMPLETE: Final = "ResponseComplete"
_FINAL: Final = ("Succeeded", "Failed")
_SUCCESS: Final = range(200, 300)
_STATIC: Final = "Node"
_DAEMON: Final = "DaemonSet"
_EVENTS_MAX: Final = 20_000_000
_CREATED, _BOUND, _ENDED = range(3)
"""The order of what happens to a pod at one time."""


class AuditMessage(NamedTuple):
    """The text of one audit event, and the line that it is on."""

    line: int
    content: bytes


class _ObjectRef(msgspec.Struct, frozen=True):
    resource: str = ""
    namespace: str = ""
    name: str = ""
    subresource: str = ""


class _Status(msgspec.Struct, frozen=True):
    code: int = 0


class _AuditEvent(msgspec.Struct, frozen=True, rename="camel"):
    api_version: str = ""
    stage: str = ""
    verb: str = ""
    object_ref: _ObjectRef | None = None
    response_status: _Status | None = None
    request_received_timestamp: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    request_object: msgspec.Raw = msgspec.Raw()
    response_object: msgspec.Raw = msgspec.Raw()

    @property
    def content(self) -> bytes:
        """The object that the API server answered with, else that which was sent, or nothing."""
        found = (bytes(raw) for raw in (self.response_object, self.request_object))
        return next((text for text in found if text not in (b"", b"null")), b"")


class _PodStatus(msgspec.Struct, frozen=True):
    phase: str = ""


class _PodObject(msgspec.Struct, frozen=True):
    """A Pod in an audit event, which may be a patch of it."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: _PodStatus = _PodStatus()


class _Change(NamedTuple):
    """What happened to a pod; ``made`` is its class at its creation."""

    at: datetime
    what: int
    line: int
    namespace: str
    name: str
    made: TraceClass | None = None


def read_audit_log(messages: Iterable[AuditMessage], where: str) -> CapturedPeriod:
    """Return the pods of an audit log.

    Raises:
        UnreadableError: an event cannot be read, or there are too many.
    """
    reader = _AuditReader(CapturedPods(where))
    for message in messages:
        reader.read(message)
    return reader.capture()


class _AuditReader:
    def __init__(self, pods: CapturedPods) -> None:
        self._pods = pods
        self._changes: list[_Change] = []
        self._first: datetime | None = None
        self._last: datetime | None = None

    def read(self, message: AuditMessage) -> None:
        """Read one event; those about other objects only tell the period.

        Raises:
            UnreadableError: it cannot be read.
        """
        line, where = message.line, self._pods.where
        try:
            event = decode_json(message.content, _AuditEvent)
            if not event.api_version.startswith(GROUP):
                raise line_error(where, line, "is not an event of an audit log")
            at = event.request_received_timestamp
            if at is None:
                raise line_error(where, line, "requestReceivedTimestamp: is missing")
            expect_years([at], where, line)
            self._first = at if self._first is None else min(self._first, at)
            self._last = at if self._last is None else max(self._last, at)
            self._read_change(event, at, line)
        except MALFORMED as error:
            raise line_error(where, line, describe_mismatch(error)) from error

    def _read_change(self, event: _AuditEvent, at: datetime, line: int) -> None:
        about, what = event.object_ref, _what_happened(event)
        if about is None or what is None:
            return
        made, name = None, about.name
        if what == _CREATED:
            found = self._created(event, line)
            if found is None:
                return
            name, made = found
        if not is_name(about.namespace, name):
            self._pods.left_out["events with an invalid name"] += 1
            return
        if len(self._changes) >= _EVENTS_MAX:
            raise line_error(self._pods.where, line, f"more than {_EVENTS_MAX:,} events of pods")
        self._changes.append(_Change(at, what, line, about.namespace, name, made))

    def _created(self, event: _AuditEvent, line: int) -> tuple[str, TraceClass] | None:
        """Return the name and the class of a new pod, None after counting why it is left out."""
        if not event.content:
            self._pods.left_out["pods whose creation was logged without the object"] += 1
            return None
        pod = _object_of(event)
        owner = pod.metadata.controller
        kind = "" if owner is None else owner.kind
        if kind in (_DAEMON, _STATIC):
            self._pods.left_out["pods of DaemonSets" if kind == _DAEMON else "static pods"] += 1
            return None
        assert event.object_ref is not None, "it is about a pod"
        name = pod.metadata.name or event.object_ref.name
        kept = None if kind == "Job" else owner
        return name, self._pods.class_of(pod.metadata, pod.spec, kept, line)

    def capture(self) -> CapturedPeriod:
        """Return the pods, once every event was read.

        Raises:
            UnreadableError: the log is empty.
        """
        if self._first is None or self._last is None:
            raise line_error(self._pods.where, 1, "has no event of an audit log")
        running: dict[tuple[str, str], CapturedPod] = {}
        earlier: set[tuple[str, str]] = set()
        for change in sorted(self._changes, key=lambda c: (c.at, c.what, c.line)):
            key = change.namespace, change.name
            pod = running.get(key)
            if change.made is not None:
                if pod is not None:
                    pod.ended = pod.ended or change.at
                running[key] = self._pods.add(
                    CapturedPod(*key, change.made, change.at, change.line)
                )
            elif pod is None:
                earlier.add(key)
            elif change.what == _BOUND:
                pod.bound = pod.bound or change.at
            else:
                pod.ended = pod.ended or change.at
        if earlier:
            number = format_count(len(earlier), "pod")
            self._pods.notes.append(
                f"{number} ended or bound here were created before the log begins, and so were "
                "those that only ran: they are not in the trace."
            )
        return CapturedPeriod(self._pods, self._first, self._last)


def _what_happened(event: _AuditEvent) -> int | None:
    """Return what an event did to a pod, None if nothing that a trace has."""
    about, status = event.object_ref, event.response_status
    if about is None or about.resource != "pods" or event.stage != _COMPLETE:
        return None
    if status is None or status.code not in _SUCCESS:
        return None
    match event.verb, about.subresource:
        case "create", "":
            return _CREATED
        case "create", "binding":
            return _BOUND
        case ("delete", "") | ("create", "eviction"):
            return _ENDED
        case (("patch" | "update"), "status") if _object_of(event).status.phase in _FINAL:
            return _ENDED
    return None


def _object_of(event: _AuditEvent) -> _PodObject:
    content = event.content
    return decode(decode_json(content), _PodObject) if content else _PodObject()
