"""Check whether an instance still matches what its EC2NodeClass would launch now.

The rules are the AWS provider's: the hash of the class, then what its selectors find in the account
(image, security groups, subnets, capacity reservation, placement group). Facts that are missing
from the class's status cannot be compared, and are not drift.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from reconciler.desired.hash import NODE_CLASS_HASH_VERSION
from reconciler.model.decision.changes import FieldChange
from reconciler.model.decode import decode
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    NODECLASS_HASH,
    NODECLASS_HASH_VERSION,
    PLACEMENT_GROUP_ID,
    RESERVATION_ID,
    RESERVED,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass, EC2NodeClassSpec, EC2NodeClassStatus
from reconciler.model.karpenter.nodepool import requirements_of
from reconciler.placement.question import LaunchCatalog

NODE_CLASS_DRIFT: Final = "NodeClassDrift"
AMI_DRIFT: Final = "AMIDrift"
SECURITY_GROUP_DRIFT: Final = "SecurityGroupDrift"
SUBNET_DRIFT: Final = "SubnetDrift"
CAPACITY_RESERVATION_DRIFT: Final = "CapacityReservationDrift"
PLACEMENT_GROUP_DRIFT: Final = "PlacementGroupDrift"

_SELECTORS: Final = {
    "amis": ("ami_family", "ami_selector_terms"),
    "subnets": ("subnet_selector_terms",),
    "security_groups": ("security_group_selector_terms",),
    "capacity_reservations": ("capacity_reservation_selector_terms",),
}
"""Each part of the status of a node class, and the fields of its spec that it was looked up for."""


@dataclass(frozen=True, slots=True)
class LiveInstance:
    """EC2's description of the instance behind a NodeClaim; empty fields are unknown."""

    image_id: str = ""
    subnet_id: str = ""
    security_groups: frozenset[str] = frozenset()
    capacity_type: str = ""
    reservation_id: str = ""


@dataclass(frozen=True, slots=True)
class ClassState:
    """A node class, its hash, and the known instances by provider id."""

    node_class: EC2NodeClass
    hash: str | None = None
    instances: Mapping[str, LiveInstance] = field(default_factory=dict)


def selectors_of(node_class: EC2NodeClass) -> JsonDict:
    """Return the fields of a node class that its status was looked up for, as plain data."""
    names = [name for fields in _SELECTORS.values() for name in fields]
    spec: JsonDict = msgspec.to_builtins(node_class.spec)
    keys = {f.name: f.encode_name for f in msgspec.structs.fields(EC2NodeClassSpec)}
    return {keys[name]: spec[keys[name]] for name in names if keys[name] in spec}


def with_observed_status(
    classes: Iterable[EC2NodeClass], live: Iterable[JsonObject]
) -> dict[str, EC2NodeClass]:
    """Return node classes by name, with the status of the same class among observed objects.

    What a changed selector finds is not known, so that part of the status is left out. An object
    without a spec counts as equal. A class that has a status keeps it.
    """
    observed = {
        o["metadata"]["name"]: o
        for o in live
        if o.get("kind") == "EC2NodeClass" and o.get("status")
    }
    return {
        known.name: _with_status(known, observed[known.name])
        if known.name in observed and known.status == EC2NodeClassStatus()
        else known
        for known in classes
    }


def _with_status(node_class: EC2NodeClass, observed: JsonObject) -> EC2NodeClass:
    status = decode(observed["status"], EC2NodeClassStatus)
    if observed.get("spec"):
        spec = decode(observed["spec"], EC2NodeClassSpec)
        changed = {
            part: ()
            for part, names in _SELECTORS.items()
            if any(getattr(spec, name) != getattr(node_class.spec, name) for name in names)
        }
        status = msgspec.structs.replace(status, **changed)
    return msgspec.structs.replace(node_class, status=status)


@dataclass(frozen=True, slots=True)
class ClassDrift:
    """A difference; the hashes are set only if the hash of the class differs."""

    fields: tuple[FieldChange, ...] = ()
    recorded_hash: str | None = None
    desired_hash: str | None = None


