"""The life cycle of a NodeClaim from launch to initialization, and its timeouts.

The conditions are Karpenter's (``pkg/controllers/nodeclaim/lifecycle``)::

    (recorded) --Launched--> --Registered--> --Initialized--> (deleted) --> (gone)

Pure functions: from the recorded claim and the observation to the updated claim.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.gates.consolidatable import LEFT_OVER
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    ON_DEMAND,
    REQUESTED_DRIVERS,
    RESERVATION_ID,
    RESERVATION_TYPE,
    RESERVED,
    TENANCY,
    TERMINATION_TIMESTAMP,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import DISRUPTION_REASON, NodeClaim
from reconciler.model.kubernetes.devices import ResourceSlice
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.resources import format_resources, parse_resources
from reconciler.model.text.times import timestamp
from reconciler.ports.cloud import Instance, InterruptionKind

LAUNCHED: Final = "Launched"
REGISTERED: Final = "Registered"
INITIALIZED: Final = "Initialized"
CONSOLIDATABLE: Final = "Consolidatable"
INTERRUPTED: Final = "Interrupted"
"""The condition of a claim whose instance EC2 reclaims; its reason is the kind of the event."""

PODS_SEEN: Final = "PodsSeen"
"""The condition of a claim whose reason is the digest of the pods last seen on its node."""

_NO_PODS: Final = sha256(b"").hexdigest()[:16]

REGISTRATION_TIMEOUT: Final = timedelta(minutes=15)
VANISHED_AFTER: Final = timedelta(seconds=30)
"""How long EC2's list may lack an existing instance, because the list lags."""

MISSING: Final = "InstanceMissing"
TERMINATING: Final = "InstanceTerminating"
_LAUNCHING: Final = "Launching"


def with_condition(
    claim: NodeClaim, kind: str, status: str, now: datetime, reason: str = "", message: str = ""
) -> NodeClaim:
    """Return the claim with the condition; the transition time changes only with the status."""
    known = claim.condition(kind)
    if known is not None and known.status == status:
        if (known.reason, known.message) == (reason or kind, message):
            return claim
        since = known.last_transition_time
    else:
        since = now
    fresh = Condition(kind, status, reason or kind, message, since)
    others = tuple(c for c in claim.status.conditions if c.type != kind)
    return replace(claim, status=replace(claim.status, conditions=(*others, fresh)))


def without_condition(claim: NodeClaim, kind: str) -> NodeClaim:
    """Return the claim without the condition."""
    if claim.condition(kind) is None:
        return claim
    kept = tuple(c for c in claim.status.conditions if c.type != kind)
    return replace(claim, status=replace(claim.status, conditions=kept))


def mark_launched(
    claim: NodeClaim, instance: Instance, kind: InstanceType | None, now: datetime
) -> NodeClaim:
    """Return the claim after EC2 has launched ``instance`` for it.

    It gets the labels of the type and the offering; its own labels take precedence. ``kind`` is
    None if the catalog no longer has the type.
    """
    resolved = {
        **(kind.requirements.fixed_labels() if kind is not None else {}),
        INSTANCE_TYPE: instance.instance_type,
        ZONE: instance.zone,
        CAPACITY_TYPE: instance.capacity_type,
    }
    status = replace(
        claim.status,
        provider_id=instance.provider_id,
        image_id=instance.image_id,
        capacity=_nonzero_resources(kind.capacity) if kind is not None else {},
        allocatable=_nonzero_resources(kind.allocatable) if kind is not None else {},
    )
    metadata = replace(claim.metadata, labels={**resolved, **claim.metadata.labels})
    grown = replace(claim, metadata=metadata, status=status)
    return with_condition(grown, LAUNCHED, "True", now)


def _nonzero_resources(amounts: Mapping[str, int]) -> dict[str, str | int | float]:
    return dict(format_resources({name: amount for name, amount in amounts.items() if amount > 0}))


def missing_driver(claim: NodeClaim, slices: Iterable[ResourceSlice], node: str) -> str:
    """Return a driver whose devices pods of the claim wait for, empty if all are published.

    A driver has published its devices once all slices of a pool are there (Karpenter
    ``nodeclaim/lifecycle/initialization.go``).
    """
    wanted = claim.metadata.annotations.get(REQUESTED_DRIVERS, "")
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    published = _published_drivers(slices, node) if names else set[str]()
    return next((name for name in names if name not in published), "")


def _published_drivers(slices: Iterable[ResourceSlice], node: str) -> set[str]:
    """Return the drivers with a pool on a node whose newest generation is complete."""
    counts: dict[tuple[str, str, int], tuple[int, int]] = {}
    for item in slices:
        if node in (item.spec.node_name, item.owner_node):
            pool = item.spec.pool
            key = item.spec.driver, pool.name, -pool.generation
            counts[key] = (counts.get(key, (0, 0))[0] + 1, pool.resource_slice_count)
    newest: dict[tuple[str, str], bool] = {}
    for (driver, pool_name, _), (seen, expected) in sorted(counts.items()):
        newest.setdefault((driver, pool_name), seen == expected)
    return {driver for (driver, _), is_complete in newest.items() if is_complete}


