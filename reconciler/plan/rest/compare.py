"""What a change costs: the fleet at rest under the base, and continued from there under the head.

``before`` and ``after`` differ only in the desired state: the same clock continues, and a
node costs what it cost when it was launched or first seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace as with_fields
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.desired.fleet import Fleet
from reconciler.desired.objects import node_pools
from reconciler.disruption.gates.budgets import budget_reasons
from reconciler.model.chance import Chance
from reconciler.model.history import History
from reconciler.model.karpenter.budget import DisruptionReason, allowance
from reconciler.model.karpenter.nodepool import WHEN_EMPTY, NodePool
from reconciler.observed.state import ClusterState
from reconciler.plan.make.assemble import unschedulable_pods
from reconciler.plan.make.inputs import Inputs, RevisionPair
from reconciler.plan.rest.continuation import RestResult, SharedWork, Work, continue_fleet
from reconciler.plan.rest.difference import difference_of, resting_side, waiting_pods
from reconciler.plan.rest.world import RestingFleet, with_workloads, without_nodes
from reconciler.plan.value.costs import AtRest, Cost, combine_seeds
from reconciler.plan.value.nodes import limiting_pool
from reconciler.plan.value.ranges import (
    NEW_NODES_SEEDS,
    FleetAtRest,
    NewFleet,
    NewFleets,
    new_fleets,
    seed_count,
)

_NEW_NODES_WORK: Final = 1_000_000
"""The work of all runs of both sides together, in evaluated nodes: about three CPU seconds."""
_POD_WORK: Final = 200
"""What each pod costs at least until the fleet is at rest, in evaluated nodes."""

_WORK: Final = 5_500_000
"""The work limit of both sides together, in evaluated nodes: a few plans of ten thousand nodes."""
_MEDIUM: Final = (400, 4_000)
"""The nodes and pods up to which a fleet is brought to rest from any distance."""
_MEDIUM_WORK: Final = 30_000_000
"""The work limit of both sides of such a fleet together.

Three hundred nodes far from rest took eight million, about eight CPU seconds. With less, a plan
would state bounds that are too wide to decide anything.
"""
_BASE_WORK: Final = 16_000_000
"""The work limit of a base with which many changes are compared: it comes to rest only once."""
_SEEDS_WORK: Final = 7_000_000
"""The work of all seeds together, from which their number follows: about 15 CPU seconds."""
_MODEL_ERROR: Final = 0.02
"""By how much of their cost the planner alone is wrong about replaced nodes, at most.

Of 13 changes to 86 to 300 nodes, the simulation differed by 0 to 1.8% (decision 17).
"""
_NEW_NODES_SEEDS_MIN: Final = 3
"""One run of new nodes alone would state chance as a fact."""
_KEPT_MIN: Final = 0.02
"""The share of the cost of the base from which nodes that are not consolidated are named."""
_MANY: Final = 100
"""A budget that allows none of this many nodes allows none at all."""

_SIMULATED_NODES_MAX: Final = 100
_SIMULATED_PODS_MAX: Final = 1_000
_SIMULATED_PENDING_MAX: Final = 500
"""Up to this size, simulating a change with several seeds takes at most about 25 CPU seconds."""


def compare_with_base(pair: RevisionPair, work_max: int | None = None) -> tuple[AtRest, Cost]:
    """Return the cost of the change, and that after the base's plan.

    The change of a small fleet is simulated if possible; otherwise ``work_max`` is the work limit.
    In two regions, new nodes for all pods are compared; otherwise these are compared as well.
    """
    base, head = pair.base, pair.head
    if base.settings.region != head.settings.region:
        return _compare_new_fleets(pair, work_max), _cost_of_first_plan(base)
    simulation = head.simulation
    if simulation is not None and is_small(base) and is_small(head):
        found = simulation(has_effect=not _has_same_plans(pair))
        if found is not None:
            return _with_other_starts(found, pair), _cost_of_first_plan(base)
    change, first = _continue_both(pair, work_max)
    return _with_other_starts(change, pair), first


def _work_limit(inputs: Inputs) -> int:
    """Return the work limit of both sides of a change together."""
    nodes_max, pods_max = _MEDIUM
    cluster = inputs.cluster
    is_medium = len(cluster.nodes) <= nodes_max and len(cluster.pods) <= pods_max
    return _MEDIUM_WORK if is_medium else _WORK


def _with_other_starts(change: AtRest, pair: RevisionPair) -> AtRest:
    """Return the change with what it leads to from new nodes, and from the present ones."""
    change = _with_new_nodes(change, pair)
    return replace(change, kept=_kept_fleet(change, pair))


def _kept_fleet(change: AtRest, pair: RevisionPair) -> FleetAtRest | None:
    """Return the fleet that the present nodes lead to if the change stops their consolidation.

    The change begins from the fleet that the base consolidates them to, so it does not show this.
    It is None if that fleet costs no more than the change by more than chance.
    """
    base, head = pair.base, pair.head
    present = sum(1 for node in base.cluster.nodes if node.is_managed)
    if change.bounds is not None or not present or not _stops_consolidation(pair):
        return None
    world = RestingFleet(head.cluster, instances=head.instances)
    rest = continue_fleet(head, world, head.now, head.history or History(), Work(_WORK))
    if rest.ended:
        return None
    side = resting_side(rest)
    highest = change.range.per_hour.high if change.range is not None else change.after.per_hour
    if side.estimate <= highest + _KEPT_MIN * change.before.per_hour:
        return None
    return FleetAtRest(nodes=len(side.names), per_hour=side.estimate)


def _stops_consolidation(pair: RevisionPair) -> bool:
    """Return whether the change keeps the nodes of a NodePool from being consolidated."""
    before, after = (
        {pool.name: _is_consolidated(pool, side.now) for pool in node_pools(side.fleet)}
        for side in (pair.base, pair.head)
    )
    return any(was and not after[name] for name, was in before.items() if name in after)


def _is_consolidated(pool: NodePool, now: datetime) -> bool:
    """Return whether the NodePool's underutilized nodes are ever consolidated."""
    rules, reason = pool.spec.disruption, DisruptionReason.UNDERUTILIZED
    if rules.consolidates_after is None or rules.consolidation_policy == WHEN_EMPTY:
        return False
    return bool(allowance([b for b in rules.budgets if b.never_ends], reason, _MANY, now).nodes)