def class_drift(
    claim: NodeClaim, facts: ClassState | None, types: LaunchCatalog
) -> dict[str, ClassDrift | None]:
    """Return each reason that could be checked, in the provider's order, None without drift."""
    if facts is None:
        return {}
    checks = {
        NODE_CLASS_DRIFT: _check_hash(claim, facts),
        AMI_DRIFT: _check_image(claim, facts, types),
        SECURITY_GROUP_DRIFT: _check_security_groups(claim, facts),
        SUBNET_DRIFT: _check_subnet(claim, facts),
        CAPACITY_RESERVATION_DRIFT: _check_reservation(claim, facts),
        PLACEMENT_GROUP_DRIFT: _check_placement_group(claim, facts),
    }
    return {reason: finding or None for reason, finding in checks.items() if finding is not None}


_Check = ClassDrift | Literal[False] | None
"""A drift, False without drift, None if it cannot be checked."""


def _check_hash(claim: NodeClaim, facts: ClassState) -> _Check:
    recorded = claim.metadata.annotations.get(NODECLASS_HASH)
    version = claim.metadata.annotations.get(NODECLASS_HASH_VERSION)
    if recorded is None or facts.hash is None or version != NODE_CLASS_HASH_VERSION:
        return None
    if recorded == facts.hash:
        return False
    return ClassDrift(recorded_hash=recorded, desired_hash=facts.hash)


def _check_image(claim: NodeClaim, facts: ClassState, types: LaunchCatalog) -> _Check:
    """Compare the image with the first of the class that suits the instance type."""
    images = facts.node_class.status.amis
    instance = facts.instances.get(claim.status.provider_id)
    running = (instance.image_id if instance else "") or claim.status.image_id
    kind = types.get(claim.metadata.labels.get(INSTANCE_TYPE, ""))
    if not images or not running or kind is None:
        return None
    for image in images:
        if kind.requirements.intersects(requirements_of(image.requirements)):
            return False if image.id == running else _field_drift("status.amis", running, image.id)
    return _field_drift("status.amis", running, None)


def _check_security_groups(claim: NodeClaim, facts: ClassState) -> _Check:
    instance = facts.instances.get(claim.status.provider_id)
    selected = frozenset(group.id for group in facts.node_class.status.security_groups)
    if instance is None or not instance.security_groups or not selected:
        return None
    if instance.security_groups == selected:
        return False
    return _field_drift("status.securityGroups", sorted(instance.security_groups), sorted(selected))


def _check_subnet(claim: NodeClaim, facts: ClassState) -> _Check:
    instance = facts.instances.get(claim.status.provider_id)
    subnets = [subnet.id for subnet in facts.node_class.status.subnets]
    if instance is None or not instance.subnet_id or not subnets:
        return None
    if instance.subnet_id in subnets:
        return False
    return _field_drift("status.subnets", instance.subnet_id, sorted(subnets))


def _check_reservation(claim: NodeClaim, facts: ClassState) -> _Check:
    """Check whether its reservation is still selected; one demoted to on-demand has none.

    EC2's description of the instance takes precedence over the claim's labels.
    """
    labels, instance = claim.metadata.labels, facts.instances.get(claim.status.provider_id)
    if labels.get(CAPACITY_TYPE) != RESERVED or RESERVATION_ID not in labels:
        return None
    if instance is not None and instance.capacity_type not in ("", RESERVED):
        return False
    running = (instance.reservation_id if instance else "") or labels[RESERVATION_ID]
    known = sorted(r.id for r in facts.node_class.status.capacity_reservations)
    if running in known:
        return False
    return _field_drift("status.capacityReservations", running, known)


def _check_placement_group(claim: NodeClaim, facts: ClassState) -> _Check:
    """Check whether the instance is in the placement group that its class selects now."""
    found = facts.node_class.status.placement_group
    running = claim.metadata.labels.get(PLACEMENT_GROUP_ID)
    if found is None or running is None:
        return None
    if running == found.id:
        return False
    return _field_drift("status.placementGroup", running, found.id)


def _field_drift(path: str, old: object, new: object) -> ClassDrift:
    return ClassDrift((FieldChange(path, old, new, drifts=True),))
