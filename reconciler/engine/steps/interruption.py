"""EC2 says that instances go: what becomes of their NodeClaims.

A word is taken over by marking the claim in our records; the planner reads the mark and decides
(``disruption/methods/forceful.py``), in this pass and in every later one. Only then is the message
deleted: a process that dies in between receives it again, and an existing mark is left as it is, so
that a message received twice has the effect of one (aws reference 5.2).

A queue takes what anybody puts there who is allowed to, so a word is not believed against what EC2
itself shows: a spot warning about an instance that is not spot, a state that the instance does not
have, an event from before its launch or from long ago.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
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
from reconciler.ports.cloud import Instance, Interruption, InterruptionKind, Refusal
from reconciler.ports.progress import EventKind
from reconciler.ports.state import CommandPhase

_URGENCY: Final = tuple(reversed(InterruptionKind))
"""The kinds, the least pressing first: a mark gives way only to a more pressing one."""

CAPACITY_BLOCK: Final = "capacity-block"
BLOCK_NOTICE: Final = timedelta(minutes=40)
"""How long before the end of a capacity block its nodes are drained."""

_STALE_AFTER: Final = {
    InterruptionKind.SPOT_INTERRUPTION: timedelta(minutes=15),
    InterruptionKind.RESERVATION_INTERRUPTION: timedelta(minutes=15),
    InterruptionKind.REBALANCE_RECOMMENDATION: timedelta(hours=1),
}
"""How old a word may be: EC2 takes an instance back minutes after it has said so."""

_STATES: Final = {
    InterruptionKind.TERMINATED: ("shutting-down", "terminated"),
    InterruptionKind.STOPPED: ("stopping", "stopped", "shutting-down", "terminated"),
}
"""The states that EC2 shows where a word is true."""

_LOST_CAPACITY: Final = {
    InterruptionKind.SPOT_INTERRUPTION: SPOT,
    InterruptionKind.RESERVATION_INTERRUPTION: RESERVED,
}
"""Kinds that say that the offering has no capacity, by its capacity type."""


def acknowledge(world: World, seen: Observation, *, replaces_rebalanced: bool) -> None:
    """Mark the claims that words of EC2 are about, and settle the words.

    A recommendation to rebalance is told, and marks only where ``replaces_rebalanced``. A word
    about an instance that no claim has, or whose claim is on its way out, asks for nothing.
    """
    heard = world.interruptions.arrived()
    if not heard:
        return
    marked: dict[str, NodeClaim] = {}
    lost: list[Refusal] = []
    for word, known in _believed(world, heard, seen):
        claim = marked.get(known.name, known)
        if word.kind is InterruptionKind.REBALANCE_RECOMMENDATION and not replaces_rebalanced:
            _notify(world, word, claim)
            continue
        fresh = _marked(claim, word)
        if fresh is not None:
            marked[claim.name] = fresh
            lost += _lost(fresh, word)
            _notify(world, word, claim)
    if lost:
        mark_unavailable(world, lost)
    if marked:
        world.store.put_node_claims(_let_go(marked, seen))
    world.interruptions.settle(heard)


def _believed(
    world: World, heard: Sequence[Interruption], seen: Observation
) -> Iterator[tuple[Interruption, NodeClaim]]:
    """Yield the words with the claims that they are about, where EC2 does not contradict them.

    What is not believed is told once for each claim.
    """
    claims = _by_instance(seen)
    shown = _shown(world, heard, claims, seen)
    refuted: set[tuple[str, str]] = set()
    for word in heard:
        for identity in word.instances:
            claim = claims.get(identity)
            if claim is None or claim.is_deleting:
                continue
            objection = _objection(word, claim, shown.get(identity), seen.at)
            if not objection:
                yield word, claim
            elif (claim.name, objection) not in refuted:
                refuted.add((claim.name, objection))
                message = f"ignored {word.text} for {identity}: {objection}"
                world.notify(
                    EventKind.IGNORED, message, node_claim=claim.name, node_pool=claim.node_pool
                )


def _shown(
    world: World,
    heard: Iterable[Interruption],
    claims: Mapping[str, NodeClaim],
    seen: Observation,
) -> Mapping[str, Instance]:
    """Return the instances of our claims that words are about, as EC2 shows them.

    Those whose state decides are looked up again: the word may be younger than the look.
    """
    shown = {instance.id: instance for instance in seen.instances}
    ids = {i for w in heard if w.kind in _STATES for i in w.instances if i in claims}
    try:
        again = world.compute.look_up(sorted(ids)) if ids else ()
    except LeaseLostError:
        raise
    except ReconcilerError as error:
        world.notify(EventKind.RETRYING, str(error))
        return shown
    return shown | {instance.id: instance for instance in again}


def _objection(
    word: Interruption, claim: NodeClaim, instance: Instance | None, at: datetime
) -> str:
    """Return what EC2 shows that a word cannot be true of, empty where nothing contradicts it."""
    limit = _STALE_AFTER.get(word.kind)
    if limit is not None and at - word.at > limit:
        return f"the event from {_moment(word.at)} is too old"
    if instance is None:
        return ""
    if word.at < instance.launched_at - CLOCKS_APART:
        return f"the event from {_moment(word.at)} predates the launch of the instance"
    if word.kind is InterruptionKind.SPOT_INTERRUPTION and instance.capacity_type != SPOT:
        return f"the instance is {instance.capacity_type}, not spot"
    is_reserved = claim.metadata.labels.get(CAPACITY_TYPE) == RESERVED or instance.reservation_id
    if word.kind is InterruptionKind.RESERVATION_INTERRUPTION and not is_reserved:
        return "the instance has no capacity reservation"
    states = _STATES.get(word.kind)
    if states is not None and instance.state not in states:
        return f"EC2 reports the instance as {instance.state}"
    return ""


def interrupted(claims: Iterable[NodeClaim]) -> dict[str, str]:
    """Return the claims that EC2 takes away, each with the word that says so."""
    found = {}
    for claim in claims:
        mark = claim.condition(INTERRUPTED)
        if mark is not None and mark.status == "True" and not claim.is_deleting:
            found[claim.name] = mark.message
    return found


def ending(
    claims: Iterable[NodeClaim], classes: Mapping[str, EC2NodeClass], now: datetime
) -> dict[str, str]:
    """Return the claims in a capacity block that is about to end, each with what ends when.

    EC2 takes the instances back half an hour before the end; ten minutes are left to drain
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
                found[claim.name] = f"end of capacity block {block.id} at {_moment(end)}"
    return found


