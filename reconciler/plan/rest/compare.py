"""What a change costs: the fleet at rest under the base, and continued from there under the head.

``before`` and ``after`` differ only in the desired state: the same clock continues, and a
node costs what it cost when it was launched or first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as with_fields
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.desired.fleet import Fleet
from reconciler.desired.objects import node_pools
from reconciler.disruption.command import ForcefulReason, WaitsFor
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.duration import iso_duration
from reconciler.model.history import History
from reconciler.model.karpenter.budget import DisruptionReason, allowance
from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, INSTANCE_TYPE, SPOT, ZONE
from reconciler.model.resources import Resources, fits
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.question import LaunchPool
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.costs import sum_dollars
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.continuation import RestResult, Work, continue_fleet
from reconciler.plan.rest.world import (
    RestingFleet,
    describe_endless_drain,
    pods_blocking_drain,
    with_workloads,
    without_nodes,
)
from reconciler.plan.value.costs import AtRest, Cost, FleetAtRest, StuckNode


class Exposure(msgspec.Struct, frozen=True, rename="camel"):
    """Facts about the nodes of NodePools and their pods.

    ``spot_percent`` is the share of pods on spot nodes, ``largest_zone_percent`` that of the zone
    with most pods. ``architectures`` and ``instance_types`` are those that run.
    """

    spot_percent: float
    zones: int
    largest_zone_percent: float
    architectures: tuple[str, ...]
    instance_types: tuple[str, ...]


def exposure_of(rest: RestResult) -> Exposure:
    """Return how much of the fleet depends on spot capacity, zones and instance types."""
    pods = spot = 0
    by_zone: dict[str, int] = {}
    architectures: set[str] = set()
    types: set[str] = set()
    for node in rest.world.cluster.nodes:
        if not node.is_managed or node.is_deleting:
            continue
        count = len(node.reschedulable)
        labels = node.labels
        pods += count
        spot += count if labels.get(CAPACITY_TYPE) == SPOT else 0
        zone = labels.get(ZONE, "")
        by_zone[zone] = by_zone.get(zone, 0) + count
        architectures.add(labels.get(ARCH, ""))
        types.add(labels.get(INSTANCE_TYPE, ""))
    return Exposure(
        spot_percent=_percent(spot, pods),
        zones=sum(1 for zone, count in by_zone.items() if zone and count),
        largest_zone_percent=_percent(max(by_zone.values(), default=0), pods),
        architectures=tuple(sorted(architectures - {""})),
        instance_types=tuple(sorted(types - {""})),
    )


def _percent(part: int, total: int) -> float:
    return round(100 * part / total, 2) if total else 0.0


# The bounds of the true value if the work limit ended a search. Consolidation only saves, so a
# fleet that is not at rest yet costs at most its present cost plus the additional cost of its
# outstanding replacements. It costs at least the minimum cost of nodes for its pods
# (``placement.bound``).


class RestingSide(msgspec.Struct, frozen=True):
    """One of the two fleets: its NodeClaims, their present cost and their final cost.

    Both are USD an hour; they differ only if the work limit left replacements outstanding.
    """

    names: frozenset[str]
    reached: float
    estimate: float


def resting_side(rest: RestResult) -> RestingSide:
    """Return a fleet for the comparison."""
    owned = rest.node_prices()
    reached = sum_dollars(owned.values())
    return RestingSide(frozenset(owned), reached, _estimated_cost(rest, reached))


def _estimated_cost(rest: RestResult, reached: float) -> float:
    """Return the cost with outstanding replacements counted like completed ones."""
    left = len(_outstanding_replacements(rest))
    done = rest.drifted_first - left
    if not rest.ended or not left or done <= 0:
        return reached
    share = (reached - rest.cost_first) / done
    return sum_dollars([max(0.0, reached + share * left)])


def change_bounds(
    before: RestResult, old: RestingSide, after: RestResult, new: RestingSide, change: float
) -> tuple[float, float]:
    """Return the minimum and the maximum cost of the change, USD an hour."""
    old_low, old_high = _cost_bounds(before, old)
    new_low, new_high = _cost_bounds(after, new)
    low, high = new_low - old_high, new_high - old_low
    return sum_dollars([min(low, change)]), sum_dollars([max(high, change)])


def _cost_bounds(rest: RestResult, side: RestingSide) -> tuple[float, float]:
    if not rest.ended:
        return side.reached, side.reached
    owned, left = rest.node_prices(), _outstanding_replacements(rest)
    pools = rest.facts.types.by_name
    names = {node.node_pool for node in left} & pools.keys()
    prices = {name: _launch_prices(pools[name]) for name in names}
    extra = (
        max(0.0, price - owned[node.claim.name])
        for node in left
        if node.claim is not None
        and (price := _replacement_price(node, prices.get(node.node_pool, ()))) is not None
    )
    return min(_minimum_cost(rest), side.reached), sum_dollars([side.reached, *extra])


def _outstanding_replacements(rest: RestResult) -> list[StateNode]:
    """Return the nodes that are drifted and not blocked: they will be replaced."""
    drifted = {drift.node_claim for drift in rest.facts.drift}
    blocked = {
        block.node for block in rest.decisions.blocked if block.reason == DisruptionReason.DRIFTED
    }
    return [
        node
        for node in rest.world.cluster.nodes
        if node.claim is not None and node.claim.name in drifted and node.name not in blocked
    ]


def _launch_prices(pool: LaunchPool) -> list[tuple[float, Resources]]:
    """Return the price and the allocatable resources of each type of a pool, cheapest first."""
    requirements = pool.node_pool.requirements()
    found = [
        (offering.price, kind.allocatable)
        for kind in pool.types.types
        if kind.requirements.intersects(requirements)
        if (offering := kind.cheapest_offering(requirements)) is not None
    ]
    return sorted(found, key=lambda row: row[0])


def _replacement_price(node: StateNode, prices: Sequence[tuple[float, Resources]]) -> float | None:
    """Return the price of the cheapest node of its pool that takes all pods of this one."""
    return next((price for price, room in prices if fits(node.used, room)), None)


def _minimum_cost(rest: RestResult) -> float:
    """Return the minimum cost of nodes for all pods of the fleet."""
    empty, pods = without_nodes(rest.world.cluster)
    scheduler = Scheduler(rest.facts.types.ready, empty, rest.inputs.settings, rest.at)
    return scheduler.lower_bound(pods).cost


# The nodes of a fleet at rest that should be disrupted, and what blocks that.


_DRAINING: Final = "Draining"
_AT_REST: Final = frozenset({DisruptionReason.UNDERUTILIZED.value, DisruptionReason.EMPTY.value})
"""A node that is merely not consolidated is at rest nevertheless."""


def stuck_nodes(rest: RestResult) -> tuple[StuckNode, ...]:
    """Return the nodes that cannot come to rest, by NodeClaim, each with one reason."""
    found: dict[str, StuckNode] = {}
    for node in (*_stuck_draining(rest), *_stuck_deferred(rest), *_stuck_blocked(rest)):
        found.setdefault(node.node_claim, node)
    return tuple(found[name] for name in sorted(found))


def _stuck_draining(rest: RestResult) -> list[StuckNode]:
    cluster, found = rest.world.cluster, []
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    for node in cluster.nodes:
        blocking = pods_blocking_drain(node, budgets, rest.at) if node.is_deleting else []
        if blocking:
            text = describe_endless_drain(blocking, budgets)
            found.append(_stuck_node(node, _DRAINING, text))
    return found


def _stuck_deferred(rest: RestResult) -> list[StuckNode]:
    """Return what waits for a budget that never opens, an approval, or beyond the horizon."""
    by_claim = {n.claim.name: n for n in rest.world.cluster.nodes if n.claim is not None}
    return [
        _stuck_node(by_claim[d.node_claim], d.reason, d.message)
        for d in rest.decisions.deferred
        if d.node_claim in by_claim
        and d.reason not in _AT_REST
        and (_never_ends(rest, d.not_before is None) or d.waits_for is WaitsFor.APPROVAL)
    ]


def _never_ends(rest: RestResult, unknown: bool) -> bool:
    """Return whether a wait has no end: if the work limit ended the search, none is known."""
    return not rest.ended and (unknown or not rest.rested)


def _stuck_blocked(rest: RestResult) -> list[StuckNode]:
    drifted = {drift.node_claim for drift in rest.facts.drift}
    by_name = rest.world.cluster.by_name
    found = []
    for block in rest.decisions.blocked:
        node = by_name.get(block.node)
        if node is None or node.claim is None:
            continue
        must_be_replaced = block.reason == DisruptionReason.DRIFTED and node.claim.name in drifted
        if must_be_replaced or block.reason in set(ForcefulReason):
            found.append(_stuck_node(node, block.reason, block.message))
    return found


def _stuck_node(node: StateNode, reason: str, message: str) -> StuckNode:
    assert node.claim is not None
    return StuckNode(
        node_claim=node.claim.name,
        node=node.name,
        node_pool=node.node_pool,
        reason=str(reason),
        message=message,
    )


_WORK: Final = 5_500_000
"""The work limit of both sides together, in evaluated nodes.

