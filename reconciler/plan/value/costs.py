"""What a plan costs: before and after, at rest, and with a recorded workload."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import fsum
from typing import Annotated, ClassVar, Final

import msgspec

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.part import Part
from reconciler.model.grouping import group_pairs
from reconciler.plan.value.ranges import (
    CostDifference,
    FleetAtRest,
    FleetRange,
    NewFleets,
    cost_difference,
    fleet_range,
    mean_of,
)
from reconciler.plan.value.shares import CostShares, mean_shares

DRAINING: Final = "Draining"
NOT_JOINED: Final = "NotJoined"
"""Reasons of a stuck node beside those of disruption: its drain does not end, or it never joins."""

HEAD: Final = "head"
BASE: Final = "base"
KARPENTER: Final = "karpenter-defaults"
COMPARED: Final = (HEAD, BASE, KARPENTER)
"""The sides that are shown in columns, with the causes of their cost."""


class GapCost(Part, frozen=True, kw_only=True):
    """What one constraint costs in USD an hour, and the smallest change that saves it.

    ``owner`` is the workload or NodePool that has it, empty for the fleet.
    """

    constraint: str
    owner: str
    price_per_hour: float
    change: str


class PlannedGap(Part, frozen=True, kw_only=True):
    """The cost of a fleet and its minimum in USD an hour, and the parts between, which add up.

    The fields are those of ``explain gap`` (``docs/cost-of-constraints.md``).
    """

    pods: int
    unschedulable: int
    price_per_hour: float
    lower_bound: float
    minimum: float
    limited: bool
    costs: tuple[GapCost, ...] = msgspec.field(name="parts")


class PoolCost(Part, frozen=True, kw_only=True):
    """The nodes of a NodePool and their cost in USD an hour, before and after the plan.

    With ``--base``, ``nodes_base`` and ``base`` are the result of that commit's plan.
    """

    nodes_before: int = 0
    nodes_after: int = 0
    nodes_base: int | None = None
    before: float = 0.0
    after: float = 0.0
    base: float | None = None


def sum_pools(pools: Iterable[PoolCost]) -> PoolCost:
    """Return several NodePools as if they were one."""
    every = list(pools)
    return PoolCost(
        nodes_before=sum(p.nodes_before for p in every),
        nodes_after=sum(p.nodes_after for p in every),
        before=round(sum(p.before for p in every), 9),
        after=round(sum(p.after for p in every), 9),
    )


class Cost(Part, frozen=True, kw_only=True):
    """The cost of all nodes of NodePools in USD an hour; ``unpriced`` counts nodes without a price.

    With ``--base``, ``base`` is the result of that commit's plan: ``after`` minus ``base`` is the
    cost of the change itself. ``lower_bound`` is the minimum cost of new nodes for the pending
    pods, ``bound_gap`` the share by which the planned ones exceed it, and ``bound_held_by`` the
    reason. Both are left out if they do not apply.
    """

    before: float
    after: float
    base: float | None = None
    currency: str = "USD"
    per: str = "hour"
    lower_bound: float | None = None
    bound_gap: float | None = None
    bound_held_by: str | None = None
    by_node_pool: dict[str, PoolCost] = msgspec.field(default_factory=dict)
    unpriced: int = 0

    left_out: ClassVar = ("bound_gap", "bound_held_by")


class PoolAtRest(Part, frozen=True, kw_only=True):
    """The nodes of a NodePool in a fleet at rest, their cost in USD an hour, and their offerings.

    ``types`` counts nodes by instance type and capacity type: ``{"c6g.xlarge spot": 3}``.
    """

    nodes: int = 0
    per_hour: float = 0.0
    types: dict[str, int] = msgspec.field(default_factory=dict)


def count_offerings(offerings: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the number of nodes by instance type and capacity type, the most frequent first."""
    found = Counter(f"{instance_type} {capacity}" for instance_type, capacity in offerings)
    return dict(sorted(found.items(), key=lambda row: (-row[1], row[0])))


class PoolChange(Part, frozen=True, kw_only=True):
    """A NodePool in both fleets of a change."""

    before: PoolAtRest = PoolAtRest()
    after: PoolAtRest = PoolAtRest()


