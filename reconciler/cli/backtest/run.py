"""Runs a backtest: the trace against the head, and against what it is compared with."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from multiprocessing import get_context
from typing import NamedTuple

from msgspec.structs import replace as with_fields

from reconciler.cli.backtest.replay import Replay
from reconciler.cli.backtest.report import backtest_of
from reconciler.cli.backtest.result import BASE, HEAD, KARPENTER, SideResult
from reconciler.cli.backtest.sides import karpenter_defaults, play_side
from reconciler.cli.backtest.trace import Trace, read_trace
from reconciler.cli.shared import moment
from reconciler.cli.shared.request import FleetRequest
from reconciler.cli.shared.sources import read_bytes
from reconciler.cli.simulation.building import Setting, SimulatedFleet, built
from reconciler.cli.simulation.report import Report
from reconciler.cli.simulation.script import Script
from reconciler.plan.make.decide import Phase, untimed


@dataclass(frozen=True, slots=True)
class BacktestRequest:
    """A trace and what it is replayed against.

    ``until`` is when to stop, None for the end of the trace. ``against`` is ``karpenter-defaults``
    or None. Each side is played with ``seeds`` seeds, from ``seed`` on. ``workers`` is the number
    of processes.
    """

    fleet: FleetRequest
    trace: str
    against: str | None
    seed: int
    seeds: int
    until: datetime | timedelta | None
    script: Script
    workers: int = 1


class _Play(NamedTuple):
    """A side, and the seed that it is played with."""

    seed: int
    side: str


class _Played(NamedTuple):
    result: SideResult
    report: Report


def backtested(request: BacktestRequest, phase: Phase) -> Report:
    """Return the report of the head with the backtest; the workers do not change it.

    Raises:
        ReconcilerError: an argument is wrong, or an input cannot be read.
    """
    start = moment.present(request.fleet.now)
    request = replace(request, fleet=replace(request.fleet, now=start))
    trace = read_trace(read_bytes(request.trace), request.trace)
    sides = [HEAD]
    if request.fleet.base is not None:
        sides.append(BASE)
    if request.against is not None:
        sides.append(KARPENTER)
    seeds = range(request.seed, request.seed + request.seeds)
    plays = [_Play(seed, side) for seed in seeds for side in sides]
    if min(request.workers, len(plays)) > 1:
        played = _in_processes(request, plays)
    else:
        played = [_played(request, play, trace, phase) for play in plays]
    results: dict[str, list[SideResult]] = {side: [] for side in sides}
    for play, done in zip(plays, played, strict=True):
        results[play.side].append(done.result)
    backtest = backtest_of(start, _end(request, trace, start), trace.rounded, results)
    return with_fields(played[0].report, backtest=backtest)


def _in_processes(request: BacktestRequest, plays: Sequence[_Play]) -> list[_Played]:
    with ProcessPoolExecutor(
        min(request.workers, len(plays)),
        get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_DFL),  # Ctrl-C ends them without a traceback
    ) as pool:
        return list(pool.map(partial(_played, request), plays))


def _played(
    request: BacktestRequest, play: _Play, trace: Trace | None = None, phase: Phase = untimed
) -> _Played:
    """Play one side; the trace is read where it is not given."""
    if trace is None:
        trace = read_trace(read_bytes(request.trace), request.trace)
    start = moment.present(request.fleet.now)
    choose = {HEAD: _head, BASE: _base, KARPENTER: _karpenter}[play.side]

    def build(replay: Replay) -> Setting:
        return built(request.fleet, phase, request.script, play.seed, replay)

    side = play_side(build, choose, trace, start, _end(request, trace, start))
    return _Played(side.result, side.report)


def _end(request: BacktestRequest, trace: Trace, start: datetime) -> datetime:
    """Return when the period ends: with the trace, or before."""
    end, until = start + timedelta(seconds=trace.seconds), request.until
    if until is None:
        return end
    return min(end, start + until if isinstance(until, timedelta) else until)


def _head(setting: Setting) -> SimulatedFleet:
    return setting.head


def _base(setting: Setting) -> SimulatedFleet:
    assert setting.base is not None, "there is a base where one is asked for"
    return setting.base


def _karpenter(setting: Setting) -> SimulatedFleet:
    return karpenter_defaults(setting.head)
