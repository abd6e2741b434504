"""Convert between EC2's responses and the values of the ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from reconciler.adapters.aws.launch.fleet import instance_tags
from reconciler.adapters.aws.tags import as_map
from reconciler.model.karpenter.labels import ON_DEMAND, RESERVED, SPOT
from reconciler.model.settings import Settings
from reconciler.ports.cloud import Instance, Launch, Refusal

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import (
        CreateFleetInstanceTypeDef,
        CreateFleetResultTypeDef,
        FilterTypeDef,
        InstanceTypeDef,
    )


def tag_filters(tags: Mapping[str, str]) -> list[FilterTypeDef]:
    """Return the filters of a tag term: all of them must match, ``*`` matches any value."""
    return [
        {"Name": "tag-key", "Values": [key]}
        if value == "*"
        else {"Name": f"tag:{key}", "Values": [value]}
        for key, value in sorted(tags.items())
    ]


def instance_of(row: InstanceTypeDef) -> Instance:
    """Return the instance in an entry of DescribeInstances."""
    return Instance(
        id=row["InstanceId"],
        instance_type=row.get("InstanceType", ""),
        zone=row.get("Placement", {}).get("AvailabilityZone", ""),
        capacity_type=_capacity_type(row),
        state=row.get("State", {}).get("Name", ""),
        launched_at=row["LaunchTime"].astimezone(UTC),
        tags=as_map(row.get("Tags")),
        image_id=row.get("ImageId", ""),
        subnet_id=row.get("SubnetId", ""),
        security_groups=tuple(sorted(g["GroupId"] for g in row.get("SecurityGroups") or [])),
        private_dns_name=row.get("PrivateDnsName", ""),
        reservation_id=row.get("CapacityReservationId", ""),
        tenancy=row.get("Placement", {}).get("Tenancy", ""),
    )


def _capacity_type(row: InstanceTypeDef) -> str:
    if row.get("SpotInstanceRequestId") or row.get("InstanceLifecycle") == SPOT:
        return SPOT
    preference = row.get("CapacityReservationSpecification", {}).get(
        "CapacityReservationPreference"
    )
    if row.get("CapacityReservationId") and preference == "capacity-reservations-only":
        return RESERVED
    return ON_DEMAND


def launched_instances(
    answer: CreateFleetResultTypeDef, batch: Sequence[Launch], settings: Settings, now: datetime
) -> Sequence[Instance]:
    """Return the instances that CreateFleet launched, in its order.

    Missing fields are taken from the request. No more instances than requested are returned: an
    extra one is found by its tag, and terminated.
    """
    rows = [
        (identity, row)
        for row in answer.get("Instances") or []
        for identity in row.get("InstanceIds") or []
    ]
    return [
        _launched_instance(identity, row, launch, settings, now)
        for (identity, row), launch in zip(rows, batch, strict=False)
    ]


def _launched_instance(
    identity: str,
    row: CreateFleetInstanceTypeDef,
    launch: Launch,
    settings: Settings,
    now: datetime,
) -> Instance:
    place = row.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    subnet = place.get("SubnetId", "")
    return Instance(
        id=identity,
        instance_type=row.get("InstanceType") or place.get("InstanceType", ""),
        zone=place.get("AvailabilityZone") or _zone(launch, subnet),
        capacity_type=launch.options[0].capacity_type,
        state="pending",
        launched_at=now,
        tags=instance_tags(launch, settings),
        image_id=place.get("ImageId", ""),
        subnet_id=subnet,
        security_groups=tuple(
            sorted(group.id for group in launch.node_class.status.security_groups)
        ),
    )


def refusals(answer: CreateFleetResultTypeDef, launch: Launch) -> tuple[Refusal, ...]:
    """Return the offerings that CreateFleet rejected, including when it launched an instance."""
    rows = {}
    for row in answer.get("Errors") or []:
        place = row.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
        refusal = Refusal(
            instance_type=place.get("InstanceType", ""),
            zone=place.get("AvailabilityZone") or _zone(launch, place.get("SubnetId", "")),
            capacity_type=launch.options[0].capacity_type,
            code=row.get("ErrorCode", ""),
            message=row.get("ErrorMessage", ""),
        )
        rows[refusal.instance_type, refusal.zone, refusal.capacity_type, refusal.code] = refusal
    return tuple(rows[key] for key in sorted(rows))


def _zone(launch: Launch, subnet: str) -> str:
    return next((s.zone for s in launch.node_class.status.subnets if s.id == subnet), "")
