"""NodeClaims that have been made and have no instance yet: places for pods that still wait.

What will come of such a claim is not known, only among which types it is. So it counts with what
every one of them offers, and with the most that any of them costs its NodePool's limits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from reconciler.model.labels import NODEPOOL
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.nodepool import requirements_of
from reconciler.model.requirement import equals
from reconciler.model.resources import parse_resources
from reconciler.placement.nodes import Target
from reconciler.placement.template import Template


def promised(claims: Iterable[NodeClaim], templates: Mapping[str, Template]) -> list[Target]:
    """Return the claims as targets; without known types one offers only what it asked for."""
    return [
        _target(claim, templates.get(claim.node_pool)) for claim in claims if not claim.is_deleting
    ]


def _target(claim: NodeClaim, template: Template | None) -> Target:
    own = requirements_of(claim.spec.requirements)
    asked = parse_resources(claim.spec.resources.requests)
    labels = {**own.fixed_labels(), **claim.metadata.labels}
    left, capacity = dict(asked), asked
    if template is not None:
        known = [equals(key, value) for key, value in claim.metadata.labels.items()]
        space = template.book.of(own.adding(known))
        types = space.mask & template.table.usable
        if types:
            labels = {**space.requirements.fixed_labels(), **labels}
            left = template.table.least_allocatable(types)
            capacity = template.table.largest_capacity(types)
    labels.setdefault(NODEPOOL, claim.node_pool)
    startup = claim.spec.startup_taints
    taints = tuple(
        t
        for t in claim.spec.taints
        if not t.is_ephemeral and not any(t.matches(s) for s in startup)
    )
    return Target(claim.name, labels, taints, left, is_initialized=False, capacity=capacity)
