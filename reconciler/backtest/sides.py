"""Plays a trace against each side of a backtest and measures the result."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, fsum
from typing import Final

from msgspec.structs import replace as with_fields

from reconciler.assembly.mandate import mandate_of
from reconciler.backtest.bound import lower_bounds
from reconciler.backtest.gap import BusyRecorder, explain_gap
from reconciler.backtest.replay import Replay, Stay
from reconciler.backtest.trace import Trace
from reconciler.engine.reconcile import Pass
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.model.resources import CPU, MEMORY, Resources, parse_resources
from reconciler.plan.value.costs import SideResult, Utilization, WaitingSeconds
from reconciler.plan.value.plan import InputDigests, Revision
from reconciler.ports.progress import EventKind
from reconciler.simulate.building import SimulatedFleet, SimulationSetup
from reconciler.simulate.driver import Sample, SimulationStage, play
from reconciler.simulate.report import Report, report_of

_HOUR: Final = timedelta(hours=1)
_DIGITS: Final = 6

PASSES_MAX: Final = 2_000_000
"""The maximum number of passes of one side of a backtest."""


@dataclass(frozen=True, slots=True)
class CpuMemory:
    """CPU and memory, in thousandths of a core and of a byte."""

    cpu: int = 0
    memory: int = 0

    @classmethod
    def from_resources(cls, resources: Resources) -> CpuMemory:
        """Return the amounts in a list of resources; missing ones are 0."""
        return cls(resources.get(CPU, 0), resources.get(MEMORY, 0))

    @classmethod
    def total(cls, amounts: Iterable[CpuMemory]) -> CpuMemory:
        """Return the sum."""
        cpu = memory = 0
        for amount in amounts:
            cpu += amount.cpu
            memory += amount.memory
        return cls(cpu, memory)


@dataclass(frozen=True, slots=True)
class UtilizationStep:
    """The requests of the pods on the fleet's nodes and the allocatable amounts, from ``at`` on."""

    at: datetime
    requested: CpuMemory
    allocatable: CpuMemory

    @property
    def cpu_share(self) -> float:
        """The share of the CPU that is requested, 0 without nodes."""
        return _share(self.requested.cpu, self.allocatable.cpu)


class UtilizationRecorder:
    """Records the utilization of NodePools when a pass observes a change.

    Passes that observe the same pods and nodes only compare identities.
    """

    def __init__(self) -> None:
        self.steps: list[UtilizationStep] = []
        self._pods: tuple[Pod, ...] = ()
        self._nodes: tuple[Node, ...] = ()
        self._requests: dict[int, tuple[PodSpec, CpuMemory]] = {}

    def record_pass(self, done: Pass) -> None:
        """Record what a pass observed."""
        snapshot = done.seen.snapshot
        if snapshot.pods == self._pods and snapshot.nodes == self._nodes:
            return
        self._pods, self._nodes = snapshot.pods, snapshot.nodes
        nodes = {n.name: n for n in snapshot.nodes if NODEPOOL in n.metadata.labels}
        known, self._requests = self._requests, {}
        requested = CpuMemory.total(
            self._requests_of(pod, known) for pod in snapshot.pods if pod.spec.node_name in nodes
        )
        allocatable = CpuMemory.total(
            CpuMemory.from_resources(parse_resources(node.status.allocatable))
            for node in nodes.values()
        )
        step = UtilizationStep(done.seen.at, requested, allocatable)
        if not self.steps or replace(self.steps[-1], at=step.at) != step:
            self.steps.append(step)

    def _requests_of(self, pod: Pod, known: dict[int, tuple[PodSpec, CpuMemory]]) -> CpuMemory:
        """Return the requests of a pod; its spec is referenced, so that its id is not reused."""
        spec = pod.spec
        found = known.get(id(spec)) or (spec, CpuMemory.from_resources(pod.requests()))
        self._requests[id(spec)] = found
        return found[1]


def utilization(steps: Sequence[UtilizationStep], end: datetime) -> Utilization:
    """Return the requested share of all that was allocatable from the first step to ``end``."""
    spans = [
        (step, (until - step.at) / _HOUR)
        for step, until in zip(steps, [*(s.at for s in steps[1:]), end], strict=bool(steps))
    ]

    def share(of: Callable[[CpuMemory], int]) -> float:
        requested = fsum(of(step.requested) * hours for step, hours in spans)
        return _share(requested, fsum(of(step.allocatable) * hours for step, hours in spans))

    return Utilization(share(lambda amounts: amounts.cpu), share(lambda amounts: amounts.memory))


def _share(requested: float, allocatable: float) -> float:
    return round(requested / allocatable, _DIGITS) if allocatable else 0.0


