"""The capacity reservations that a class selects: on-demand ones and capacity blocks.

A reservation that is named by its id and not there is passed over, as is one that has ended; who
selects none needs no permission to look (aws reference 1.2, 5.8).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from reconciler.adapters.aws.errors import Failure, boto_errors, failure_of, our_error, translated
from reconciler.adapters.aws.filters import tag_filters
from reconciler.model.nodeclass import CapacityReservation, SelectorTerm

EXPIRES_WITHIN: Final = timedelta(minutes=40)
"""How long before its end a capacity block accepts no further instances."""

_CALL: Final = "ec2:DescribeCapacityReservations"
_BLOCK: Final = "capacity-block"
_KINDS: Final = ("default", _BLOCK)
_CRITERIA: Final = ("open", "targeted")


def reservations(
    ec2: Any, terms: Sequence[SelectorTerm], now: datetime
) -> list[CapacityReservation]:
    """Return the active reservations that the terms select, by id.

    Raises:
        TransientCloudError, CloudError: a call or a page of it failed.
    """
    rows: dict[str, Mapping[str, Any]] = {}
    for term in terms:
        found = _by_id(ec2, term.id) if term.id else _by_filters(ec2, term)
        rows |= {row["CapacityReservationId"]: row for row in found}
    known = (_reservation(rows[identity], now) for identity in sorted(rows))
    return [reservation for reservation in known if reservation is not None]


def _by_id(ec2: Any, identity: str) -> list[Mapping[str, Any]]:
    """Ask for one: a call that names several fails as a whole where one is not there."""
    try:
        answer = ec2.describe_capacity_reservations(CapacityReservationIds=[identity])
    except boto_errors() as error:
        if failure_of(error) is Failure.NOT_FOUND:
            return []
        raise our_error(_CALL, error) from error
    rows: list[Mapping[str, Any]] = answer["CapacityReservations"]
    return rows


def _by_filters(ec2: Any, term: SelectorTerm) -> Iterator[Mapping[str, Any]]:
    filters = [{"Name": "state", "Values": ["active"]}, *tag_filters(term.tags)]
    if term.owner_id:
        filters.append({"Name": "owner-id", "Values": [term.owner_id]})
    if term.instance_match_criteria:
        criteria = [term.instance_match_criteria]
        filters.append({"Name": "instance-match-criteria", "Values": criteria})
    with translated(_CALL):
        pages = ec2.get_paginator("describe_capacity_reservations").paginate(Filters=filters)
        for page in pages:
            yield from page["CapacityReservations"]


def _reservation(row: Mapping[str, Any], now: datetime) -> CapacityReservation | None:
    """Return a reservation, None for one that has ended or is of a kind that nobody knows."""
    kind, criteria = row.get("ReservationType") or "default", row.get("InstanceMatchCriteria", "")
    end = row["EndDate"].astimezone(UTC) if row.get("EndDate") is not None else None
    if row.get("State") != "active" or (end is not None and end <= now):
        return None
    if kind not in _KINDS or criteria not in _CRITERIA:
        return None
    expires = kind == _BLOCK and end is not None and now >= end - EXPIRES_WITHIN
    return CapacityReservation(
        id=row["CapacityReservationId"],
        availability_zone=row.get("AvailabilityZone", ""),
        instance_type=row.get("InstanceType", ""),
        owner_id=row.get("OwnerId", ""),
        instance_match_criteria=criteria,
        reservation_type=kind,
        interruptible=bool(row.get("Interruptible")),
        state="expiring" if expires else "active",
        end_time=end,
        available_instance_count=row.get("AvailableInstanceCount"),
    )
