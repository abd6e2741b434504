"""From a claim that is full enough to the NodeClaim that is asked for.

What the simulation needed and a NodeClaim must not say is taken off (the host's name, the
life-cycle labels), what it has decided is written down: the instance types, cheapest first, the
capacity types that these can be had in, the reservations it holds (Karpenter
``FinalizeScheduling``, ``ToNodeClaim``).
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from reconciler.catalog.table import TypeTable, bits
from reconciler.model.labels import (
    CAPACITY_TYPE,
    HOSTNAME,
    INITIALIZED,
    INSTANCE_TYPE,
    MIN_VALUES_RELAXED,
    REGISTERED,
    RESERVED,
)
from reconciler.model.nodepool import NodePool
from reconciler.model.requirement import Operator, requirement
from reconciler.model.requirements import Requirements
from reconciler.model.resources import add
from reconciler.placement.claims import OpenClaim
from reconciler.placement.daemons import least
from reconciler.placement.result import TYPES_MAX, PlannedClaim
from reconciler.placement.space import Space
from reconciler.placement.template import shortfalls

_SIMULATED: Final = (REGISTERED, INITIALIZED)
_NAME_MAX: Final = 54


class Finisher:
    """Turns claims into NodeClaims; ``salt`` tells passes apart that would name them alike."""

    def __init__(self, salt: str) -> None:
        self._salt = salt
        self._orders: dict[tuple[Space, int], tuple[int, ...]] = {}
        self._named: dict[tuple[Space, int], Requirements] = {}

    def finished(self, claim: OpenClaim) -> PlannedClaim | None:
        """Return the NodeClaim, None if the types that it may name are too few a choice."""
        template = claim.template
        table, pool = template.table, template.node_pool
        space = _with_reservations(claim)
        order = self._cheapest(table, space, claim.mask)
        strict = space.has_min_values and not template.best_effort
        if strict and len(order) == TYPES_MAX and shortfalls(table, bits(order), space):
            return None
        requirements = self._final(table, space, order, claim.mask)
        pods = tuple(sorted(pod.key for _, pods in claim.members for pod in pods))
        relaxed = "true" if claim.min_values_relaxed else "false"
        return PlannedClaim(
            name=claim_name(pool.name, (self._salt, str(claim.space.requirements), *pods)),
            node_pool=pool,
            pods=pods,
            requests=add(claim.requests, least(template.daemon_groups, claim.mask)),
            requirements=requirements,
            types=table.chosen(order),
            types_total=claim.mask.bit_count(),
            labels=labels(pool, requirements, table.well_known),
            annotations={**pool.spec.template.metadata.annotations, MIN_VALUES_RELAXED: relaxed},
            taints=template.taints,
            startup_taints=pool.spec.template.spec.startup_taints,
            min_values_relaxed=claim.min_values_relaxed,
        )

    def _cheapest(self, table: TypeTable, space: Space, mask: int) -> tuple[int, ...]:
        known = self._orders.get((space, mask))
        if known is None:
            digits = f"{mask:b}"[::-1]
            count = len(digits)
            order = [i for i in table.by_price(space.offers) if i < count and digits[i] == "1"]
            known = self._orders[space, mask] = tuple(order[:TYPES_MAX])
        return known

    def _final(
        self, table: TypeTable, space: Space, order: tuple[int, ...], mask: int
    ) -> Requirements:
        known = self._named.get((space, mask))
        if known is None:
            capacity_types = {o.capacity_type for o in space.offers if o.mask & mask}
            names = tuple(table.names[i] for i in order)
            known = space.requirements.without(_SIMULATED).adding(
                [
                    requirement(INSTANCE_TYPE, Operator.IN, names),
                    requirement(CAPACITY_TYPE, Operator.IN, tuple(sorted(capacity_types))),
                ]
            )
            self._named[space, mask] = known
        return known


def _with_reservations(claim: OpenClaim) -> Space:
    """Return the claim's space, bound to the reservations that it holds."""
    if not claim.held:
        return claim.space
    key = claim.template.table.reservation_key
    return claim.template.book.of(
        claim.space.requirements.adding(
            [
                requirement(CAPACITY_TYPE, Operator.IN, (RESERVED,)),
                requirement(key, Operator.IN, tuple(sorted(claim.held))),
            ]
        )
    )


def labels(
    pool: NodePool, requirements: Requirements, well_known: frozenset[str]
) -> dict[str, str]:
    """Return the labels of a NodeClaim: the template's, and a value for each custom requirement.

    What is well known the provider sets once it knows what it has launched.
    """
    found = pool.labels()
    for key, wanted in requirements.items():
        if key in well_known or key == HOSTNAME or key in found:
            continue
        value = wanted.any_value()
        if value:
            found[key] = value
    return found


def claim_name(pool: str, parts: tuple[str, ...]) -> str:
    """Return a name that says the pool, and differs wherever the parts do."""
    digest = sha256("\0".join(parts).encode()).hexdigest()
    return f"{pool[:_NAME_MAX]}-{digest[:8]}"
