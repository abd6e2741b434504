"""Compare Karpenter's scheduling benchmark with ours: ``python -m benchmarks.against_karpenter``.

Builds the benchmark of the module sigs.k8s.io/karpenter (from the Go module proxy, checked against
the checksum database) and uses the functions of that benchmark to write the pods, the NodePool and
the instance types that it schedules. Then both schedulers run on them in turn, ``--runs`` times,
each run in a fresh process. Prints the median, the minimum and the maximum of the ratios of their
times. The speed of a machine varies, so only adjacent runs are compared.

Both are measured in wall-clock time on one core: the process is bound to it, and ``GOMAXPROCS=1``.
Karpenter's time is that of ``Scheduler.Solve`` alone, as its benchmark reports it; ours includes
what Karpenter does before it (indexing pods, counting topologies). Neither includes reading the
files. The first build compiles the Kubernetes client libraries, which takes several minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.placement import run_once

VERSION = "v1.14.1"
MODULE = f"sigs.k8s.io/karpenter@{VERSION}"
PACKAGE = Path("pkg/controllers/provisioning/scheduling")
INPUTS = Path(__file__).parent / "karpenter" / "inputs_test.go"
CASES = {
    **{f"diverse-{n}": f"BenchmarkScheduling{n}" for n in (100, 500, 1000, 2000, 5000, 10000)},
    "preferences-4000": "BenchmarkRespectPreferences",
}
DEFAULT_CASES = ("diverse-1000", "diverse-5000", "preferences-4000")
FIGURE_PATTERN = re.compile(r"(?P<value>[\d.e+]+) (?P<unit>ns/op|nodes|pods)(?=\s)")
LINES_OF_AN_ERROR = 15


class Run(NamedTuple):
    """One run of one scheduler: wall-clock seconds, scheduled pods, new nodes."""

    seconds: float
    pods: int
    nodes: int


def main(arguments: list[str] | None = None) -> None:
    """Build Karpenter's benchmark, run both in turn and print the ratios."""
    options = _options(arguments)
    with tempfile.TemporaryDirectory(prefix="against-karpenter-") as folder:
        program = build_program(Path(folder))
        inputs = {case: write_inputs(program, case, Path(folder)) for case in options.cases}
        core = bind_to_one_core()
        print(table_heading(options.runs, core), flush=True)
        for case in options.cases:
            pairs = [
                (run_karpenter(program, case), run_ours(inputs[case])) for _ in range(options.runs)
            ]
            print(table_row(case, pairs), flush=True)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against_karpenter",
        description="Run Karpenter's scheduling benchmark and ours on the same pods in turn.",
    )
    default = ", ".join(DEFAULT_CASES)
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: {default}")
    parser.add_argument("--runs", type=int, default=5, help="runs of each scheduler (default 5)")
    options = parser.parse_args(arguments)
    options.cases = options.cases or list(DEFAULT_CASES)
    for case in options.cases:
        if case not in CASES:
            parser.error(f'unknown case "{case}" (use {", ".join(CASES)})')
    if options.runs < 1:
        parser.error(f"--runs: invalid value {options.runs} (use 1 or more)")
    return options


def build_program(folder: Path) -> Path:
    """Return the test program of Karpenter's scheduling package, which also writes its inputs.

    Ends the process with an error if Go is missing, or the module cannot be downloaded or built.
    """
    if shutil.which("go") is None:
        sys.exit(
            "Error: `go` is not on the PATH; Karpenter's benchmark is a Go program. "
            "Install Go from https://go.dev/dl and run this command again."
        )
    # outside of a module, so that no go.mod of a parent folder applies
    answer = _run_go(["mod", "download", "-json", MODULE], folder, f"cannot download {MODULE}")
    source = folder / "karpenter"
    shutil.copytree(json.loads(answer)["Dir"], source)
    for path in (source, *source.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)  # the module cache is read-only
    shutil.copyfile(INPUTS, source / PACKAGE / "reconciler_inputs_test.go")
    program = folder / "scheduling.test"
    print(f"Building the benchmark of {MODULE}; the first time takes several minutes.", flush=True)
    words = ["test", "-c", "-trimpath", "-tags=test_performance", "-o", str(program)]
    _run_go([*words, f"./{PACKAGE}"], source, "cannot build Karpenter's benchmark")
    return program


