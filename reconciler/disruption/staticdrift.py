"""Static drift: a pool that keeps a number of nodes replaces its drifted ones one for one.

The replacement is the bare template: a static pool does not look at pods. Its ``limits.nodes``
says how far the pool may exceed its number meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

from reconciler.disruption.candidates import Candidate, Refusal
from reconciler.disruption.command import BlockCode, Reason, WaitsFor
from reconciler.disruption.deliberation import Deliberation
from reconciler.disruption.policy import Hold
from reconciler.disruption.statics import claims_of, node_limit, template_claim
from reconciler.disruption.vain import resting
from reconciler.model.budget import UNBOUNDED, DisruptionReason
from reconciler.model.nodepool import NodePool


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
                work.refuse(candidate, self._said, Refusal(BlockCode.NODE_LIMIT, text))
            else:
                claim = template_claim(work.pools[pool.name], candidate.claim.name)
                if claim is None:
                    text = f'NodePool "{pool.name}" has no instance type available now'
                    work.refuse(candidate, self._said, Refusal(BlockCode.UNSCHEDULABLE, text))
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

    def _room(self, pool: NodePool, work: Deliberation) -> tuple[Refusal | None, int]:
        """Return how many nodes more than now the pool may have, or why it must wait."""
        owned = claims_of(pool.name, work.nodes, work.unlaunched)
        staying = owned.active + owned.disrupted
        replicas = pool.spec.replicas or 0
        if staying > replicas:
            text = f'NodePool "{pool.name}" has {staying} nodes for {replicas} replicas'
            return Refusal(BlockCode.REPLICAS, f"{text}: it is scaled down first"), 0
        limit = node_limit(pool)
        return None, UNBOUNDED if limit is None else max(limit - owned.all, 0)
