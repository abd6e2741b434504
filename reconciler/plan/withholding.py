"""A plan that does nothing: what is there may not be what the records say, so nobody acts on it."""

from __future__ import annotations

from collections.abc import Container

import msgspec

from reconciler.plan.plan import Cost, Plan, PlannedHeadroom, Reason, UnschedulablePod

WITHHELD = "Withheld"
"""The code of the reason why a pod gets no new node in such a plan."""


def withheld(plan: Plan, why: str, pending: Container[str]) -> Plan:
    """Return the plan without its actions; pods among ``pending`` that lose a place say ``why``."""
    planned = {claim.name for claim in plan.node_claims}
    lost = {p.pod for p in plan.placements if p.node_claim in planned}
    reason = Reason(code=WITHHELD, message=why)
    homeless = [UnschedulablePod(pod=pod, reasons=(reason,)) for pod in lost if pod in pending]
    return msgspec.structs.replace(
        plan,
        node_claims=(),
        placements=tuple(p for p in plan.placements if p.pod in pending and p.pod not in lost),
        unschedulable=tuple(sorted((*plan.unschedulable, *homeless), key=lambda u: u.pod)),
        headroom=tuple(map(_without_claims, plan.buffers)) or plan.headroom,
        commands=(),
        actions=(),
        cost=_unchanged(plan.cost),
    )


def _without_claims(room: PlannedHeadroom) -> PlannedHeadroom:
    lost = sum(room.node_claims.values())
    return msgspec.structs.replace(room, node_claims={}, unschedulable=room.unschedulable + lost)


def _unchanged(cost: Cost) -> Cost:
    """Return a cost after which everything is as before."""
    pools = {
        name: msgspec.structs.replace(c, after=c.before, nodes_after=c.nodes_before)
        for name, c in cost.by_node_pool.items()
    }
    return msgspec.structs.replace(
        cost,
        after=cost.before,
        by_node_pool=pools,
        lower_bound=None,
        bound_gap=msgspec.UNSET,
        bound_held_by=msgspec.UNSET,
    )
