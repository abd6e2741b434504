"""What the dashboard shows, computed once per pass and without markup.

The last pass, and the coming week of budgets and windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from reconciler.disruption.gates.limits import FleetLimits, Span
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.shown.past import WIDTH, position
from reconciler.engine.steps.bookkeeping import node_usage, workload_costs
from reconciler.engine.steps.lifecycle import INITIALIZED
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.waiting import Blocker, PoolBudget
from reconciler.model.grouping import BY_NAMESPACE, group_by, group_pairs
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import CPU, MEMORY
from reconciler.observed.allocation import GroupCost, WorkloadCost, abridge, group_costs
from reconciler.observed.state import StateNode
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.render.refusals import refusal_in_words
from reconciler.plan.render.wording import NoteText, note_texts, removal_texts
from reconciler.plan.rest.steadystate import later_consolidations
from reconciler.plan.value.actions import Action
from reconciler.plan.value.costs import PoolCost
from reconciler.plan.value.nodes import UnschedulablePod
from reconciler.ports.cluster import NodeUsage
from reconciler.web.labels import label_of
from reconciler.web.upcoming import UpcomingStep, upcoming_steps

AHEAD: Final = timedelta(days=7)

HEIGHT: Final = 100

_FORESEEN_WORK: Final = 100_000
"""The work limit of what comes next, in evaluated nodes: about half a second."""


@dataclass(frozen=True, slots=True)
class PeriodView:
    """A period in which ``allowed`` nodes of a NodePool can be disrupted at a time."""

    began: datetime
    ended: datetime
    allowed: int
    start: int
    length: int


@dataclass(frozen=True, slots=True)
class CalendarRow:
    """The coming week of one NodePool, for the reasons that its budgets treat alike."""

    node_pool: str
    reasons: tuple[str, ...]
    total: int
    periods: tuple[PeriodView, ...]

    @property
    def closed(self) -> timedelta:
        """How long no node can be disrupted."""
        return sum((p.ended - p.began for p in self.periods if not p.allowed), timedelta())


def calendar_of(limits: FleetLimits, now: datetime) -> tuple[CalendarRow, ...]:
    """Return the coming week of each NodePool, where the number of allowed disruptions changes.

    A week with too many changes is cut short.
    """
    return tuple(row for pool in limits.pools for row in _calendar_rows(pool, limits, now))


def _calendar_rows(pool: NodePool, limits: FleetLimits, now: datetime) -> Iterator[CalendarRow]:
    spans = limits.spans(pool, now, now + AHEAD)
    alike = group_pairs(
        (tuple(_periods(spans, reason, now)), reason.value)
        for reason in filter(limits.reasons.__contains__, DisruptionReason)
    )
    if any(len(periods) > 1 for periods in alike):
        for periods, reasons in alike.items():
            yield CalendarRow(pool.name, tuple(reasons), limits.total(pool.name), periods)


def _periods(
    spans: Iterable[Span], reason: DisruptionReason, now: datetime
) -> Iterator[PeriodView]:
    for allowed, same in groupby(spans, key=lambda span: span.allowed[reason]):
        first, *more = same
        last = more[-1] if more else first
        start, end = _position_in_week(first.start - now), _position_in_week(last.end - now)
        yield PeriodView(first.start, last.end, allowed, start, max(1, end - start))


def calendar_days(now: datetime) -> tuple[tuple[int, str], ...]:
    """Return where each day (UTC) of the week begins on the drawing, with its name."""
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    days = (midnight + timedelta(days=n) for n in range(1, AHEAD.days + 1))
    return tuple((_position_in_week(day - now), f"{day:%a}") for day in days)


def _position_in_week(after: timedelta) -> int:
    return round(after / AHEAD * WIDTH)


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, or a NodeClaim whose node has not joined; shares are of allocatable resources.

    ``per_hour`` is its price in USD, None if it is unknown.
    """

    name: str
    node_pool: str
    instance_type: str
    capacity_type: str
    zone: str
    state: str
    pods: int
    cpu: float
    memory: float
    age: timedelta | None
    blocked: str
    per_hour: float | None = None