def with_node(claim: NodeClaim, node: Node | None, now: datetime, missing: str = "") -> NodeClaim:
    """Return the claim updated from its Node: registered, initialized or not yet.

    ``missing`` is a driver that has not published its devices. Both conditions stay true: a node
    that becomes NotReady stays initialized. Only a reboot ends that, and a node that has not booted
    again would seem to be initialized.
    """
    if claim.is_deleting or claim.is_rebooting or not claim.is_true(LAUNCHED):
        return claim
    if node is None:
        if claim.is_true(REGISTERED):
            return claim
        return with_condition(
            claim, REGISTERED, "Unknown", now, "NodeNotFound", "no node has joined yet"
        )
    if not claim.is_true(REGISTERED):
        claim = with_condition(claim, REGISTERED, "True", now)
        claim = replace(claim, status=replace(claim.status, node_name=node.name))
    if claim.is_true(INITIALIZED):
        return claim
    obstacle = _initialization_obstacle(claim, node, missing)
    if obstacle is None:
        return with_condition(claim, INITIALIZED, "True", now)
    reason, message = obstacle
    return with_condition(claim, INITIALIZED, "Unknown", now, reason, message)


def _initialization_obstacle(claim: NodeClaim, node: Node, missing: str) -> tuple[str, str] | None:
    """Return why the node is not initialized yet."""
    if not node.is_ready:
        return "NodeNotReady", "the node is not ready"
    for taint in claim.spec.startup_taints:
        if any(taint.matches(t) for t in node.spec.taints):
            return "StartupTaintsExist", f"startup taint {taint} is still present"
    for taint in node.spec.taints:
        if taint.is_ephemeral:
            return "KnownEphemeralTaintsExist", f"taint {taint} is still present"
    registered = parse_resources(node.status.allocatable)
    for name, amount in sorted(parse_resources(claim.spec.resources.requests).items()):
        if amount > 0 and registered.get(name, 0) <= 0:
            return "ResourceNotRegistered", f"resource {name} is not registered yet"
    if missing:
        return "DRADriversNotPublished", f"driver {missing} has not published its devices yet"
    return None


def with_consolidatable(claim: NodeClaim, after: timedelta | None, now: datetime) -> NodeClaim:
    """Return the claim with the Consolidatable condition according to ``consolidateAfter``."""
    initialized = claim.condition(INITIALIZED)
    if after is None or initialized is None or initialized.status != "True":
        return without_condition(claim, CONSOLIDATABLE)
    since = claim.status.last_pod_event_time or initialized.last_transition_time
    if after > timedelta(0) and since is not None and now - since < after:
        return without_condition(claim, CONSOLIDATABLE)
    return with_condition(claim, CONSOLIDATABLE, "True", now)


def mark_deleted(claim: NodeClaim, now: datetime) -> NodeClaim:
    """Return the claim as deleted; an earlier deletion time is kept."""
    if claim.metadata.deletion_timestamp is not None:
        return claim
    return replace(claim, metadata=replace(claim.metadata, deletion_timestamp=now))


def delete_with_reason(claim: NodeClaim, now: datetime, reason: str, message: str) -> NodeClaim:
    """Return the claim as deleted, with the reason for its termination."""
    gone = mark_deleted(claim, now)
    return with_condition(gone, DISRUPTION_REASON, "True", now, reason, message)


def drain_deadline(claim: NodeClaim) -> datetime | None:
    """Return when its pods are deleted regardless of PodDisruptionBudgets; None means never.

    Repair may set an earlier time than the claim's own termination grace period. An instance whose
    status checks fail does not terminate its pods properly. They are deleted at once so that others
    can replace them (aws reference 5.2).
    """
    grace, since = claim.termination_grace_period, claim.metadata.deletion_timestamp
    mark = claim.condition(INTERRUPTED)
    if mark is not None and mark.reason == InterruptionKind.IMPAIRED:
        return since
    own = None if grace is None or since is None else since + grace
    limits = [t for t in (own, _termination_timestamp(claim)) if t is not None]
    return min(limits, default=None)


def _termination_timestamp(claim: NodeClaim) -> datetime | None:
    """Return the deadline of a claim's annotation, None without one that is a time."""
    try:
        at = datetime.fromisoformat(claim.metadata.annotations.get(TERMINATION_TIMESTAMP, ""))
    except ValueError:
        return None
    return at if at.tzinfo is not None else None


def with_drain_deadline(claim: NodeClaim, deadline: datetime) -> NodeClaim:
    """Return the claim with a deadline for its drain, unless it has an earlier one."""
    known = _termination_timestamp(claim)
    if known is not None and known <= deadline:
        return claim
    annotations = {**claim.metadata.annotations, TERMINATION_TIMESTAMP: timestamp(deadline)}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))


