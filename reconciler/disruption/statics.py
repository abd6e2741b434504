"""Static pools: how many nodes they have, and what a new one of them is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from reconciler.disruption.pricing import Choice
from reconciler.model.labels import INITIALIZED, REGISTERED
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodepool import NodePool
from reconciler.model.quantity import MILLI
from reconciler.model.resources import NODES
from reconciler.observed.state import StateNode
from reconciler.placement.problem import LaunchPool
from reconciler.placement.result import TYPES_MAX, PlannedClaim


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
    choice = Choice(requirements)
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
