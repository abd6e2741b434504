"""Resolve an EC2NodeClass: find the resources that it selects and set its status.

Each part is resolved independently and has its own condition, so that the user sees everything that
is missing at once (aws reference 4).

Without a selector for placement groups no permission to read them is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from reconciler.adapters.aws.clients import Connect
from reconciler.adapters.aws.conversion import tag_filters
from reconciler.adapters.aws.errors import (
    Failure,
    boto_errors,
    code_of,
    failure_of,
    our_error,
    translate_errors,
)
from reconciler.adapters.aws.launch.addresses import Addresses
from reconciler.adapters.aws.launch.profiles import profile_name
from reconciler.adapters.aws.launch.requests import lacks_service_cidr
from reconciler.adapters.aws.nodeclass.amis import ImageFinder
from reconciler.adapters.aws.nodeclass.validation import Validation
from reconciler.model.errors import TransientCloudError
from reconciler.model.karpenter.nodeclass import (
    CapacityReservation,
    EC2NodeClass,
    EC2NodeClassStatus,
    FoundPlacementGroup,
    PlacementGroupSelector,
    SecurityGroup,
    SelectorTerm,
    Subnet,
)
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.settings import FeatureGate, Settings
from reconciler.ports.clock import Clock

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_ec2.type_defs import (
        CapacityReservationTypeDef,
        DescribePlacementGroupsRequestTypeDef,
        FilterTypeDef,
        SubnetTypeDef,
    )


_CALL: Final = "ec2:DescribePlacementGroups"
_UNKNOWN: Final = "InvalidPlacementGroup"
"""The prefix of the EC2 error codes for a group that does not exist."""

EXPIRES_WITHIN: Final = timedelta(minutes=40)
"""How long before its end a capacity block accepts no further instances."""

_CALL_RESERVATIONS: Final = "ec2:DescribeCapacityReservations"
_BLOCK: Final = "capacity-block"
_KINDS: Final = ("default", _BLOCK)
_CRITERIA: Final = ("open", "targeted")

_NO_GROUP: Final = "PlacementGroupSelector did not match any that is available"
_FRESH_FOR: Final = timedelta(minutes=1)


def placement_group(ec2: EC2Client, selector: PlacementGroupSelector) -> FoundPlacementGroup | None:
    """Return the group with that id or name, None if there is no usable one.

    Raises:
        TransientCloudError, CloudError: EC2 did not respond.
    """
    named: DescribePlacementGroupsRequestTypeDef = (
        {"GroupIds": [selector.id]} if selector.id else {"GroupNames": [selector.name]}
    )
    try:
        rows = ec2.describe_placement_groups(**named)["PlacementGroups"]
    except boto_errors() as error:
        if code_of(error).startswith(_UNKNOWN):
            return None
        raise our_error(_CALL, error) from error
    row = next((row for row in rows if row.get("State") == "available"), None)
    if row is None:
        return None
    return FoundPlacementGroup(
        row["GroupId"],
        row.get("GroupName", ""),
        row.get("Strategy", ""),
        row.get("PartitionCount") or 0,
    )


# The capacity reservations of a class: on-demand reservations and capacity blocks.
#
# A reservation selected by an id that does not exist is skipped, as is one that has ended. Without
# selectors no permission is needed (aws reference 1.2, 5.8).


def reservations(
    ec2: EC2Client, terms: Sequence[SelectorTerm], now: datetime
) -> list[CapacityReservation]:
    """Return the active reservations that the terms select, by id.

    Raises:
        TransientCloudError, CloudError: a call or a page of it failed.
    """
    rows: dict[str, CapacityReservationTypeDef] = {}
    for term in terms:
        found = (
            _reservations_by_id(ec2, term.id) if term.id else _reservations_by_filters(ec2, term)
        )
        rows |= {row["CapacityReservationId"]: row for row in found}
    known = (_reservation(rows[identity], now) for identity in sorted(rows))
    return [reservation for reservation in known if reservation is not None]


def _reservations_by_id(ec2: EC2Client, identity: str) -> Sequence[CapacityReservationTypeDef]:
    """Query a single id: a call with several fails completely if one does not exist."""
    try:
        answer = ec2.describe_capacity_reservations(CapacityReservationIds=[identity])
    except boto_errors() as error:
        if failure_of(error) is Failure.NOT_FOUND:
            return []
        raise our_error(_CALL_RESERVATIONS, error) from error
    return answer["CapacityReservations"]


def _reservations_by_filters(
    ec2: EC2Client, term: SelectorTerm
) -> Iterator[CapacityReservationTypeDef]:
    filters: list[FilterTypeDef] = [
        {"Name": "state", "Values": ["active"]},
        *tag_filters(term.tags),
    ]
    if term.owner_id:
        filters.append({"Name": "owner-id", "Values": [term.owner_id]})
    if term.instance_match_criteria:
        criteria = [term.instance_match_criteria]
        filters.append({"Name": "instance-match-criteria", "Values": criteria})
    with translate_errors(_CALL_RESERVATIONS):
        pages = ec2.get_paginator("describe_capacity_reservations").paginate(Filters=filters)
        for page in pages:
            yield from page["CapacityReservations"]


def _reservation(row: CapacityReservationTypeDef, now: datetime) -> CapacityReservation | None:
    """Return a reservation, None if it has ended or is of an unknown kind."""
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


class _CachedStatus(NamedTuple):
    """A resolved status, and when it was last read.

    ``doubted`` is since when reads have missed some of it; ``superseded`` are the images that were
    replaced by newer ones.
    """

    at: datetime
    status: EC2NodeClassStatus
    doubted: datetime | None = None
    superseded: frozenset[str] = frozenset()


class Resolver:
    """Resolves classes and caches the result for a minute."""

    def __init__(
        self,
        ec2: EC2Client,
        connect: Connect,
        settings: Settings,
        clock: Clock,
        addresses: Addresses,
        validation: Validation | None = None,
    ) -> None:
        self._ec2 = ec2
        self._settings = settings
        self._clock = clock
        self._addresses = addresses
        self._trials = validation
        self._images = ImageFinder(ec2, connect, settings, clock)
        self._known: dict[bytes, _CachedStatus] = {}

    def resolve(self, node_class: EC2NodeClass) -> EC2NodeClass:
        """Return the class with its status and the conditions that describe what is missing.

        Raises:
            TransientCloudError, CloudError: a look-up failed; unknown is not «missing».
        """
        status = node_class.status
        if status.amis and status.subnets and status.security_groups:
            return node_class
        key = msgspec.json.encode((node_class.name, node_class.spec))
        now = self._clock.now()
        known = self._known.get(key)
        if known is None or now - known.at >= _FRESH_FOR:
            known = self._refresh_status(node_class, now, known)
            self._known[key] = known
        return msgspec.structs.replace(node_class, status=known.status)

    def expire_reserved(self) -> None:
        """Read the remaining capacity of reservations again before the next use."""
        for key, known in list(self._known.items()):
            if known.status.capacity_reservations:
                self._known[key] = known._replace(at=known.at - _FRESH_FOR)

    def _refresh_status(
        self, node_class: EC2NodeClass, now: datetime, known: _CachedStatus | None
    ) -> _CachedStatus:
        """Read again; while EC2 does not respond, the earlier result stays valid.

        A resource counts as missing only after two reads without it. EC2 is eventually consistent,
        and a single stale response would make nodes drift.
        """
        try:
            found = self._read_status(node_class, now)
        except TransientCloudError:
            if known is None:
                raise
            return known
        if known is None:
            return _CachedStatus(now, found)
        since = known.doubted or now
        if now - since < _FRESH_FOR and _falls_behind(found, known):
            return known._replace(at=now, doubted=since)
        newer = {ami.requirements: ami.id for ami in found.amis}
        gone = {a.id for a in known.status.amis if newer.get(a.requirements, a.id) != a.id}
        return _CachedStatus(now, found, superseded=known.superseded | gone)

    def _read_status(self, node_class: EC2NodeClass, now: datetime) -> EC2NodeClassStatus:
        spec = node_class.spec
        subnets = self._subnets(spec.subnet_selector_terms)
        groups = self._security_groups(spec.security_group_selector_terms)
        amis, image_problem = self._images.find(node_class)
        terms = spec.capacity_reservation_selector_terms
        is_reserving = self._settings.gate(FeatureGate.RESERVED_CAPACITY)
        reserved = reservations(self._ec2, terms, now) if is_reserving and terms else []
        selector = spec.placement_group_selector
        group = placement_group(self._ec2, selector) if selector is not None else None
        profile = spec.instance_profile or profile_name(node_class, self._settings)
        conditions = [
            _found_condition(
                "SubnetsReady", subnets, "SubnetsNotFound", "SubnetSelector did not match any"
            ),
            _found_condition(
                "SecurityGroupsReady",
                groups,
                "SecurityGroupsNotFound",
                "SecurityGroupSelector did not match any",
            ),
            _found_condition(
                "AMIsReady", amis, "AMINotFound", image_problem or "AMISelector matched none"
            ),
            _found_condition(
                "InstanceProfileReady", profile, "InstanceProfileNotFound", "none is given"
            ),
            # an empty result is valid: the class then launches on-demand capacity
            *([Condition("CapacityReservationsReady", "True")] * is_reserving),
            *(
                [
                    _found_condition(
                        "PlacementGroupReady", group, "PlacementGroupNotFound", _NO_GROUP
                    )
                ]
                if selector is not None
                else []
            ),
        ]
        found = EC2NodeClassStatus(
            subnets=tuple(subnets),
            security_groups=tuple(groups),
            amis=tuple(amis),
            capacity_reservations=tuple(reserved),
            placement_group=group,
            instance_profile=profile,
        )
        is_whole = all(c.status == "True" for c in conditions)
        conditions.append(self._validation_condition(node_class, found, is_whole=is_whole))
        return msgspec.structs.replace(
            found,
            conditions=tuple(
                msgspec.structs.replace(c, last_transition_time=now)
                for c in (*conditions, _ready_condition(conditions))
            ),
        )

    def _validation_condition(
        self, node_class: EC2NodeClass, found: EC2NodeClassStatus, *, is_whole: bool
    ) -> Condition:
        """Return whether nodes of the class could be launched and would find their cluster."""
        if lacks_service_cidr(node_class, self._settings):
            return Condition(
                "ValidationSucceeded",
                "False",
                "ClusterCIDRResolutionFailed",
                "AL2023 nodes need the service CIDR of the cluster; set clusterCIDR",
            )
        if self._trials is None or not is_whole:
            return Condition("ValidationSucceeded", "True")
        return self._trials.condition(msgspec.structs.replace(node_class, status=found))

    def _subnets(self, terms: Sequence[SelectorTerm]) -> list[Subnet]:
        """Return the subnets, those with the most free addresses first, then by id."""
        rows: dict[str, SubnetTypeDef] = {}
        pages = self._ec2.get_paginator("describe_subnets")
        for filters in _selector_filters(terms, "subnet-id"):
            with translate_errors("ec2:DescribeSubnets"):
                for page in pages.paginate(Filters=filters):
                    rows.update({row["SubnetId"]: row for row in page["Subnets"]})
        self._addresses.update({i: r.get("AvailableIpAddressCount", 0) for i, r in rows.items()})
        ordered = sorted(
            rows.values(), key=lambda r: (-r.get("AvailableIpAddressCount", 0), r["SubnetId"])
        )
        return [
            Subnet(r["SubnetId"], r["AvailabilityZone"], r.get("AvailabilityZoneId", ""))
            for r in ordered
        ]

    def _security_groups(self, terms: Sequence[SelectorTerm]) -> list[SecurityGroup]:
        rows: dict[str, str] = {}
        pages = self._ec2.get_paginator("describe_security_groups")
        for filters in _selector_filters(terms, "group-id"):
            with translate_errors("ec2:DescribeSecurityGroups"):
                for page in pages.paginate(Filters=filters):
                    found = page["SecurityGroups"]
                    rows.update({row["GroupId"]: row.get("GroupName", "") for row in found})
        return [SecurityGroup(identity, rows[identity]) for identity in sorted(rows)]


def _falls_behind(found: EC2NodeClassStatus, known: _CachedStatus) -> bool:
    """Return whether a read lacks what an earlier one found, or has what that one superseded.

    An image that is replaced by a newer one is not missing; a kind of image without any is.
    """
    before = known.status
    lost = _resource_ids(before) - _resource_ids(found)
    images = {ami.requirements for ami in before.amis} - {ami.requirements for ami in found.amis}
    return bool(lost or images) or any(ami.id in known.superseded for ami in found.amis)


def _resource_ids(status: EC2NodeClassStatus) -> set[str]:
    """Return the ids that instances are compared with, except for their images."""
    return {
        *(subnet.id for subnet in status.subnets),
        *(group.id for group in status.security_groups),
        *(reservation.id for reservation in status.capacity_reservations),
        *((status.placement_group.id,) if status.placement_group is not None else ()),
    }


def _selector_filters(terms: Sequence[SelectorTerm], id_filter: str) -> list[list[FilterTypeDef]]:
    """Return the filters of each call: one for all ids, one for each other term."""
    ids = sorted({term.id for term in terms if term.id})
    queries: list[list[FilterTypeDef]] = [[{"Name": id_filter, "Values": ids}]] if ids else []
    for term in terms:
        filters = tag_filters(term.tags) if not term.id else []
        if term.name:
            filters.append({"Name": "group-name", "Values": [term.name]})
        if filters:
            queries.append(filters)
    return queries


def _found_condition(kind: str, things: object, reason: str, message: str) -> Condition:
    if things:
        return Condition(kind, "True")
    return Condition(kind, "False", reason, message)


def _ready_condition(conditions: Sequence[Condition]) -> Condition:
    missing = [c for c in conditions if c.status != "True"]
    if not missing:
        return Condition("Ready", "True")
    kinds = ", ".join(f"{c.type}={c.status}" for c in missing)
    return Condition("Ready", "False", "UnhealthyDependents", kinds)
