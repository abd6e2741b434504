"""What the fleet costs before and after a plan, by NodePool, and what commitments cover of it.

Money is USD an hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import chain
from math import fsum
from types import MappingProxyType
from typing import TYPE_CHECKING

import msgspec

from reconciler.catalog.catalog import Catalog
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ON_DEMAND, ZONE
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import CPU, MILLI
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool, Placement
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.actions import OwnedNode, UnlaunchedClaim
from reconciler.plan.value.actions import PlannedCommand
from reconciler.plan.value.costs import Cost, PoolCost
from reconciler.plan.value.nodes import OfferedTypes, OffersChange, PlannedNodeClaim

if TYPE_CHECKING:
    from reconciler.catalog.commitments.coverage import Cover, Coverage, RunningNode
    from reconciler.model.settings import Settings
    from reconciler.placement.question import PlannedClaim


def commitment_coverage(
    settings: Settings, cluster: ClusterState, catalog: Catalog, now: datetime
) -> Coverage | None:
    """Return what commitments cover besides the running nodes, None without commitments."""
    commitments = settings.commitments
    if commitments is None:
        return None
    from reconciler.catalog.commitments.coverage import coverage_of

    return coverage_of(commitments, _running_nodes(cluster, catalog), settings.region, now)


def _running_nodes(cluster: ClusterState, catalog: Catalog) -> Iterator[RunningNode]:
    """Yield the running on-demand capacity; instances without a price use no commitment."""
    from reconciler.catalog.commitments.coverage import RunningNode

    for node in cluster.nodes:
        labels = node.labels
        if labels.get(CAPACITY_TYPE) != ON_DEMAND:
            continue
        kind, zone = catalog.get(labels.get(INSTANCE_TYPE, "")), labels.get(ZONE, "")
        price = kind.price_of(zone, ON_DEMAND) if kind is not None else None
        if kind is not None and price:
            yield RunningNode(node.name, kind.name, zone, price)


def with_remaining_costs(cluster: ClusterState, coverage: Coverage) -> ClusterState:
    """Return the cluster, with the remaining cost of covered nodes."""
    nodes = tuple(
        replace(node, paid=coverage.paid[node.name]) if node.name in coverage.paid else node
        for node in cluster.nodes
    )
    return replace(cluster, nodes=nodes)


def commitment_findings(coverage: Coverage) -> Iterator[PlanFinding]:
    """Report the commitments whose utilization is unknown."""
    for name in coverage.unknown:
        yield PlanFinding(
            severity="warning",
            code="commitment-use-unknown",
            message=f"{name} does not affect prices: its utilization is unknown",
            hint="set usedElsewhere or utilizationPercent",
        )


def _price_without_commitments(claim: PlannedClaim, pool: LaunchPool) -> float:
    kind, offering = claim.launch
    uncovered = pool.types.get(kind.name)
    price = uncovered.price_of(offering.zone, ON_DEMAND) if uncovered is not None else None
    return price or 0.0


def with_commitment_prices(
    claims: Sequence[PlannedClaim],
    covers: Sequence[Cover],
    uncovered: Callable[[], Mapping[str, LaunchPool]],
) -> tuple[PlannedClaim, ...]:
    """Return the claims, priced with commitments as long as those have unused capacity.

    The claims use the commitments in their order. When nothing is left, a claim is priced as
    without commitments, and its types are sorted again; ``uncovered`` has those types, by NodePool.
    """
    unused = {c.note: float(c.decision.count) if c.room is None else c.room for c in covers}
    rooms = {c.note: c.room for c in covers}
    used: set[str] = set()
    priced: list[PlannedClaim] = []
    for claim in claims:
        _, offering = claim.launch
        note = offering.origin.note if offering.origin is not None else ""
        if note not in unused:
            priced.append(claim)
            continue
        amount = 1.0
        if rooms[note] is not None:
            amount = _price_without_commitments(claim, uncovered()[claim.node_pool.name])
        if note in used and unused[note] < amount:
            priced.append(_without_commitments(claim, uncovered()[claim.node_pool.name]))
            continue
        used.add(note)
        unused[note] -= amount
        priced.append(claim)
    return tuple(priced)


def _without_commitments(claim: PlannedClaim, pool: LaunchPool) -> PlannedClaim:
    """Return the claim with its types at prices without commitments, cheapest first."""

    def price(kind: InstanceType) -> tuple[float, str]:
        offering = kind.cheapest_offering(claim.requirements)
        return (offering.price if offering is not None else float("inf"), kind.name)

    kinds = [kind for known in claim.types if (kind := pool.types.get(known.name)) is not None]
    return replace(claim, types=sorted(kinds, key=price))


class ObservedCoverage:
    """What commitments cover, according to the last observation of the cluster."""

    def __init__(self) -> None:
        self.covers: Sequence[Cover] = ()

    def update(
        self, settings: Settings, cluster: ClusterState, catalog: Catalog, now: datetime
    ) -> None:
        """Record an observation."""
        found = commitment_coverage(settings, cluster, catalog, now)
        self.covers = () if found is None else found.covers


# The distance of the cost of new nodes from its theoretical minimum, and the reason. It covers the
# nodes for pending pods and for pods that lose their node by force, by price only.


def with_lower_bound(
    cost: Cost,
    scheduler: Callable[[], Scheduler],
    cluster: ClusterState,
    placement: Placement | None,
) -> Cost:
    """Return the cost with the bound for ``placement``; unchanged if nothing is launched.

    The bound does not count devices that pods claim, and would be far too low for such pods.
    """
    if placement is None or not placement.claims:
        return cost
    on_claims = chain.from_iterable(claim.pods for claim in placement.claims)
    placed = {*on_claims, *placement.on_nodes}
    pods = [pod for pod in cluster.pods if pod.key in placed]
    if any(pod.spec.claims_devices for pod in pods):
        return cost
    bound = scheduler().lower_bound(pods)
    launched = sum_dollars(claim.launch[1].price for claim in placement.claims)
    gap = bound.gap(launched)
    return msgspec.structs.replace(
        cost,
        lower_bound=round(bound.cost, 9),
        bound_gap=None if gap is None else round(gap, 6),
        bound_held_by=bound.gap_reason(launched),
    )


def sum_dollars(amounts: Iterable[float]) -> float:
    """Return a sum of dollars, rounded to a billionth."""
    return round(fsum(amounts), 9)


def owned_nodes(
    cluster: ClusterState,
    pools: Mapping[str, LaunchPool],
    catalog: Catalog,
    drains: Mapping[str, Sequence[Pod]] = MappingProxyType({}),
) -> tuple[OwnedNode, ...]:
    """Return the nodes with a NodeClaim, priced by their pool's types or by ``catalog``.

    ``drains`` has the pods that a drain waits for without end, by the name of its node.
    """
    return tuple(
        _owned_node(node, pools, catalog, never_leaves=bool(drains.get(node.name)))
        for node in cluster.nodes
        if node.is_managed
    )


def _owned_node(
    node: StateNode, pools: Mapping[str, LaunchPool], catalog: Catalog, *, never_leaves: bool
) -> OwnedNode:
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
        is_deleting=node.is_deleting,
        never_leaves=never_leaves,
    )


class _Account(msgspec.Struct):
    """The running totals of a NodePool."""

    nodes_before: int = 0
    nodes_after: int = 0
    before: list[float] = []
    after: list[float] = []
    unpriced: int = 0

    def add_node(self, price: float | None, *, is_present: bool, stays: bool) -> None:
        """Count a node; one without a price costs nothing."""
        self.unpriced += price is None
        if is_present:
            self.nodes_before += 1
            self.before.append(price or 0.0)
        if stays:
            self.nodes_after += 1
            self.after.append(price or 0.0)

    def close(self) -> PoolCost:
        return PoolCost(
            nodes_before=self.nodes_before,
            nodes_after=self.nodes_after,
            before=sum_dollars(self.before),
            after=sum_dollars(self.after),
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

    Nodes that are already being removed count before and not after, unless their drain never ends.
    """
    accounts = {name: _Account() for name in pools}
    removing = (command for command in commands if command.removes_nodes)
    gone = set(chain.from_iterable((*c.node_claims, *c.nodes) for c in removing))
    for node in nodes:
        account = accounts.setdefault(node.node_pool, _Account())
        is_leaving = node.is_deleting or not gone.isdisjoint((node.node_claim, node.name))
        stays = node.never_leaves or not is_leaving
        account.add_node(node.price, is_present=True, stays=stays)
    launches: list[PlannedNodeClaim | UnlaunchedClaim] = [*node_claims, *unlaunched]
    for claim in launches:
        price = claim.launch.price if claim.launch is not None else None
        account = accounts.setdefault(claim.node_pool, _Account())
        account.add_node(price, is_present=False, stays=True)
    closed = {name: account.close() for name, account in sorted(accounts.items())}
    return Cost(
        before=sum_dollars(c.before for c in closed.values()),
        after=sum_dollars(c.after for c in closed.values()),
        by_node_pool=closed,
        unpriced=sum(account.unpriced for account in accounts.values()),
    )


