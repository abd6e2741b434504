"""An EC2NodeClass as its lock has it: images and places that hold until the lock changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from reconciler.desired.lock import REMEDY
from reconciler.model.metadata import Condition
from reconciler.model.nodeclass import EC2NodeClass, EC2NodeClassStatus

if TYPE_CHECKING:
    from reconciler.desired.lock import LockedClass


def pinned(node_class: EC2NodeClass, entry: LockedClass | None) -> EC2NodeClass:
    """Return the class with what is locked for it in the place of what was looked up.

    Where nothing was looked up the lock says everything. Of subnets and security groups that were
    looked up, those that are locked stay, in the order of the look: free addresses change by the
    minute. If none of them is left the class is not ready, and its condition says why.
    """
    if entry is None:
        return node_class
    status = node_class.status
    if status == EC2NodeClassStatus():
        found = EC2NodeClassStatus(
            subnets=entry.subnets,
            security_groups=entry.security_groups,
            amis=entry.amis,
            instance_profile=entry.instance_profile,
        )
        return msgspec.structs.replace(node_class, status=found)
    subnets = {subnet.id for subnet in entry.subnets}
    groups = {group.id for group in entry.security_groups}
    kept = msgspec.structs.replace(
        status,
        amis=entry.amis or status.amis,
        subnets=tuple(s for s in status.subnets if not subnets or s.id in subnets),
        security_groups=tuple(g for g in status.security_groups if not groups or g.id in groups),
    )
    if kept.conditions:
        kept = msgspec.structs.replace(kept, conditions=_conditions(status.conditions, kept))
    return msgspec.structs.replace(node_class, status=kept)


def _conditions(before: Sequence[Condition], status: EC2NodeClassStatus) -> tuple[Condition, ...]:
    """Return the conditions as they are for a status that was pinned."""
    pinned_kinds = {
        "AMIsReady": (status.amis, "AMINotFound", "no image is locked"),
        "SubnetsReady": (status.subnets, "SubnetsNotFound", "no locked subnet exists any more"),
        "SecurityGroupsReady": (
            status.security_groups,
            "SecurityGroupsNotFound",
            "no locked security group exists any more",
        ),
    }
    made: list[Condition] = []
    for condition in before:
        found, reason, message = pinned_kinds.get(condition.type, (None, "", ""))
        if found is None or condition.type == "Ready":
            made.append(condition)
        elif found:
            made.append(_changed(condition, "True", "", ""))
        else:
            made.append(_changed(condition, "False", reason, f"{message}: {REMEDY}"))
    missing = [c for c in made if c.type != "Ready" and c.status != "True"]
    kinds = ", ".join(f"{c.type}={c.status}" for c in missing)
    return tuple(
        c
        if c.type != "Ready"
        else _changed(c, "False", "UnhealthyDependents", kinds)
        if missing
        else _changed(c, "True", "", "")
        for c in made
    )


def _changed(condition: Condition, status: str, reason: str, message: str) -> Condition:
    if condition.status == status:
        return condition
    return msgspec.structs.replace(condition, status=status, reason=reason, message=message)