That is enough for three hundred nodes that are far from rest, and for a few plans of ten thousand.
"""
_MANY: Final = 100
"""A budget that allows none of this many nodes allows none at all."""


_SIMULATED_NODES_MAX: Final = 200
_SIMULATED_PODS_MAX: Final = 2_000
"""Up to this size, simulating a change takes about as long as continuing three hundred nodes."""


def compare_with_base(
    inputs: Inputs, base: Inputs, work_max: int | None = None
) -> tuple[AtRest, Cost]:
    """Return the cost of the change from ``base`` to ``inputs``, and that after the base's plan.

    The change of a small fleet is simulated if possible; otherwise ``work_max`` is the work limit.
    In two regions, new nodes for all pods are compared.
    """
    if base.settings.region != inputs.settings.region:
        return _compare_new_fleets(inputs, base, work_max), _cost_of_first_plan(base)
    simulation = inputs.simulation
    if simulation is not None and _is_small(base) and _is_small(inputs):
        found = simulation(has_effect=not _has_same_plans(base, inputs))
        if found is not None:
            return found, _cost_of_first_plan(base)
    return _continue_both(inputs, base, work_max)


def _compare_new_fleets(inputs: Inputs, base: Inputs, work_max: int | None) -> AtRest:
    """Return the difference of two fleets that launch nodes for all pods."""
    work = (work_max or _WORK) // 2
    base_side, head_side = (
        replace(side, cluster=without_nodes(side.cluster)[0], against=None, region_before="")
        for side in (base, inputs)
    )
    change, _ = RestedBase(base_side, work, has_new_nodes=True).compare_change(head_side)
    return change


def _is_small(inputs: Inputs) -> bool:
    cluster = inputs.cluster
    return len(cluster.nodes) <= _SIMULATED_NODES_MAX and len(cluster.pods) <= _SIMULATED_PODS_MAX


def _cost_of_first_plan(base: Inputs) -> Cost:
    """Return the cost after the plan of the base."""
    world = RestingFleet(base.cluster, instances=base.instances)
    rest = continue_fleet(base, world, base.now, base.history or History(), Work(_WORK), answers=1)
    assert rest.first is not None, "one answer is asked for"
    return rest.first


def _continue_both(inputs: Inputs, base: Inputs, work_max: int | None) -> tuple[AtRest, Cost]:
    work_max = work_max or _WORK
    work = Work(work_max // 2)
    world = RestingFleet(base.cluster, instances=base.instances)
    before = continue_fleet(base, world, base.now, base.history or History(), work)
    assert before.first is not None, "one answer is always asked for"
    first = before.first
    if _has_same_plans(base, inputs):
        return _difference(before, _unchanged_result(before)), first
    if not before.ended:
        return _difference(
            before, _continue_under_head(before, inputs, base, work.increased_by(work_max // 2))
        ), first
    if (
        _has_same_plans(base, inputs, ignore_budgets=True)
        and _allows_disruption(base)
        and _allows_disruption(inputs)
    ):
        return _difference(before, _unchanged_result(before)), first
    work = Work(work_max // 4)
    further = continue_fleet(base, before.world, before.at, before.history, work)
    if not further.ended:
        return _difference(
            further, _continue_under_head(further, inputs, base, work.increased_by(work_max // 4))
        ), first
    # both continue from the same fleet and work: what remains to be done counts on both
    return _difference(
        further, _continue_under_head(before, inputs, base, Work(work_max // 4))
    ), first


class RestedBase:
    """A base at rest, with which many changes are compared: it is brought to rest once.

    ``work_max`` is the work limit of each side, in evaluated nodes, by default the stated one. If
    fleets of new nodes are compared, both sides start from the cluster of the base, as if all nodes
    had been replaced; otherwise a change starts from the base at rest.
    """

    def __init__(
        self, base: Inputs, work_max: int | None = None, *, has_new_nodes: bool = False
    ) -> None:
        self._work_max = work_max or _WORK // 2
        self._has_new_nodes = has_new_nodes
        self._base = base
        self._from = self._continue_cluster(base)
        assert self._from.first is not None, "one answer is always asked for"
        self.first: Cost = self._from.first
        self.rest = self._from
        if (
            self._from.ended and not has_new_nodes
        ):  # with the same work, as in ``compare_with_base``
            start = self._from
            self.rest = continue_fleet(
                base, start.world, start.at, start.history, Work(self._work_max)
            )

    def compare_change(self, inputs: Inputs) -> tuple[AtRest, RestResult]:
        """Return the cost of the change to ``inputs``, and the fleet at rest under it."""
        if _has_same_plans(self._base, inputs):
            after = _unchanged_result(self.rest)
        elif self._has_new_nodes:
            after = self._continue_cluster(inputs)
        else:
            after = _continue_under_head(self._from, inputs, self._base, Work(self._work_max))
        change = _difference(self.rest, after)
        if self._has_new_nodes:  # no node of one side is one of the other
            change = msgspec.structs.replace(change, replaced=0, rollout=None)
        return change, after

    def compare_cluster(
        self, change_cluster: Callable[[ClusterState], ClusterState]
    ) -> tuple[AtRest, RestResult]:
        """Return what it costs if the cluster is changed, and the fleet at rest then.

        ``change_cluster`` changes pods and their budgets; nodes keep the pods that they have.
        """
        if self._has_new_nodes:
            inputs = msgspec.structs.replace(self._base, cluster=change_cluster(self._base.cluster))
            after = self._continue_cluster(inputs)
        else:
            start = self._from
            world = with_fields(start.world, cluster=change_cluster(start.world.cluster))
            after = continue_fleet(self._base, world, start.at, start.history, Work(self._work_max))
        change = _difference(self.rest, after)
        if self._has_new_nodes:
            change = msgspec.structs.replace(change, replaced=0, rollout=None)
        return change, after

    def _continue_cluster(self, inputs: Inputs) -> RestResult:
        world = RestingFleet(inputs.cluster, instances=inputs.instances)
        history = inputs.history or History()
        return continue_fleet(inputs, world, inputs.now, history, Work(self._work_max))


def _continue_under_head(
    before: RestResult, inputs: Inputs, base: Inputs, work: Work
) -> RestResult:
    """Return the fleet that the head leads to."""
    world = before.world
    if inputs.cluster is not base.cluster:
        cluster = with_workloads(world.cluster, inputs.cluster, before.at)
        world = with_fields(world, cluster=cluster)
    return continue_fleet(inputs, world, before.at, before.history, work)


def _unchanged_result(rest: RestResult) -> RestResult:
    """Return the fleet under a head that changes nothing."""
    return with_fields(rest, began=rest.at, last=None, ended=False, rested=True)


def _difference(before: RestResult, after: RestResult) -> AtRest:
    old, new = resting_side(before), resting_side(after)
    limited = after.ended or (before.ended and after.world is not before.world)
    change = new.estimate - old.estimate
    return AtRest(
        before=FleetAtRest(nodes=len(old.names), per_hour=old.estimate),
        after=FleetAtRest(nodes=len(new.names), per_hour=new.estimate),
        per_hour=sum_dollars([change]),
        per_month=sum_dollars([change * HOURS_A_MONTH]),
        bounds=change_bounds(before, old, after, new, change) if limited else None,
        unschedulable=waiting_pods(after),
        replaced=min(len(old.names - new.names), len(new.names - old.names)),
        rollout=_rollout_duration(after),
        stuck=stuck_nodes(after),
    )


def waiting_pods(rest: RestResult) -> tuple[str, ...]:
    """Return the pods that are still unschedulable at the end."""
    placement = rest.decisions.placement
    if placement is None:
        return ()
    waiting = {pod.key for pod in rest.world.cluster.pending}
    return tuple(sorted(waiting & (placement.unschedulable.keys() | placement.deferred.keys())))


def _rollout_duration(rest: RestResult) -> str | None:
    """Return the time from the first moment to the end of the last action, in ISO 8601."""
    if not rest.rested:
        return None
    return iso_duration(rest.last - rest.began if rest.last is not None else timedelta())


def _has_same_plans(base: Inputs, head: Inputs, *, ignore_budgets: bool = False) -> bool:
    """Return whether two inputs have the same plans, now and at every later time.

    Comments, the order of files, and workloads beside an observed cluster decide nothing.
    """
    if base.catalog is not head.catalog and base.catalog.digest != head.catalog.digest:
        return False
    if base.cluster is not head.cluster and base.cluster != head.cluster:
        return False
    if base.settings != head.settings:
        return False
    rows = (list(_decisive_objects(i.fleet, ignore_budgets=ignore_budgets)) for i in (base, head))
    return next(rows) == next(rows)


def _decisive_objects(fleet: Fleet, *, ignore_budgets: bool) -> Iterator[tuple[str, object]]:
    """Yield the parts of a fleet's files that decisions depend on."""
    for resource in fleet.node_pools:
        data = resource.data
        if ignore_budgets:
            spec = data.get("spec", {})
            disruption = {k: v for k, v in spec.get("disruption", {}).items() if k != "budgets"}
            data = {**data, "spec": {**spec, "disruption": disruption}}
        yield resource.name, data
    for group in (
        fleet.node_claims, fleet.node_overlays, fleet.node_classes, fleet.capacity_buffers,
    ):  # fmt: skip
        yield from ((f"{r.kind}/{r.namespace}/{r.name}", r.data) for r in group)
    yield "lock", fleet.lock.digest if fleet.lock is not None else ""


def _allows_disruption(inputs: Inputs) -> bool:
    """Return whether every NodePool's budgets allow disruption at some time for every reason."""
    return all(
        allowance(
            [b for b in pool.spec.disruption.budgets if b.schedule is None],
            reason,
            _MANY,
            inputs.now,
        ).nodes
        for pool in node_pools(inputs.fleet)
        for reason in DisruptionReason
    )
