"""Static drift: a pool with a fixed number of replicas replaces drifted nodes one for one.

The replacement is the bare template, because a static pool ignores pods. ``limits.nodes`` limits by
how much the pool may exceed its replicas in the meantime.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from reconciler.disruption.candidates import Candidate, CandidateRefusal
from reconciler.disruption.command import BlockCode, Reason, WaitsFor
from reconciler.disruption.consolidation.pricing import OfferingChoice
from reconciler.disruption.disruptionpass import DisruptionPass
from reconciler.disruption.gates.guards import retry_delay
from reconciler.disruption.gates.policy import Hold
from reconciler.model.karpenter.budget import UNBOUNDED, DisruptionReason
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MILLI, NODES
from reconciler.model.settings import FeatureGate
from reconciler.observed.state import StateNode
from reconciler.placement.question import TYPES_MAX, LaunchPool, PlannedClaim

# Static pools: their current nodes, and the template of a new one.


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


TERMINATES_FIRST: Final = "limits.nodes leaves no room to start the replacement first"


class StaticDrift:
    """Replaces as many drifted nodes of static pools as budget and limit allow.

    A pool at its limit cannot add the replacement of a node first. Its drifted nodes are blocked,
    or with the gate TerminateFirstDrift of Karpenter 1.15 terminated one budget at a time.
    """

    reason: Final = DisruptionReason.DRIFTED

    def __init__(self, reported_reason: Reason = DisruptionReason.DRIFTED) -> None:
        self._reported_reason = reported_reason

    def decide(self, work: DisruptionPass) -> None:
        drifted = work.candidates(lambda c: c.drift is not None and c.pool.is_static)
        self.replace(drifted, work)

    def replace(self, candidates: Iterable[Candidate], work: DisruptionPass) -> None:
        """Replace nodes of static pools, for the reason that this method reports."""
        ordered = sorted(candidates, key=lambda c: (c.pool.name, c.name))
        for _, group in groupby(ordered, key=lambda c: c.pool.name):
            self._replace(list(group), work)

    def _replace(self, candidates: list[Candidate], work: DisruptionPass) -> None:
        pool = candidates[0].pool
        disruptable = [c for c in candidates if self._is_disruptable(c, work)]
        refusal, additional = self._additional_nodes(pool, work)
        if refusal is not None:
            for candidate in disruptable:
                work.refuse(candidate, self._reported_reason, refusal)
            return
        terminates_first = additional == 0 and _terminates_first(pool, work)
        for candidate in disruptable:
            if work.allowed_disruptions(candidate, self.reason) == 0:
                work.defer_for_budget(candidate, self.reason, reported_reason=self._reported_reason)
            elif additional == 0 and not terminates_first:
                text = f'NodePool "{pool.name}" has reached limits.nodes: cannot add a replacement'
                work.refuse(
                    candidate, self._reported_reason, CandidateRefusal(BlockCode.NODE_LIMIT, text)
                )
            else:
                claim = template_claim(work.pools[pool.name], candidate.claim.name)
                if claim is not None and terminates_first:
                    work.start(self._reported_reason, [candidate], message=TERMINATES_FIRST)
                    continue
                if claim is None:
                    text = f'NodePool "{pool.name}" has no instance type available now'
                    work.refuse(
                        candidate,
                        self._reported_reason,
                        CandidateRefusal(BlockCode.UNSCHEDULABLE, text),
                    )
                    continue
                delay = retry_delay([candidate], work.now)
                if delay is not None:
                    work.defer(candidate, self._reported_reason, Hold(WaitsFor.POLICY, *delay))
                    continue
                additional -= 1
                work.start(self._reported_reason, [candidate], replacements=[claim])

    def _is_disruptable(self, candidate: Candidate, work: DisruptionPass) -> bool:
        refusal = candidate.refusal(eventual=True)
        if refusal is not None:
            work.refuse(candidate, self._reported_reason, refusal)
        return refusal is None

    def _additional_nodes(
        self, pool: NodePool, work: DisruptionPass
    ) -> tuple[CandidateRefusal | None, int]:
        """Return how many additional nodes the pool may have, or why it must wait."""
        counts = count_claims(pool.name, work.nodes, work.unlaunched)
        staying = counts.active + counts.disrupted
        replicas = pool.spec.replicas or 0
        if staying > replicas:
            text = f'NodePool "{pool.name}" has {staying} nodes for {replicas} replicas'
            return CandidateRefusal(BlockCode.REPLICAS, f"{text}: it is scaled down first"), 0
        limit = node_limit(pool)
        if limit is None:
            return None, UNBOUNDED
        left = limit - counts.all
        if work.settings.gate(FeatureGate.TERMINATE_FIRST_DRIFT):
            left -= replicas - staying  # these are launched for nodes that went first
        return None, max(left, 0)


def _terminates_first(pool: NodePool, work: DisruptionPass) -> bool:
    """Return whether nodes of a pool at its limit may be terminated before their replacements.

    The pool is filled up to its replicas once they no longer count against ``limits.nodes``. While
    it lacks some, or is being deleted, no more are terminated (Karpenter 1.15 ``staticdrift.go``).
    """
    counts = count_claims(pool.name, work.nodes, work.unlaunched)
    is_full = counts.active + counts.disrupted == (pool.spec.replicas or 0)
    gate = work.settings.gate(FeatureGate.TERMINATE_FIRST_DRIFT)
    return gate and is_full and not pool.is_deleting
