"""Replays a trace against proposals: what each would have cost, and how its pods would have fared.

The base is replayed once. Every proposal has the same trace, start and seed, so they differ by
nothing but the change.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from multiprocessing import get_context

from reconciler.cli.advice.changes import Files
from reconciler.cli.advice.judging import Judge, settings_with
from reconciler.cli.advice.result import AdviceBacktest, AdviceLimits, BacktestedSide
from reconciler.cli.advice.search import Judged
from reconciler.cli.backtest.replay import Replay
from reconciler.cli.backtest.sides import play_side
from reconciler.cli.backtest.trace import Trace, read_trace
from reconciler.cli.shared.sources import digests_of, read_bytes, settings_of
from reconciler.cli.simulation.building import Setting, SimulatedFleet, built
from reconciler.cli.simulation.script import Script
from reconciler.desired.objects import node_pools
from reconciler.plan.make.decide import untimed
from reconciler.plan.render.wording import counted
from reconciler.plan.value.backtest import SideResult


class Backtests:
    """A trace, and what it comes to under the present files and under those of proposals."""

    def __init__(self, judge: Judge, trace: Trace) -> None:
        self._judge = judge
        self._trace = trace
        self._start = judge.inputs.now

    @classmethod
    def of(cls, judge: Judge, file: str) -> Backtests:
        """Read the trace.

        Raises:
            UnreadableError: it cannot be read, or is not a trace.
        """
        return cls(judge, read_trace(read_bytes(file), file))

    def of_all(self, found: Sequence[Judged], workers: int) -> tuple[AdviceBacktest, ...]:
        """Return the backtest of each, compared with the present files."""
        sides: list[Files] = [self._judge.files, *(one.verdict.files for one in found)]
        base, *heads = self._played(sides, workers)
        return tuple(_compared(base, head) for head in heads)

    def _played(self, sides: Sequence[Files], workers: int) -> list[SideResult]:
        if workers < 2:
            return [self.side(files) for files in sides]
        global _forked  # noqa: PLW0603 - a forked process has no other way to values not pickled
        _forked = self
        try:
            with ProcessPoolExecutor(workers, mp_context=get_context("fork")) as pool:
                return list(pool.map(_played_in_process, sides))
        finally:
            _forked = None

    def side(self, files: Files) -> SideResult:
        """Play the trace against the fleet in ``files``."""
        judge = self._judge
        request = replace(judge.request.fleet, now=self._start)

        def build(replay: Replay) -> Setting:
            return built(request, untimed, Script(), judge.request.seed, replay)

        def choose(setting: Setting) -> SimulatedFleet:
            return self._fleet(setting.head, files)

        return play_side(build, choose, self._trace, self._start, self._end).result

    @property
    def _end(self) -> datetime:
        return self._start + timedelta(seconds=self._trace.seconds)

    def _fleet(self, head: SimulatedFleet, files: Files) -> SimulatedFleet:
        """Return the simulated fleet as ``files`` want it."""
        judge = self._judge
        fleet = judge.read(files)
        assert not isinstance(fleet, str), "a proposal is valid"
        inputs = judge.inputs_of(fleet)
        resolved = settings_of(judge.request.fleet, fleet)
        digests = digests_of(fleet, b"", inputs.catalog, resolved)
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


_forked: Backtests | None = None


def _played_in_process(files: Files) -> SideResult:
    assert _forked is not None, "the process was forked with it"
    return _forked.side(files)


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
