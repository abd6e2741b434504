"""The placement group that a class selects; who selects none needs no permission to look."""

from __future__ import annotations

from typing import Any, Final

from reconciler.adapters.aws.errors import boto_errors, code_of, our_error
from reconciler.model.nodeclass import FoundPlacementGroup, PlacementGroupSelector

_CALL: Final = "ec2:DescribePlacementGroups"
_UNKNOWN: Final = "InvalidPlacementGroup"
"""The prefixes of the EC2 error codes for a group that does not exist."""


def placement_group(ec2: Any, selector: PlacementGroupSelector) -> FoundPlacementGroup | None:
    """Return the group of that id or name, None where there is none that can be used.

    Raises:
        TransientCloudError, CloudError: EC2 could not be asked.
    """
    named = {"GroupIds": [selector.id]} if selector.id else {"GroupNames": [selector.name]}
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
