"""What the fleet costs before and after a plan, by NodePool, in USD an hour.

Sums are rounded to a billionth of a dollar, so that they read as people write them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import fsum

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool, Placement
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.actions import OwnedNode, UnlaunchedClaim
from reconciler.plan.value.costs import Cost, PoolCost
from reconciler.plan.value.disruption import PlannedCommand
from reconciler.plan.value.nodes import PlannedNodeClaim

# The distance of the cost of new nodes from its theoretical minimum, and the reason. It covers the
# nodes for pending pods and for pods that lose their node by force, by price only.


def with_bound(
    cost: Cost,
    scheduler: Callable[[], Scheduler],
    cluster: ClusterState,
    placement: Placement | None,
) -> Cost:
    """Return the cost with the bound for ``placement``; unchanged if nothing is launched."""
    if placement is None or not placement.claims:
        return cost
    placed = {pod for claim in placement.claims for pod in claim.pods} | placement.on_nodes.keys()
    bound = scheduler().bound([pod for pod in cluster.pods if pod.key in placed])
    launched = money(claim.launch[1].price for claim in placement.claims)
    gap = bound.gap(launched)
    return msgspec.structs.replace(
        cost,
        lower_bound=round(bound.cost, 9),
        bound_gap=None if gap is None else round(gap, 6),
        bound_held_by=bound.held_by(launched),
    )


def money(amounts: Iterable[float]) -> float:
    """Return a sum of dollars, rounded to a billionth."""
    return round(fsum(amounts), 9)


def owned_nodes(
    cluster: ClusterState, pools: Mapping[str, LaunchPool], catalog: Catalog
) -> tuple[OwnedNode, ...]:
    """Return the nodes that have a NodeClaim, priced by their pool's types, else by ``catalog``."""
    return tuple(_owned(node, pools, catalog) for node in cluster.nodes if node.is_managed)


def _owned(node: StateNode, pools: Mapping[str, LaunchPool], catalog: Catalog) -> OwnedNode:
    assert node.claim is not None
    labels = node.labels
    instance_type, zone = labels.get(INSTANCE_TYPE), labels.get(ZONE)
    capacity_type = labels.get(CAPACITY_TYPE)
    pool = pools.get(node.node_pool)
    kind = (pool.types if pool is not None else catalog).get(instance_type or "")
    price = node.paid
    if price is None and kind is not None:
        price = kind.price_of(zone or "", capacity_type or "")
    return OwnedNode(
        name=node.name,
        node_claim=node.claim.name,
        node_pool=node.node_pool,
        instance_type=instance_type,
        zone=zone,
        capacity_type=capacity_type,
        price=price,
        has_node=node.node is not None,
        is_going=node.is_deleting,
    )


class _Account(msgspec.Struct):
    """The running totals of a NodePool."""

    nodes_before: int = 0
    nodes_after: int = 0
    before: list[float] = []
    after: list[float] = []

    def close(self) -> PoolCost:
        return PoolCost(
            nodes_before=self.nodes_before,
            nodes_after=self.nodes_after,
            before=money(self.before),
            after=money(self.after),
        )


def with_base(cost: Cost, base: Cost) -> Cost:
    """Return a cost with that of the base's own plan."""
    by_node_pool = {}
    for name in sorted(cost.by_node_pool.keys() | base.by_node_pool.keys()):
        was = base.by_node_pool.get(name, PoolCost())
        by_node_pool[name] = msgspec.structs.replace(
            cost.by_node_pool.get(name, PoolCost()), nodes_base=was.nodes_after, base=was.after
        )
    return msgspec.structs.replace(cost, base=base.after, by_node_pool=by_node_pool)


def cost_of(
    pools: Iterable[str],
    nodes: Iterable[OwnedNode],
    commands: Iterable[PlannedCommand],
    node_claims: Iterable[PlannedNodeClaim],
    unlaunched: Iterable[UnlaunchedClaim],
) -> Cost:
    """Return the cost before and after; every pool is listed, even without nodes.

    Nodes that are already being removed count before and not after.
    """
    accounts = {name: _Account() for name in pools}
    gone = {name for command in commands for name in (*command.node_claims, *command.nodes)}
    unpriced = 0
    for node in nodes:
        account = accounts.setdefault(node.node_pool, _Account())
        price = node.price if node.price is not None else 0.0
        unpriced += node.price is None
        account.nodes_before += 1
        account.before.append(price)
        if not node.is_going and node.node_claim not in gone and node.name not in gone:
            account.nodes_after += 1
            account.after.append(price)
    launches: list[PlannedNodeClaim | UnlaunchedClaim] = [*node_claims, *unlaunched]
    for claim in launches:
        account = accounts.setdefault(claim.node_pool, _Account())
        account.nodes_after += 1
        account.after.append(claim.launch.price if claim.launch is not None else 0.0)
        unpriced += claim.launch is None
    closed = {name: account.close() for name, account in sorted(accounts.items())}
    return Cost(
        before=money(c.before for c in closed.values()),
        after=money(c.after for c in closed.values()),
        by_node_pool=closed,
        unpriced=unpriced,
    )