def _with_new_nodes(change: AtRest, pair: RevisionPair) -> AtRest:
    """Return the change with new nodes for all pods as well, unless that is known or equal."""
    is_new = not pair.base.fleet.node_pools and not pair.base.cluster.nodes
    if change.new_nodes is not None or is_new or _has_same_plans(pair):
        return change
    return replace(change, new_nodes=compare_new_nodes(pair))


def _compare_new_fleets(pair: RevisionPair, work_max: int | None) -> AtRest:
    """Return the difference of two fleets that launch nodes for all pods."""
    work = (work_max or _WORK) // 2
    base_side, head_side = (
        replace(side, cluster=without_nodes(side.cluster)[0], against=None, region_before="")
        for side in (pair.base, pair.head)
    )
    change, _ = RestedBase(base_side, work, has_new_nodes=True).compare_change(head_side)
    return change


def is_small(inputs: Inputs) -> bool:
    """Return whether changes of the fleet are simulated to find their cost."""
    cluster = inputs.cluster
    return (
        len(cluster.nodes) <= _SIMULATED_NODES_MAX
        and len(cluster.pods) <= _SIMULATED_PODS_MAX
        and len(cluster.pending) <= _SIMULATED_PENDING_MAX
    )


def _cost_of_first_plan(base: Inputs) -> Cost:
    """Return the cost after the plan of the base."""
    world = RestingFleet(base.cluster, instances=base.instances)
    rest = continue_fleet(base, world, base.now, base.history or History(), Work(_WORK), answers=1)
    assert rest.first is not None, "one answer is asked for"
    return rest.first


def _continue_both(pair: RevisionPair, work_max: int | None) -> tuple[AtRest, Cost]:
    """Return the change over as many seeds as the work allows, and the cost of the base's plan.

    If the limit ends the first search, its bounds are wider than any other seed could show.
    """
    shared, changes, seeds = SharedWork(), list[AtRest](), 1
    limit = work_max or _work_limit(pair.base)
    first: Cost | None = None
    is_far = False
    while len(changes) < seeds:
        chance = Chance(len(changes))
        run = _PairRun(pair, limit, chance, shared)
        change = run.compare()
        if not changes:
            first, is_far = run.first, run.used > _WORK
            seeds = seed_count(run.used, _SEEDS_WORK) if change.bounds is None else 1
        changes.append(change)
    assert first is not None, "there is at least one seed"
    found = combine_seeds(changes)
    return (found if found.bounds is not None else with_model_error(found, is_far=is_far)), first


