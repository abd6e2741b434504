"""Simulates the revisions: one, or the base first and then the head.

The cost of a change is the difference between the two, once nothing is left to do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from reconciler.assembly.mandate import mandate_of
from reconciler.disruption.command import ForcefulReason
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.engine.records import history_of
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.duration import iso_duration
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.text.identifiers import short_commit
from reconciler.observed.allocation import WorkloadCost, allocate, node_cost
from reconciler.plan.make.costs import sum_dollars
from reconciler.plan.make.decide import ignore_phase
from reconciler.plan.plancache import SharedPlans
from reconciler.plan.rest.difference import cost_shares
from reconciler.plan.value.costs import (
    DRAINING,
    AtRest,
    PoolAtRest,
    PoolChange,
    StuckNode,
    combine_seeds,
    count_offerings,
    group_unscheduled_pods,
)
from reconciler.plan.value.ranges import NEW_NODES_SEEDS, FleetAtRest, NewFleet, new_fleets
from reconciler.ports.progress import EventKind
from reconciler.simulate.building import (
    KnownInputs,
    SimulatedFleet,
    SimulationSetup,
    read_simulation,
)
from reconciler.simulate.disruptionloop import LoopPlans
from reconciler.simulate.driver import EndlessError, SimulationOutcome, SimulationStage, play
from reconciler.simulate.eventlog import RulePeriod, rule_periods
from reconciler.simulate.report import Report, merge_outcome, report_of
from reconciler.simulate.timeline import StreamedTimeline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reconciler.assembly.inputs.request import FleetRequest
    from reconciler.catalog.catalog import Catalog
    from reconciler.model.history import History
    from reconciler.observed.snapshot import Snapshot
    from reconciler.simulate.seeds import SeededRuns

_VERBATIM_REASONS: Final = frozenset({DRAINING, ForcefulReason.NODE_POOL_DELETED.value})
"""The reasons of stuck nodes that are shown unchanged; all others are kinds of drift."""
PASSES_MAX: Final = 2_000
"""The maximum number of passes of both sides; most changes take less than a hundred."""


def run_simulation(
    setup: SimulationSetup,
    until: datetime | timedelta | None,
    timeline: StreamedTimeline | None = None,
    passes_max: int | None = None,
    shared: SharedPlans | None = None,
) -> Report:
    """Run the simulation, and return the events from the start of the head revision on.

    A span ``until`` counts from that time. ``timeline`` receives the events as they happen.
    ``passes_max`` limits the passes, by default to those of any simulation. ``shared`` are plans
    of other runs.

    Raises:
        EndlessError: the maximum number of passes is reached.
    """
    stage, base, head = setup.stage, setup.base, setup.head
    if timeline is not None:
        stage.event_log.add_listener(timeline.add_event)
    plans = LoopPlans(shared, stage.chance.share("disruption loop"))
    before = _run_revision(setup, base, None, passes_max, plans) if base is not None else None
    begin = stage.clock.now()
    base_claims = list(stage.world.store.node_claims())
    before_costs = _workload_costs(stage, before, begin)
    end = begin + until if isinstance(until, timedelta) else until
    if before is not None:
        stage.samples.clear()
    if timeline is not None:
        timeline.begin(begin)
    history = history_of(stage.world.store, head.settings, begin)
    outcome = _run_revision(setup, head, end, passes_max, plans)
    report = report_of(stage, outcome, begin)
    report = msgspec.structs.replace(report, rules=_rules(head, report, history))
    costs = _workload_costs(stage, outcome, outcome.at)
    shares = cost_shares(setup.cost_by, before_costs, costs)
    if base is None or before is None:
        return msgspec.structs.replace(report, shares=shares)
    names = (_display_name(base), _display_name(head))
    merge = merge_outcome(report, stage, base_claims, *names, before)
    merge = msgspec.structs.replace(merge, shares=shares)
    return msgspec.structs.replace(report, merge=merge)


def _rules(fleet: SimulatedFleet, report: Report, history: History) -> tuple[RulePeriod, ...]:
    """Return what limited the disruption of each NodePool with nodes, and when.

    ``history`` is what the rate limits knew when the simulation began.
    """
    totals = {
        name: max(pool.nodes_before, pool.nodes_after)
        for name, pool in report.cost.by_node_pool.items()
    }
    limits = FleetLimits.from_totals(fleet.node_pools, fleet.settings, totals, history)
    return tuple(
        period
        for pool in fleet.node_pools
        if totals.get(pool.name)
        for period in rule_periods(pool, limits, report.started_at, report.at)
    )


def _run_revision(
    setup: SimulationSetup,
    fleet: SimulatedFleet,
    until: datetime | None,
    passes_max: int | None,
    plans: LoopPlans,
) -> SimulationOutcome:
    entered = setup.start_fleet(fleet)
    mandate = mandate_of(fleet.settings)
    return play(setup.stage, entered.priced_at, mandate, until, passes_max=passes_max, plans=plans)


def _workload_costs(
    stage: SimulationStage, outcome: SimulationOutcome | None, at: datetime
) -> tuple[WorkloadCost, ...]:
    """Return what each workload costs in the fleet that the last pass observed."""
    if outcome is None or outcome.last is None:
        return ()
    machines = stage.compute.machines
    nodes = outcome.last.seen.state().nodes
    return allocate(
        node_cost(node, machine.price(at))
        for node in nodes
        if (machine := machines.get(node.provider_id.rpartition("/")[2])) is not None
    )


def _display_name(fleet: SimulatedFleet) -> str:
    """Return the display name of a revision: the short commit, or the working tree."""
    if fleet.head.head is None or fleet.head.dirty:
        return "the working tree"
    return short_commit(fleet.head.head)


@dataclass(frozen=True)
class SimulatedChange:
    """The change of a request with ``--base``, or its whole fleet, ready to be simulated.

    It starts at ``now`` from the ``snapshot``, or without nodes if that is None. Then the head is
    also simulated alone, which shows the nodes that it launches for all pods.
    """

    request: FleetRequest
    now: datetime
    snapshot: Snapshot | None
    catalog: Catalog
    base_catalog: Catalog

    def __call__(self, *, has_effect: bool) -> AtRest | None:
        """Return the cost of the change (``plan.make.inputs.ChangeSimulation``)."""
        from reconciler.simulate.seeds import SeededRuns

        request = replace(self.request, now=self.now)
        known = KnownInputs(self.snapshot, self.catalog, self.base_catalog)
        inputs = read_simulation(request, ignore_phase, known)
        runs = SeededRuns(inputs, passes_max=PASSES_MAX, has_effect=has_effect)
        changes = simulate_change(runs)
        if not changes:
            return None
        found = combine_seeds(changes)
        if not has_effect or self.snapshot is not None or inputs.base is None:
            return found
        pairs = [
            (_new_base(change), _new_head(runs.run_alone(seed)))
            for seed, change in enumerate(changes[:NEW_NODES_SEEDS])
        ]
        return msgspec.structs.replace(found, new_nodes=new_fleets(pairs))


def simulate_change(runs: SeededRuns) -> list[AtRest]:
    """Return the cost of the change with each seed; nothing if a run does not come to rest."""
    changes: list[AtRest] = []
    seeds = 1
    while len(changes) < seeds:
        try:
            report = runs.run(len(changes))
        except EndlessError:
            return []
        change = at_rest_of(report)
        if change is None:
            return []
        if not changes:
            seeds = runs.count_after(0)
        changes.append(change)
    return changes


def _new_base(change: AtRest) -> NewFleet:
    """Return the base of a change that began without nodes."""
    return NewFleet(fleet=change.before, unschedulable=change.unschedulable_before)


def _new_head(report: Report) -> NewFleet:
    """Return the head as it ends without the nodes of the base."""
    lost = [stuck for stuck in report.stuck if stuck.kind == "Pod"]
    with_nodes = {claim.node_pool for claim in report.fleet}
    return NewFleet(
        fleet=FleetAtRest(nodes=len(report.fleet), per_hour=report.cost.after),
        unschedulable=tuple(sorted(stuck.name for stuck in lost)),
        limited=tuple(sorted(stuck.name for stuck in lost if stuck.node_pool in with_nodes)),
    )


def at_rest_of(report: Report) -> AtRest | None:
    """Return the cost of the simulated change, None if a side did not converge.

    Without a base it is that of all nodes that are launched.
    """
    merge, cost = report.merge, report.cost
    if not report.converged or (merge is not None and not merge.base_converged):
        return None
    pods = sorted((s.name, s.message) for s in report.stuck if s.kind == "Pod")
    had = {life.node_claim for life in report.nodes if life.launched_at is None}
    has = {claim.node_claim for claim in report.fleet}
    before, after = (merge.before, merge.after) if merge is not None else (cost.before, cost.after)
    change = merge.change if merge is not None else after - before
    return AtRest(
        before=FleetAtRest(nodes=len(had), per_hour=before),
        after=FleetAtRest(nodes=len(has), per_hour=after),
        per_hour=change,
        per_month=sum_dollars([change * HOURS_A_MONTH]),
        unschedulable=tuple(name for name, _ in pods),
        replaced=min(len(had - has), len(has - had)),
        rollout=iso_duration(_last_action(report) - report.started_at),
        stuck=tuple(_stuck_nodes(report)),
        by_node_pool=_pool_changes(report),
        unschedulable_before=merge.unschedulable if merge is not None else (),
        unschedulable_reasons=group_unscheduled_pods(pods),
        shares=(report if merge is None else merge).shares or None,
        evictions=sum(event.kind == EventKind.POD_EVICTED for event in report.events),
    )


def _pool_changes(report: Report) -> dict[str, PoolChange]:
    """Return both fleets by NodePool."""
    had: dict[str, list[tuple[str, str]]] = {}
    for life in report.nodes:
        if life.launched_at is None:
            had.setdefault(life.node_pool, []).append((life.instance_type, life.capacity_type))
    has: dict[str, list[tuple[str, str]]] = {}
    for claim in report.fleet:
        has.setdefault(claim.node_pool, []).append((claim.instance_type, claim.capacity_type))
    return {
        name: PoolChange(
            before=PoolAtRest(
                nodes=len(had.get(name, ())),
                per_hour=money.before,
                types=count_offerings(had.get(name, ())),
            ),
            after=PoolAtRest(
                nodes=len(has.get(name, ())),
                per_hour=money.after,
                types=count_offerings(has.get(name, ())),
            ),
        )
        for name, money in report.cost.by_node_pool.items()
        if name in had or name in has
    }


def _last_action(report: Report) -> datetime:
    """Return when the last node was ready or terminated.

    The life of a node ends with its drain. Those of the base are gone when they are terminated.
    """
    replaced = report.merge.replaced if report.merge is not None else ()
    moments = [at for life in report.nodes for at in (life.ready_at, life.gone_at)]
    moments += [node.gone_at for node in replaced]
    return max([report.started_at, *(at for at in moments if at is not None)])


def _stuck_nodes(report: Report) -> Iterator[StuckNode]:
    """Yield the nodes that are still to be disrupted, by NodeClaim, with the reason."""
    nodes = {claim.node_claim: claim.node for claim in report.fleet}
    found = {s.name: s for s in reversed(report.stuck) if s.kind == "NodeClaim"}
    for name in sorted(found):
        stuck = found[name]
        yield StuckNode(
            node_claim=name,
            node=nodes.get(name) or None,
            node_pool=stuck.node_pool,
            reason=stuck.reason
            if stuck.reason in _VERBATIM_REASONS
            else DisruptionReason.DRIFTED.value,
            message=stuck.message,
        )
