"""Interruption events of EC2, and what they mean for NodeClaims.

An event marks the claim in our records. The planner reads the mark and decides
(``disruption/methods/forceful.py``), in this pass and in every later one. The message is deleted
after that: a process that dies in between receives it again. An existing mark is left unchanged, so
a message that is received twice has the effect of one (aws reference 5.2).

Anyone with access to the queue can write to it, so an event is ignored if EC2 contradicts it: a
spot warning about an instance that is not spot, a state that the instance does not have, an event
from before its launch or from long ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.command import ForcefulReason
from reconciler.engine.observation import Observation, marked_claims
from reconciler.engine.ownership import CLOCKS_APART
from reconciler.engine.steps import lifecycle
from reconciler.engine.steps.lifecycle import INTERRUPTED
from reconciler.engine.steps.provision import mark_unavailable
from reconciler.engine.world import World
from reconciler.model.errors import LeaseLostError, ReconcilerError
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    NODECLAIM,
    RESERVATION_ID,
    RESERVED,
    SPOT,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.text.times import timestamp
from reconciler.ports.cloud import Instance, Interruption, InterruptionKind, Refusal
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase

_URGENCY: Final = tuple(reversed(InterruptionKind))
"""The kinds, least urgent first: only a more urgent kind replaces a mark."""

CAPACITY_BLOCK: Final = "capacity-block"
BLOCK_NOTICE: Final = timedelta(minutes=40)
"""How long before the end of a capacity block its nodes are drained."""

_STALE_AFTER: Final = {
    InterruptionKind.SPOT_INTERRUPTION: timedelta(minutes=15),
    InterruptionKind.RESERVATION_INTERRUPTION: timedelta(minutes=15),
    InterruptionKind.REBALANCE_RECOMMENDATION: timedelta(hours=1),
}
"""The maximum age of an event: EC2 reclaims an instance minutes after announcing it."""

_STATES: Final = {
    InterruptionKind.TERMINATED: ("shutting-down", "terminated"),
    InterruptionKind.STOPPED: ("stopping", "stopped", "shutting-down", "terminated"),
}
"""The states in which an instance can be if the event is true."""

_LOST_CAPACITY: Final = {
    InterruptionKind.SPOT_INTERRUPTION: SPOT,
    InterruptionKind.RESERVATION_INTERRUPTION: RESERVED,
}
"""Kinds that mean that the offering has no capacity, with its capacity type."""


_WHILE_DRAINING: Final = (
    InterruptionKind.SPOT_INTERRUPTION,
    InterruptionKind.RESERVATION_INTERRUPTION,
    InterruptionKind.IMPAIRED,
)
"""Kinds that matter while the node is being drained: they end its capacity, or its drain."""


def acknowledge(world: World, seen: Observation, *, replaces_rebalanced: bool) -> None:
    """Mark the claims that events of EC2 are about, then acknowledge the events.

    A rebalance recommendation is reported, and marks a claim only with ``replaces_rebalanced``. An
    event about an instance without a claim has no effect. While a claim is being deleted, only
    those have one that say that capacity is lost, or that the instance does not end its pods.
    """
    received = world.interruptions.pending_events()
    if not received:
        return
    marked: dict[str, NodeClaim] = {}
    refusals: list[Refusal] = []
    for event, known in _credible_events(world, received, seen):
        claim = marked.get(known.name, known)
        if event.kind is InterruptionKind.REBALANCE_RECOMMENDATION and not replaces_rebalanced:
            _notify(world, event, claim)
            continue
        fresh = _mark_interrupted(claim, event)
        if fresh is not None:
            marked[claim.name] = fresh
            refusals += _lost_offerings(fresh, event)
            _notify(world, event, claim)
    if refusals:
        mark_unavailable(world, refusals)
    if marked:
        world.store.put_node_claims(_delete_if_replacing(marked, seen))
    world.interruptions.acknowledge(received)


def _credible_events(
    world: World, received: Sequence[Interruption], seen: Observation
) -> Iterator[tuple[Interruption, NodeClaim]]:
    """Yield the events that EC2 does not contradict, with the claims that they are about.

    An ignored event is reported once for each claim.
    """
    claims = _claims_by_instance(seen)
    instances = _instances_of_events(world, received, claims, seen)
    ignored: set[tuple[str, str]] = set()
    for event in received:
        for identity in event.instances:
            claim = claims.get(identity)
            if claim is None or (claim.is_deleting and event.kind not in _WHILE_DRAINING):
                continue
            objection = _contradiction(event, claim, instances.get(identity), seen.at)
            if not objection:
                yield event, claim
            elif (claim.name, objection) not in ignored:
                ignored.add((claim.name, objection))
                message = f"ignored {event.text} for {identity}: {objection}"
                world.notify(
                    EventKind.IGNORED, message, node_claim=claim.name, node_pool=claim.node_pool
                )


def claim_to_vacate(event: Interruption, identity: str, seen: Observation) -> NodeClaim | None:
    """Return the claim of an instance whose node is to be vacated because of an event.

    None if no joined node of ours is concerned, if its termination has begun, or if the last
    observation contradicts the event.
    """
    claim = _claims_by_instance(seen).get(identity)
    if claim is None or claim.is_deleting or not claim.status.node_name:
        return None
    instance = seen.instance_of(claim)
    if instance is None or not seen.owner.owns(instance.tags) or claim.name in seen.disputed:
        return None
    return None if _contradiction(event, claim, instance, seen.at) else claim


def _instances_of_events(
    world: World,
    received: Iterable[Interruption],
    claims: Mapping[str, NodeClaim],
    seen: Observation,
) -> Mapping[str, Instance]:
    """Return the instances of our claims that events are about.

    Those whose state matters are described again: the event may be newer than the observation.
    """
    instances = {instance.id: instance for instance in seen.instances}
    ids = {i for w in received if w.kind in _STATES for i in w.instances if i in claims}
    try:
        again = world.compute.look_up(sorted(ids)) if ids else ()
    except LeaseLostError:
        raise
    except ReconcilerError as error:
        world.notify(EventKind.RETRYING, str(error))
        return instances
    return instances | {instance.id: instance for instance in again}


def _contradiction(
    event: Interruption, claim: NodeClaim, instance: Instance | None, at: datetime
) -> str:
    """Return how EC2 contradicts an event, empty if it does not."""
    limit = _STALE_AFTER.get(event.kind)
    if limit is not None and at - event.at > limit:
        return f"the event from {timestamp(event.at)} is too old"
    if instance is None:
        return ""
    if event.at < instance.launched_at - CLOCKS_APART:
        return f"the event from {timestamp(event.at)} predates the launch of the instance"
    if event.kind is InterruptionKind.SPOT_INTERRUPTION and instance.capacity_type != SPOT:
        return f"the instance is {instance.capacity_type}, not spot"
    is_reserved = claim.metadata.labels.get(CAPACITY_TYPE) == RESERVED or instance.reservation_id
    if event.kind is InterruptionKind.RESERVATION_INTERRUPTION and not is_reserved:
        return "the instance has no capacity reservation"
    states = _STATES.get(event.kind)
    if states is not None and instance.state not in states:
        return f"EC2 reports the instance as {instance.state}"
    return ""


def interrupted_claims(claims: Iterable[NodeClaim]) -> dict[str, str]:
    """Return the claims that EC2 reclaims, each with the event that announces it."""
    found = {}
    for claim in claims:
        mark = claim.condition(INTERRUPTED)
        if mark is not None and mark.status == "True" and not claim.is_deleting:
            found[claim.name] = mark.message
    return found


def claims_in_ending_blocks(
    claims: Iterable[NodeClaim], classes: Mapping[str, EC2NodeClass], now: datetime
) -> dict[str, str]:
    """Return the claims in a capacity block that is about to end, each with a description.

    EC2 reclaims the instances half an hour before the end; ten minutes are left to drain
    (aws reference 5.8).
    """
    found = {}
    for claim in claims:
        labels = claim.metadata.labels
        node_class = classes.get(claim.spec.node_class_ref.name)
        if node_class is None or labels.get(CAPACITY_TYPE) != RESERVED or claim.is_deleting:
            continue
        for block in node_class.status.capacity_reservations:
            if block.id != labels.get(RESERVATION_ID) or block.reservation_type != CAPACITY_BLOCK:
                continue
            end = block.end_time
            if end is not None and now >= end - BLOCK_NOTICE:
                found[claim.name] = f"end of capacity block {block.id} at {timestamp(end)}"
    return found


def _claims_by_instance(seen: Observation) -> Mapping[str, NodeClaim]:
    """Return the claims by the id of their instance, including claims that have no id yet.

    The tag that names the claim counts only until the claim has an instance, because it can be
    copied.
    """
    names = {claim.name: claim for claim in seen.claims if not claim.status.provider_id}
    found = {
        instance.id: names[name]
        for instance in seen.instances
        if (name := instance.tags.get(NODECLAIM, "")) in names
    }
    found |= {lifecycle.instance_id(c): c for c in seen.claims if c.status.provider_id}
    return found


def _mark_interrupted(claim: NodeClaim, event: Interruption) -> NodeClaim | None:
    """Return the claim with its mark, None if it already has one that is as urgent."""
    known = claim.condition(INTERRUPTED)
    if known is not None and known.reason in _URGENCY:
        before = _URGENCY.index(InterruptionKind(known.reason))
        if before >= _URGENCY.index(event.kind):
            return None
    message = f"{event.text} at {timestamp(event.at)}"
    return lifecycle.with_condition(claim, INTERRUPTED, "True", event.at, event.kind, message)


def _lost_offerings(claim: NodeClaim, event: Interruption) -> list[Refusal]:
    """Return the offering that has no capacity according to the event, if any."""
    capacity_type, labels = _LOST_CAPACITY.get(event.kind), claim.metadata.labels
    if capacity_type is None or labels.get(CAPACITY_TYPE) != capacity_type:
        return []
    kind, zone = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, "")
    if not kind or not zone:
        return []
    reservation = labels.get(RESERVATION_ID, "") if capacity_type == RESERVED else ""
    return [Refusal(kind, zone, capacity_type, event.kind, event.text, reservation)]


def _delete_if_replacing(marked: Mapping[str, NodeClaim], seen: Observation) -> list[NodeClaim]:
    """Return the claims as recorded; those that a command is replacing are deleted at once.

    The planner skips them, and EC2 does not wait until a replacement is ready. While the owner of
    some instance is unclear nothing is planned, so all of them are deleted at once.
    """
    waiting = (CommandPhase.MARKED, CommandPhase.WAITING)
    replacing = marked_claims(c for c in seen.commands if c.phase in waiting)
    if seen.unclear_owners:
        replacing |= {c.name for c in marked.values() if not _is_recommendation(c)}
    return [_delete_interrupted(c, seen) if c.name in replacing else c for c in marked.values()]


def _is_recommendation(claim: NodeClaim) -> bool:
    mark = claim.condition(INTERRUPTED)
    return mark is not None and mark.reason == InterruptionKind.REBALANCE_RECOMMENDATION


def _delete_interrupted(claim: NodeClaim, seen: Observation) -> NodeClaim:
    mark = claim.condition(INTERRUPTED)
    assert mark is not None
    reason = ForcefulReason.INTERRUPTED.value
    return lifecycle.delete_with_reason(claim, seen.at, reason, mark.message)


def _notify(world: World, event: Interruption, claim: NodeClaim) -> None:
    kind = event.kind.value
    is_advice = event.kind is InterruptionKind.REBALANCE_RECOMMENDATION
    node = claim.node_or_claim_name
    world.notify(
        EventKind.REBALANCE_RECOMMENDED if is_advice else EventKind.INTERRUPTED,
        f"{node}: {event.text}",
        node_claim=claim.name,
        node_pool=claim.node_pool,
        reason=kind,
    )
