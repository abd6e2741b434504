"""Replays a trace against proposals: what each would have cost, and how its pods would have fared.

The base is replayed once. Every proposal has the same trace, start and seed, so they differ by
nothing but the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from reconciler.cli.advice.changes import Files, digests_of_files
from reconciler.cli.advice.judging import Judge, settings_with
from reconciler.cli.advice.result import AdviceBacktest, AdviceLimits, BacktestedSide
from reconciler.cli.advice.search import Judged
from reconciler.cli.backtest.replay import Replay
from reconciler.cli.backtest.sides import play_side
from reconciler.cli.backtest.trace import Trace, read_trace
from reconciler.cli.shared.sources import digests_of, read_bytes
from reconciler.cli.simulation.building import (
    Setting,
    SimulatedFleet,
    SimulationInputs,
    built,
    read_simulation,
)
from reconciler.cli.simulation.script import Script
from reconciler.cli.sweeps.evaluation import address_of
from reconciler.cli.sweeps.sweep import Sweep
from reconciler.desired.objects import node_pools
from reconciler.plan.make.decide import untimed
from reconciler.plan.render.wording import counted
from reconciler.plan.value.costs import SideResult


class Backtests:
    """A trace, and what it comes to under the present files and under those of proposals.

    Files are evaluated by what the trace costs with them (``sweeps.evaluation.Evaluations``).
    """

    def __init__(self, judge: Judge, trace: Trace, inputs: SimulationInputs) -> None:
        self._judge = judge
        self._trace = trace
        self._inputs = inputs

    @classmethod
    def of(cls, judge: Judge, file: str) -> Backtests:
        """Read the trace, and the present fleet, in which only the files differ by proposal.

        Raises:
            UnreadableError: it cannot be read, or is not a trace.
        """
        request = replace(judge.request.fleet, now=judge.inputs.now)
        inputs = read_simulation(request, untimed, is_replay=True)
        return cls(judge, read_trace(read_bytes(file), file), inputs)

    def of_all(self, found: Sequence[Judged], sweep: Sweep) -> tuple[AdviceBacktest, ...]:
        """Return the backtest of each, compared with the present files."""
        sides: list[Files] = [self._judge.files, *(one.verdict.files for one in found)]
        base, *heads = sweep.evaluated(self, sides)
        return tuple(_compared(base, head) for head in heads)

    @property
    def result(self) -> type[SideResult]:
        """The type of the results."""
        return SideResult

    def evaluate(self, key: Files) -> SideResult:
        """Play the trace against the fleet in the files."""
        inputs = self._inputs

        def build(replay: Replay) -> Setting:
            return built(inputs, Script(), self._judge.request.seed, replay)

        def choose(setting: Setting) -> SimulatedFleet:
            return self._fleet(setting.head, key)

        end = inputs.start + timedelta(seconds=self._trace.seconds)
        return play_side(build, choose, self._trace, inputs.start, end).result

    def address(self, key: Files) -> str:
        """Return the address of the result with the files."""
        facts = (self._inputs.address, self._trace.digest, self._judge.request.seed)
        return address_of("backtest", digests_of_files(key), facts, self._judge.facts)

    def _fleet(self, head: SimulatedFleet, files: Files) -> SimulatedFleet:
        """Return the simulated fleet as ``files`` want it."""
        judge = self._judge
        fleet = judge.read(files)
        assert not isinstance(fleet, str), "a proposal is valid"
        inputs = judge.inputs_of(fleet)
        digests = digests_of(fleet, b"", inputs.catalog, judge.layers.resolved(fleet))
        settings = settings_with(head.settings, judge.inputs.settings, inputs.settings)
        return replace(
            head,
            fleet=fleet,
            node_pools=node_pools(fleet),
            settings=settings,
            catalog=inputs.catalog,
            tree=digests.git,
            digests=digests,
        )


def _compared(base: SideResult, head: SideResult) -> AdviceBacktest:
    return AdviceBacktest(
        per_month=round(head.dollars_per_month - base.dollars_per_month, 6),
        base=_side(base),
        head=_side(head),
    )


def _side(result: SideResult) -> BacktestedSide:
    return BacktestedSide(
        dollars_per_month=result.dollars_per_month,
        waiting_seconds=result.waiting_seconds,
        evictions_per_pod_day=result.evictions_per_pod_day,
        unplaced=result.unplaced,
    )


def beyond_limits(backtest: AdviceBacktest, limits: AdviceLimits) -> str:
    """Return which limit the change exceeds in its backtest, empty where it keeps all.

    What the present files come to is allowed where that is more.
    """
    before, after = backtest.base, backtest.head
    if after.unplaced > before.unplaced:
        more = counted(after.unplaced - before.unplaced, "more pod")
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
