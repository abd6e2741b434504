"""Static drift: a pool with a fixed number of replicas replaces drifted nodes one for one.

The replacement is the bare template, because a static pool ignores pods. ``limits.nodes`` limits by
how much the pool may exceed its replicas in the meantime.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import groupby
from typing import Final, NamedTuple

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode, Reason
from reconciler.disruption.consolidation.pricing import OfferingChoice
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.guards import retry_hold
from reconciler.model.karpenter.budget import UNBOUNDED, DisruptionReason
from reconciler.model.karpenter.labels import (
    CAPACITY_TYPE,
    INITIALIZED,
    REGISTERED,
    RESERVATION_ID,
    RESERVED,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MILLI, NODES
from reconciler.model.settings import FeatureGate
from reconciler.observed.state import StateNode
from reconciler.placement.question import TYPES_MAX, LaunchPool, PlannedClaim

TERMINATES_FIRST: Final = "limits.nodes leaves no room to start the replacement first"
RESERVATION_FULL: Final = "its capacity reservation has no room to start the replacement first"


@dataclass(frozen=True, slots=True)
class ClaimCounts:
    """The NodeClaims of a pool: staying, being disrupted by a command, or being deleted."""

    active: int = 0
    disrupted: int = 0
    deleting: int = 0

    @property
    def all(self) -> int:
        """The total, including those being deleted: they still count against a limit."""
        return self.active + self.disrupted + self.deleting


def count_claims(
    pool: str, nodes: Iterable[StateNode], unlaunched: Iterable[NodeClaim]
) -> ClaimCounts:
    """Count the claims of a pool, launched or not."""
    active = disrupted = deleting = 0
    for node in nodes:
        if node.claim is None or node.claim.node_pool != pool:
            continue
        if node.claim.is_deleting:
            deleting += 1
        elif node.marked:
            disrupted += 1
        else:
            active += 1
    for claim in unlaunched:
        if claim.node_pool == pool:
            deleting, active = (
                (deleting + 1, active) if claim.is_deleting else (deleting, active + 1)
            )
    return ClaimCounts(active, disrupted, deleting)


def node_limit(pool: NodePool) -> int | None:
    """Return ``limits.nodes``, or None if the pool has no limit."""
    limit = pool.limits().get(NODES)
    return None if limit is None else limit // MILLI


def template_claim(pool: LaunchPool, occasion: str) -> PlannedClaim | None:
    """Return a NodeClaim of the pool's template without pods; None if nothing can be launched.

    ``occasion`` is its purpose (the claim that it replaces, or a number) and determines the name,
    so that the same purpose gives the same claim.
    """
    node_pool = pool.node_pool
    requirements = node_pool.template_requirements().without((REGISTERED, INITIALIZED))
    choice = OfferingChoice(requirements)
    fitting = [
        kind
        for kind in pool.types.types
        if requirements.intersects(kind.requirements) and choice.available_offerings(kind)
    ]
    fitting.sort(key=lambda kind: (choice.cheapest_price(kind), kind.name))
    if not fitting:
        return None
    digest = hashlib.sha256(f"{node_pool.name}\n{occasion}".encode()).hexdigest()[:8]
    template = node_pool.spec.template
    return PlannedClaim(
        name=f"{node_pool.name}-{digest}",
        node_pool=node_pool,
        pods=(),
        requests={},
        requirements=requirements,
        types=tuple(fitting[:TYPES_MAX]),
        types_total=len(fitting),
        labels=node_pool.labels(),
        annotations=dict(template.metadata.annotations),
        taints=template.spec.taints,
        startup_taints=template.spec.startup_taints,
    )


class Replacing(NamedTuple):
    """Why nodes of static pools are replaced, and which gate lets them go first at a limit.

    ``message`` returns what a command about a node adds to its reason, and ``drain_limit`` how
    long its drain may take.
    """

    reported_reason: Reason
    reason: DisruptionReason = DisruptionReason.DRIFTED
    gate: FeatureGate = FeatureGate.TERMINATE_FIRST_DRIFT
    message: Callable[[Candidate], str] = lambda _: ""
    drain_limit: Callable[[Candidate], timedelta | None] = lambda _: None


class StaticDrift:
    """Replaces as many drifted nodes of static pools as budget and limit allow.

    A pool at its limit, or one whose reservations are full, cannot add the replacement of a node
    first. Its drifted nodes are blocked, or with the gate TerminateFirstDrift of Karpenter 1.15
    terminated one budget at a time.
    """

    reason: Final = DisruptionReason.DRIFTED

    def __init__(self, reported_reason: Reason = DisruptionReason.DRIFTED) -> None:
        self._replacing = Replacing(reported_reason)

    def decide(self, work: DisruptionPass) -> None:
        drifted = work.candidates(lambda c: c.drift is not None and c.pool.is_static)
        self.replace(drifted, work)

    def replace(self, candidates: Iterable[Candidate], work: DisruptionPass) -> None:
        """Replace nodes of static pools, for the reason that this method reports."""
        reported = self._replacing.reported_reason
        ordered = sorted(candidates, key=lambda c: (c.pool.name, c.name))
        for _, group in groupby(ordered, key=lambda c: c.pool.name):
            disruptable = []
            for candidate in group:
                refusal = candidate.refusal(eventual=True)
                if refusal is not None:
                    work.refuse(candidate, reported, refusal)
                else:
                    disruptable.append(candidate)
            replace_static_nodes(disruptable, self._replacing, work)


def replace_static_nodes(
    candidates: Sequence[Candidate], replacing: Replacing, work: DisruptionPass
) -> None:
    """Replace nodes of one static pool, in this order, up to budget and limit."""
    if not candidates:
        return
    pool = candidates[0].pool
    room = _room_of(pool, replacing.gate, work)
    additional = room.additional
    if room.reserved is not None:  # only nodes that free a slot can be replaced
        candidates = sorted(candidates, key=lambda c: not _holds_slot(c, room))
    for candidate in candidates:
        budgeted = not candidate.node.is_initialized or work.allowed_disruptions(
            candidate, replacing.reason
        )
        refusal = room.refusal
        if refusal is None and not additional:
            refusal = _full_refusal(candidate, room, replacing, work)
        if room.refusal is None and not budgeted:
            reported = replacing.reported_reason
            work.defer_for_budget(candidate, replacing.reason, reported_reason=reported)
        elif refusal is not None:
            work.refuse(candidate, replacing.reported_reason, refusal)
        elif additional:
            additional -= _replace_static_node(candidate, replacing, work)
        else:
            why = TERMINATES_FIRST if room.reserved is None else RESERVATION_FULL
            _start(candidate, replacing, work, [], why)


def _replace_static_node(candidate: Candidate, replacing: Replacing, work: DisruptionPass) -> int:
    """Start the replacement of a node; return how many nodes are added: one, or none."""
    reported = replacing.reported_reason
    claim = template_claim(work.pools[candidate.pool.name], candidate.claim.name)
    hold = retry_hold([candidate], work.now)
    if claim is None:
        work.refuse(candidate, reported, _nothing_to_launch(candidate.pool))
    elif hold is not None:
        work.defer(candidate, reported, hold)
    else:
        _start(candidate, replacing, work, [claim])
        return 1
    return 0


def _start(
    candidate: Candidate,
    replacing: Replacing,
    work: DisruptionPass,
    replacements: Sequence[PlannedClaim],
    why: str = "",
) -> None:
    work.start(
        replacing.reported_reason,
        [candidate],
        replacements=replacements,
        message="; ".join(filter(None, (replacing.message(candidate), why))),
        drain_limit=replacing.drain_limit(candidate),
    )


@dataclass(frozen=True, slots=True)
class _Room:
    """How many nodes a static pool may add now, or why it must wait.

    ``reserved`` are the reservations that it still may use, if it can only use reservations and all
    are full; None otherwise. ``lacks_nodes`` is whether it has fewer nodes than replicas.
    """

    additional: int = 0
    refusal: CandidateRefusal | None = None
    reserved: frozenset[str] | None = None
    lacks_nodes: bool = False

    @property
    def is_full(self) -> bool:
        """Whether no node can be added, not even for the first node that is replaced."""
        return self.additional == 0


def _room_of(pool: NodePool, gate: FeatureGate, work: DisruptionPass) -> _Room:
    counts = count_claims(pool.name, work.nodes, work.unlaunched)
    staying = counts.active + counts.disrupted
    replicas = pool.spec.replicas or 0
    if staying > replicas:
        text = f'NodePool "{pool.name}" has {staying} nodes for {replicas} replicas'
        text = f"{text}: it is scaled down first"
        return _Room(refusal=CandidateRefusal(BlockCode.REPLICAS, text))
    terminates_first = work.settings.gate(gate)
    reserved = full_reservations(work.pools[pool.name]) if terminates_first else None
    if reserved is not None:
        return _Room(reserved=reserved)
    limit = node_limit(pool)
    if limit is None:
        return _Room(UNBOUNDED)
    left = limit - counts.all - _replacements_started(pool, work)
    if terminates_first:
        left -= replicas - staying  # these are launched for nodes that went first
    return _Room(max(left, 0), lacks_nodes=staying != replicas)


def _replacements_started(pool: NodePool, work: DisruptionPass) -> int:
    """Return how many nodes earlier commands of the pass add to the pool."""
    added = (claim for command in work.commands for claim in command.replacements)
    return sum(1 for claim in added if claim.node_pool.name == pool.name)


def full_reservations(pool: LaunchPool) -> frozenset[str] | None:
    """Return the reservations of a pool that can only use reservations which are all full.

    It is None for any other pool.
    Another offering that is unavailable now is waited for. A reservation that is unavailable, for
    example because it has expired, is not in the result (Karpenter 1.15 ``disruption/helpers.go``).
    """
    requirements = pool.node_pool.template_requirements().without((REGISTERED, INITIALIZED))
    choice = OfferingChoice(requirements)
    offered = set()
    for kind in pool.types.types:
        if not requirements.intersects(kind.requirements):
            continue
        for offering in filter(choice.allows, kind.offerings):
            if offering.capacity_type != RESERVED or offering.is_launchable:
                return None
            if offering.available and offering.reservation_id:
                offered.add(offering.reservation_id)
    return frozenset(offered)


def _holds_slot(candidate: Candidate, room: _Room) -> bool:
    """Return whether the node has a slot in a reservation that its replacement can use."""
    return room.reserved is not None and reservation_of(candidate) in room.reserved


def reservation_of(candidate: Candidate) -> str:
    """Return the reservation that a node has a slot in, empty if none."""
    labels = candidate.node.labels
    is_reserved = labels.get(CAPACITY_TYPE) == RESERVED
    return labels.get(RESERVATION_ID, "") if is_reserved else ""


def _full_refusal(
    candidate: Candidate, room: _Room, replacing: Replacing, work: DisruptionPass
) -> CandidateRefusal | None:
    """Return why a node of a pool without room cannot be terminated before its replacement.

    The pool is filled up to its replicas once its nodes no longer count against ``limits.nodes``.
    While it lacks some, or is being deleted, no more are terminated (Karpenter 1.15
    ``staticdrift.go``).
    """
    pool = candidate.pool
    goes_first = work.settings.gate(replacing.gate) and not pool.is_deleting
    if room.reserved is not None:
        if goes_first and _holds_slot(candidate, room):
            return None
        text = f'the capacity reservations of NodePool "{pool.name}" are full'
    else:
        if goes_first and room.is_full and not room.lacks_nodes:
            claim = template_claim(work.pools[pool.name], candidate.claim.name)
            return None if claim is not None else _nothing_to_launch(pool)
        text = f'NodePool "{pool.name}" has reached limits.nodes'
    return CandidateRefusal(BlockCode.NODE_LIMIT, f"{text}: cannot add a replacement")


def _nothing_to_launch(pool: NodePool) -> CandidateRefusal:
    text = f'NodePool "{pool.name}" has no instance type available now'
    return CandidateRefusal(BlockCode.UNSCHEDULABLE, text)
