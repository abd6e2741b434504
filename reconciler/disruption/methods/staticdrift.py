"""Static drift: a pool that keeps a number of nodes replaces its drifted ones one for one.

The replacement is the bare template: a static pool does not look at pods. Its ``limits.nodes``
says how far the pool may exceed its number meanwhile.
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
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.gates.policy import Hold
from reconciler.disruption.gates.retries import resting
from reconciler.model.karpenter.budget import UNBOUNDED, DisruptionReason
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MILLI, NODES
from reconciler.observed.state import StateNode
from reconciler.placement.question import TYPES_MAX, LaunchPool, PlannedClaim

# Static pools: how many nodes they have, and what a new one of them is.


@dataclass(frozen=True, slots=True)
class Owned:
    """The NodeClaims of a pool: those that stay, that a command of ours takes, that go."""

    active: int = 0
    disrupted: int = 0
    deleting: int = 0

    @property
    def all(self) -> int:
        """How many there are, those that go included: they still count against a limit."""
        return self.active + self.disrupted + self.deleting


def claims_of(pool: str, nodes: Iterable[StateNode], unlaunched: Iterable[NodeClaim]) -> Owned:
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
    return Owned(active, disrupted, deleting)


def node_limit(pool: NodePool) -> int | None:
    """Return ``limits.nodes``, or None where the pool has none."""
    limit = pool.limits().get(NODES)
    return None if limit is None else limit // MILLI


def template_claim(pool: LaunchPool, occasion: str) -> PlannedClaim | None:
    """Return a NodeClaim of the pool's bare template, for no pod; None if nothing can be launched.

    ``occasion`` is what it is for (the claim that it replaces, a number): it makes the name, so
    that the same occasion gives the same claim.
    """
    node_pool = pool.node_pool
    requirements = node_pool.template_requirements().without((REGISTERED, INITIALIZED))
    choice = OfferingChoice(requirements)
    fitting = [
        kind
        for kind in pool.types.types
        if requirements.intersects(kind.requirements) and choice.available(kind)
    ]
    fitting.sort(key=lambda kind: (choice.cheapest(kind), kind.name))
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


class StaticDrift:
    """Replaces drifted nodes of static pools, as many as budget and limit leave room for."""

    reason: Final = DisruptionReason.DRIFTED

    def __init__(self, said: Reason = DisruptionReason.DRIFTED) -> None:
        self._said = said

    def decide(self, work: Deliberation) -> None:
        drifted = work.candidates(lambda c: c.drift is not None and c.pool.is_static)
        self.replace(drifted, work)

    def replace(self, candidates: Iterable[Candidate], work: Deliberation) -> None:
        """Replace nodes of static pools; ``said`` of the method is the reason that is named."""
        ordered = sorted(candidates, key=lambda c: (c.pool.name, c.name))
        for _, group in groupby(ordered, key=lambda c: c.pool.name):
            self._replace(list(group), work)

    def _replace(self, candidates: list[Candidate], work: Deliberation) -> None:
        pool = candidates[0].pool
        open_ = [c for c in candidates if self._is_open(c, work)]
        refusal, room = self._room(pool, work)
        if refusal is not None:
            for candidate in open_:
                work.refuse(candidate, self._said, refusal)
            return
        for candidate in open_:
            if work.left(candidate, self.reason) == 0:
                work.defer_for_budget(candidate, self.reason, said=self._said)
            elif room == 0:
                text = f'NodePool "{pool.name}" has reached limits.nodes: cannot add a replacement'
                work.refuse(candidate, self._said, CandidateRefusal(BlockCode.NODE_LIMIT, text))
            else:
                claim = template_claim(work.pools[pool.name], candidate.claim.name)
                if claim is None:
                    text = f'NodePool "{pool.name}" has no instance type available now'
                    work.refuse(
                        candidate, self._said, CandidateRefusal(BlockCode.UNSCHEDULABLE, text)
                    )
                    continue
                rest = resting([candidate], work.now)
                if rest is not None:
                    work.defer(candidate, self._said, Hold(WaitsFor.POLICY, *rest))
                    continue
                room -= 1
                work.start(self._said, [candidate], replacements=[claim])

    def _is_open(self, candidate: Candidate, work: Deliberation) -> bool:
        refusal = candidate.refusal(eventual=True)
        if refusal is not None:
            work.refuse(candidate, self._said, refusal)
        return refusal is None

    def _room(self, pool: NodePool, work: Deliberation) -> tuple[CandidateRefusal | None, int]:
        """Return how many nodes more than now the pool may have, or why it must wait."""
        owned = claims_of(pool.name, work.nodes, work.unlaunched)
        staying = owned.active + owned.disrupted
        replicas = pool.spec.replicas or 0
        if staying > replicas:
            text = f'NodePool "{pool.name}" has {staying} nodes for {replicas} replicas'
            return CandidateRefusal(BlockCode.REPLICAS, f"{text}: it is scaled down first"), 0
        limit = node_limit(pool)
        return None, UNBOUNDED if limit is None else max(limit - owned.all, 0)