def offers_of(pools: Iterable[LaunchPool]) -> dict[str, OfferedTypes]:
    """Return what each NodePool may launch now."""
    return {pool.node_pool.name: _pool_offers(pool) for pool in pools}


def _pool_offers(pool: LaunchPool) -> OfferedTypes:
    count, best = 0, None
    for kind, offerings in launchable_types(pool):
        offering = min(offerings, key=lambda o: o.price)
        count += 1
        vcpus = kind.capacity.get(CPU, 0) / MILLI
        if vcpus and (best is None or offering.price / vcpus < best[0]):
            best = (offering.price / vcpus, f"{kind.name} {offering.capacity_type}")
    if best is None:
        return OfferedTypes(types=count)
    return OfferedTypes(types=count, cheapest=best[1], per_vcpu=round(best[0], 9))


def launchable_types(pool: LaunchPool) -> Iterator[tuple[InstanceType, list[Offering]]]:
    """Yield the instance types that a NodePool may launch now, each with its offerings."""
    wanted = pool.node_pool.requirements()
    for kind in pool.types.types:
        if not kind.requirements.intersects(wanted):
            continue
        if offerings := kind.available_offerings(wanted):
            yield kind, offerings


def offer_changes(
    before: Mapping[str, OfferedTypes], after: Mapping[str, OfferedTypes]
) -> dict[str, OffersChange]:
    """Return the NodePools that may launch something else than before."""
    return {
        name: OffersChange(before=before.get(name), after=after.get(name))
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    }
