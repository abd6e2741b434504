"""The accuracy of the cost of a change in a plan, for generated pull requests.

``python -m benchmarks.change [--count N] [--seeds N] [--only TEXT] [--results FILE] [--large]``
writes fleets into temporary repositories: the examples, which have their own workloads, and
generated ones of the ``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default
beside the checkout). Each pull request changes one thing.

The actual cost is the mean of up to N runs of ``simulate --base`` (default: 50): the engine itself
with all latencies, run until nothing is left to do. Their seeds are not those of the plan. Inputs
are read once for all of them. The runs end early, but not before the eighth, once five standard
errors of their mean decide whether it is inside of the interval of the plan, and what its sign is,
and after the third if they and all runs of the plan have the same cost. With ``--results`` the cost
of each run is kept in a file, and later calls continue from there.

``atRest`` of ``plan --base`` is compared with it, and so is the result of the planner alone, which
``plan`` shows for fleets that are too large to be simulated in every pull request; ``--large``
selects only such fleets. ``--quick`` leaves out the rest of a plan that simulates its change, and
the planner alone. The error is the difference as a share of the cost of the fleet before the
change. A cost has a sign if it is more than 0.5% of that cost: less than one node in these fleets.
The actual cost is beyond chance if zero is not within two standard errors. OUT marks an actual cost
outside of the interval that the plan states. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import json
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import msgspec
from msgspec.structs import replace

from benchmarks.pullrequests import (
    NOW_TEXT,
    PullRequest,
    large_pull_requests,
    objects_of_kind,
    pull_requests,
    remove_last_pool,
    write_repository,
)
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.inputs.sources import stated_durations
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.main import main as reconciler
from reconciler.cli.parser import commandline
from reconciler.cli.parser.commandline import COMMANDS
from reconciler.plan.make.decide import ignore_phase
from reconciler.plan.make.inputs import RevisionPair
from reconciler.plan.rest.compare import compare_with_base
from reconciler.plan.value.costs import AtRest, combine_seeds
from reconciler.simulate.building import read_simulation
from reconciler.simulate.change import PASSES_MAX, simulate_change
from reconciler.simulate.planinputs import read_inputs
from reconciler.simulate.scheduled import scheduled_workloads
from reconciler.simulate.seeds import SeededRuns

NOTABLE = 0.005
GOOD = 0.02
CENT_PART = 0.0001
RUNS_MAX, RUNS_MIN, EQUAL_RUNS = 50, 8, 3
FIRST_SEED = 1_000
CERTAIN, LIKELY = 5, 2
"""Standard errors of a mean."""


def run_command(command: str, folder: Path, words: Iterable[str]) -> tuple[dict[str, Any], float]:
    """Return the JSON output of a command, and its CPU seconds."""
    out, began = io.StringIO(), time.process_time()
    line = [command, str(folder), *words, "--base", "HEAD~1", "-o", "json"]
    with contextlib.redirect_stdout(out):
        code = reconciler([*line, "--now", NOW_TEXT])
    assert code == 0, line
    found: dict[str, Any] = json.loads(out.getvalue())
    return found, time.process_time() - began


def _read_request(folder: Path, words: Iterable[str]) -> FleetRequest:
    line = ["plan", str(folder), *words, "--base", "HEAD~1", "--now", NOW_TEXT]
    invocation = commandline.read(line, COMMANDS)
    assert invocation is not None, line
    request: FleetRequest = invocation.request.fleet
    return request


def planner_cost(folder: Path, words: Iterable[str]) -> float:
    """Return the cost of the change by the planner alone, in USD an hour."""
    inputs = read_inputs(_read_request(folder, words), Timings())
    assert inputs.against is not None, folder
    pair = RevisionPair(base=inputs.against, head=replace(inputs, simulation=None))
    return compare_with_base(pair)[0].per_hour


def simulated_change(folder: Path, words: Iterable[str]) -> SeededRuns:
    """Return what ``simulate --base`` runs, with the inputs that all runs share."""
    request = _read_request(folder, words)
    inputs = read_simulation(request, ignore_phase)
    fleet, pods = inputs.head.fleet, inputs.snapshot.pods if inputs.snapshot is not None else ()
    stated = stated_durations(request, fleet)
    return SeededRuns(
        inputs,
        passes_max=PASSES_MAX,
        scheduled=scheduled_workloads(fleet, stated, inputs.start, pods),
    )


class Run(msgspec.Struct, frozen=True):
    """One simulation of a pull request; costs are USD an hour, ``seconds`` CPU seconds."""

    fleet: str
    change: str
    seed: int
    before: float
    after: float
    converged: bool
    seconds: float


class Results:
    """The runs that are known, and the file that they are kept in, if there is one."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._runs: dict[tuple[str, str], list[Run]] = {}
        if file is not None and file.exists():
            for line in file.read_bytes().splitlines():
                run = msgspec.json.decode(line, type=Run)
                self.of(run.fleet, run.change).append(run)

    def of(self, fleet: str, change: str) -> list[Run]:
        """Return the known runs of a pull request, in the order of their seeds."""
        return self._runs.setdefault((fleet, change), [])

    def add(self, run: Run) -> None:
        """Add a run."""
        self.of(run.fleet, run.change).append(run)
        if self._file is not None:
            with self._file.open("ab") as file:
                file.write(msgspec.json.encode(run) + b"\n")


