"""The life of a NodeClaim from launch to initialization, and when to give it up.

The conditions are Karpenter's (``pkg/controllers/nodeclaim/lifecycle``), so an operator reads
them as ever::

    (recorded) --Launched--> --Registered--> --Initialized--> (deleted) --> (gone)

Pure: what was recorded and what is observed go in, the claim as it now is comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from reconciler.model.instancetype import InstanceType
from reconciler.model.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.metadata import Condition
from reconciler.model.node import Node
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.resources import format_resources
from reconciler.ports import Instance

LAUNCHED: Final = "Launched"
REGISTERED: Final = "Registered"
INITIALIZED: Final = "Initialized"
CONSOLIDATABLE: Final = "Consolidatable"

REGISTRATION_TIMEOUT: Final = timedelta(minutes=15)
VANISHED_AFTER: Final = timedelta(seconds=30)
"""EC2 may not show an instance for a while after it was launched (eventual consistency)."""


def with_condition(
    claim: NodeClaim, kind: str, status: str, now: datetime, reason: str = "", message: str = ""
) -> NodeClaim:
    """Return the claim with that condition; its transition time moves only with its status."""
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
    """Return the claim without that condition."""
    if claim.condition(kind) is None:
        return claim
    kept = tuple(c for c in claim.status.conditions if c.type != kind)
    return replace(claim, status=replace(claim.status, conditions=kept))


def launched(
    claim: NodeClaim, instance: Instance, kind: InstanceType | None, now: datetime
) -> NodeClaim:
    """Return the claim as it is once EC2 has given it ``instance``.

    Its labels gain what the type fixes and what the offering decided; the claim's own labels
    win. ``kind`` is None where the catalogue no longer knows the type.
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
        capacity=_nonzero(kind.capacity) if kind is not None else {},
        allocatable=_nonzero(kind.allocatable) if kind is not None else {},
    )
    metadata = replace(claim.metadata, labels={**resolved, **claim.metadata.labels})
    grown = replace(claim, metadata=metadata, status=status)
    return with_condition(grown, LAUNCHED, "True", now)


def _nonzero(amounts: Mapping[str, int]) -> dict[str, str | int | float]:
    return dict(format_resources({name: amount for name, amount in amounts.items() if amount > 0}))


def seen(claim: NodeClaim, node: Node | None, now: datetime) -> NodeClaim:
    """Return the claim after a look at the cluster: registered, initialized or not yet.

    Once true, neither is taken back: a node that turns NotReady stays initialized.
    """
    if claim.is_deleting or not claim.is_true(LAUNCHED):
        return claim
    if node is None:
        if claim.is_true(REGISTERED):
            return claim
        return with_condition(claim, REGISTERED, "Unknown", now, "NodeNotFound", "no node yet")
    if not claim.is_true(REGISTERED):
        claim = with_condition(claim, REGISTERED, "True", now)
        claim = replace(claim, status=replace(claim.status, node_name=node.name))
    if claim.is_true(INITIALIZED):
        return claim
    obstacle = _obstacle(claim, node)
    if obstacle is None:
        return with_condition(claim, INITIALIZED, "True", now)
    reason, message = obstacle
    return with_condition(claim, INITIALIZED, "Unknown", now, reason, message)


def _obstacle(claim: NodeClaim, node: Node) -> tuple[str, str] | None:
    """Return why the node is not initialized yet."""
    if not node.is_ready:
        return "NodeNotReady", "the node is not ready"
    for taint in claim.spec.startup_taints:
        if any(taint.matches(t) for t in node.spec.taints):
            return "StartupTaintsExist", f"startup taint {taint} is still there"
    for taint in node.spec.taints:
        if taint.is_ephemeral:
            return "KnownEphemeralTaintsExist", f"taint {taint} is still there"
    return None


def consolidatable(claim: NodeClaim, after: timedelta | None, now: datetime) -> NodeClaim:
    """Return the claim with the Consolidatable condition that ``consolidateAfter`` gives it."""
    initialized = claim.condition(INITIALIZED)
    if after is None or initialized is None or initialized.status != "True":
        return without_condition(claim, CONSOLIDATABLE)
    since = claim.status.last_pod_event_time or initialized.last_transition_time
    if after > timedelta(0) and since is not None and now - since < after:
        return without_condition(claim, CONSOLIDATABLE)
    return with_condition(claim, CONSOLIDATABLE, "True", now)


def deleted(claim: NodeClaim, now: datetime) -> NodeClaim:
    """Return the claim on its way out; the first deletion time holds."""
    if claim.metadata.deletion_timestamp is not None:
        return claim
    return replace(claim, metadata=replace(claim.metadata, deletion_timestamp=now))


def drain_deadline(claim: NodeClaim) -> datetime | None:
    """Return when its pods are deleted even against their budgets; None means never."""
    grace, since = claim.termination_grace_period, claim.metadata.deletion_timestamp
    return None if grace is None or since is None else since + grace


def never_registered(claim: NodeClaim, now: datetime) -> bool:
    """Return whether its node has had its time to join the cluster and has not."""
    if claim.is_true(REGISTERED) or claim.is_deleting:
        return False
    since = claim.condition(LAUNCHED)
    if since is None or since.status != "True" or since.last_transition_time is None:
        return False
    return now - since.last_transition_time >= REGISTRATION_TIMEOUT


def vanished(claim: NodeClaim, instances: Iterable[Instance], now: datetime) -> bool:
    """Return whether the instance of a launched claim is gone.

    ``instances`` is everything EC2 shows. A claim younger than ``VANISHED_AFTER`` is given the
    benefit of the doubt.
    """
    if not claim.status.provider_id:
        return False
    if any(i.provider_id == claim.status.provider_id and not i.is_going for i in instances):
        return False
    since = claim.condition(LAUNCHED)
    moment = since.last_transition_time if since is not None else None
    return claim.is_deleting or moment is None or now - moment >= VANISHED_AFTER