class FleetAtMaximum(Part, frozen=True, kw_only=True):
    """The fleet with every autoscaler at its maximum: its nodes, and their cost in USD an hour.

    ``unschedulable`` are the pods that cannot be scheduled then.
    """

    nodes: int
    per_hour: float
    unschedulable: tuple[str, ...] = ()


class FleetAtPeak(Part, frozen=True, kw_only=True):
    """The fleet in the worst hour of the next 24, which begins ``at``: with the pods of CronJobs.

    ``cron_jobs`` are those with a Job then, and ``pods`` counts the pods of these Jobs. ``assumed``
    are those of which nothing states how long their pods run. ``unschedulable`` are those of the
    pods that cannot be scheduled.
    """

    at: Annotated[datetime, msgspec.Meta(tz=True)]
    cron_jobs: tuple[str, ...]
    assumed: tuple[str, ...] = ()
    pods: int
    nodes: int
    per_hour: float
    unschedulable: tuple[str, ...] = ()


class PlannedWorkload(Part, frozen=True, kw_only=True):
    """A scaled workload and the range of its replicas.

    ``max`` is None if nothing limits it. ``by`` is the kind and name of what scales it.
    """

    kind: str
    namespace: str
    name: str
    min: int
    present: int
    max: int | None
    by: str


class StuckNode(Part, frozen=True, kw_only=True):
    """A node that cannot come to rest: the reason to disrupt it, and what blocks that.

    ``is_new`` is whether it is launched until then, so that its name means nothing yet.
    """

    node_claim: str
    node: str | None = None
    node_pool: str = ""
    reason: str
    message: str = ""
    is_new: bool = False

    left_out: ClassVar = ("is_new",)


class ListCosts(Part, frozen=True, kw_only=True):
    """What the nodes of both sides of a change cost at the list prices of AWS, in USD an hour."""

    before: float
    after: float


class UnscheduledPods(Part, frozen=True, kw_only=True):
    """Pods that cannot be scheduled for the same reason."""

    message: str
    pods: tuple[str, ...]


def group_unscheduled_pods(reasons: Iterable[tuple[str, str]]) -> tuple[UnscheduledPods, ...]:
    """Return pods with their reasons, by reason."""
    groups = group_pairs((message, pod) for pod, message in reasons)
    return tuple(UnscheduledPods(message=m, pods=tuple(pods)) for m, pods in groups.items())


class AtRest(Part, frozen=True, kw_only=True):
    """The cost of a change: the difference between two fleets at rest.

    ``before`` is the fleet under the base, ``after`` the same fleet continued under the head.
    ``per_hour`` and ``per_month`` are their difference in USD. ``bounds`` are the minimum and
    maximum of ``per_hour`` if the work limit ended the search, otherwise None. ``replaced``
    counts replaced nodes. ``rollout`` is the time until the last action has ended (ISO 8601), None
    if it never ends or the limit ended the search.

    ``by_node_pool`` has both fleets by NodePool. ``unschedulable_before`` are the pods that cannot
    be scheduled in ``before``, and ``unschedulable_reasons`` say why those in ``after`` cannot:
    which replicas of a workload these are is chance. ``evictions`` counts the pods that the rollout
    evicts, None if unknown. ``shares`` divides both costs among workloads; there are none if the
    work limit ended the search. ``new_nodes`` is what the change leads to once no present node is
    left, None if it is not computed. ``list_costs`` is there if NodeOverlays change.
    ``is_estimate`` is whether the planner alone continued both fleets, without latencies;
    ``difference`` then includes the error of that. ``kept`` is the fleet that the present nodes
    lead to if the change stops their consolidation to ``before``.

    Over several seeds, costs are means; ``range`` is that of ``after``, and ``difference`` that of
    ``per_hour``. The other fields, and all numbers of nodes and their types, are of the seed that
    is closest to the means: a rollout that replaces 8 of 9 nodes must be one that a run had.
    """

    before: FleetAtRest
    after: FleetAtRest
    per_hour: float
    per_month: float
    bounds: tuple[float, float] | None = None
    unschedulable: tuple[str, ...] = ()
    replaced: int = 0
    rollout: str | None = None
    stuck: tuple[StuckNode, ...] = ()
    range: FleetRange | None = None
    difference: CostDifference | None = None
    by_node_pool: dict[str, PoolChange] = msgspec.field(default_factory=dict)
    unschedulable_before: tuple[str, ...] = ()
    unschedulable_reasons: tuple[UnscheduledPods, ...] = ()
    evictions: int | None = None
    shares: CostShares | None = None
    new_nodes: NewFleets | None = None
    list_costs: ListCosts | None = None
    is_estimate: bool = False
    kept: FleetAtRest | None = None

    left_out: ClassVar = (
        "range",
        "difference",
        "by_node_pool",
        "unschedulable_before",
        "unschedulable_reasons",
        "evictions",
        "shares",
        "new_nodes",
        "list_costs",
        "is_estimate",
        "kept",
    )
    parts: ClassVar = ("new_nodes", "stuck")

    @property
    def newly_unschedulable(self) -> tuple[str, ...]:
        """The pods that have a place without the change, and none with it."""
        before = frozenset(self.unschedulable_before)
        return tuple(pod for pod in self.unschedulable if pod not in before)

    @property
    def kept_per_hour(self) -> float | None:
        """What the change costs in USD an hour with the present nodes, None if it keeps none."""
        return None if self.kept is None else self.kept.per_hour - self.before.per_hour

    @property
    def launched(self) -> int:
        """The number of nodes more than before."""
        return max(0, self.after.nodes - self.before.nodes)

    @property
    def removed(self) -> int:
        """The number of nodes fewer than before."""
        return max(0, self.before.nodes - self.after.nodes)


