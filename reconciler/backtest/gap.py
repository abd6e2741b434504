"""Why a side costs more than nodes without any constraint would.

Between the cost and that minimum lies a chain of amounts, each without one more group of
constraints. The difference between two neighbours is the part of that group, so the parts add up to
the complete gap. The lower bound of the result is one of these amounts.

Amounts at a moment take longer to compute than the bound itself, so they are computed at some
moments only, selected by dollars: each represents the same part of the lower bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import accumulate, chain, pairwise, repeat
from math import fsum
from typing import Final

from msgspec.structs import replace as with_fields

from reconciler.adapters.simulated.compute import SimulatedCompute
from reconciler.backtest.bound import (
    TIMELESS,
    Stretch,
    cluster_without_nodes,
    launchable_types,
    stretches,
)
from reconciler.backtest.replay import Stay
from reconciler.engine.reconcile import Pass
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, ON_DEMAND, OS, RESERVED, SPOT
from reconciler.model.karpenter.nodepool import (
    NodePool,
    NodePoolSpec,
    NodeSelectorRequirement,
    requirements_of,
)
from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Affinity, Pod, PodSpec
from reconciler.model.settings import Packing
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.placement.question import LaunchCatalog, LaunchPool, Question
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.value.costs import CostGap
from reconciler.simulate.building import SimulatedFleet

MOMENTS_MAX: Final = 24
"""The maximum number of moments at which the amounts are computed."""

_DIGITS: Final = 6
_HOUR: Final = timedelta(hours=1)


class BusyRecorder:
    """Records the cost of instances with pods; DaemonSets do not count."""

    def __init__(self, compute: SimulatedCompute) -> None:
        self._compute = compute
        self._steps: list[tuple[datetime, float]] = []
        self._pods: tuple[Pod, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._busy: frozenset[str] = frozenset()

    def record_pass(self, done: Pass) -> None:
        """Record what a pass observed."""
        snapshot, at = done.seen.snapshot, done.seen.at
        if snapshot.pods != self._pods or snapshot.nodes != self._nodes:
            self._pods, self._nodes = snapshot.pods, snapshot.nodes
            self._busy = _busy_nodes(snapshot)
        prices = (
            machine.price(at) or 0.0
            for machine in self._compute.running_instances()
            if machine.facts.provider_id in self._busy
        )
        per_hour = fsum(prices)
        if not self._steps or self._steps[-1][1] != per_hour:
            self._steps.append((at, per_hour))

    def dollars(self, end: datetime) -> float:
        """Return the cost until ``end`` in USD."""
        ends = [*(at for at, _ in self._steps[1:]), end]
        return fsum(
            per_hour * ((until - at) / _HOUR)
            for (at, per_hour), until in zip(self._steps, ends, strict=True)
        )


def explain_gap(
    fleet: SimulatedFleet,
    stays: Iterable[Stay],
    end: datetime,
    bounds: Sequence[float],
    busy: BusyRecorder,
    dollars: float,
) -> CostGap:
    """Return the parts of the gap between ``dollars`` and the minimum without constraints.

    ``bounds`` are the lower bounds of all stretches in USD.
    """
    bound = fsum(bounds)
    ratios = _ratios(fleet, stays, end, bounds)
    packed, unruled, *relaxed = (bound * ratio for ratio in ratios)
    used = min(max(busy.dollars(end), bound), dollars)
    packed = min(packed, used)
    amounts = [dollars, used, packed, min(unruled, packed), bound, *relaxed]
    rounded = [round(amount, _DIGITS) for amount in amounts]
    return CostGap(rounded[-1], *(round(a - b, _DIGITS) for a, b in pairwise(rounded)))


def _ratios(
    fleet: SimulatedFleet, stays: Iterable[Stay], end: datetime, bounds: Sequence[float]
) -> list[float]:
    """Return the amounts of ``_Amounts`` as shares of the lower bound."""
    shares = select_moments(bounds, MOMENTS_MAX)
    found: list[list[float]] = []
    amounts: _Amounts | None = None
    for number, stretch in enumerate(stretches(fleet, stays, end)):
        share = shares.get(number)
        if share is None:
            continue
        if amounts is None or amounts.fleet is not stretch.fleet:
            amounts = _Amounts(stretch.fleet)
        bound = bounds[number] / stretch.hours
        found.append([share * amount / bound for amount in amounts.amounts_at(stretch, bound)])
    if not found:
        return [0.0] * (len(_RELAXATIONS) + 2)
    return [fsum(column) for column in zip(*found, strict=True)]


def select_moments(amounts: Sequence[float], most: int) -> dict[int, float]:
    """Return the indexes of at most ``most`` amounts, each with the share that it represents.

    If there are more, the selected ones are at equal distances along the sum.
    """
    counted = [number for number, amount in enumerate(amounts) if amount > 0]
    sums = [*accumulate(amounts[number] for number in counted)]
    if len(counted) <= most:
        return {number: amounts[number] / sums[-1] for number in counted}
    found: dict[int, float] = {}
    for turn in range(most):
        at = bisect_left(sums, sums[-1] * (turn + 0.5) / most)
        found[counted[at]] = found.get(counted[at], 0.0) + 1 / most
    return found


class _Amounts:
    """The chain of amounts for one fleet, in USD an hour."""

    def __init__(self, fleet: SimulatedFleet) -> None:
        self.fleet = fleet
        self._pools = [_without_limits(pool) for pool in launchable_types(fleet).ready]
        self._cluster = cluster_without_nodes(fleet)
        self._specs: dict[tuple[int, Callable[[PodSpec], PodSpec]], tuple[PodSpec, PodSpec]] = {}

    @cached_property
    def _packing(self) -> Scheduler:
        settings = replace(self.fleet.settings, packing=Packing.CHEAPEST, node_pools={})
        return Scheduler(self._pools, self._cluster, settings, TIMELESS)

    @cached_property
    def _schedulers(self) -> list[Scheduler]:
        """The schedulers of the relaxations."""
        pools, cluster, found = self._pools, self._cluster, list[Scheduler]()
        for relax in _RELAXATIONS:
            pools, cluster = relax(pools, cluster)
            found.append(Scheduler(pools, cluster, self.fleet.settings, TIMELESS))
        return found

    def amounts_at(self, stretch: Stretch, bound: float) -> list[float]:
        """Return the amounts without the bound itself, none above its predecessor.

        They are the cheapest packing that is found, the same without rules between pods, and the
        bounds of the relaxations: the first for pods without rules, the others for pods without any
        requirement.
        """
        pods = list(stretch.pods.values())
        without_pod_rules = [self._change_spec(pod, without_rules) for pod in pods]
        free = [self._change_spec(pod, without_requirements) for pod in pods]
        minimum = max(self._packing_cost(without_pod_rules), bound)
        has_rules = any(
            one is not other for one, other in zip(pods, without_pod_rules, strict=True)
        )
        found = [max(self._packing_cost(pods), minimum) if has_rules else minimum, minimum]
        for scheduler, relaxed in zip(
            self._schedulers, chain((without_pod_rules,), repeat(free)), strict=False
        ):
            bound = min(bound, scheduler.lower_bound(relaxed).cost)
            found.append(bound)
        return found

    def _packing_cost(self, pods: Sequence[Pod]) -> float:
        """Return the cost of the cheapest packing that is found for pods without nodes."""
        claims = self._packing.place(Question(pods=pods)).claims
        return fsum(claim.launch[1].price for claim in claims)

    def _change_spec(self, pod: Pod, change: Callable[[PodSpec], PodSpec]) -> Pod:
        """Return the pod with a changed spec; pods that share a spec continue to share it."""
        key = id(pod.spec), change
        known = self._specs.get(key)
        if known is None:  # the spec is kept, so that no other one gets its id
            known = self._specs[key] = (pod.spec, change(pod.spec))
        return pod if known[1] is pod.spec else with_fields(pod, spec=known[1])


def without_rules(spec: PodSpec) -> PodSpec:
    """Return a spec without topology spread, affinity to other pods, and host ports."""
    affinity = spec.affinity
    if affinity is not None:
        affinity = Affinity(affinity.node_affinity) if affinity.node_affinity else None
    ports = any(c.ports for c in (*spec.containers, *spec.init_containers))
    if affinity == spec.affinity and not spec.topology_spread_constraints and not ports:
        return spec
    return with_fields(
        spec,
        affinity=affinity,
        topology_spread_constraints=(),
        containers=tuple(with_fields(c, ports=()) for c in spec.containers),
        init_containers=tuple(with_fields(c, ports=()) for c in spec.init_containers),
    )


def without_requirements(spec: PodSpec) -> PodSpec:
    """Return a spec that also has no node selector, node affinity and volumes."""
    return with_fields(without_rules(spec), node_selector={}, affinity=None, volumes=())


_World = tuple[list[LaunchPool], ClusterState]


def _keep_everything(pools: list[LaunchPool], cluster: ClusterState) -> _World:
    """Relax nothing: only the pods have changed."""
    return pools, cluster


def _allow_any_type(pools: list[LaunchPool], cluster: ClusterState) -> _World:
    """Drop the requirements of NodePools except architecture, system and capacity type.

    The former two depend on the images of pods.
    """
    return [_with_requirements(pool, ARCH, OS, CAPACITY_TYPE) for pool in pools], cluster


def _allow_any_capacity_type(pools: list[LaunchPool], cluster: ClusterState) -> _World:
    """Allow spot and on-demand nodes; reserved capacity only if it is already allowed."""
    found: list[LaunchPool] = []
    for pool in pools:
        allowed = requirements_of(_entries(pool.node_pool)).requirement_on(CAPACITY_TYPE)
        values = (ON_DEMAND, SPOT, *((RESERVED,) if allowed.has(RESERVED) else ()))
        entry = NodeSelectorRequirement(CAPACITY_TYPE, Operator.IN, values)
        found.append(_with_requirements(pool, ARCH, OS, more=(entry,)))
    return found, cluster


def _drop_overhead(pools: list[LaunchPool], _: ClusterState) -> _World:
    """Drop DaemonSets and the system reservations of nodes."""
    bare: dict[int, BareTypes] = {}
    for pool in pools:
        if id(pool.types) not in bare:
            bare[id(pool.types)] = BareTypes(pool.types)
    freed = [with_fields(pool, types=bare[id(pool.types)]) for pool in pools]
    return freed, cluster_state(Snapshot())


_RELAXATIONS: Final = (
    _keep_everything,
    _keep_everything,
    _allow_any_type,
    _allow_any_capacity_type,
    _drop_overhead,
)
"""The relaxations of the bounds below the lower bound, each in addition to the previous one."""


class BareTypes:
    """A catalog in which pods can use the complete capacity of each type."""

    def __init__(self, source: LaunchCatalog) -> None:
        self.well_known = source.well_known
        self.types = [
            InstanceType(
                kind.name, kind.capacity, {}, kind.requirements, kind.offerings, kind.volume_limit
            )
            for kind in source.types
        ]

    def get(self, name: str) -> InstanceType | None:
        """Return the instance type with that name, or None."""
        return next((kind for kind in self.types if kind.name == name), None)


def _entries(pool: NodePool) -> tuple[NodeSelectorRequirement, ...]:
    return pool.spec.template.spec.requirements


def _with_requirements(
    pool: LaunchPool, *keys: str, more: tuple[NodeSelectorRequirement, ...] = ()
) -> LaunchPool:
    """Return the NodePool with only its requirements on some keys, and with further ones."""
    kept = tuple(entry for entry in _entries(pool.node_pool) if entry.key in keys)
    spec = pool.node_pool.spec
    template = with_fields(
        spec.template, spec=with_fields(spec.template.spec, requirements=(*kept, *more))
    )
    return _with_spec(pool, with_fields(spec, template=template))


def _without_limits(pool: LaunchPool) -> LaunchPool:
    """Return the NodePool without limits: pods that it rejects would have no cost."""
    return _with_spec(pool, with_fields(pool.node_pool.spec, limits={}))


def _with_spec(pool: LaunchPool, spec: NodePoolSpec) -> LaunchPool:
    return with_fields(pool, node_pool=with_fields(pool.node_pool, spec=spec))


def _busy_nodes(snapshot: Snapshot) -> frozenset[str]:
    """Return the provider ids of the nodes with pods of workloads."""
    holding = snapshot.indexed_pods.workload_names
    return frozenset(n.spec.provider_id for n in snapshot.nodes if holding.get(n.name))
