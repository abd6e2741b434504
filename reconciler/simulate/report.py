"""The result of a simulation: its events, its fleet and its cost, ready for output."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from math import fsum
from typing import Final

import msgspec

from reconciler.adapters.simulated.compute import CLAIM_TAG, SimulatedInstance
from reconciler.disruption.command import ForcefulReason
from reconciler.engine.observation import Observation
from reconciler.model.duration import format_duration
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.value.costs import DRAINING, NOT_JOINED, Backtest
from reconciler.plan.value.nodes import deciding_reason, limiting_pool
from reconciler.plan.value.plan import Plan
from reconciler.plan.value.ranges import CostDifference, CountSpan, FleetRange
from reconciler.plan.value.shares import CostShares
from reconciler.ports.progress import EventKind
from reconciler.simulate.driver import Sample, SimulationOutcome, SimulationStage
from reconciler.simulate.eventlog import Event, RulePeriod

_PODS_NAMED: Final = 3


class _Part(msgspec.Struct, frozen=True, rename="camel"):
    """A part of the report."""


class FleetClaim(_Part, frozen=True):
    """A NodeClaim at the end; ``price`` is USD an hour, ``pods`` do not count daemons."""

    node_claim: str
    node_pool: str
    node: str
    instance_type: str
    zone: str
    capacity_type: str
    price: float | None
    pods: int


class PoolMoney(_Part, frozen=True):
    """A NodePool's nodes and USD an hour at the beginning and at the end."""

    nodes_before: int = 0
    nodes_after: int = 0
    before: float = 0.0
    after: float = 0.0
    spent: float = 0.0


class Money(_Part, frozen=True):
    """USD an hour before and after, the most expensive hour between, and USD spent altogether."""

    before: float
    after: float
    peak: float
    spent: float
    currency: str = "USD"
    per: str = "hour"
    by_node_pool: dict[str, PoolMoney] = {}
    unpriced: int = 0


class Life(_Part, frozen=True):
    """The lifetime of a node for the charts; None if it existed before the start or after the end.

    ``ready_at`` is when it was initialized, ``going_at`` when its drain began.
    """

    node_claim: str
    node_pool: str
    instance_type: str
    zone: str
    capacity_type: str
    price: float | None
    launched_at: datetime | None
    ready_at: datetime | None
    going_at: datetime | None
    gone_at: datetime | None
    reason: str
    command: str


class Stuck(_Part, frozen=True):
    """What will not finish without intervention, and why.

    ``node_pool`` is that of a node, and of a pod the one whose limits keep it out, if any do.
    """

    kind: str
    name: str
    node_pool: str
    reason: str
    message: str


class Replaced(_Part, frozen=True):
    """A node of the base that the head removes: when, why, and what replaces it."""

    node_claim: str
    node_pool: str
    node: str
    reason: str
    command: str
    started_at: datetime
    gone_at: datetime | None
    replacements: tuple[str, ...]


class Merge(_Part, frozen=True):
    """What happens if the head is merged into a base that has converged.

    ``before`` and ``after`` are USD an hour; ``extra`` is the cost of the rollout, until the fleet
    has settled, beyond that of the base alone in the same time, negative if it was less. ``kept``
    counts the nodes of the base that stay. ``unschedulable`` are the pods that cannot be scheduled
    in the base. ``difference`` is the change of the cost over several seeds. ``shares`` divides
    both costs among workloads.
    """

    base: str
    head: str
    base_converged: bool
    before: float
    after: float
    extra: float
    kept: int
    replaced: tuple[Replaced, ...]
    unschedulable: tuple[str, ...] = ()
    difference: CostDifference | msgspec.UnsetType = msgspec.UNSET
    shares: CostShares | msgspec.UnsetType = msgspec.UNSET

    @property
    def change(self) -> float:
        """The change of the cost, USD an hour."""
        return round(self.after - self.before, 9)


