"""The CPU time of simulations.

``python -m benchmarks.simulation [--trace FILE] [--pods N] [CASE ...]``

Each CASE is a fleet of the ``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default
beside the checkout). It is simulated until nothing is left to do. With ``--trace``, parts of a
trace in openb's format are replayed as well, on two NodePools with default packing: N pods each
from the beginning, the middle and the end of its busiest time, until the last of them is created.

Seconds are CPU seconds of a complete process. Other work on the machine increases them, so a fixed
piece of Python is timed with each row: compare only rows with the same ``unit``. Nothing is
asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.backtest import FLEET, read_rows, write_rows

ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
CASES = ("fleet-100", "fleet-300")
PARTS = (0.05, 0.45, 0.85)
NOW = "2026-03-01T12:00:00Z"
COMPILED = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Modules are compiled once, as in an installation."""
UNIT = "[hash((n % 97, str(n))) for n in range(2_000_000)]"


def run_timed(words: list[str]) -> tuple[bytes, float]:
    """Return the output of a process, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    result = subprocess.run([sys.executable, *words], stdout=-1, check=True, cwd=ROOT, env=COMPILED)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return result.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def table_row(name: str, words: list[str], pods: int = 0) -> str:
    """Return one line of the table: the CPU time of one simulation."""
    before = run_timed(["-c", UNIT])[1]
    out, seconds = run_timed(["-m", "reconciler", "simulate", *words, "-o", "json"])
    unit = (before + run_timed(["-c", UNIT])[1]) / 2
    passes: int = json.loads(out)["passes"]
    each = f"{1e3 * seconds / pods:8.0f}" if pods else f"{'':8}"
    return f"{name:24} {seconds:8.2f} {passes:7} {1e3 * seconds / passes:8.1f} {each} {unit:6.2f}"


def generated_fleet_arguments(folder: str, case: str) -> list[str]:
    """Write a fleet and its cluster, and return the arguments that simulate it."""
    maker = [sys.executable, str(BENCH / "make_bench.py"), folder, case]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    home = Path(folder) / case
    seen = ["--snapshot", str(home / "snapshot.json"), "--catalog", str(home / "catalog.json")]
    return [str(home / "desired"), *seen, "--set", "fleet=bench", "--now", NOW]


def trace_part_arguments(
    rows: list[dict[str, str]], first: int, pods: int, file: Path
) -> list[str]:
    """Write some pods as a trace from the first one on; return the arguments to replay it."""
    part = rows[first : first + pods]
    begin = float(part[0]["creation_time"])
    write_rows(file, part, begin)
    seconds = float(part[-1]["creation_time"]) - begin
    return ["--trace", str(file), "--until", f"{int(seconds) + 1}s", "--now", NOW]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: {' '.join(CASES)}")
    parser.add_argument("--trace", metavar="FILE", help="a trace in openb's format")
    parser.add_argument("--pods", type=int, default=200, help="pods of each part (default: 200)")
    args = parser.parse_args()
    print(f"{'':24} {'CPU s':>8} {'passes':>7} {'ms/pass':>8} {'ms/pod':>8} {'unit':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases or CASES:
            print(table_row(case, generated_fleet_arguments(folder, case)), flush=True)
        if args.trace is None:
            return
        rows, fleet = read_rows(args.trace), Path(folder) / "fleet"
        rows.sort(key=lambda pod: float(pod["creation_time"]))
        fleet.mkdir()
        (fleet / "nodes.yaml").write_text(FLEET)
        for share in PARTS:
            first = int(share * len(rows))
            words = trace_part_arguments(rows, first, args.pods, Path(folder) / "part.csv")
            name = f"trace, {args.pods} from {first}"
            print(table_row(name, [str(fleet), *words], args.pods), flush=True)


if __name__ == "__main__":
    main()
