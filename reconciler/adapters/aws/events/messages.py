"""Parse EventBridge messages about EC2 (aws reference 5.2).

Every message in the queue can be read. A message that is not an event, or that does not announce
the end of an instance, gets a label for counting and no interruption. So does an event of another
account or region, which cannot affect our instances.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, TypeGuard

from reconciler.model.json import JsonObject
from reconciler.ports.cloud import Interruption, InterruptionKind

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
    return Message(what, Interruption(identity, what, instances, _time(event, now), text))


def _label(text: str) -> str:
    """Return a text from a message as a safe label for logs and metrics."""
    shown = text[:_LABEL_WIDTH]
    return shown if shown.isascii() and shown.isprintable() else ascii(shown)[1:-1][:_LABEL_WIDTH]


def _time(event: JsonObject, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(str(event.get("time")))
        if at.tzinfo is None or at > now + _AHEAD_MOST:
            return now
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return now


def _instance(detail: JsonObject) -> tuple[str, ...]:
    identity = detail.get("instance-id")
    return (identity,) if _is_instance(identity) else ()


def _is_instance(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _INSTANCE.fullmatch(value) is not None


def _spot(detail: JsonObject) -> _Announcement | None:
    action = detail.get("instance-action")
    other = f" ({_label(action)})" if isinstance(action, str) and action != "terminate" else ""
    text = f"spot interruption warning{other}"[:_TEXT_WIDTH]
    return _of(InterruptionKind.SPOT_INTERRUPTION, _instance(detail), text)


def _rebalance(detail: JsonObject) -> _Announcement | None:
    kind = InterruptionKind.REBALANCE_RECOMMENDATION
    return _of(kind, _instance(detail), "rebalance recommendation")


def _state(detail: JsonObject) -> _Announcement | None:
    """Parse a state change; pending and running need no action."""
    state = detail.get("state")
    kind = _STATES.get(state) if isinstance(state, str) else None
    return _of(kind, _instance(detail), f"instance {state}") if kind is not None else None


def _health(detail: JsonObject) -> _Announcement | None:
    """Parse a health event: only EC2's scheduled changes count, and one may list many instances."""
    if (detail.get("service"), detail.get("eventTypeCategory")) != ("EC2", "scheduledChange"):
        return None
    entities = detail.get("affectedEntities")
    rows = entities if isinstance(entities, list) else []
    values = (row.get("entityValue") for row in rows if isinstance(row, dict))
    instances = tuple(dict.fromkeys(v for v in values if _is_instance(v)))
    code = detail.get("eventTypeCode")
    text = f"scheduled change {_label(code)}" if isinstance(code, str) else "scheduled change"
    return _of(InterruptionKind.SCHEDULED_CHANGE, instances, text[:_TEXT_WIDTH])


def _reservation(detail: JsonObject) -> _Announcement | None:
    kind = InterruptionKind.RESERVATION_INTERRUPTION
    return _of(kind, _instance(detail), "capacity reservation interruption warning")


def _of(kind: InterruptionKind, instances: tuple[str, ...], text: str) -> _Announcement | None:
    return (kind, instances, text) if instances else None


_READERS: Final[Mapping[tuple[str, str, str], Callable[[JsonObject], _Announcement | None]]] = {
    ("0", "aws.ec2", "EC2 Spot Instance Interruption Warning"): _spot,
    ("0", "aws.ec2", "EC2 Instance Rebalance Recommendation"): _rebalance,
    ("0", "aws.ec2", "EC2 Instance State-change Notification"): _state,
    ("0", "aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): _reservation,
    ("0", "aws.health", "AWS Health Event"): _health,
}
"""The supported events, by the version, source and detail type of the envelope."""