@dataclass(frozen=True, slots=True)
class PoolView:
    """A NodePool with its nodes by state, cost in USD an hour and utilization by requests.

    ``desired`` is the number of nodes after the plan.
    """

    name: str
    nodes: int
    ready: int
    starting: int
    per_hour: float
    cpu: float
    memory: float
    budgets: tuple[PoolBudget, ...]
    desired: int = 0

    @property
    def budget_texts(self) -> tuple[str, ...]:
        """How many nodes may be disrupted now: once if it is the same for every reason."""
        texts = [f"{b.allowed} of {b.total}" for b in self.budgets]
        until = [f" until {b.next_change:%a %H:%M}" if b.next_change else "" for b in self.budgets]
        parts = {f"{text}{end}" for text, end in zip(texts, until, strict=True)}
        if len(parts) == 1:
            return tuple(parts)
        return tuple(
            f"{label_of(b.reason)}: {text}{end}"
            for b, text, end in zip(self.budgets, texts, until, strict=True)
        )


@dataclass(frozen=True, slots=True)
class CostSample:
    """The cost of the fleet in USD an hour from a time on."""

    at: datetime
    per_hour: float


@dataclass(frozen=True, slots=True)
class CostCurve:
    """The cost over time, as a line for a drawing of ``WIDTH`` by ``HEIGHT``; USD an hour."""

    points: str
    began: datetime
    ended: datetime
    low: float
    high: float


def cost_curve(samples: Sequence[CostSample], now: datetime) -> CostCurve | None:
    """Return the curve of the samples until ``now``, None while it would be a point."""
    if not samples or now <= samples[0].at:
        return None
    amounts = [sample.per_hour for sample in samples]
    high, span = max(amounts), now - samples[0].at
    if not high:
        return None
    points, ends = [], [*(s.at for s in samples[1:]), now]
    for sample, end in zip(samples, ends, strict=True):
        if sample.at == end:
            continue  # it has not lasted yet
        height = HEIGHT - round(sample.per_hour / high * (HEIGHT - 4))
        points += [f"{position(at - samples[0].at, span)},{height}" for at in (sample.at, end)]
    return CostCurve(" ".join(points), samples[0].at, now, min(amounts), high)


@dataclass(frozen=True, slots=True)
class FleetView:
    """A fleet after a pass that ended at ``at``."""

    at: datetime
    revision: str
    title: str
    digest: str
    per_hour: float
    planned_per_hour: float
    unpriced: int
    pending: int
    suspended: str
    removals: tuple[str, ...]
    pools: tuple[PoolView, ...]
    nodes: tuple[NodeView, ...]
    actions: tuple[Action, ...]
    unschedulable: tuple[UnschedulablePod, ...]
    blockers: tuple[Blocker, ...]
    in_progress: int
    calendar: tuple[CalendarRow, ...]
    days: tuple[tuple[int, str], ...]
    notes: tuple[NoteText, ...]
    groups: tuple[GroupCost, ...] = ()
    costs: tuple[WorkloadCost, ...] = ()
    upcoming: tuple[UpcomingStep, ...] = ()

    @property
    def desired_nodes(self) -> int:
        """The number of nodes after the plan."""
        return sum(pool.desired for pool in self.pools)

    @property
    def per_month(self) -> float:
        """USD a month, of 730 hours."""
        return self.per_hour * HOURS_A_MONTH

    @property
    def planned_change_per_month(self) -> float:
        """What the plan changes, in USD a month."""
        return (self.planned_per_hour - self.per_hour) * HOURS_A_MONTH


