"""Runs a backtest: the trace against the head, and against what it is compared with.

Each play replays the trace against one side with one seed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from reconciler.assembly.inputs import timings
from reconciler.assembly.inputs.files import read_bytes
from reconciler.assembly.inputs.request import FleetRequest, ReplayRequest
from reconciler.backtest.frontier import FRONTIER, TRADEOFFS, points_of
from reconciler.backtest.replay import Replay
from reconciler.backtest.report import backtest_of
from reconciler.backtest.sides import PlayedSide, SideCurves, play_side
from reconciler.backtest.trace import Trace, read_trace
from reconciler.model.grouping import group_pairs
from reconciler.plan.make.decide import Phase
from reconciler.plan.value.costs import BASE, COMPARED, HEAD, KARPENTER, Backtest
from reconciler.simulate.building import (
    SimulatedFleet,
    SimulationInputs,
    SimulationSetup,
    build_simulation,
    read_simulation,
)
from reconciler.simulate.report import Report
from reconciler.simulate.script import Script
from reconciler.sweep.evaluation import address_of
from reconciler.sweep.sweep import Progress, Sweep, no_progress


class Play(NamedTuple):
    """A side, and its random seed."""

    side: str
    seed: int


@dataclass(frozen=True)
class Replays:
    """What all plays share: the fleets, and the trace to the ``end`` of the period.

    They are evaluated by their plays (``sweeps.evaluation.Evaluations``).
    """

    inputs: SimulationInputs
    script: Script
    trace: Trace
    end: datetime

    @property
    def result(self) -> type[PlayedSide]:
        """The type of the results."""
        return PlayedSide

    def evaluate(self, key: Play) -> PlayedSide:
        """Replay the trace against a side.

        Raises:
            EndlessError: it takes too many passes.
        """

        def build(replay: Replay) -> SimulationSetup:
            return build_simulation(self.inputs, self.script, key.seed, replay, replay.market)

        def choose(setup: SimulationSetup) -> SimulatedFleet:
            return _fleet_of(key.side, setup)

        explains = key.side in COMPARED
        return play_side(build, choose, self.trace, self.inputs.start, self.end, explains=explains)

    def address(self, key: Play) -> str:
        """Return the address of the result of a play."""
        return address_of("play", key, self._facts)

    @cached_property
    def _facts(self) -> tuple[object, ...]:
        return (self.inputs.address, self.script, self.trace.digest, self.end)


def _fleet_of(side: str, setup: SimulationSetup) -> SimulatedFleet:
    """Return the fleet of a side: the head, the base, or the head with other settings."""
    if side == HEAD:
        return setup.head
    if side == BASE:
        assert setup.base is not None, "there is a base where one is asked for"
        return setup.base
    return TRADEOFFS[side].apply_to(setup.head)


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """A fleet and the trace that is replayed on it.

    ``until`` is when to stop, None for the end of the trace. Each side is played with ``seeds``
    seeds, from ``seed`` on.
    """

    fleet: FleetRequest
    replay: ReplayRequest
    seed: int = 0
    seeds: int = 1
    until: datetime | timedelta | None = None
    script: Script = field(default_factory=Script)


@dataclass(frozen=True, slots=True)
class BacktestResult:
    """The report of the head, the backtest, and the curve of each side with the first seed."""

    report: Report
    backtest: Backtest
    curves: Mapping[str, SideCurves]


def _end_of(request: BacktestRequest, start: datetime, trace: Trace) -> datetime:
    end, until = start + timedelta(seconds=trace.seconds), request.until
    if until is None:
        return end
    return min(end, start + until if isinstance(until, timedelta) else until)


def run_backtest(
    request: BacktestRequest, phase: Phase, progress: Progress = no_progress
) -> BacktestResult:
    """Play the trace against each side; ``progress`` receives the progress.

    Raises:
        ReconcilerError: an argument is wrong, or an input cannot be read.
    """
    replay = request.replay
    assert replay.trace is not None, "a backtest has a trace"
    trace = read_trace(read_bytes(replay.trace), replay.trace)
    if replay.workload_only:
        trace = trace.workload_only
    start = timings.start_of_simulation(request.fleet.now)
    fleet = replace(request.fleet, now=start)
    end = _end_of(request, start, trace)
    inputs = read_simulation(fleet, phase, is_replay=True)
    sides = _sides(inputs, replay.against)
    seeds = range(request.seed, request.seed + request.seeds)
    plays = [Play(side, seed) for seed in seeds for side in sides]
    replays = Replays(inputs, request.script, trace, end)
    found = Sweep(replay.sweep, progress).evaluate_all(replays, plays)
    played = group_pairs((play.side, result) for play, result in zip(plays, found, strict=True))
    results = {side: [found.result for found in every] for side, every in played.items()}
    backtest = backtest_of(start, end, trace.rounded, results)
    if replay.against == FRONTIER:
        backtest = with_fields(backtest, frontier=points_of(backtest.sides))
    report = with_fields(played[HEAD][0].report, backtest=backtest)
    curves = {side: every[0].curves for side, every in played.items()}
    return BacktestResult(report, backtest, curves)


def _sides(inputs: SimulationInputs, against: str | None) -> list[str]:
    """Return the names of the sides.

    Settings of the frontier that the head has already are left out.
    """
    sides = [HEAD, *([BASE] if inputs.base is not None else [])]
    if against is not None:
        sides.append(KARPENTER)
    if against == FRONTIER:
        others = (name for name in TRADEOFFS if name != KARPENTER)
        sides += [name for name in others if not TRADEOFFS[name].is_met_by(inputs.head)]
    return sides