def _moment(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"


def _by_instance(seen: Observation) -> Mapping[str, NodeClaim]:
    """Return the claims by the id of their instance, also those that have not been told it yet.

    A tag names the claim of an instance only until the claim has one: it could be another's later.
    """
    names = {claim.name: claim for claim in seen.claims if not claim.status.provider_id}
    found = {
        instance.id: names[name]
        for instance in seen.instances
        if (name := instance.tags.get(NODECLAIM, "")) in names
    }
    found |= {lifecycle.instance_id(c): c for c in seen.claims if c.status.provider_id}
    return found


def _marked(claim: NodeClaim, word: Interruption) -> NodeClaim | None:
    """Return the claim with its mark, None where one stands that is as pressing."""
    known = claim.condition(INTERRUPTED)
    if known is not None and known.reason in _URGENCY:
        before = _URGENCY.index(InterruptionKind(known.reason))
        if before >= _URGENCY.index(word.kind):
            return None
    message = f"{word.text} at {_moment(word.at)}"
    return lifecycle.with_condition(claim, INTERRUPTED, "True", word.at, word.kind, message)


def _lost(claim: NodeClaim, word: Interruption) -> list[Refusal]:
    """Return the offering that EC2 has just shown to have no capacity, if that is what it said."""
    capacity_type, labels = _LOST_CAPACITY.get(word.kind), claim.metadata.labels
    if capacity_type is None or labels.get(CAPACITY_TYPE) != capacity_type:
        return []
    kind, zone = labels.get(INSTANCE_TYPE, ""), labels.get(ZONE, "")
    return [Refusal(kind, zone, capacity_type, word.kind, word.text)] if kind and zone else []


def _let_go(marked: Mapping[str, NodeClaim], seen: Observation) -> list[NodeClaim]:
    """Return the claims as recorded: those that a command is about to replace go at once.

    The planner leaves them alone, and EC2 does not wait until a replacement is ready. While the
    owner of some instance is in doubt nothing is planned, so that all of them go at once.
    """
    waiting = (CommandPhase.MARKED, CommandPhase.WAITING)
    taken = marked_claims(c for c in seen.commands if c.phase in waiting)
    if seen.doubts:
        taken |= {c.name for c in marked.values() if not _is_advice(c)}
    return [_going(c, seen) if c.name in taken else c for c in marked.values()]


def _is_advice(claim: NodeClaim) -> bool:
    mark = claim.condition(INTERRUPTED)
    return mark is not None and mark.reason == InterruptionKind.REBALANCE_RECOMMENDATION


def _going(claim: NodeClaim, seen: Observation) -> NodeClaim:
    mark = claim.condition(INTERRUPTED)
    assert mark is not None
    reason = ForcefulReason.INTERRUPTED.value
    gone = lifecycle.deleted(claim, seen.at)
    return lifecycle.with_condition(gone, "DisruptionReason", "True", seen.at, reason, mark.message)


def _notify(world: World, word: Interruption, claim: NodeClaim) -> None:
    kind = word.kind.value
    is_advice = word.kind is InterruptionKind.REBALANCE_RECOMMENDATION
    node = claim.status.node_name or claim.name
    world.notify(
        EventKind.REBALANCE_RECOMMENDED if is_advice else EventKind.INTERRUPTED,
        f"{node}: {word.text}",
        node_claim=claim.name,
        node_pool=claim.node_pool,
        reason=kind,
    )