class SteadyState(Part, frozen=True, kw_only=True):
    """The fleet after this plan and those that follow it, if this plan is not the result.

    ``placed_later`` are pods that this plan does not place and a later one does, ``unschedulable``
    those that none does, and ``stuck`` nodes whose drain never ends. ``nodes`` and ``per_hour``
    (USD) include these. ``is_estimate`` is whether chance decides the end: both are then
    the mean of a few runs, and ``range`` is what they end with, None if all cost the same.
    """

    nodes: int
    per_hour: float
    placed_later: tuple[str, ...] = ()
    unschedulable: tuple[str, ...] = ()
    stuck: tuple[StuckNode, ...] = ()
    is_estimate: bool = False
    range: FleetRange | None = None

    left_out: ClassVar = ("is_estimate", "range")
    parts: ClassVar = ("stuck",)


def combine_seeds(changes: Sequence[AtRest]) -> AtRest:
    """Return one change over several seeds from the change with each."""
    before, after = (
        fleet_range([getattr(change, side) for change in changes]) for side in ("before", "after")
    )
    difference = cost_difference([change.per_hour for change in changes])

    def distance(change: AtRest) -> tuple[float, float]:
        pairs = ((change.before, before), (change.after, after))
        return (
            fsum(abs(side.nodes - found.nodes.mean) for side, found in pairs),
            fsum(abs(side.per_hour - found.per_hour.mean) for side, found in pairs),
        )

    closest = min(changes, key=distance)
    return msgspec.structs.replace(
        closest,
        before=FleetAtRest(nodes=closest.before.nodes, per_hour=before.per_hour.mean),
        after=FleetAtRest(nodes=closest.after.nodes, per_hour=after.per_hour.mean),
        per_hour=difference.mean,
        per_month=round(difference.mean * HOURS_A_MONTH, 9),
        range=after,
        difference=difference,
        by_node_pool=_mean_pools([change.by_node_pool for change in changes], closest.by_node_pool),
        shares=mean_shares([change.shares for change in changes]),
    )


def _mean_pools(
    runs: Sequence[dict[str, PoolChange]], closest: dict[str, PoolChange]
) -> dict[str, PoolChange]:
    """Return each NodePool with the mean costs of all runs, and the nodes of the closest one.

    What two runs end with differs by chance, which must not look like the change; and the types
    add up to the nodes, as those of the NodePools do to the nodes of the fleet.
    """
    names = sorted({name for run in runs for name in run})
    found = {}
    for name in names:
        sides = [run.get(name, PoolChange()) for run in runs]
        one = closest.get(name, PoolChange())
        found[name] = PoolChange(
            before=_with_cost(one.before, [side.before.per_hour for side in sides]),
            after=_with_cost(one.after, [side.after.per_hour for side in sides]),
        )
    return found


