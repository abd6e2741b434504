"""What the dashboard shows of the last pass, computed once per pass and without markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from reconciler.engine.desired import Desired
from reconciler.engine.reconcile import Pass
from reconciler.engine.steps.lifecycle import INITIALIZED
from reconciler.engine.steps.usage import usage_of
from reconciler.model.karpenter.labels import CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.resources import CPU, MEMORY
from reconciler.observed.state import StateNode
from reconciler.plan.render.wording import NoteText, findings_of
from reconciler.plan.value.actions import Action
from reconciler.plan.value.costs import HOURS_A_MONTH, PoolCost
from reconciler.plan.value.disruption import PlannedBlocker, PoolBudget
from reconciler.plan.value.nodes import UnschedulablePod
from reconciler.web.calendar import CalendarRow, calendar_of, days_of


@dataclass(frozen=True, slots=True)
class NodeView:
    """A node, or a NodeClaim whose node has not joined; shares are of allocatable resources."""

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


@dataclass(frozen=True, slots=True)
class PoolView:
    """A NodePool with its nodes by state, cost in USD an hour and utilisation by requests."""

    name: str
    nodes: int
    ready: int
    starting: int
    terminating: int
    per_hour: float
    cpu: float
    memory: float
    budgets: tuple[PoolBudget, ...]


@dataclass(frozen=True, slots=True)
class FleetView:
    """A fleet after a pass that ended at ``at``."""

    at: datetime
    revision: str
    digest: str
    per_hour: float
    planned_per_hour: float
    unpriced: int
    pending: int
    suspended: str
    pools: tuple[PoolView, ...]
    nodes: tuple[NodeView, ...]
    actions: tuple[Action, ...]
    unschedulable: tuple[UnschedulablePod, ...]
    blockers: tuple[PlannedBlocker, ...]
    in_progress: int
    calendar: tuple[CalendarRow, ...]
    days: tuple[tuple[int, str], ...]
    notes: tuple[NoteText, ...]

    @property
    def per_month(self) -> float:
        """USD a month, of 730 hours."""
        return self.per_hour * HOURS_A_MONTH

    @property
    def planned_change_per_month(self) -> float:
        """What the plan changes, in USD a month."""
        return (self.planned_per_hour - self.per_hour) * HOURS_A_MONTH


def view_of(desired: Desired, result: Pass) -> FleetView:
    """Return what the dashboard shows of a pass."""
    plan, seen = result.plan, result.seen
    state = seen.state()
    blocked = {b.node: f"{b.reason}: {b.message}" for b in plan.blocked}
    nodes = tuple(_node(node, desired, blocked, seen.at) for node in state.nodes if node.is_managed)
    names = [pool.name for pool in desired.node_pools]
    names += sorted({node.node_pool for node in nodes} - set(names))
    cost = plan.cost
    return FleetView(
        at=seen.at,
        revision=desired.revision,
        digest=plan.digest,
        per_hour=cost.before,
        planned_per_hour=cost.after,
        unpriced=cost.unpriced,
        pending=len(state.pending),
        suspended=seen.doubts.summary if seen.doubts else "",
        pools=tuple(_pools(names, nodes, cost.by_node_pool, plan.budgets)),
        nodes=nodes,
        actions=plan.actions,
        unschedulable=plan.unschedulable,
        blockers=_blockers(plan.blockers),
        in_progress=result.under_way,
        calendar=calendar_of(
            desired.node_pools, Counter(n.node_pool for n in nodes), desired.settings, seen.at
        ),
        days=days_of(seen.at),
        notes=tuple(findings_of(plan.diagnostics)),
    )


def _blockers(blockers: Iterable[PlannedBlocker]) -> tuple[PlannedBlocker, ...]:
    """Return the blockers, those that cost the most first."""
    return tuple(sorted(blockers, key=lambda b: (-(b.forgone or 0.0), b.kind, b.name)))


def _node(node: StateNode, desired: Desired, blocked: Mapping[str, str], now: datetime) -> NodeView:
    claim, usage = node.claim, usage_of(node, desired)
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
    )


def _state(node: StateNode) -> str:
    if node.is_deleting:
        return "terminating"
    return "ready" if node.claim is None or node.claim.is_true(INITIALIZED) else "starting"


def _pools(
    names: Iterable[str],
    nodes: Iterable[NodeView],
    costs: Mapping[str, PoolCost],
    budgets: Iterable[PoolBudget],
) -> Iterator[PoolView]:
    owned: dict[str, list[NodeView]] = {name: [] for name in names}
    for node in nodes:
        owned[node.node_pool].append(node)
    by_pool: dict[str, list[PoolBudget]] = {}
    for budget in budgets:
        by_pool.setdefault(budget.node_pool, []).append(budget)
    for name, mine in owned.items():
        states = [node.state for node in mine]
        yield PoolView(
            name=name,
            nodes=len(mine),
            ready=states.count("ready"),
            starting=states.count("starting"),
            terminating=states.count("terminating"),
            per_hour=costs[name].before if name in costs else 0.0,
            cpu=_mean(node.cpu for node in mine),
            memory=_mean(node.memory for node in mine),
            budgets=tuple(by_pool.get(name, ())),
        )


def _mean(shares: Iterable[float]) -> float:
    known = list(shares)
    return sum(known) / len(known) if known else 0.0
