"""Which instance types EC2 has in a region, and in which zones: all pages, or an error."""

from __future__ import annotations

from typing import Any, Final

from reconciler.adapters.aws.errors import translated
from reconciler.catalog.live import Zones
from reconciler.model.errors import CloudError

_TYPES_A_PAGE: Final = 100
_OFFERINGS_A_PAGE: Final = 1000
_FILTERS: Final = [
    {"Name": "supported-virtualization-type", "Values": ["hvm"]},
    {"Name": "processor-info.supported-architecture", "Values": ["x86_64", "arm64"]},
]


def describe_types(ec2: Any) -> list[dict[str, Any]]:
    """Return the types on which a node can run, as EC2 describes them.

    Raises:
        TransientCloudError, CloudError: a page failed, or there was nothing on any.
    """
    call = "ec2:DescribeInstanceTypes"
    with translated(call):
        pages = ec2.get_paginator("describe_instance_types").paginate(
            Filters=_FILTERS, PaginationConfig={"PageSize": _TYPES_A_PAGE}
        )
        bodies = [body for page in pages for body in page["InstanceTypes"]]
    if not bodies:
        raise CloudError("EC2 returned no instance types", where=call)
    return bodies


def describe_offerings(ec2: Any) -> Zones:
    """Return the types that each zone offers.

    Raises:
        TransientCloudError, CloudError: a page failed, or there was nothing on any.
    """
    call = "ec2:DescribeInstanceTypeOfferings"
    zones: dict[str, set[str]] = {}
    with translated(call):
        pages = ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", PaginationConfig={"PageSize": _OFFERINGS_A_PAGE}
        )
        for page in pages:
            for row in page["InstanceTypeOfferings"]:
                zones.setdefault(row["Location"], set()).add(row["InstanceType"])
    if not zones:
        raise CloudError("EC2 returned no instance type offerings", where=call)
    return {zone: frozenset(names) for zone, names in sorted(zones.items())}
