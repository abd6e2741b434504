"""Receive EC2 interruptions from the SQS queue to which EventBridge sends them.

The messages are those of EventBridge about EC2 (aws reference 5.2).
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, TypeGuard

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.errors import Failure, failure_of, translate_errors
from reconciler.adapters.threads import background_thread
from reconciler.model.errors import ReconcilerError
from reconciler.model.json import JsonObject, as_list
from reconciler.ports.clock import Clock
from reconciler.ports.cloud import Interruption, InterruptionKind

if TYPE_CHECKING:
    from mypy_boto3_sqs.client import SQSClient
    from mypy_boto3_sqs.type_defs import DeleteMessageBatchRequestEntryTypeDef

UNREADABLE: Final = "unreadable"
_STATES: Final = {
    "stopping": InterruptionKind.STOPPED,
    "stopped": InterruptionKind.STOPPED,
    "shutting-down": InterruptionKind.TERMINATED,
    "terminated": InterruptionKind.TERMINATED,
}
_INSTANCE: Final = re.compile(r"i-[0-9a-z]{1,32}", re.ASCII)
_AHEAD_MOST: Final = timedelta(minutes=5)
"""The maximum clock difference to EventBridge; a later time is ignored."""

_LABEL_WIDTH: Final = 80
_TEXT_WIDTH: Final = 100

_Announcement = tuple[InterruptionKind, tuple[str, ...], str]
"""A kind, the instances, and a description."""

WAIT_S: Final = 20
"""How long one call waits for messages: the maximum of SQS, in seconds."""

_BATCH: Final = 10
_HIDDEN_FOR_S: Final = 60
_ATTEMPTS: Final = 1
_PAUSE_MAX_S: Final = 60.0
_LABELS_MAX: Final = 50
_INBOX_MAX: Final = 10_000
"""The maximum number of messages retained for the next pass; SQS delivers others again later."""

_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Message:
    """A message: its label in metrics, and its announcement, None without one."""

    label: str
    interruption: Interruption | None = None


def read_message(
    identity: str, body: str, now: datetime, *, account: str = "", region: str = ""
) -> Message:
    """Return the content of a queue message; ``now`` replaces a missing time.

    ``account`` and ``region`` are those of our instances; empty means unknown.
    """
    try:
        event = json.loads(body)
    except (ValueError, RecursionError):
        return Message(UNREADABLE)
    if not isinstance(event, dict) or not isinstance(event.get("detail-type"), str):
        return Message(UNREADABLE)
    source, kind, detail = event.get("source"), event["detail-type"], event.get("detail")
    read = _READERS.get((str(event.get("version")), str(source), kind))
    if read is None:
        return Message(_label(f"unknown event: {source} / {kind}"))
    for name, ours in (("account", account), ("region", region)):
        if ours and event.get(name, ours) != ours:
            return Message(_label(f"from another {name}: {event.get(name)}"))
    announced = read(detail) if isinstance(detail, dict) else None
    if announced is None:
        return Message(_label(f"ignored: {kind}"))
    what, instances, text = announced
    return Message(what, Interruption(identity, what, instances, _event_time(event, now), text))


def _label(text: str) -> str:
    """Return a text from a message as a safe label for logs and metrics."""
    shown = text[:_LABEL_WIDTH]
    return shown if shown.isascii() and shown.isprintable() else ascii(shown)[1:-1][:_LABEL_WIDTH]


def _event_time(event: JsonObject, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(str(event.get("time")))
        if at.tzinfo is None or at > now + _AHEAD_MOST:
            return now
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return now


def _instance_ids(detail: JsonObject) -> tuple[str, ...]:
    identity = detail.get("instance-id")
    return (identity,) if _is_instance_id(identity) else ()


def _is_instance_id(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _INSTANCE.fullmatch(value) is not None


def _parse_spot_interruption(detail: JsonObject) -> _Announcement | None:
    action = detail.get("instance-action")
    other = f" ({_label(action)})" if isinstance(action, str) and action != "terminate" else ""
    text = f"spot interruption warning{other}"[:_TEXT_WIDTH]
    return _announcement(InterruptionKind.SPOT_INTERRUPTION, _instance_ids(detail), text)


def _parse_rebalance(detail: JsonObject) -> _Announcement | None:
    kind = InterruptionKind.REBALANCE_RECOMMENDATION
    return _announcement(kind, _instance_ids(detail), "rebalance recommendation")


def _parse_state_change(detail: JsonObject) -> _Announcement | None:
    """Parse a state change; pending and running need no action."""
    state = detail.get("state")
    kind = _STATES.get(state) if isinstance(state, str) else None
    return (
        _announcement(kind, _instance_ids(detail), f"instance {state}")
        if kind is not None
        else None
    )


def _parse_health_event(detail: JsonObject) -> _Announcement | None:
    """Parse a health event: only EC2's scheduled changes count, and one may list many instances."""
    if (detail.get("service"), detail.get("eventTypeCategory")) != ("EC2", "scheduledChange"):
        return None
    entities = detail.get("affectedEntities")
    rows = as_list(entities)
    values = (row.get("entityValue") for row in rows if isinstance(row, dict))
    instances = tuple(dict.fromkeys(v for v in values if _is_instance_id(v)))
    code = detail.get("eventTypeCode")
    text = f"scheduled change {_label(code)}" if isinstance(code, str) else "scheduled change"
    return _announcement(InterruptionKind.SCHEDULED_CHANGE, instances, text[:_TEXT_WIDTH])


