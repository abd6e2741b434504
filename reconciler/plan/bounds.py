"""How far the new nodes of a plan are above the least that they could cost, and why.

Judged are the nodes for pods that wait or lose their node by force. Prices alone count: what a
node costs beside its price is not in a plan's dollars either.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import UNSET
from msgspec.structs import replace

from reconciler.observed.state import ClusterState
from reconciler.placement.result import Placement
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.costs import money
from reconciler.plan.plan import Cost


def with_bound(
    cost: Cost,
    scheduler: Callable[[], Scheduler],
    cluster: ClusterState,
    placement: Placement | None,
) -> Cost:
    """Return the cost with the bound for ``placement``; as it is where nothing new is launched."""
    if placement is None or not placement.claims:
        return cost
    placed = {pod for claim in placement.claims for pod in claim.pods} | placement.on_nodes.keys()
    bound = scheduler().bound([pod for pod in cluster.pods if pod.key in placed])
    launched = money(claim.launch[1].price for claim in placement.claims)
    gap = bound.gap(launched)
    return replace(
        cost,
        lower_bound=round(bound.cost, 9),
        bound_gap=round(gap, 6) if gap is not None else UNSET,
        bound_held_by=bound.held_by(launched) or UNSET,
    )