class Report(_Part, frozen=True):
    """Everything: the contract's fields first. ``merge`` is set only with ``--base``.

    ``rules`` are the periods in which budgets and windows limited the disruption of a NodePool.
    ``backtest`` is set only with ``--trace``. ``range`` is set for several seeds: the fleets that
    they end with. ``duration_seconds`` is then when their last events happen, after the start. The
    other fields are of the run with ``seed``. ``shares`` divides the cost at the end among
    workloads; with ``--base``, ``merge`` has both costs.
    """

    events: tuple[Event, ...]
    converged: bool
    at: datetime
    cost: Money
    fleet: tuple[FleetClaim, ...]
    started_at: datetime
    passes: int
    stuck: tuple[Stuck, ...]
    notes: tuple[Event, ...]
    nodes: tuple[Life, ...]
    curve: tuple[Sample, ...]
    merge: Merge | None = None
    rules: tuple[RulePeriod, ...] = ()
    backtest: Backtest | msgspec.UnsetType = msgspec.UNSET
    range: FleetRange | msgspec.UnsetType = msgspec.UNSET
    duration_seconds: CountSpan | msgspec.UnsetType = msgspec.UNSET
    seed: int | msgspec.UnsetType = msgspec.UNSET
    shares: CostShares | msgspec.UnsetType = msgspec.UNSET

    @property
    def duration(self) -> timedelta:
        """How long after the start the last event happened."""
        last = max((event.at for event in self.events), default=self.started_at)
        return last - self.started_at


def report_of(stage: SimulationStage, outcome: SimulationOutcome, start: datetime) -> Report:
    """Return the result of a simulation that began at ``start``."""
    event_log = stage.event_log
    return Report(
        events=tuple(e for e in event_log.events if e.at >= start),
        converged=outcome.converged,
        at=outcome.at,
        cost=_cost_report(stage, start, outcome.at),
        fleet=_fleet(stage),
        started_at=start,
        passes=stage.passes,
        stuck=_stuck_objects(outcome),
        notes=tuple(e for e in event_log.notes if e.at >= start),
        nodes=_node_lives(stage, start),
        curve=tuple(s for s in stage.samples if s.at >= start),
    )


def _fleet(stage: SimulationStage) -> tuple[FleetClaim, ...]:
    now = stage.clock.now()
    pods = stage.cluster.pods_per_node()
    rows = []
    for claim in stage.world.store.node_claims():
        machine = stage.compute.machines.get(claim.status.provider_id.rpartition("/")[2])
        node = claim.status.node_name
        pool = machine.pool if machine is not None else ("", "", "")
        price = machine.price(now) if machine is not None else None
        rows.append(
            FleetClaim(
                claim.name, claim.node_pool, node, *pool, _round_price(price), pods.get(node, 0)
            )
        )
    return tuple(rows)


def _round_price(price: float | None) -> float | None:
    return None if price is None else round(price, 9)


def _cost_report(stage: SimulationStage, start: datetime, end: datetime) -> Money:
    by_pool: dict[str, list[SimulatedInstance]] = {}
    for machine in stage.compute.machines.values():
        by_pool.setdefault(machine.facts.tags.get(NODEPOOL, ""), []).append(machine)
    rows = {pool: _pool_money(by_pool[pool], start, end) for pool in sorted(by_pool)}
    samples = [s.per_hour for s in stage.samples if s.at >= start]
    before_all = round(fsum(row.before for row in rows.values()), 9)
    after_all = round(fsum(row.after for row in rows.values()), 9)
    return Money(
        before_all,
        after_all,
        max([*samples, before_all, after_all]),
        round(fsum(row.spent for row in rows.values()), 6),
        by_node_pool=rows,
        unpriced=sum(not m.prices for m in stage.compute.machines.values()),
    )