def _parse_reservation_interruption(detail: JsonObject) -> _Announcement | None:
    kind = InterruptionKind.RESERVATION_INTERRUPTION
    return _announcement(kind, _instance_ids(detail), "capacity reservation interruption warning")


def _announcement(
    kind: InterruptionKind, instances: tuple[str, ...], text: str
) -> _Announcement | None:
    return (kind, instances, text) if instances else None


_READERS: Final[Mapping[tuple[str, str, str], Callable[[JsonObject], _Announcement | None]]] = {
    ("0", "aws.ec2", "EC2 Spot Instance Interruption Warning"): _parse_spot_interruption,
    ("0", "aws.ec2", "EC2 Instance Rebalance Recommendation"): _parse_rebalance,
    ("0", "aws.ec2", "EC2 Instance State-change Notification"): _parse_state_change,
    (
        "0",
        "aws.ec2",
        "EC2 Capacity Reservation Instance Interruption Warning",
    ): _parse_reservation_interruption,
    ("0", "aws.health", "AWS Health Event"): _parse_health_event,
}
"""The supported events, by the version, source and detail type of the envelope."""


class InterruptionQueue:
    """The port ``Interruptions`` over a queue, given its name or URL in ``name``.

    ``account`` and ``region`` are those of the instances: by default the account is the queue's,
    and events of any region are accepted. ``received`` counts messages by kind, and ``deleted``
    those removed from the queue.
    """

    def __init__(
        self,
        connect: Connect,
        name: str,
        clock: Clock,
        *,
        wait_s: int = WAIT_S,
        account: str = "",
        region: str = "",
    ) -> None:
        self._connect = connect
        self._name = name
        self._clock = clock
        self._wait_s = wait_s
        self._account = account
        self._region = region
        self._url = name if "://" in name else ""
        self._lock = threading.Lock()
        self._sqs: SQSClient | None = None
        self._inbox: dict[str, tuple[Interruption, str]] = {}
        self._outbox: dict[str, str] = {}
        self._problem = self._kind = ""
        self.received: Counter[str] = Counter()
        self.deleted = 0

    def pending_events(self) -> Sequence[Interruption]:
        """Return what was received and is not settled, in order of arrival."""
        with self._lock:
            return [announcement for announcement, _ in self._inbox.values()]

    def acknowledge(self, received: Sequence[Interruption]) -> None:
        """Mark announcements as handled; their messages are deleted with the next poll."""
        with self._lock:
            for announcement in received:
                known = self._inbox.pop(announcement.id, None)
                if known is not None:
                    self._outbox[announcement.id] = known[1]

    def has_events(self) -> bool:
        """Return whether ``pending_events`` would return a result."""
        return bool(self._inbox)

    def problem(self) -> str:
        """Return why the queue currently cannot be read, empty if it can."""
        return self._problem

    def run_in_background(self) -> AbstractContextManager[None]:
        """Poll in a thread while the block runs; what is settled by then is deleted.

        Messages that are not settled are released, so that the next listener receives them at once:
        a spot instance has only two minutes left. This includes what a poll that is still waiting
        at the end receives; that poll is not joined.
        """
        return background_thread("interruptions", self._poll_until_stopped, self.release_messages)

    def poll(self) -> bool:
        """Delete settled messages, then wait for messages once; return whether SQS responded."""
        return self._attempt(self._delete_settled) and self._attempt(self._receive)

    def release_messages(self) -> None:
        """Delete settled messages and release the others, if SQS permits."""
        self._attempt(self._delete_settled)
        self._attempt(self._release_unsettled)

    def _poll_until_stopped(self, stop: threading.Event) -> None:
        failures = 0
        while not stop.is_set():
            failures = 0 if self.poll() else failures + 1
            if failures:
                stop.wait(min(2.0 ** (failures - 1), _PAUSE_MAX_S))
        self.release_messages()

    def _attempt(self, work: Callable[[], None]) -> bool:
        """Do a part of the work; if SQS rejects it, record why, and look up the queue again."""
        try:
            work()
        except ReconcilerError as error:
            is_gone = _is_not_found(error.__cause__)
            if is_gone and "://" not in self._name:
                self._url = ""
            advice = "; create the queue, or correct interruptionQueue" if is_gone else ""
            self._record_problem(f"queue {self._name}: {error}{advice}", error.message)
            return False
        return True

    def _record_problem(self, problem: str, kind: str = "") -> None:
        """Record a problem, and log each kind once: each request has its own id."""
        if kind and kind != self._kind:
            _LOG.warning("%s", problem)
        self._problem, self._kind = problem, kind

    def _receive(self) -> None:
        sqs = self._client()
        with translate_errors("sqs:ReceiveMessage"):
            answer = sqs.receive_message(
                QueueUrl=self._url,
                MaxNumberOfMessages=_BATCH,
                WaitTimeSeconds=self._wait_s,
                VisibilityTimeout=_HIDDEN_FOR_S,
            )
        self._record_problem("")
        for row in answer.get("Messages") or []:
            self._store_message(row["MessageId"], row["ReceiptHandle"], row.get("Body", ""))
        self._delete_settled()

    def _store_message(self, identity: str, handle: str, body: str) -> None:
        """Store a message; one that is delivered again has a newer handle."""
        account = self._account or _account_in(self._url)
        now = self._clock.now()
        message = read_message(identity, body, now, account=account, region=self._region)
        with self._lock:
            self._count(message)
            if message.interruption is None or identity in self._outbox:
                self._outbox[identity] = handle
            elif identity in self._inbox or len(self._inbox) < _INBOX_MAX:
                self._inbox[identity] = (message.interruption, handle)

    def _count(self, message: Message) -> None:
        """Count a message; an irrelevant kind is logged once."""
        label = message.label
        if label not in self.received and len(self.received) >= _LABELS_MAX:
            label = "others"
        if label not in self.received and message.interruption is None:
            _LOG.info("queue %s: deleted messages that are %s", self._name, label)
        self.received[label] += 1

    def _delete_settled(self) -> None:
        while batch := self._take_batch():
            try:
                self._delete_batch(batch)
            except BaseException:
                with self._lock:
                    self._outbox = batch | self._outbox
                raise

    def _take_batch(self) -> dict[str, str]:
        """Return up to a batch of handles to delete, and take them out of the list."""
        with self._lock:
            batch = dict(list(self._outbox.items())[:_BATCH])
            for identity in batch:
                del self._outbox[identity]
            return batch

    def _delete_batch(self, batch: dict[str, str]) -> None:
        """Delete messages; one whose handle is too old is delivered again, and deleted then."""
        entries: list[DeleteMessageBatchRequestEntryTypeDef] = [
            {"Id": str(n), "ReceiptHandle": h} for n, h in enumerate(batch.values())
        ]
        sqs = self._client()
        with translate_errors("sqs:DeleteMessageBatch"):
            answer = sqs.delete_message_batch(QueueUrl=self._url, Entries=entries)
        self.deleted += len(answer.get("Successful") or [])

    def _release_unsettled(self) -> None:
        """Make unsettled messages visible in SQS again at once."""
        with self._lock:
            handles = [handle for _, handle in self._inbox.values()]
            self._inbox.clear()
        for start in range(0, len(handles), _BATCH):
            sqs = self._client()
            with translate_errors("sqs:ChangeMessageVisibilityBatch"):
                sqs.change_message_visibility_batch(
                    QueueUrl=self._url,
                    Entries=[
                        {"Id": str(n), "ReceiptHandle": handle, "VisibilityTimeout": 0}
                        for n, handle in enumerate(handles[start : start + _BATCH])
                    ],
                )

    def _client(self) -> SQSClient:
        if self._sqs is None:
            self._sqs = self._connect("sqs", _ATTEMPTS)
        if not self._url:
            with translate_errors("sqs:GetQueueUrl"):
                self._url = self._sqs.get_queue_url(QueueName=self._name)["QueueUrl"]
        return self._sqs


def _account_in(url: str) -> str:
    """Return the account in the URL of a queue (``https://…/111122223333/name``), if any."""
    number = url.rstrip("/").split("/")[-2:-1]
    return number[0] if number and number[0].isdecimal() and len(number[0]) == 12 else ""


def _is_not_found(cause: BaseException | None) -> bool:
    return isinstance(cause, Exception) and failure_of(cause) is Failure.NOT_FOUND
