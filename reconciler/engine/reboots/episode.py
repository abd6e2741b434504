"""One reboot of a node, as its NodeClaim records it.

The conditions and annotations are Karpenter's (``pkg/controllers/nodeclaim/reboot``), so a takeover
continues a reboot that Karpenter has begun::

    Rebooting=True/RebootRequested --> True/RebootIssued --> False/RebootSucceeded
                    '-----------------------'--> False/RebootFailed, and the NodeClaim is deleted

Karpenter keeps in memory when it first called EC2. Here the condition ``RebootAttempted`` has that,
so that a restart of the process does not extend the deadline. Pure functions: from a recorded claim
to the updated one.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from msgspec.structs import replace

from reconciler.disruption.methods.reboot import REBOOT_TIMES, recent_reboots
from reconciler.engine.steps.lifecycle import INITIALIZED, with_condition, without_condition
from reconciler.model.duration import format_duration, parse_duration
from reconciler.model.karpenter.labels import REBOOT_BOOT_ID, REBOOT_DRAIN_LIMIT
from reconciler.model.karpenter.nodeclaim import REBOOTING, NodeClaim
from reconciler.model.text.times import timestamp

REQUESTED: Final = "RebootRequested"
ISSUED: Final = "RebootIssued"
SUCCEEDED: Final = "RebootSucceeded"
FAILED: Final = "RebootFailed"
ATTEMPTED: Final = "RebootAttempted"
"""The condition since the first call of EC2; its message is the time of the last one."""

DRAIN_MIN: Final = timedelta(seconds=5)
"""How long a drain takes at least, so that a pod bound just before the taint is seen."""
ACCEPTED_WITHIN: Final = timedelta(minutes=5)
"""How long EC2 may take to accept the call, from the first one."""
BACK_WITHIN: Final = timedelta(minutes=20)
"""How long the node may take to become ready after EC2 accepted the call."""
REPEATED_AFTER: Final = timedelta(minutes=2)
"""How long a call with an unknown outcome is not repeated.