def _pool_money(machines: Sequence[SimulatedInstance], start: datetime, end: datetime) -> PoolMoney:
    before = [m for m in machines if _is_billed(m, start) and m.facts.launched_at < start]
    after = [m for m in machines if _is_billed(m, end)]
    return PoolMoney(
        len(before),
        len(after),
        _sum_prices(m.price(start) for m in before),
        _sum_prices(m.price(end) for m in after),
        round(fsum(m.cost(start, end) for m in machines), 6),
    )


def _is_billed(machine: SimulatedInstance, at: datetime) -> bool:
    return machine.facts.launched_at <= at and (machine.going_at is None or machine.going_at > at)


def _sum_prices(prices: Iterable[float | None]) -> float:
    return round(fsum(price for price in prices if price is not None), 9)


def _first_events(stage: SimulationStage, *kinds: str) -> dict[str, datetime]:
    """Return when the first event of one of the kinds concerned each NodeClaim."""
    found: dict[str, datetime] = {}
    for event in stage.event_log.events:
        if event.kind in kinds:
            found.setdefault(event.node_claim, event.at)
    return found


def _node_lives(stage: SimulationStage, start: datetime) -> tuple[Life, ...]:
    """Return every node that lived after ``start``, in the order of their launches."""
    ready = _first_events(stage, EventKind.INITIALIZED)
    going = _first_events(stage, EventKind.TAINTED, EventKind.INTERRUPTED)
    lives = []
    for machine in stage.compute.machines.values():
        if machine.gone_at is not None and machine.gone_at < start:
            continue
        claim = machine.facts.tags.get(CLAIM_TAG, "")
        removing = stage.event_log.removing_command(claim)
        taint_at = going.get(claim) if machine.going_at is not None else None
        launched = machine.facts.launched_at
        lives.append(
            Life(
                claim,
                machine.facts.tags.get(NODEPOOL, ""),
                *machine.pool,
                _round_price(machine.prices[-1][1]) if machine.prices else None,
                launched if launched >= start else None,
                ready.get(claim),
                taint_at,
                machine.going_at,
                removing.reason if removing is not None else "",
                removing.id if removing is not None else "",
            )
        )
    return tuple(sorted(lives, key=lambda x: (x.launched_at or start, x.node_pool, x.node_claim)))


def _stuck_objects(outcome: SimulationOutcome) -> tuple[Stuck, ...]:
    """Return what is stuck: unschedulable pods, stalled drains, blocked nodes."""
    if outcome.last is None:
        return ()
    plan, seen = outcome.last.plan, outcome.last.seen
    going = {name for command in plan.commands for name in command.node_claims}
    going |= {c.name for c in seen.claims if c.metadata.deletion_timestamp is not None}
    staying = [claim for claim in seen.claims if claim.name not in going]
    return (
        *_stuck_pods(plan, outcome.renamed),
        *_stuck_drift(plan, going),
        *_stuck_removals(plan, staying),
        *_stuck_claims(seen, staying),
    )


def _stuck_claims(seen: Observation, staying: Iterable[NodeClaim]) -> Iterator[Stuck]:
    """Yield the nodes that do not join, and those whose drain does not end."""
    for claim in staying:
        if claim.is_true("Launched") and not claim.is_true("Registered"):
            message = _waiting_message(claim, seen)
            yield Stuck("NodeClaim", claim.name, claim.node_pool, NOT_JOINED, message)
    for claim in seen.claims:
        if claim.metadata.deletion_timestamp is not None:
            message = _drain_message(claim)
            yield Stuck("NodeClaim", claim.name, claim.node_pool, DRAINING, message)


def _stuck_pods(plan: Plan, renamed: Mapping[str, str]) -> Iterator[Stuck]:
    """Yield the unschedulable pods, by the names of workloads, which are the same in every run."""
    for pod in plan.unschedulable:
        code = pod.reasons[0].code if pod.reasons else ""
        name = renamed.get(pod.pod, pod.pod)
        yield Stuck("Pod", name, limiting_pool(pod), code, deciding_reason(pod.reasons))