def fleet_view(desired: PlannedFleet, result: Pass, inputs: Inputs | None = None) -> FleetView:
    """Return what the dashboard shows of a pass.

    ``inputs`` are those of its plan, None if what consolidation does later is not of interest.
    """
    plan, seen = result.plan, result.seen
    state = seen.state()
    managed = [node for node in state.nodes if node.is_managed]
    usage = {node.name: node_usage(node, desired) for node in managed}
    blocked = {b.node: f"{label_of(b.reason)}: {refusal_in_words(b.message)}" for b in plan.blocked}
    nodes = tuple(_node_view(node, usage[node.name], blocked, seen.at) for node in managed)
    names = [pool.name for pool in desired.node_pools]
    names += sorted({node.node_pool for node in nodes} - set(names))
    cost = plan.cost
    costs = abridge(workload_costs(state, desired))
    later = None if inputs is None else later_consolidations(inputs, _FORESEEN_WORK)
    return FleetView(
        at=seen.at,
        revision=desired.revision,
        title=desired.title,
        digest=plan.digest,
        per_hour=cost.before,
        planned_per_hour=cost.after,
        unpriced=cost.unpriced,
        pending=len(state.pending),
        suspended=seen.unclear_owners.summary if seen.unclear_owners else "",
        removals=tuple(removal_texts(plan.deferred)),
        pools=tuple(_pool_views(names, nodes, usage, cost.by_node_pool, plan.budgets)),
        nodes=nodes,
        actions=plan.actions,
        unschedulable=plan.unschedulable,
        blockers=tuple(sorted(plan.blockers, key=lambda b: (-(b.forgone or 0.0), b.kind, b.name))),
        in_progress=result.under_way,
        calendar=calendar_of(
            FleetLimits.from_nodes(desired.node_pools, desired.settings, state.nodes, seen.history),
            seen.at,
        ),
        days=calendar_days(seen.at),
        notes=tuple(note_texts(plan.diagnostics)),
        groups=group_costs(costs, BY_NAMESPACE),
        costs=costs,
        upcoming=upcoming_steps(plan, managed, desired.node_pools, seen.at, later),
    )


def matching_nodes(
    nodes: Iterable[NodeView], node_pool: str, state: str, text: str
) -> list[NodeView]:
    """Return the nodes of a NodePool and a state that have a text; each may be empty for all."""
    return [
        node
        for node in nodes
        if (not node_pool or node.node_pool == node_pool)
        and (not state or node.state == state or (state == "blocked" and node.blocked))
        and (not text or text in f"{node.name} {node.instance_type} {node.zone}".lower())
    ]


def _node_view(
    node: StateNode, usage: NodeUsage, blocked: Mapping[str, str], now: datetime
) -> NodeView:
    claim = node.claim
    created = claim.metadata.creation_timestamp if claim is not None else None
    return NodeView(
        name=node.name,
        node_pool=node.node_pool,
        instance_type=node.labels.get(INSTANCE_TYPE, ""),
        capacity_type=node.labels.get(CAPACITY_TYPE, ""),
        zone=node.labels.get(ZONE, ""),
        state=_state(node),
        pods=usage.pods,
        cpu=usage.share(CPU) or 0.0,
        memory=usage.share(MEMORY) or 0.0,
        age=now - created if created is not None else None,
        blocked=blocked.get(node.name, ""),
        per_hour=usage.price,
    )


def _state(node: StateNode) -> str:
    if node.is_deleting:
        return "terminating"
    return "ready" if node.claim is None or node.claim.is_true(INITIALIZED) else "starting"


def _pool_views(
    names: Iterable[str],
    nodes: Iterable[NodeView],
    usage: Mapping[str, NodeUsage],
    costs: Mapping[str, PoolCost],
    budgets: Iterable[PoolBudget],
) -> Iterator[PoolView]:
    owned: dict[str, list[NodeView]] = {name: [] for name in names}
    for node in nodes:
        owned[node.node_pool].append(node)
    by_pool = group_by(budgets, lambda budget: budget.node_pool)
    for name, own in owned.items():
        states = [node.state for node in own]
        total = NodeUsage.total(usage[node.name] for node in own)
        yield PoolView(
            name=name,
            nodes=len(own),
            ready=states.count("ready"),
            starting=states.count("starting"),
            per_hour=costs[name].before if name in costs else 0.0,
            cpu=total.share(CPU) or 0.0,
            memory=total.share(MEMORY) or 0.0,
            budgets=tuple(by_pool.get(name, ())),
            desired=costs[name].nodes_after if name in costs else 0,
        )
