"""A production trace against three ways to decide: dollars, waiting, and CPU time of the backtest.

``python -m benchmarks.backtest [TRACE]`` replays Alibaba's openb trace (8,152 pods in 149 days;
``DATA``, by default ``../shared/data`` beside the checkout) on an empty fleet of two NodePools, for
pods with and without GPUs. The sides are Karpenter's default packing and search, the same with
``packing: cheapest`` and thorough search, and the least that any nodes of these NodePools can cost
for the pods that run at each moment. ``--days FROM-TO`` replays only the pods that were created in
these days.

``python -m benchmarks.backtest --sweep`` plays a short trace with eight seeds in 1, 2 and 4
processes, and prints the speed-up and the overhead for each evaluation. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TRACE = Path(os.environ.get("DATA") or ROOT.parent / "shared" / "data") / "traces"
NOW = "2026-01-01T00:00:00Z"
DAY_S = 86_400
CHEAPEST = ("--set", "packing=cheapest", "--set", "consolidation.search=thorough")
FLEET = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  amiSelectorTerms: [{alias: al2023@latest}]
  role: nodes
  subnetSelectorTerms: [{tags: {karpenter.sh/discovery: trace}}]
  securityGroupSelectorTerms: [{tags: {karpenter.sh/discovery: trace}}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      expireAfter: Never
      requirements:
        - {key: kubernetes.io/arch, operator: In, values: [amd64]}
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
        - {key: karpenter.k8s.aws/instance-category, operator: In, values: [c, m, r]}
        - {key: karpenter.k8s.aws/instance-generation, operator: Gt, values: ["4"]}
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 1m
    budgets: [{nodes: "100%"}]
---
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: gpu}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      expireAfter: Never
      taints: [{key: nvidia.com/gpu, effect: NoSchedule}]
      requirements:
        - {key: kubernetes.io/arch, operator: In, values: [amd64]}
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
        - {key: karpenter.k8s.aws/instance-gpu-manufacturer, operator: In, values: [nvidia]}
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 1m
    budgets: [{nodes: "100%"}]
"""


def main() -> None:
    """Print the figures of the trace, or those of a sweep."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", nargs="?", default=str(TRACE / "openb-default.csv.gz"))
    parser.add_argument("--days", metavar="FROM-TO", help="only pods created in these days")
    parser.add_argument("--sweep", action="store_true", help="measure processes instead")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backtest-") as folder:
        fleet = Path(folder) / "fleet"
        fleet.mkdir()
        (fleet / "nodes.yaml").write_text(FLEET)
        days = given.days or ("116-116" if given.sweep else None)
        trace = cut(given.trace, days, Path(folder)) if days else Path(given.trace)
        if given.sweep:
            sweep(fleet, trace)
        else:
            compare(fleet, trace)


TIMES = ("creation_time", "scheduled_time", "deletion_time")


def cut(trace: str, days: str, folder: Path) -> Path:
    """Write the pods that were created from the first to the last day, which then begins it."""
    first, _, last = days.partition("-")
    begin = int(first) * DAY_S
    kept = [
        row
        for row in read_rows(trace)
        if int(first) <= float(row["creation_time"]) // DAY_S <= int(last or first)
    ]
    path = folder / "cut.csv"
    write_rows(path, kept, begin)
    return path


def read_rows(trace: str) -> list[dict[str, str]]:
    """Return the pods of a trace in openb's form, plain or gzipped."""
    with (gzip.open if trace.endswith(".gz") else open)(trace, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]], begin: float) -> None:
    """Write pods as a trace that begins at second ``begin`` of theirs."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {t: float(row[t]) - begin for t in TIMES if row[t]})


def compare(fleet: Path, trace: Path) -> None:
    """Print what each way of deciding comes to."""
    found = {
        "Karpenter's defaults": played(fleet, trace),
        "cheapest, thorough": played(fleet, trace, *CHEAPEST),
    }
    base = found["Karpenter's defaults"][0]
    row = "{:22} {:>12} {:>8} {:>9} {:>8} {:>8} {:>10} {:>8} {:>8}"
    columns = ("side", "dollars", "ratio", "x bound", "p50 s", "p99 s", "evictions", "passes")
    print(row.format(*columns, "CPU s"))
    for name, (side, seconds) in found.items():
        waits = side["waitingSeconds"]
        print(
            row.format(
                name,
                f"{side['dollars']:,.0f}",
                f"{side['dollars'] / base['dollars']:.3f}",
                f"{side['dollars'] / side['lowerBound']:.3f}",
                f"{waits['p50']:.0f}",
                f"{waits['p99']:.0f}",
                f"{side['evictions']:,}",
                f"{side['passes']:,}",
                f"{seconds:.0f}",
            )
        )
    print(f"{base['pods']:,} pods, {base['unplaced']} without a node, least possible cost "
          f"${base['lowerBound']:,.0f}")  # fmt: skip


def played(fleet: Path, trace: Path, *more: str) -> tuple[dict[str, Any], float]:
    """Return the result of a side, and the CPU seconds of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = command(fleet, trace, *more)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    side: dict[str, Any] = json.loads(out)["backtest"]["sides"]["head"]
    return side, seconds


def command(fleet: Path, trace: Path, *more: str) -> bytes:
    """Run the backtest, and return what it prints."""
    words = ["simulate", str(fleet), "--trace", str(trace), "--now", NOW, "-o", "json", *more]
    done = subprocess.run([sys.executable, "-m", "reconciler", *words], stdout=-1, check=True)
    return done.stdout


SEEDS = 8


def sweep(fleet: Path, trace: Path) -> None:
    """Print the time of the same plays in several processes."""
    first: tuple[float, bytes] | None = None
    for workers in (1, 2, 4):
        begin = time.perf_counter()
        out = command(fleet, trace, "--seeds", str(SEEDS), "--workers", str(workers))
        seconds = time.perf_counter() - begin
        first = first or (seconds, out)
        assert out == first[1], "the workers change nothing"
        ideal = first[0] / min(workers, os.cpu_count() or 1)
        over = max(0.0, seconds - ideal) * min(workers, os.cpu_count() or 1) / SEEDS
        print(
            f"{workers} processes: {seconds:6.1f} s, speed-up {first[0] / seconds:.2f}, "
            f"{over:.2f} s of overhead for each of {SEEDS} evaluations"
        )


if __name__ == "__main__":
    main()
