"""What EventBridge says of EC2, in our words (aws reference 5.2).

Whatever is sent to the queue can be read: a message that is not an event, or one of a kind that
says nothing of an instance's end, gets a label to be counted under, and no interruption. So does
an event of another account or region: it cannot be about an instance of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeGuard

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
"""How far ahead of our clock EventBridge's may be; a later time is not believed."""

_LABEL_WIDTH: Final = 80
_TEXT_WIDTH: Final = 100

_Said = tuple[InterruptionKind, tuple[str, ...], str]
"""A kind, the instances, and how a person says it."""


@dataclass(frozen=True, slots=True)
class Message:
    """A message: what to count it under, and what it announces, None if nothing."""

    label: str
    interruption: Interruption | None = None


def read_message(
    identity: str, body: str, now: datetime, *, account: str = "", region: str = ""
) -> Message:
    """Return what a message of the queue says; ``now`` stands in for a time that it lacks.

    ``account`` and ``region`` are where our instances are; empty means that it is not known.
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
    said = read(detail) if isinstance(detail, dict) else None
    if said is None:
        return Message(_label(f"ignored: {kind}"))
    what, instances, text = said
    return Message(what, Interruption(identity, what, instances, _time(event, now), text))


def _label(text: str) -> str:
    """Return a text from a message in a form that can stand in a log and in a metric."""
    shown = text[:_LABEL_WIDTH]
    return shown if shown.isascii() and shown.isprintable() else ascii(shown)[1:-1][:_LABEL_WIDTH]


def _time(event: Mapping[str, Any], now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(str(event.get("time")))
        if at.tzinfo is None or at > now + _AHEAD_MOST:
            return now
        return at.astimezone(UTC)
    except (ValueError, OverflowError):
        return now


def _instance(detail: Mapping[str, Any]) -> tuple[str, ...]:
    identity = detail.get("instance-id")
    return (identity,) if _is_instance(identity) else ()


def _is_instance(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _INSTANCE.fullmatch(value) is not None


def _spot(detail: Mapping[str, Any]) -> _Said | None:
    action = detail.get("instance-action")
    other = f" ({_label(action)})" if isinstance(action, str) and action != "terminate" else ""
    text = f"spot interruption warning{other}"[:_TEXT_WIDTH]
    return _of(InterruptionKind.SPOT_INTERRUPTION, _instance(detail), text)


def _rebalance(detail: Mapping[str, Any]) -> _Said | None:
    kind = InterruptionKind.REBALANCE_RECOMMENDATION
    return _of(kind, _instance(detail), "rebalance recommendation")


def _state(detail: Mapping[str, Any]) -> _Said | None:
    """Read a state change; to pending and running there is nothing to do."""
    state = detail.get("state")
    kind = _STATES.get(state) if isinstance(state, str) else None
    return _of(kind, _instance(detail), f"instance {state}") if kind is not None else None


def _health(detail: Mapping[str, Any]) -> _Said | None:
    """Read a health event: of EC2's only scheduled changes count, and they may name many."""
    if (detail.get("service"), detail.get("eventTypeCategory")) != ("EC2", "scheduledChange"):
        return None
    entities = detail.get("affectedEntities")
    rows = entities if isinstance(entities, list) else []
    values = (row.get("entityValue") for row in rows if isinstance(row, dict))
    instances = tuple(dict.fromkeys(v for v in values if _is_instance(v)))
    code = detail.get("eventTypeCode")
    text = f"scheduled change {_label(code)}" if isinstance(code, str) else "scheduled change"
    return _of(InterruptionKind.SCHEDULED_CHANGE, instances, text[:_TEXT_WIDTH])


def _reservation(detail: Mapping[str, Any]) -> _Said | None:
    kind = InterruptionKind.RESERVATION_INTERRUPTION
    return _of(kind, _instance(detail), "capacity reservation interruption warning")


def _of(kind: InterruptionKind, instances: tuple[str, ...], text: str) -> _Said | None:
    return (kind, instances, text) if instances else None


_READERS: Final[Mapping[tuple[str, str, str], Callable[[Mapping[str, Any]], _Said | None]]] = {
    ("0", "aws.ec2", "EC2 Spot Instance Interruption Warning"): _spot,
    ("0", "aws.ec2", "EC2 Instance Rebalance Recommendation"): _rebalance,
    ("0", "aws.ec2", "EC2 Instance State-change Notification"): _state,
    ("0", "aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"): _reservation,
    ("0", "aws.health", "AWS Health Event"): _health,
}
"""What is read, by the version, source and detail type of the envelope."""
