"""Decoding of messages in the interruption queue, whatever they contain."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.adapters.aws.events.queue import UNREADABLE, read_message
from reconciler.ports.cloud import InterruptionKind

NOW = datetime(2026, 3, 2, 9, 0, tzinfo=UTC)
AT = datetime(2026, 3, 2, 8, 59, 30, tzinfo=UTC)


def an_event(kind: str, source: str = "aws.ec2", **detail: Any) -> dict[str, Any]:
    return {
        "version": "0",
        "id": "7bf73129-1428-4cd3-a780-95db273d1602",
        "detail-type": kind,
        "source": source,
        "account": "123456789012",
        "time": "2026-03-02T08:59:30Z",
        "region": "us-east-1",
        "resources": [],
        "detail": detail,
    }


SPOT = an_event(
    "EC2 Spot Instance Interruption Warning",
    **{"instance-id": "i-1", "instance-action": "terminate"},
)
HEALTH = an_event(
    "AWS Health Event",
    "aws.health",
    service="EC2",
    eventTypeCategory="scheduledChange",
    eventTypeCode="AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
    affectedEntities=[{"entityValue": "i-2"}, {"entityValue": "i-1"}, {"entityValue": "i-2"}, {}],
)


@pytest.mark.parametrize(
    ("event", "kind", "instances", "text"),
    [
        (SPOT, InterruptionKind.SPOT_INTERRUPTION, ("i-1",), "spot interruption warning"),
        (
            an_event(
                "EC2 Spot Instance Interruption Warning",
                **{"instance-id": "i-1", "instance-action": "hibernate"},
            ),
            InterruptionKind.SPOT_INTERRUPTION,
            ("i-1",),
            "spot interruption warning (hibernate)",
        ),
        (
            an_event("EC2 Instance Rebalance Recommendation", **{"instance-id": "i-1"}),
            InterruptionKind.REBALANCE_RECOMMENDATION,
            ("i-1",),
            "rebalance recommendation",
        ),
        (
            HEALTH,
            InterruptionKind.SCHEDULED_CHANGE,
            ("i-2", "i-1"),
            "scheduled change AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED",
        ),
        *(
            (
                an_event(
                    "EC2 Instance State-change Notification",
                    **{"instance-id": "i-1", "state": state},
                ),
                kind,
                ("i-1",),
                f"instance {state}",
            )
            for state, kind in (
                ("stopping", InterruptionKind.STOPPED),
                ("stopped", InterruptionKind.STOPPED),
                ("shutting-down", InterruptionKind.TERMINATED),
                ("terminated", InterruptionKind.TERMINATED),
            )
        ),
        (
            an_event(
                "EC2 Capacity Reservation Instance Interruption Warning",
                **{"instance-id": "i-1", "instance-action": "terminate"},
            ),
            InterruptionKind.RESERVATION_INTERRUPTION,
            ("i-1",),
            "capacity reservation interruption warning",
        ),
    ],
)
def test_every_kind_of_event_is_decoded(
    event: dict[str, Any], kind: InterruptionKind, instances: tuple[str, ...], text: str
) -> None:
    message = read_message("m-1", json.dumps(event), NOW)
    assert message.label == kind
    parsed = message.interruption
    assert parsed is not None
    assert (parsed.id, parsed.kind, parsed.instances, parsed.at, parsed.text) == (
        *("m-1", kind, instances, AT, text),
    )


@pytest.mark.parametrize(
    ("event", "label"),
    [
        (
            an_event(
                "EC2 Instance State-change Notification",
                **{"instance-id": "i-1", "state": "running"},
            ),
            "ignored: EC2 Instance State-change Notification",
        ),
        ({**HEALTH, "detail": {**HEALTH["detail"], "service": "RDS"}}, "ignored: AWS Health Event"),
        (
            {**HEALTH, "detail": {**HEALTH["detail"], "eventTypeCategory": "issue"}},
            "ignored: AWS Health Event",
        ),
        ({**SPOT, "detail": {}}, "ignored: EC2 Spot Instance Interruption Warning"),
        ({**SPOT, "detail": None}, "ignored: EC2 Spot Instance Interruption Warning"),
        (
            {**SPOT, "source": "mine"},
            "unknown event: mine / EC2 Spot Instance Interruption Warning",
        ),
        (
            {**SPOT, "version": "1"},
            "unknown event: aws.ec2 / EC2 Spot Instance Interruption Warning",
        ),
        (an_event("EC2 Fleet Error"), "unknown event: aws.ec2 / EC2 Fleet Error"),
    ],
)
def test_irrelevant_events_are_counted_by_kind(event: dict[str, Any], label: str) -> None:
    message = read_message("m-1", json.dumps(event), NOW)
    assert (message.label, message.interruption) == (label, None)


@pytest.mark.parametrize("body", ["", "garbage", "[]", "1", '{"detail-type": 1}', "[" * 100_000])
def test_invalid_messages_are_unreadable(body: str) -> None:
    assert read_message("m-1", body, NOW).label == UNREADABLE


@pytest.mark.parametrize(
    "time", [None, "yesterday", "2026-03-02T08:59:30", "0001-01-01T00:00+14:00"]
)
def test_an_event_without_a_time_happened_now(time: str | None) -> None:
    parsed = read_message("m-1", json.dumps({**SPOT, "time": time}), NOW).interruption
    assert parsed is not None
    assert parsed.at == NOW


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner),
    max_leaves=8,
)
KEYS = ("version", "source", "detail-type", "detail", "time")


@pytest.mark.exhaustive
@given(st.sampled_from([SPOT, HEALTH]), st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_event_is_decoded_without_an_error(
    event: dict[str, Any], changes: dict[str, Any]
) -> None:
    message = read_message("m-1", json.dumps({**event, **changes}), NOW)
    assert message.label
    if message.interruption is not None:
        assert all(message.interruption.instances)
        assert message.interruption.at.tzinfo is not None


@given(st.dictionaries(st.text(max_size=20), JSON))
def test_any_detail_of_an_event_is_decoded_without_an_error(detail: dict[str, Any]) -> None:
    for event in (SPOT, HEALTH):
        read_message("m-1", json.dumps({**event, "detail": {**event["detail"], **detail}}), NOW)