A node that reboots is not ready before that, and a second call would interrupt its boot.
"""


def request(claim: NodeClaim, now: datetime, drain_limit: timedelta | None, why: str) -> NodeClaim:
    """Return the claim with the request to reboot its node; it counts for the history at once."""
    times = (*recent_reboots(claim, now), now)
    claim = without_condition(without_condition(claim, REBOOTING), REBOOT_TIMES)
    limit = {} if drain_limit is None else {REBOOT_DRAIN_LIMIT: format_duration(drain_limit)}
    claim = _with_annotations(_without_episode(claim), limit)
    claim = with_condition(claim, REBOOTING, "True", now, REQUESTED, why)
    listed = " ".join(at.isoformat() for at in times)
    return with_condition(claim, REBOOT_TIMES, "True", now, REBOOT_TIMES, listed)


def attempt(claim: NodeClaim, boot_id: str, now: datetime) -> NodeClaim:
    """Return the claim just before a call of EC2; ``boot_id`` is the boot that it is to end."""
    claim = _with_annotations(claim, {REBOOT_BOOT_ID: boot_id})
    return with_condition(claim, ATTEMPTED, "True", now, ATTEMPTED, timestamp(now))


def issue(claim: NodeClaim, now: datetime) -> NodeClaim:
    """Return the claim after EC2 has accepted the call, or the node has shown its effect.

    Initialization belongs to a boot, so it starts again.
    """
    known = claim.condition(REBOOTING)
    message = known.message if known is not None else ""
    claim = with_condition(claim, REBOOTING, "True", now, ISSUED, message)
    text = "the node is rebooting"
    return with_condition(claim, INITIALIZED, "Unknown", now, REBOOTING, text)


def succeed(claim: NodeClaim, now: datetime) -> NodeClaim:
    """Return the claim whose node is ready after another boot."""
    text = "the node has rebooted and is ready"
    return with_condition(_without_episode(claim), REBOOTING, "False", now, SUCCEEDED, text)


def fail(claim: NodeClaim, now: datetime, why: str) -> NodeClaim:
    """Return the claim whose reboot has failed."""
    return with_condition(_without_episode(claim), REBOOTING, "False", now, FAILED, why)


def requested_at(claim: NodeClaim) -> datetime | None:
    """Return when the reboot was requested, None if there is none in progress."""
    return _since(claim, REBOOTING)


def issued_at(claim: NodeClaim) -> datetime | None:
    """Return when EC2 accepted the reboot in progress, None before that."""
    return _since(claim, INITIALIZED, "Unknown") if is_issued(claim) else None


def is_requested(claim: NodeClaim) -> bool:
    """Return whether EC2 has been called for the reboot in progress."""
    return claim.is_rebooting and _since(claim, ATTEMPTED) is not None


def is_issued(claim: NodeClaim) -> bool:
    """Return whether EC2 has accepted the reboot in progress."""
    known = claim.condition(REBOOTING)
    return claim.is_rebooting and known is not None and known.reason == ISSUED


def boot_to_end(claim: NodeClaim) -> str:
    """Return the boot that the reboot is to end, empty before the first call."""
    return claim.metadata.annotations.get(REBOOT_BOOT_ID, "")


def last_call(claim: NodeClaim) -> datetime | None:
    """Return when EC2 was last called, None before the first call."""
    known = claim.condition(ATTEMPTED)
    return datetime.fromisoformat(known.message) if known is not None else None


def drain_limit(claim: NodeClaim) -> timedelta | None:
    """Return how long the drain may take, None without a limit.

    Raises:
        ValueError: the annotation is not a duration, or is negative.
    """
    text = claim.metadata.annotations.get(REBOOT_DRAIN_LIMIT)
    limit = None if text is None else parse_duration(text)
    if limit is not None and limit < timedelta(0):
        raise ValueError(f"{REBOOT_DRAIN_LIMIT} is negative: {text}")
    return limit


def deadline(claim: NodeClaim, *, has_node: bool) -> tuple[datetime, str] | None:
    """Return when the present step has failed, and how; None for a drain without a limit."""
    if is_issued(claim):
        since = issued_at(claim) or requested_at(claim)
        text = f"the node was not ready within {format_duration(BACK_WITHIN)} of the reboot"
        return None if since is None else (since + BACK_WITHIN, text)
    since = (
        _since(claim, ATTEMPTED) if has_node else _since(claim, ATTEMPTED) or requested_at(claim)
    )
    text = f"EC2 did not accept the reboot within {format_duration(ACCEPTED_WITHIN)}"
    return None if since is None else (since + ACCEPTED_WITHIN, text)


def next_moment(claim: NodeClaim) -> datetime | None:
    """Return when the reboot in progress needs a pass although its node has not changed."""
    since, called = requested_at(claim), last_call(claim)
    if since is None or not claim.is_rebooting:
        return None
    limit = deadline(claim, has_node=True)
    if limit is not None:
        again = None if called is None or is_issued(claim) else called + REPEATED_AFTER
        return min(at for at in (limit[0], again) if at is not None)
    try:
        return since + max(drain_limit(claim) or timedelta(0), DRAIN_MIN)
    except ValueError:
        return since


def _since(claim: NodeClaim, kind: str, status: str = "True") -> datetime | None:
    known = claim.condition(kind)
    return known.last_transition_time if known is not None and known.status == status else None


def _without_episode(claim: NodeClaim) -> NodeClaim:
    dropped = (REBOOT_BOOT_ID, REBOOT_DRAIN_LIMIT)
    kept = {k: v for k, v in claim.metadata.annotations.items() if k not in dropped}
    claim = replace(claim, metadata=replace(claim.metadata, annotations=kept))
    return without_condition(claim, ATTEMPTED)


def _with_annotations(claim: NodeClaim, more: dict[str, str]) -> NodeClaim:
    annotations = {**claim.metadata.annotations, **more}
    return replace(claim, metadata=replace(claim.metadata, annotations=annotations))