def _stuck_drift(plan: Plan, going: Collection[str]) -> Iterator[Stuck]:
    """Yield the drifted nodes that are not replaced, with what they wait for or what refuses."""
    waits = {d.node_claim: d.message for d in plan.deferred}
    refuses = {b.node: b.message for b in plan.blocked if b.reason == DisruptionReason.DRIFTED}
    refuses |= {b.node: b.message for b in plan.blocked if b.node not in refuses}
    for drift in plan.drift:
        if drift.node_claim not in going:
            why = waits.get(drift.node_claim) or refuses.get(drift.node or "") or "drifted"
            yield Stuck("NodeClaim", drift.node_claim, drift.node_pool, drift.reason, why)


def _stuck_removals(plan: Plan, staying: Iterable[NodeClaim]) -> Iterator[Stuck]:
    """Yield the nodes of NodePools that were removed from git, until their removal is allowed."""
    removed = str(ForcefulReason.NODE_POOL_DELETED)
    kept = {b.node: b.message for b in plan.blocked if b.reason == removed}
    kept |= {d.node or "": d.message for d in plan.deferred if d.reason == removed}
    for claim in staying:
        node = claim.status.node_name
        if node in kept:
            yield Stuck("NodeClaim", claim.name, claim.node_pool, removed, kept[node])


def _waiting_message(claim: NodeClaim, seen: Observation) -> str:
    """Return how long a node has been expected, and the pods that may wait for it."""
    pods = sorted(p.key for p in seen.snapshot.pods if p.is_unscheduled)
    named = ", ".join(pods[:_PODS_NAMED]) + (" and more" if len(pods) > _PODS_NAMED else "")
    since = claim.metadata.creation_timestamp
    age = f" {format_duration(seen.at - since)} after its launch" if since is not None else ""
    waits = f"; waiting for a node: {named}" if pods else ""
    return f"its node has not joined the cluster{age}{waits}"


def _drain_message(claim: NodeClaim) -> str:
    known = claim.condition("Drained")
    return known.message if known is not None else "its instance is terminating"


def merge_outcome(
    report: Report,
    stage: SimulationStage,
    base_claims: Iterable[NodeClaim],
    base: str,
    head: str,
    before: SimulationOutcome,
) -> Merge:
    """Return the outcome for the nodes that the base ``base_claims``."""
    cost = report.cost
    gone = {e.node_claim: e.at for e in report.events if e.kind == EventKind.TERMINATED}
    replaced, kept = [], 0
    for claim in base_claims:
        command = stage.event_log.removing_command(claim.name)
        is_going = claim.name in gone or _is_terminating(stage, claim)
        if command is None or not is_going:
            kept += claim.name not in gone
            continue
        replaced.append(
            Replaced(
                claim.name,
                claim.node_pool,
                claim.status.node_name,
                command.reason,
                command.id,
                command.started_at,
                gone.get(claim.name),
                command.replacements,
            )
        )
    return Merge(
        base,
        head,
        before.converged,
        cost.before,
        cost.after,
        _rollout_cost(report),
        kept,
        tuple(sorted(replaced, key=lambda r: (r.started_at, r.node_claim))),
        tuple(sorted(s.name for s in _stuck_objects(before) if s.kind == "Pod")),
    )


def _rollout_cost(report: Report) -> float:
    """Return what the rollout costs beyond the base in the same time.

    It ends with the last event if the fleet has settled: the time after it, until the end of the
    simulation, costs what the fleet costs then.
    """
    cost, end = report.cost, report.at - report.started_at
    rollout = report.duration if report.converged else end
    before, after = (part / timedelta(hours=1) for part in (rollout, end - rollout))
    return round(cost.spent - cost.before * before - cost.after * after, 6)


def _is_terminating(stage: SimulationStage, claim: NodeClaim) -> bool:
    now = {c.name: c for c in stage.world.store.node_claims()}
    return claim.name in now and now[claim.name].metadata.deletion_timestamp is not None
