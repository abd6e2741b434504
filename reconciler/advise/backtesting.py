"""Replays a trace with each proposal: the cost, and the effect on the pods.

The base is replayed once. Every proposal has the same trace, start and seed, so they differ only in
the change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from reconciler.advise.changes import Files, digests_of_files
from reconciler.advise.confirming import fleet_with_files
from reconciler.advise.evaluating import Judge
from reconciler.advise.result import AdviceBacktest, AdviceLimits, BacktestedSide
from reconciler.advise.search import JudgedChanges
from reconciler.assembly.inputs.files import read_bytes
from reconciler.backtest.replay import Replay
from reconciler.backtest.sides import play_side
from reconciler.backtest.trace import Trace, TracedNode, read_trace
from reconciler.model.karpenter.labels import NODEPOOL
from reconciler.model.text.counting import format_count
from reconciler.plan.make.decide import ignore_phase
from reconciler.plan.value.costs import SideResult
from reconciler.simulate.building import (
    SimulatedFleet,
    SimulationInputs,
    SimulationSetup,
    build_simulation,
    read_simulation,
)
from reconciler.simulate.driver import SimulationStage
from reconciler.simulate.script import Script
from reconciler.sweep.evaluation import address_of
from reconciler.sweep.sweep import Sweep


@dataclass(frozen=True, slots=True)
class AdvicePlay:
    """The result of a trace with some files; only that of the current files has ``nodes``."""

    result: SideResult
    nodes: tuple[TracedNode, ...] = ()


class Backtests:
    """A trace, and its results under the current files and under those of proposals.

    Files are evaluated by the cost of the trace (``sweeps.evaluation.Evaluations``).
    """

    def __init__(self, judge: Judge, trace: Trace, inputs: SimulationInputs) -> None:
        self._judge = judge
        self._trace = trace
        self._inputs = inputs

    @classmethod
    def from_trace_file(cls, judge: Judge, file: str) -> Backtests:
        """Read the trace and the current fleet; proposals differ only in the files.

        Raises:
            UnreadableError: it cannot be read, or is not a trace.
        """
        # the pods of a snapshot would run in addition to the trace
        request = replace(judge.request.fleet, now=judge.inputs.now, snapshot=None)
        inputs = read_simulation(request, ignore_phase, is_replay=True)
        return cls(judge, read_trace(read_bytes(file), file), inputs)

    @property
    def trace(self) -> Trace:
        """The trace that is replayed."""
        return self._trace

    def compare_all(
        self, proposals: Sequence[JudgedChanges], sweep: Sweep
    ) -> tuple[tuple[AdviceBacktest, ...], tuple[TracedNode, ...]]:
        """Return the backtest of each proposal, compared with the current files, and their nodes.

        Nothing is played without proposals if the trace has its own nodes.
        """
        if not proposals and self._trace.nodes:
            return (), ()
        sides: list[Files] = [self._judge.files, *(one.verdict.files for one in proposals)]
        base, *heads = sweep.evaluate_all(self, sides)
        return tuple(_compare_sides(base.result, head.result) for head in heads), base.nodes

    @property
    def result(self) -> type[AdvicePlay]:
        """The type of the results."""
        return AdvicePlay

    def evaluate(self, key: Files) -> AdvicePlay:
        """Play the trace with the fleet in the files."""
        inputs, stages = self._inputs, list[SimulationStage]()

        def build(replay: Replay) -> SimulationSetup:
            return build_simulation(
                inputs, Script(), self._judge.request.seed, replay, replay.market
            )

        def choose(setup: SimulationSetup) -> SimulatedFleet:
            stages.append(setup.stage)
            return fleet_with_files(self._judge, setup.head, key)

        end = inputs.start + timedelta(seconds=self._trace.seconds)
        result = play_side(build, choose, self._trace, inputs.start, end).result
        is_present = key == self._judge.files
        nodes = tuple(_played_nodes(stages[0], inputs.start, end)) if is_present else ()
        return AdvicePlay(result, nodes)

    def address(self, key: Files) -> str:
        """Return the address of the result with the files."""
        facts = (self._inputs.address, self._trace.digest, self._judge.request.seed)
        return address_of("backtest", digests_of_files(key), facts, self._judge.facts)


def _played_nodes(stage: SimulationStage, start: datetime, end: datetime) -> Iterator[TracedNode]:
    """Yield the nodes of a play in the form of a trace."""
    for name, machine in sorted(stage.compute.machines.items()):
        facts, gone = machine.facts, machine.going_at
        yield TracedNode(
            node=name,
            node_pool=facts.tags.get(NODEPOOL, ""),
            instance_type=facts.instance_type,
            zone=facts.zone,
            capacity_type=facts.capacity_type,
            price=None,
            created=max((facts.launched_at - start).total_seconds(), 0.0),
            deleted=None if gone is None or gone >= end else (gone - start).total_seconds(),
        )


def _compare_sides(base: SideResult, head: SideResult) -> AdviceBacktest:
    return AdviceBacktest(
        per_month=round(head.dollars_per_month - base.dollars_per_month, 6),
        base=_backtested_side(base),
        head=_backtested_side(head),
    )


def _backtested_side(result: SideResult) -> BacktestedSide:
    return BacktestedSide(
        dollars_per_month=result.dollars_per_month,
        waiting_seconds=result.waiting_seconds,
        evictions_per_pod_day=result.evictions_per_pod_day,
        unplaced=result.unplaced,
    )


def exceeded_limit(backtest: AdviceBacktest, limits: AdviceLimits) -> str:
    """Return which limit the change exceeds in its backtest, empty if it exceeds none.

    The value of the current files is allowed if it is higher.
    """
    before, after = backtest.base, backtest.head
    if after.unplaced > before.unplaced:
        more = format_count(after.unplaced - before.unplaced, "more pod")
        return f"{more} of the trace would get no node"
    waiting = max(limits.waiting_seconds, before.waiting_seconds.p99)
    if after.waiting_seconds.p99 > waiting:
        return (
            f"99% of the pods of the trace would wait up to {after.waiting_seconds.p99:g} s, "
            f"longer than --wait-max {waiting:g}s"
        )
    evictions = max(limits.evictions_per_pod_day, before.evictions_per_pod_day)
    if after.evictions_per_pod_day > evictions:
        return (
            f"{after.evictions_per_pod_day:g} evictions for each pod and day in the trace, more "
            f"than --evictions-max {evictions:g}"
        )
    if backtest.per_month >= 0:
        return "the backtest saves nothing"
    return ""