def _with_cost(side: PoolAtRest, costs: Sequence[float]) -> PoolAtRest:
    return PoolAtRest(nodes=side.nodes, per_hour=mean_of(costs), types=side.types)


class WaitingSeconds(msgspec.Struct, frozen=True, rename="camel"):
    """How long pods waited for their first node: percentiles over the pods that got one."""

    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class Utilization(msgspec.Struct, frozen=True, rename="camel"):
    """The requests of pods as a share of allocatable, both over time: 0 to 1, 0 without nodes.

    A difference of two is between -1 and 1.
    """

    cpu: float = 0.0
    memory: float = 0.0


class CostGap(msgspec.Struct, frozen=True, rename="camel"):
    """Why a side costs more than the minimum without any constraint, in USD.

    The parts and the minimum add up to the dollars of the side; the first four add up to what these
    are above its lower bound.

    ``unconstrained`` is that minimum: for nodes of any type without overhead, bought in fractions.
    ``idle_nodes`` is the cost of nodes without pods: they start, or wait for their removal.
    ``past_decisions`` is what the other nodes cost more than the cheapest packing that is found for
    the same pods, from scratch at each moment. ``pod_rules`` is the cost of rules between pods,
    ``whole_nodes`` of nodes that cannot be bought in fractions, ``host_rules`` of the rules between
    pods that the lower bound counts, ``pod_requirements`` of what pods require of nodes,
    ``node_pool_requirements`` of what NodePools require except for the capacity type,
    ``capacity_types`` of that requirement, and ``overhead`` of DaemonSets and of what nodes reserve
    for the system.
    """

    unconstrained: float
    idle_nodes: float
    past_decisions: float
    pod_rules: float
    whole_nodes: float
    host_rules: float
    pod_requirements: float
    node_pool_requirements: float
    capacity_types: float
    overhead: float


class ComparedFigures(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The figures of a side that are compared with those of another; money is USD.

    ``lower_bound`` is the integral of the minimum price of nodes for the pods that ran.
    ``unplaced`` pods never got a node.
    """

    dollars: float
    dollars_per_month: float
    lower_bound: float
    node_hours: float
    utilization: Utilization
    waiting_seconds: WaitingSeconds
    evictions: int
    commands: int
    unplaced: int


class SideResult(ComparedFigures, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The results of one side over the period; ``gap`` is None if it was not asked for."""

    evictions_per_pod_day: float
    interruptions: int
    pods: int
    passes: int
    gap: CostGap | None = None


class Difference(ComparedFigures, frozen=True, kw_only=True, rename="camel"):
    """The head minus ``against``, exactly 0 if both are equal; ``percent`` is of the dollars."""

    against: str
    percent: float | None


class DollarSpread(msgspec.Struct, frozen=True, rename="camel"):
    """The minimum and the maximum dollars of a side over all seeds."""

    low: float
    high: float


class FrontierPoint(msgspec.Struct, frozen=True, rename="camel"):
    """A side as a point between cost and evictions.

    ``efficient`` is whether no other side costs at most as much with at most as many evictions.
    ``settings`` are those that replace the settings of the fleet, empty for the head and the base.
    """

    side: str
    efficient: bool
    settings: dict[str, str]


class Backtest(msgspec.Struct, frozen=True, rename="camel"):
    """A trace replayed ``from`` one time ``until`` another; sides are means over the seeds.

    ``rounded_gpus`` counts pods that requested a share of a GPU and got a complete one.
    ``frontier`` are all sides, the cheapest first, where they were compared as points.
    """

    begin: Annotated[datetime, msgspec.Meta(tz=True)] = msgspec.field(name="from")
    until: Annotated[datetime, msgspec.Meta(tz=True)]
    seeds: int
    rounded_gpus: int
    sides: dict[str, SideResult]
    spread: dict[str, DollarSpread]
    difference: Difference | None = None
    frontier: tuple[FrontierPoint, ...] | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        """Reject a difference of missing sides.

        Raises:
            ValueError: a side is missing, or the end is not after the beginning.
        """
        if self.until < self.begin:
            raise ValueError("a backtest ends before it begins")
        change = self.difference
        known = {BASE, KARPENTER} & self.sides.keys()
        if HEAD not in self.sides or (change is not None and change.against not in known):
            raise ValueError("a backtest lacks one of the sides that it compares")
