"""The nodes of a fleet at rest that the desired state wants gone, and what keeps them."""

from __future__ import annotations

from typing import Final

from reconciler.disruption.command import ForcefulReason, WaitsFor
from reconciler.disruption.pdb import PodDisruptionBudgets
from reconciler.model.budget import DisruptionReason
from reconciler.observed.state import StateNode
from reconciler.plan.plan import StuckNode
from reconciler.plan.rest.carry import Rest
from reconciler.plan.rest.world import holders

_DRAINING: Final = "Draining"
_AT_REST: Final = frozenset({DisruptionReason.UNDERUTILIZED.value, DisruptionReason.EMPTY.value})
"""What is only not consolidated is at rest all the same."""


def stuck_nodes(rest: Rest) -> tuple[StuckNode, ...]:
    """Return the nodes that cannot come to rest, by NodeClaim, each with one reason."""
    found: dict[str, StuckNode] = {}
    for one in (*_draining(rest), *_held(rest), *_blocked(rest)):
        found.setdefault(one.node_claim, one)
    return tuple(found[name] for name in sorted(found))


def _draining(rest: Rest) -> list[StuckNode]:
    cluster, found = rest.world.cluster, []
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    for node in cluster.nodes:
        held = holders(node, budgets, rest.at) if node.is_deleting else []
        if held:
            more = f" and {len(held) - 1} more" if len(held) > 1 else ""
            text = f"its drain waits for pod {held[0].key}{more}, which must not be evicted"
            found.append(_stuck(node, _DRAINING, text))
    return found


def _held(rest: Rest) -> list[StuckNode]:
    """Return what waits for a budget that never opens, an approval, or beyond the horizon."""
    by_claim = {n.claim.name: n for n in rest.world.cluster.nodes if n.claim is not None}
    return [
        _stuck(by_claim[d.node_claim], d.reason, d.message)
        for d in rest.decisions.deferred
        if d.node_claim in by_claim
        and d.reason not in _AT_REST
        and (_never(rest, d.not_before is None) or d.waits_for is WaitsFor.APPROVAL)
    ]


def _never(rest: Rest, unknown: bool) -> bool:
    """Return whether a wait has no end: where the limit of work cut the search, none is known."""
    return not rest.ended and (unknown or not rest.rested)


def _blocked(rest: Rest) -> list[StuckNode]:
    drifted = {drift.node_claim for drift in rest.drift}
    by_name = rest.world.cluster.by_name
    found = []
    for block in rest.decisions.blocked:
        node = by_name.get(block.node)
        if node is None or node.claim is None:
            continue
        wanted = block.reason == DisruptionReason.DRIFTED and node.claim.name in drifted
        if wanted or block.reason in set(ForcefulReason):
            found.append(_stuck(node, block.reason, block.message))
    return found


def _stuck(node: StateNode, reason: str, message: str) -> StuckNode:
    assert node.claim is not None
    return StuckNode(
        node_claim=node.claim.name,
        node=node.name,
        node_pool=node.node_pool,
        reason=str(reason),
        message=message,
    )
