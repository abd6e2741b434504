"""Runs a backtest: the trace against the head, and against what it is compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from msgspec.structs import replace as with_fields

from reconciler.cli.backtest.plays import Play, Replays
from reconciler.cli.backtest.report import backtest_of
from reconciler.cli.backtest.sides import PlayedSide, SideCurves
from reconciler.cli.backtest.trace import read_trace
from reconciler.cli.shared import moment
from reconciler.cli.shared.request import FleetRequest, SweepRequest
from reconciler.cli.shared.sources import read_bytes
from reconciler.cli.simulation.building import read_simulation
from reconciler.cli.simulation.report import Report
from reconciler.cli.simulation.script import Script
from reconciler.cli.sweeps.sweep import Progress, Sweep, unseen
from reconciler.plan.make.decide import Phase
from reconciler.plan.value.backtest import BASE, HEAD, KARPENTER, Backtest


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """A trace and what it is replayed against.

    ``until`` is when to stop, None for the end of the trace. ``against`` is ``karpenter-defaults``
    or None. Each side is played with ``seeds`` seeds, from ``seed`` on, where ``sweep`` says.
    With ``workload_alone``, the spot prices and refusals of the trace are left out.
    """

    fleet: FleetRequest
    trace: str
    against: str | None
    seed: int
    seeds: int
    until: datetime | timedelta | None
    script: Script
    sweep: SweepRequest = field(default_factory=SweepRequest)
    workload_alone: bool = False


@dataclass(frozen=True, slots=True)
class Backtested:
    """The report of the head, the backtest, and how each side went with the first seed."""

    report: Report
    backtest: Backtest
    curves: Mapping[str, SideCurves]


def backtested(request: BacktestRequest, phase: Phase, progress: Progress = unseen) -> Backtested:
    """Play the trace against each side; ``progress`` learns how far it is.

    Raises:
        ReconcilerError: an argument is wrong, or an input cannot be read.
    """
    trace = read_trace(read_bytes(request.trace), request.trace)
    if request.workload_alone:
        trace = trace.workload_alone
    start = moment.present(request.fleet.now)
    fleet = replace(request.fleet, now=start)
    end = start + timedelta(seconds=trace.seconds)
    if request.until is not None:
        until = request.until
        end = min(end, start + until if isinstance(until, timedelta) else until)
    sides = [HEAD]
    if fleet.base is not None:
        sides.append(BASE)
    if request.against is not None:
        sides.append(KARPENTER)
    seeds = range(request.seed, request.seed + request.seeds)
    plays = [Play(side, seed) for seed in seeds for side in sides]
    replays = Replays(read_simulation(fleet, phase, is_replay=True), request.script, trace, end)
    found = Sweep(request.sweep, progress).evaluated(replays, plays)
    played: dict[str, list[PlayedSide]] = {side: [] for side in sides}
    for play, one in zip(plays, found, strict=True):
        played[play.side].append(one)
    results = {side: [found.result for found in every] for side, every in played.items()}
    backtest = backtest_of(start, end, trace.rounded, results)
    report = with_fields(played[HEAD][0].report, backtest=backtest)
    curves = {side: every[0].curves for side, every in played.items()}
    return Backtested(report, backtest, curves)