def with_model_error(change: AtRest, *, is_far: bool = False) -> AtRest:
    """Return a change whose interval includes what the absence of latencies may do to its cost.

    That concerns the nodes that are replaced: those of the change, or all if the base ``is_far``
    from rest. Where every run has no difference, there is none.
    """
    found = change.difference
    if found is None or found.low == found.high == 0:
        return change
    share = 1.0 if is_far else min(change.replaced / max(change.before.nodes, 1), 1.0)
    error = _MODEL_ERROR * share * change.before.per_hour
    low, high = round(found.low - error, 9), round(found.high + error, 9)
    wider = replace(found, low=low, high=high, beyond_chance=low > 0 or high < 0)
    return replace(change, difference=wider, is_estimate=True)


class _PairRun:
    """Both fleets of a change with one seed. ``used`` is the work, ``first`` the base's plan."""

    def __init__(
        self, pair: RevisionPair, work_max: int, chance: Chance, shared: SharedWork
    ) -> None:
        self._pair = pair
        self._work_max = work_max
        self._chance = chance
        self._shared = shared
        self.first: Cost | None = None
        self.used = 0

    def compare(self) -> AtRest:
        """Return the cost of the change."""
        pair, base, work_max = self._pair, self._pair.base, self._work_max
        work = Work(work_max // 2)
        world = RestingFleet(base.cluster, instances=base.instances)
        before = self._continue(base, world, base.now, base.history or History(), work)
        self.first = before.first
        if _has_same_plans(pair):
            return difference_of(before, _unchanged_result(before))
        if not before.ended:
            return difference_of(before, self._under_head(before, work, work_max // 2))
        if (
            _has_same_plans(pair, ignore_budgets=True)
            and _allows_disruption(base)
            and _allows_disruption(pair.head)
        ):
            return difference_of(before, _unchanged_result(before))
        work = Work(work_max // 4)
        further = self._continue(base, before.world, before.at, before.history, work)
        if not further.ended:
            return difference_of(further, self._under_head(further, work, work_max // 4))
        # both continue from the same fleet and work: what remains to be done counts on both
        return difference_of(further, self._under_head(before, Work(0), work_max // 4))

    def _continue(
        self, inputs: Inputs, world: RestingFleet, at: datetime, history: History, work: Work
    ) -> RestResult:
        used = work.used
        found = continue_fleet(
            inputs, world, at, history, work, chance=self._chance, shared=self._shared
        )
        self.used += work.used - used
        return found

    def _under_head(self, before: RestResult, work: Work, more: int) -> RestResult:
        """Return the fleet that the head leads to, with what is left of the work and ``more``."""
        world = _world_under(before, self._pair)
        return self._continue(
            self._pair.head, world, before.at, before.history, work.increased_by(more)
        )


def _world_under(before: RestResult, pair: RevisionPair) -> RestingFleet:
    """Return the fleet of the base with the workloads of the head."""
    world, pods = before.world, pair.head.cluster
    if pods is pair.base.cluster:
        return world
    profiles = pair.head.settings.scheduler_profiles
    return with_fields(world, cluster=with_workloads(world.cluster, pods, before.at, profiles))


class RestedBase:
    """A base at rest, with which many changes are compared: it is brought to rest once.

    ``work_max`` is the work limit of each side, in evaluated nodes. By default the base has more
    than each change, since what it leaves undone would count as a saving of any change. A change of
    a base that comes to rest within that limit has what is left of it as well. If fleets of new
    nodes are compared, both sides start from the cluster of the base, as if all nodes had been
    replaced; otherwise a change starts from the base at rest. ``chance`` is the course of this base
    and of all changes. ``used`` is the work of bringing the base to rest.
    """

    def __init__(
        self,
        base: Inputs,
        work_max: int | None = None,
        *,
        has_new_nodes: bool = False,
        chance: Chance | None = None,
        shared: SharedWork | None = None,
    ) -> None:
        self._work_max = work_max or _WORK // 2
        base_work = self._work_max if work_max or has_new_nodes else _BASE_WORK
        self._chance = chance or Chance()
        self._shared = shared or SharedWork()
        self._has_new_nodes = has_new_nodes
        self._base = base
        self._from = self._continue_cluster(base, base_work)
        self.used = self._from.work
        if not has_new_nodes:
            self._work_max += max(self._work_max - self.used, 0)
        assert self._from.first is not None, "one answer is always asked for"
        self.first: Cost = self._from.first
        self.rest = self._from
        if (
            self._from.ended and not has_new_nodes
        ):  # with the same work, as in ``compare_with_base``
            start = self._from
            self.rest = self._continue(base, start.world, start.at, start.history)

    @property
    def is_near_rest(self) -> bool:
        """Whether the base comes to rest within the limit of a change, so seeds are affordable."""
        return not self._from.ended and self.used <= _WORK // 2

    def seeds_for(self, work: int) -> int:
        """Return with how many seeds a plan repeats a change whose first run took this work."""
        return seed_count(self.used + work, _SEEDS_WORK)

    def compare_change(self, inputs: Inputs) -> tuple[AtRest, RestResult]:
        """Return the cost of the change to ``inputs``, and the fleet at rest under it."""
        pair = RevisionPair(base=self._base, head=inputs)
        if _has_same_plans(pair):
            after = _unchanged_result(self.rest)
        elif self._has_new_nodes:
            after = self._continue_cluster(inputs)
        else:
            world = _world_under(self._from, pair)
            after = self._continue(inputs, world, self._from.at, self._from.history)
        return self._change_to(after), after

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
            after = self._continue(self._base, world, start.at, start.history)
        return self._change_to(after), after

    def _change_to(self, after: RestResult) -> AtRest:
        change = difference_of(self.rest, after)
        if not self._has_new_nodes:
            return change
        # no node of one side is one of the other
        return msgspec.structs.replace(change, replaced=0, rollout=None)

    def _continue_cluster(self, inputs: Inputs, work_max: int | None = None) -> RestResult:
        world = RestingFleet(inputs.cluster, instances=inputs.instances)
        return self._continue(inputs, world, inputs.now, inputs.history or History(), work_max)

    def _continue(
        self,
        inputs: Inputs,
        world: RestingFleet,
        at: datetime,
        history: History,
        work_max: int | None = None,
    ) -> RestResult:
        work, shared = Work(work_max or self._work_max), self._shared
        if inputs is not self._base:
            shared = shared.for_other_inputs()
        found = continue_fleet(inputs, world, at, history, work, chance=self._chance, shared=shared)
        return with_fields(found, work=work.used)


def _unchanged_result(rest: RestResult) -> RestResult:
    """Return the fleet under a head that changes nothing."""
    return with_fields(rest, began=rest.at, last=None, ended=False, rested=True, work=0)


def _has_same_plans(pair: RevisionPair, *, ignore_budgets: bool = False) -> bool:
    """Return whether both revisions have the same plans, now and at every later time.

    Comments, the order of files, and workloads beside an observed cluster decide nothing.
    """
    base, head = pair.base, pair.head
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
        fleet.node_claims,
        fleet.node_overlays,
        fleet.node_classes,
        fleet.capacity_buffers,
    ):
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
        for reason in budget_reasons(inputs.settings)
    )


def compare_new_nodes(pair: RevisionPair) -> NewFleets | None:
    """Return both sides with new nodes for all pods, None if that takes too long.

    Runs have the same seeds on both sides, and there are as many as the work allows.
    """
    sides = [
        replace(side, cluster=without_nodes(side.cluster)[0], against=None)
        for side in (pair.base, pair.head)
    ]
    if sum(len(side.cluster.pods) for side in sides) * _POD_WORK > _NEW_NODES_WORK:
        return None
    left, shared, pairs = _NEW_NODES_WORK, SharedWork(), list[tuple[NewFleet, NewFleet]]()
    while len(pairs) < NEW_NODES_SEEDS:
        work = Work(left)
        chance = Chance(len(pairs))
        base = _continue(sides[0], work, chance, shared)
        missing = _NEW_NODES_SEEDS_MIN - len(pairs)
        if base.ended or work.used * 2 * missing > left:
            break
        head = _continue(sides[1], work, chance, shared)
        if head.ended:
            break
        pairs.append((_new_fleet(base), _new_fleet(head)))
        left -= work.used
        if work.used > left:  # another pair of runs would not end within the rest
            break
    return new_fleets(pairs) if len(pairs) >= _NEW_NODES_SEEDS_MIN else None


def _continue(side: Inputs, work: Work, chance: Chance, shared: SharedWork) -> RestResult:
    world = RestingFleet(side.cluster, instances=side.instances)
    history = side.history or History()
    return continue_fleet(side, world, side.now, history, work, chance=chance, shared=shared)


def _new_fleet(rest: RestResult) -> NewFleet:
    """Return the end of a fleet that began without nodes."""
    side, waiting = resting_side(rest), waiting_pods(rest)
    with_nodes = {node.node_pool for node in rest.world.cluster.nodes if node.is_managed}
    limited = {
        pod.pod
        for pod in unschedulable_pods(rest.decisions.placement)
        if limiting_pool(pod) in with_nodes
    }
    return NewFleet(
        fleet=FleetAtRest(nodes=len(side.names), per_hour=side.estimate),
        unschedulable=waiting,
        limited=tuple(pod for pod in waiting if pod in limited),
    )
