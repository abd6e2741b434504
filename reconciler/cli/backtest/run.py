"""Runs a backtest: the trace against the head, and against what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from msgspec.structs import replace as with_fields

from reconciler.cli.backtest.replay import Replay
from reconciler.cli.backtest.report import backtest_of
from reconciler.cli.backtest.sides import PlayedSide, SideCurves, karpenter_defaults, play_side
from reconciler.cli.backtest.trace import read_trace
from reconciler.cli.shared import moment
from reconciler.cli.shared.request import FleetRequest
from reconciler.cli.shared.sources import read_bytes
from reconciler.cli.simulation.building import Setting, SimulatedFleet, built
from reconciler.cli.simulation.report import Report
from reconciler.cli.simulation.script import Script
from reconciler.plan.make.decide import Phase
from reconciler.plan.value.backtest import BASE, HEAD, KARPENTER, Backtest


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """A trace and what it is replayed against.

    ``until`` is when to stop, None for the end of the trace. ``against`` is ``karpenter-defaults``
    or None. Each side is played with ``seeds`` seeds, from ``seed`` on.
    """

    fleet: FleetRequest
    trace: str
    against: str | None
    seed: int
    seeds: int
    until: datetime | timedelta | None
    script: Script


@dataclass(frozen=True, slots=True)
class Backtested:
    """The report of the head, the backtest, and how each side went with the first seed."""

    report: Report
    backtest: Backtest
    curves: Mapping[str, SideCurves]


def backtested(request: BacktestRequest, phase: Phase) -> Backtested:
    """Play the trace against each side.

    Raises:
        ReconcilerError: an argument is wrong, or an input cannot be read.
    """
    trace = read_trace(read_bytes(request.trace), request.trace)
    start = moment.present(request.fleet.now)
    fleet = replace(request.fleet, now=start)
    end = start + timedelta(seconds=trace.seconds)
    if request.until is not None:
        until = request.until
        end = min(end, start + until if isinstance(until, timedelta) else until)
    choices = {HEAD: _head}
    if fleet.base is not None:
        choices[BASE] = _base
    if request.against is not None:
        choices[KARPENTER] = _karpenter
    played: dict[str, list[PlayedSide]] = {name: [] for name in choices}
    for seed in range(request.seed, request.seed + request.seeds):

        def build(replay: Replay, seed: int = seed) -> Setting:
            return built(fleet, phase, request.script, seed, replay)

        for name, choose in choices.items():
            played[name].append(play_side(build, choose, trace, start, end))
    results = {name: [side.result for side in sides] for name, sides in played.items()}
    backtest = backtest_of(start, end, trace.rounded, results)
    report = with_fields(played[HEAD][0].report, backtest=backtest)
    return Backtested(report, backtest, {name: sides[0].curves for name, sides in played.items()})


def _head(setting: Setting) -> SimulatedFleet:
    return setting.head


def _base(setting: Setting) -> SimulatedFleet:
    assert setting.base is not None, "there is a base where one is asked for"
    return setting.base


def _karpenter(setting: Setting) -> SimulatedFleet:
    return karpenter_defaults(setting.head)