@dataclass(frozen=True)
class Truth:
    """The actual cost of a change, USD an hour: the mean over all runs, and its standard error."""

    runs: list[Run]

    @property
    def costs(self) -> list[float]:
        """The cost of the change in each run."""
        return [round(run.after - run.before, 9) for run in self.runs]

    @property
    def mean(self) -> float:
        """The actual cost."""
        return fmean(self.costs)

    @property
    def error(self) -> float:
        """The standard error of the mean."""
        return stdev(self.costs) / len(self.runs) ** 0.5 if len(self.runs) > 1 else 0.0

    @property
    def before(self) -> float:
        """The mean cost of the fleet before the change."""
        return fmean(run.before for run in self.runs)

    @property
    def is_beyond_chance(self) -> bool:
        """Whether the cost differs from zero."""
        return abs(self.mean) > max(LIKELY * self.error, CENT_PART)

    def is_decided(self, interval: tuple[float, float]) -> bool:
        """Return whether more runs would show the same sign, and the same side of each end."""
        low, high = interval
        if len(self.runs) >= EQUAL_RUNS and {low, high} == set(self.costs):
            return True
        if len(self.runs) < RUNS_MIN:
            return False
        limits = (low - CENT_PART, high + CENT_PART)
        signs = (-NOTABLE * self.before, NOTABLE * self.before)
        return all(abs(self.mean - limit) > CERTAIN * self.error for limit in (*limits, *signs))


@dataclass
class Row:
    """One pull request: its actual cost, that of the plan and that of the planner, USD an hour."""

    fleet: str
    change: str
    truth: Truth
    answers: Answers
    notes: str = ""

    @property
    def is_inside(self) -> bool:
        """Whether the interval contains the actual cost, to a hundredth of a cent an hour."""
        low, high = self.answers.interval
        return low - CENT_PART <= self.truth.mean <= high + CENT_PART

    def error(self, answer: float) -> float:
        """Return the error of an answer as a share of the cost of the fleet."""
        before = self.truth.before
        return (answer - self.truth.mean) / before if before else 0.0

    def has_sign(self, answer: float) -> bool:
        """Return whether an answer has the sign of the actual cost, if that is beyond chance."""
        if not self.truth.is_beyond_chance:
            return True
        return self._sign(self.truth.mean) == self._sign(answer)

    def _sign(self, amount: float) -> int:
        if abs(amount) <= NOTABLE * self.truth.before:
            return 0
        return 1 if amount > 0 else -1

    def __str__(self) -> str:
        truth, answers = self.truth, self.answers
        low, high = answers.interval
        share = truth.mean / truth.before if truth.before else 0.0
        seconds = fmean(run.seconds for run in truth.runs)
        return (
            f"{self.fleet:20} {self.change:32} {truth.before:8.3f} {truth.mean:+9.4f} "
            f"{truth.error:7.4f} {len(truth.runs):3} {share:+7.1%} "
            f"{self._format_answer(answers.cost.per_hour)} {low:+9.4f} {high:+9.4f} "
            f"{'' if self.is_inside else 'OUT':3} {self._format_answer(answers.planner)} "
            f"{answers.seconds:6.1f} {seconds:7.1f}  {self.notes}"
        )

    def _format_answer(self, answer: float | None) -> str:
        if answer is None:
            return f"{'':22}"
        mark = "" if self.has_sign(answer) else "SIGN"
        return f"{answer:+9.4f} {self.error(answer):+7.2%} {mark:4}"


HEADING = (
    f"{'fleet':20} {'change':32} {'USD/h':>8} {'actual':>9} {'+-':>7} {'n':>3} {'':>7} "
    f"{'plan':>9} {'error':>7} {'':4} {'low':>9} {'high':>9} {'':3} {'planner':>9} {'error':>7} "
    f"{'':4} {'CPU s':>6} {'run s':>7}"
)