def _run_go(words: list[str], folder: Path, problem: str) -> str:
    result = subprocess.run(["go", *words], cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last = "\n".join((result.stdout + result.stderr).strip().splitlines()[-LINES_OF_AN_ERROR:])
        sys.exit(f"Error: {problem}: `go {' '.join(words)}` failed:\n{last}")
    return result.stdout


def write_inputs(program: Path, case: str, folder: Path) -> Path:
    """Return a folder with the inputs of Karpenter's benchmark of a case, in our format."""
    target = folder / case
    (target / "desired").mkdir(parents=True)
    environment = {**os.environ, "INPUTS_FOLDER": str(target), "INPUTS_CASE": case}
    command = [str(program), "-test.run", "^TestWriteInputs$"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    (target / "nodepool.json").rename(target / "desired" / "nodepool.yaml")
    (target / "pods.json").rename(target / "snapshot.json")
    (target / "settings.json").write_text("{}\n")
    return target


def bind_to_one_core() -> str:
    """Bind this process and its children to one core; return the result for the heading."""
    if not hasattr(os, "sched_setaffinity"):  # only Linux has it
        return "not bound to a core"
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return "bound to one core"


def run_karpenter(program: Path, case: str) -> Run:
    """Run Karpenter's benchmark of a case once."""
    command = [str(program), "-test.run", "^$", "-test.benchtime", "1x"]
    command += ["-test.bench", f"^{CASES[case]}$", "-test.timeout", "0"]
    environment = {**os.environ, "GOMAXPROCS": "1"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(
            f"Error: Karpenter's benchmark {CASES[case]} failed:\n{result.stdout}{result.stderr}"
        )
    return parse_figures(result.stdout)


def parse_figures(output: str) -> Run:
    """Return the figures that a Go benchmark printed."""
    figures = {
        match["unit"]: float(match["value"]) for match in FIGURE_PATTERN.finditer(output + "\n")
    }
    return Run(figures["ns/op"] / 1e9, int(figures["pods"]), int(figures["nodes"]))


def run_ours(folder: Path) -> Run:
    """Run our scheduler once on the same inputs."""
    figures = run_once(folder)
    scheduled = figures["pods"] - figures["unplaced"]
    return Run(figures["elapsed"], scheduled, figures["nodes"])


def table_heading(runs: int, core: str) -> str:
    """Return the lines above the table: what is compared, and on which versions."""
    go = subprocess.check_output(["go", "env", "GOVERSION"], text=True).strip()
    return (
        f"Karpenter {VERSION} ({go}, GOMAXPROCS=1) and reconciler "
        f"(Python {platform.python_version()}), {core}, {runs} runs of each in turn\n"
        f"{'':18} | {'Karpenter':^23} | {'reconciler':^23} | Karpenter / reconciler\n"
        f"{'':18} | {'pods':>6} {'nodes':>6} {'median s':>9} "
        f"| {'pods':>6} {'nodes':>6} {'median s':>9} | median (min to max)"
    )


def table_row(case: str, pairs: list[tuple[Run, Run]]) -> str:
    """Return one line of the table: both sides, and the ratio of the times of each pair."""
    sides = [
        f"{side[0].pods:6} {side[0].nodes:6} {median(run.seconds for run in side):9.3f}"
        for side in zip(*pairs, strict=True)
    ]
    ratios = [theirs.seconds / ours.seconds for theirs, ours in pairs]
    spread = f"{median(ratios):.1f} x ({min(ratios):.1f} to {max(ratios):.1f})"
    return f"{case:18} | {sides[0]} | {sides[1]} | {spread}"


if __name__ == "__main__":
    main()