def is_registration_overdue(claim: NodeClaim, now: datetime) -> bool:
    """Return whether its node has failed to join the cluster in time."""
    if claim.is_true(REGISTERED) or claim.is_deleting:
        return False
    since = claim.condition(LAUNCHED)
    if since is None or since.status != "True" or since.last_transition_time is None:
        return False
    return now - since.last_transition_time >= REGISTRATION_TIMEOUT


def instance_id(claim: NodeClaim) -> str:
    """Return the id of the claim's instance, empty before the launch.

    The id alone identifies the instance: zone and type in the answer of the launch may be wrong,
    and EC2's list corrects them.
    """
    return claim.status.provider_id.rpartition("/")[2]


def with_instance(claim: NodeClaim, instance: Instance | None, now: datetime) -> NodeClaim:
    """Return the claim updated from its instance, None if EC2 does not list it."""
    if not claim.status.provider_id:
        return claim
    if instance is None:
        return with_condition(claim, MISSING, "True", now, MISSING, "EC2 does not list it")
    claim = without_condition(claim, MISSING)
    labels = _actual_labels(claim, instance)
    if labels == claim.metadata.labels and claim.status.provider_id == instance.provider_id:
        return claim
    status = replace(claim.status, provider_id=instance.provider_id)
    return replace(claim, metadata=replace(claim.metadata, labels=labels), status=status)


def _actual_labels(claim: NodeClaim, instance: Instance) -> dict[str, str]:
    """Return the claim's labels corrected from its instance.

    An instance whose reservation ended continues as on-demand, and loses the labels of the
    reservation (aws reference 5.8).
    """
    labels = dict(claim.metadata.labels)
    if claim.status.provider_id != instance.provider_id:
        labels |= {INSTANCE_TYPE: instance.instance_type, ZONE: instance.zone}
    if instance.tenancy:
        labels[TENANCY] = instance.tenancy
    if (labels.get(CAPACITY_TYPE), instance.capacity_type) == (RESERVED, ON_DEMAND):
        labels[CAPACITY_TYPE] = ON_DEMAND
        labels.pop(RESERVATION_ID, None)
        labels.pop(RESERVATION_TYPE, None)
    return labels


def is_gone(claim: NodeClaim, instance: Instance | None, listed_at: datetime) -> bool:
    """Return whether the instance of a launched claim is gone, by a list begun at ``listed_at``.

    That is so if EC2 reports it as terminated, accepted our call to terminate it, or has not listed
    it for longer than its list may lag. A single list without the instance proves nothing.
    """
    if not claim.status.provider_id:
        return False
    if instance is not None:
        return instance.state == "terminated"
    if claim.is_true(TERMINATING) and _has_lasted(claim, LAUNCHED, listed_at):
        return True
    return _has_lasted(claim, MISSING, listed_at)


def _has_lasted(claim: NodeClaim, kind: str, now: datetime) -> bool:
    """Return whether a condition has been True for at least ``VANISHED_AFTER``."""
    since = claim.condition(kind)
    if since is None or since.status != "True":
        return False
    return since.last_transition_time is None or now - since.last_transition_time >= VANISHED_AFTER


def mark_launching(claim: NodeClaim, now: datetime) -> NodeClaim:
    """Return the claim as it is recorded just before its launch is requested."""
    return with_condition(
        without_condition(claim, LAUNCHED),
        LAUNCHED,
        "Unknown",
        now,
        _LAUNCHING,
        "checking with EC2",
    )


def launch_requested_at(claim: NodeClaim) -> datetime | None:
    """Return when the launch of a claim without an instance was last requested."""
    known = claim.condition(LAUNCHED)
    return known.last_transition_time if known is not None else None


def had_pods(claim: NodeClaim) -> bool:
    """Return whether a pod other than a DaemonSet's was ever observed on the node."""
    return claim.condition(PODS_SEEN) is not None


def pods_digest(pods: Iterable[str]) -> str:
    """Return a digest of the pods on a node (``namespace/name``)."""
    return sha256("\n".join(sorted(pods)).encode()).hexdigest()[:16]


def with_pods(claim: NodeClaim, pods: Iterable[str], now: datetime) -> NodeClaim:
    """Return the claim updated from the pods on its node (``namespace/name``, no DaemonSets).

    ``consolidateAfter`` counts from the last time at which these pods changed.
    """
    digest = pods_digest(pods)
    known = claim.condition(PODS_SEEN)
    if (known.reason if known is not None else _NO_PODS) == digest:
        return claim
    seen_now = without_condition(with_condition(claim, PODS_SEEN, "True", now, digest), LEFT_OVER)
    return replace(seen_now, status=replace(seen_now.status, last_pod_event_time=now))
