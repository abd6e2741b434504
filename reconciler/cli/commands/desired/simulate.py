"""``reconciler simulate``: run the engine in virtual time, and show the events."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from reconciler import exitcode
from reconciler.assembly.inputs.request import FleetRequest, ReplayRequest
from reconciler.assembly.inputs.timings import Timings, current_time, read_time_or_span
from reconciler.cli.commands.desired.plan import write_output
from reconciler.cli.output.progressline import show_progress
from reconciler.cli.parser import inputs
from reconciler.model.errors import UsageError
from reconciler.model.text.quoting import quote_value
from reconciler.model.text.visible import one_line
from reconciler.options import add_options, option, part, switch
from reconciler.source.document import LIMITS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from reconciler.cli.output.progressline import ProgressLine
    from reconciler.simulate.report import Report
    from reconciler.simulate.script import Script
    from reconciler.simulate.seeds import SeededRuns
    from reconciler.simulate.timeline import StreamedTimeline

SEEDS_MAX: Final = 100
SPAN_MAX: Final = timedelta(days=366)
"""The longest time that ``--until`` may name."""

_NOT_SETTLED: Final = (
    "Note: the fleet does not settle, because its pods or nodes come and go all the time; "
    "--until sets the end of the simulation\n"
)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    add_options(ReplayRequest, parser)
    inputs.add_durations(parser)
    inputs.add_sweep(parser.add_argument, "with --trace: run")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateRequest:
    """The fleet at the start, and the duration and the faults of the simulation."""

    fleet: FleetRequest = inputs.of_fleet(inputs.PLANNING)
    output: str = part(inputs.add_output)
    until: str | None = option(
        "--until", "DURATION|TIME", "when to stop (default: when nothing is left to do)"
    )
    seed: int | None = option("--seed", "N", "random seed (default: 0)", type=int)
    seeds: int | None = option(
        "--seeds",
        "N",
        "run N seeds, and show the range of their results (default: at most 20, 1 with --seed or "
        "--trace)",
        type=int,
    )
    faults: str | None = option("--faults", "FILE", "fault scenario (YAML)")
    replay: ReplayRequest = part(_add_replay)
    timings: bool = switch("--timings", "print the seconds spent in each phase to stderr, as JSON")


add_arguments = partial(add_options, SimulateRequest)
request_of = partial(inputs.request_from, SimulateRequest)


def run(request: SimulateRequest) -> int:
    """Run the simulation and print its events."""
    gc.set_threshold(200_000, 20, 20)
    from reconciler.assembly.inputs.sources import stated_durations
    from reconciler.simulate.building import read_simulation
    from reconciler.simulate.scheduled import scheduled_workloads
    from reconciler.simulate.seeds import SeededRuns

    _expect_trace(request)
    request = _without_missing_base(request)
    with show_progress("Simulating") as line:
        timings = Timings(line.enter)
        if request.replay.trace is not None:
            return _run_backtest(request, timings, line)
        inputs = read_simulation(request.fleet, timings)
        until = _parse_until(request.until, inputs.start)
        fleet, pods = inputs.head.fleet, inputs.snapshot.pods if inputs.snapshot is not None else ()
        stated = stated_durations(request.fleet, fleet)
        scheduled = scheduled_workloads(fleet, stated, inputs.start, pods)
        runs = SeededRuns(inputs, _read_script(request.faults), until, scheduled=scheduled)
        if request.output == "text":
            _stream_timeline(request, runs, line)
        else:
            report = _run_seeds(request, runs, line)
            with timings("render"):
                text = render(report, request.output)
    if request.output != "text":
        write_output(text)
    if request.timings:
        print(timings.to_json(), file=sys.stderr)
    return exitcode.DONE


def _without_missing_base(request: SimulateRequest) -> SimulateRequest:
    """Return the request; a fleet that the base does not have is simulated alone, with a note."""
    if request.fleet.base is None:
        return request
    from reconciler.assembly.comparison import without_missing_base
    from reconciler.cli.pullrequest.fleets import at_former_folder

    fleet, why = without_missing_base(at_former_folder(request.fleet))
    if why:
        print(one_line(f"Note: {why}"), file=sys.stderr)
    return replace(request, fleet=fleet)


def _expect_trace(request: SimulateRequest) -> None:
    """Refuse options that have no effect in this combination.

    Raises:
        UsageError: one needs ``--trace``, or its value is not allowed with it.
    """
    if request.seeds is not None and not 1 <= request.seeds <= SEEDS_MAX:
        remedy = f"use 1 to {SEEDS_MAX}"
        raise UsageError(f"{request.seeds} is not allowed", where="--seeds", remedy=remedy)
    replay = request.replay
    given = {
        "--against": replay.against is not None,
        "--workload-only": replay.workload_only,
        "--workers": replay.sweep.workers > 1,
        "--scheduler": replay.sweep.scheduler is not None,
        "--cache": replay.sweep.cache is not None,
    }
    for flag, is_given in given.items():
        if is_given and replay.trace is None:
            raise UsageError("needs a trace", where=flag, remedy="add --trace FILE")


def _run_backtest(request: SimulateRequest, timings: Timings, line: ProgressLine) -> int:
    """Replay the trace and print the result."""
    from reconciler.backtest.report import render_html, render_markdown, render_text
    from reconciler.backtest.run import BacktestRequest, run_backtest

    found = run_backtest(
        BacktestRequest(
            request.fleet,
            request.replay,
            request.seed or 0,
            request.seeds or 1,
            _parse_until(request.until, current_time(request.fleet.now)),
            _read_script(request.faults),
        ),
        timings,
        line.enter,
    )
    with timings("render"):
        if request.output == "text":
            text = render_text(found.backtest)
        elif request.output == "html":
            text = render_html(found.backtest, found.curves)
        elif request.output == "markdown":
            text = render_markdown(found.backtest)
        else:
            text = render(found.report, request.output)
    write_output(text)
    if request.timings:
        print(timings.to_json(), file=sys.stderr)
    return exitcode.DONE


class _Course(NamedTuple):
    """A run: its report, and its timeline with the lines that it has written."""

    report: Report
    timeline: StreamedTimeline
    lines: list[str]


def _run_seeds(
    request: SimulateRequest,
    runs: SeededRuns,
    line: ProgressLine,
    show: Callable[[str], None] = lambda _: None,
) -> Report:
    """Run every seed, show the timeline of one run, and return its report with the range.

    That is the first run where seeds are asked for, and a typical one where their number is ours.
    The timeline of the first run is shown while it runs, any other once all runs have ended.
    """
    from reconciler.simulate.seeds import typical_run, with_range

    first = request.seed or 0
    count = 1 if request.seeds is None and request.seed is not None else request.seeds
    courses = [_run_seed(runs, first, show, live=count is not None)]
    count = count or runs.count_unasked(first)
    for number in range(1, count):
        line.enter(f"Simulating, run {number + 1} of {count}")
        courses.append(_run_seed(runs, first + number, show))
    reports = [course.report for course in courses]
    shown = 0 if request.seeds is not None else typical_run([report.fleet for report in reports])
    report = with_range(reports, shown) if count > 1 else reports[0]
    courses[shown].timeline.end(report)
    show("".join(courses[shown].lines))
    if request.until is None and not report.converged:
        with line.suspend():
            sys.stderr.write(_NOT_SETTLED)
    return report


def _run_seed(
    runs: SeededRuns, seed: int, show: Callable[[str], None], *, live: bool = False
) -> _Course:
    """Return one run; its lines are kept unless they are shown ``live``, or it does not end."""
    from reconciler.simulate.driver import EndlessError
    from reconciler.simulate.timeline import StreamedTimeline

    lines: list[str] = []
    timeline = StreamedTimeline(show if live else lines.append)
    try:
        return _Course(runs.run(seed, timeline), timeline, lines)
    except EndlessError:
        show("".join(lines))
        raise


def _stream_timeline(request: SimulateRequest, runs: SeededRuns, line: ProgressLine) -> None:
    """Run the simulation and print its timeline."""

    def show(text: str) -> None:
        with line.suspend():
            write_output(text)
            sys.stdout.flush()

    _run_seeds(request, runs, line, show)


def render(report: Report, output: str) -> str:
    """Return the report as JSON, YAML, Markdown or a page."""
    if output == "json":
        import msgspec

        return msgspec.json.encode(report, order="sorted").decode() + "\n"
    if output == "yaml":
        from reconciler.render.listing import json_to_yaml

        return json_to_yaml(render(report, "json"))
    from reconciler.simulate.page import render_html, render_markdown

    return render_html(report) if output == "html" else render_markdown(report)


def _read_script(file: str | None) -> Script:
    from reconciler.assembly.inputs.files import read_bytes
    from reconciler.simulate.script import Script, read_script

    return read_script(read_bytes(file, LIMITS.bytes_max), file) if file else Script()


def _parse_until(text: str | None, start: datetime) -> datetime | timedelta | None:
    """Return the value of ``--until``: a duration or a time.

    Raises:
        UsageError: it is neither, or not after the start.
    """
    if text is None:
        return None
    until = read_time_or_span(text, "--until")
    span = until if isinstance(until, timedelta) else until - start
    if span <= timedelta(0):
        what = f"{quote_value(text)} is not after the start of the simulation"
        raise UsageError(what, where="--until", remedy="pass a later time")
    if span > SPAN_MAX:
        raise UsageError(
            f"{quote_value(text)} is longer than {SPAN_MAX.days} days",
            where="--until",
            remedy="simulate a shorter time",
        )
    return until