@dataclass(frozen=True, slots=True)
class SideCurves:
    """A side over time: its cost and the utilization of its nodes, each until the next.

    ``waits`` are the seconds that pods waited for their first node, in ascending order, of all
    ``pods`` those that got one.
    """

    cost: tuple[Sample, ...]
    utilization_steps: tuple[UtilizationStep, ...]
    waits: tuple[float, ...]
    pods: int


@dataclass(frozen=True, slots=True)
class PlayedSide:
    """The result of a side, the report of its simulation, and its curve over time."""

    result: SideResult
    report: Report
    curves: SideCurves


def play_side(
    build: Callable[[Replay], SimulationSetup],
    choose: Callable[[SimulationSetup], SimulatedFleet],
    trace: Trace,
    start: datetime,
    end: datetime,
    *,
    explains: bool = False,
) -> PlayedSide:
    """Play the trace from ``start`` to ``end`` in a separate environment.

    ``explains`` is whether the result has the causes of its cost.

    Random events depend on the names of nodes, which depend on the commit and the digests of the
    inputs. All sides have the same ones here, so equal decisions have equal results.

    Raises:
        EndlessError: it takes more passes than one side may make.
    """
    replay = Replay(trace, start)
    setup = build(replay)
    revision = replace(choose(setup), head=Revision(), tree="", digests=InputDigests())
    fleet = setup.start_fleet(revision)
    stage = setup.stage
    stage.event_log.listener = replay.record_event
    stage.next_workload_change = replay.next_moment
    recorder, busy = UtilizationRecorder(), BusyRecorder(stage.compute)

    def watch(done: Pass) -> None:
        recorder.record_pass(done)
        busy.record_pass(done)

    outcome = play(
        stage, fleet.priced_at, mandate_of(fleet.settings), end, watch, passes_max=PASSES_MAX
    )
    stays = replay.stays.values()
    bounds = lower_bounds(fleet, stays, end)
    used = utilization(recorder.steps, end)
    result = _measure(stage, stays, used, fsum(bounds), start, end)
    if explains:
        gap = explain_gap(fleet, stays, end, bounds, busy, result.dollars)
        result = with_fields(result, gap=gap)
    samples = tuple(stage.samples)
    curves = SideCurves(samples, tuple(recorder.steps), _waits(stays), len(stays))
    return PlayedSide(result, report_of(stage, outcome, start), curves)


def _measure(
    stage: SimulationStage,
    stays: Collection[Stay],
    used: Utilization,
    bound: float,
    start: datetime,
    end: datetime,
) -> SideResult:
    """Return the measurements of a side, without the causes of its cost."""
    samples = stage.samples
    kinds = [event.kind for event in stage.event_log.events]
    pod_days = _pod_days(stays, end)
    evictions = kinds.count(EventKind.POD_EVICTED)
    dollars = _integral(samples, end, lambda sample: sample.per_hour)
    hours = (end - start) / _HOUR
    return SideResult(
        dollars=round(dollars, 6),
        dollars_per_month=round(dollars / hours * HOURS_A_MONTH, 6) if hours else 0.0,
        lower_bound=round(bound, 6),
        node_hours=round(_integral(samples, end, lambda sample: sample.nodes), 6),
        utilization=used,
        waiting_seconds=_percentiles(_waits(stays)),
        evictions=evictions,
        evictions_per_pod_day=round(evictions / pod_days, 6) if pod_days else 0.0,
        interruptions=kinds.count(EventKind.INTERRUPTED),
        commands=kinds.count(EventKind.COMMAND_STARTED),
        pods=len(stays),
        unplaced=sum(stay.bound is None for stay in stays),
        passes=stage.passes,
    )


def _integral(samples: Sequence[Sample], end: datetime, value: Callable[[Sample], float]) -> float:
    """Return the integral over hours of a value that changes only at samples."""
    ends = [*(sample.at for sample in samples[1:]), end]
    return fsum(
        value(sample) * ((until - sample.at) / _HOUR)
        for sample, until in zip(samples, ends, strict=True)
    )


def _pod_days(stays: Iterable[Stay], end: datetime) -> float:
    spans = ((stay.ended or end) - stay.bound for stay in stays if stay.bound is not None)
    return fsum(span / timedelta(days=1) for span in spans)


def _waits(stays: Iterable[Stay]) -> tuple[float, ...]:
    waits = ((s.bound - s.created).total_seconds() for s in stays if s.bound is not None)
    return tuple(sorted(waits))


def _percentiles(waits: Sequence[float]) -> WaitingSeconds:
    if not waits:
        return WaitingSeconds()

    def percentile(share: float) -> float:
        """Return the nearest rank."""
        return round(waits[ceil(share * len(waits)) - 1], 3)

    return WaitingSeconds(percentile(0.5), percentile(0.95), percentile(0.99))