@dataclass(frozen=True)
class Answers:
    """What a plan states, in USD an hour, and what the planner alone would; None if not asked."""

    cost: AtRest
    planner: float | None
    seconds: float

    @property
    def interval(self) -> tuple[float, float]:
        """The lowest and the highest cost of the plan's runs."""
        found = self.cost.difference
        return (self.cost.per_hour,) * 2 if found is None else (found.low, found.high)


def ask_plan(folder: Path, words: list[str]) -> Answers:
    """Return what ``plan --base`` states."""
    plan, seconds = run_command("plan", folder, words)
    cost = msgspec.convert(plan["atRest"], AtRest)
    return Answers(cost, planner_cost(folder, words), seconds)


def ask_simulation(simulated: SeededRuns) -> Answers | None:
    """Return the cost that a plan states because it simulates the change, None if it cannot."""
    began = time.process_time()
    changes = simulate_change(simulated)
    seconds = time.process_time() - began
    return Answers(combine_seeds(changes), None, seconds) if changes else None


def measure_change(
    asked: PullRequest, folder: Path, seeds: int, results: Results, *, is_quick: bool
) -> Row:
    """Return the actual cost, and the two answers; ``is_quick`` simulates what a plan would."""
    fleet = asked.make()
    repository = write_repository(fleet, asked.change, folder)
    words = list(fleet.words)
    if asked.change is remove_last_pool:
        words += [
            "--allow-removal",
            objects_of_kind(fleet.objects, "NodePool")[-1]["metadata"]["name"],
        ]
    simulated = simulated_change(repository, words)
    answers = ask_simulation(simulated) if is_quick else None
    answers = answers or ask_plan(repository, words)
    truth, cost = Truth(results.of(asked.fleet, asked.name)), answers.cost
    while len(truth.runs) < seeds and not truth.is_decided(answers.interval):
        results.add(_run(simulated, asked.fleet, asked.name, FIRST_SEED + len(truth.runs)))
    parts = [] if all(run.converged for run in truth.runs) else ["not converged"]
    if max(truth.costs) > min(truth.costs):
        parts.append(f"actual from {min(truth.costs):+.4f} to {max(truth.costs):+.4f}")
    parts.append(f"{cost.range.seeds if cost.range is not None else 1} runs of the plan")
    parts += [f"{len(cost.unschedulable)} unschedulable"] if cost.unschedulable else []
    parts += [f"bounds {cost.bounds}"] if cost.bounds else []
    return Row(asked.fleet, asked.name, truth, answers, "; ".join(parts))


def _run(simulated: SeededRuns, fleet: str, change: str, seed: int) -> Run:
    began = time.process_time()
    report = simulated.run(seed)
    assert report.merge is not None, "there is a base"
    seconds = time.process_time() - began
    merge = report.merge
    costs = (merge.before, merge.after)
    return Run(fleet, change, seed, *costs, report.converged, round(seconds, 3))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.change")
    parser.add_argument("--count", type=int, default=0, help="only the first N (default: all)")
    parser.add_argument(
        "--seeds", type=int, default=RUNS_MAX, help=f"simulations of each (default: {RUNS_MAX})"
    )
    parser.add_argument("--only", default="", help="only those whose fleet or change contains this")
    parser.add_argument("--results", type=Path, help="a file that keeps the cost of each run")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="only simulate what a plan would, and leave out the rest",
    )
    parser.add_argument("--large", action="store_true", help="fleets that plan does not simulate")
    args = parser.parse_args()
    gc.set_threshold(200_000, 20, 20)  # as in the commands
    source = large_pull_requests if args.large else pull_requests
    print(HEADING)
    rows: list[Row] = []
    results = Results(args.results)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, asked in enumerate(source(folder)):
            if args.count and len(rows) >= args.count:
                break
            if args.only not in f"{asked.fleet} {asked.name}":
                continue
            home = folder / "repositories" / str(number)
            rows.append(measure_change(asked, home, args.seeds, results, is_quick=args.quick))
            print(rows[-1], flush=True)
    inside = sum(row.is_inside for row in rows)
    beyond = sum(row.truth.is_beyond_chance for row in rows)
    print(f"the interval of the plan contains the actual cost of {inside} of {len(rows)} changes")
    print(f"{beyond} actual costs are beyond chance")
    for what, answers in (
        ("plan", [r.answers.cost.per_hour for r in rows]),
        ("planner", [r.answers.planner for r in rows]),
    ):
        pairs = [(row, a) for row, a in zip(rows, answers, strict=True) if a is not None]
        good = sum(abs(row.error(answer)) <= GOOD for row, answer in pairs)
        signs = sum(row.has_sign(answer) for row, answer in pairs)
        print(
            f"{what}: {len(pairs)} changes, {signs} with the right sign, {good} within {GOOD:.0%}"
        )


if __name__ == "__main__":
    main()
