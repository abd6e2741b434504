"""Backtest a production trace with three configurations: cost, waiting times, and CPU time.

``python -m benchmarks.backtest [TRACE]`` replays Alibaba's openb trace (8,152 pods in 149 days;
``DATA``, by default ``../shared/data`` beside the checkout) on an empty fleet of two NodePools, for
pods with and without GPUs. The sides are Karpenter's packing and search, our defaults, and
``packing: cheapest`` with thorough search, the latter two also with ``evictionCost: 1``; the bound
is the minimum cost of any nodes of these NodePools for the pods that run at each moment. ``--days
FROM-TO`` replays only the pods that were created in these days.

``python -m benchmarks.backtest --frontier`` prints what fewer evictions cost (``simulate --against
frontier``), and the CPU time.

``python -m benchmarks.backtest --advice`` finds advice on the first half of the trace, by default
of days 116 and 117, and backtests it on the second half. The pods of the moment with the most pods
in the first half are the fleet that ``advise`` simulates until it is stable. The savings are
compared in dollars and as a share of the cost of each half, since their load differs.

``python -m benchmarks.backtest --at-rest fleet-300`` finds advice for a stable, running fleet of
300 nodes, which the ``make_bench.py`` of the conformance folder writes (``CONFORMANCE``, by default
beside the checkout), and prints the CPU time.

``python -m benchmarks.backtest --sweep`` replays a short trace with eight seeds in 1, 2 and 4
processes, and prints the speed-up and the overhead of each evaluation. Nothing is asserted.
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
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
NOW = "2026-01-01T00:00:00Z"
DAY_S = 86_400
KARPENTERS = ("--set", "consolidation.search=karpenter")
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
    """Print the results of the selected benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trace", nargs="?", default=str(TRACE / "openb-default.csv.gz"))
    parser.add_argument("--days", metavar="FROM-TO", help="only pods created in these days")
    parser.add_argument(
        "--frontier", action="store_true", help="compare all points of the frontier instead"
    )
    parser.add_argument("--sweep", action="store_true", help="measure processes instead")
    parser.add_argument(
        "--advice", action="store_true", help="measure the savings of advice on unseen data instead"
    )
    parser.add_argument("--at-rest", metavar="CASE", help="measure advice for a fleet instead")
    parser.add_argument("--candidates", default="100", metavar="N", help="candidates of advice")
    parser.add_argument(
        "--seeds", default="1", metavar="N", help="with --advice: seeds on the second half"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="backtest-") as folder:
        if arguments.at_rest:
            print_advice_at_rest(arguments.at_rest, arguments.candidates, Path(folder))
            return
        fleet = Path(folder) / "fleet"
        fleet.mkdir()
        (fleet / "nodes.yaml").write_text(FLEET)
        days = arguments.days or (
            "116-116" if arguments.sweep else "116-117" if arguments.advice else None
        )
        trace = cut_trace(arguments.trace, days, Path(folder)) if days else Path(arguments.trace)
        if arguments.sweep:
            print_sweep(fleet, trace)
        elif arguments.advice:
            print_kept_savings(fleet, trace, arguments.candidates, arguments.seeds)
        elif arguments.frontier:
            print_frontier(fleet, trace)
        else:
            print_comparison(fleet, trace)


TIMES = ("creation_time", "scheduled_time", "deletion_time")


def cut_trace(trace: str, days: str, folder: Path) -> Path:
    """Write the pods created from the first to the last day as a trace that begins on the first."""
    first, _, last = days.partition("-")
    begin = int(first) * DAY_S
    selected = [
        row
        for row in read_rows(trace)
        if int(first) <= float(row["creation_time"]) // DAY_S <= int(last or first)
    ]
    path = folder / "cut.csv"
    write_rows(path, selected, begin)
    return path


def read_rows(trace: str) -> list[dict[str, str]]:
    """Return the pods of a trace in openb's format, plain or gzipped."""
    with (gzip.open if trace.endswith(".gz") else open)(trace, "rt", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, rows: list[dict[str, str]], begin: float) -> None:
    """Write pods as a trace that begins at their second ``begin``."""
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {t: float(row[t]) - begin for t in TIMES if row[t]})


PRICED = ("--set", "evictionCost=1")
SIDES = {
    "Karpenter's defaults": KARPENTERS,
    "our defaults": (),
    "cheapest, thorough": CHEAPEST,
    "our defaults, $1": PRICED,
    "cheapest, thorough, $1": (*CHEAPEST, *PRICED),
}


def print_frontier(fleet: Path, trace: Path) -> None:
    """Print the points of the frontier, and the CPU time of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    print(run_backtest(fleet, trace, "--against", "frontier", output="text").decode())
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    print(f"{seconds:.0f} CPU s")


def print_comparison(fleet: Path, trace: Path) -> None:
    """Print the results of each configuration."""
    found = {name: run_side(fleet, trace, *options) for name, options in SIDES.items()}
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
    print(f"{base['pods']:,} pods, {base['unplaced']} without a node, theoretical minimum cost "
          f"${base['lowerBound']:,.0f}")  # fmt: skip
    for part in base["gap"]:
        amounts = (f"{side['gap'][part]:>12,.2f}" for side, _ in found.values())
        print(f"{part:22}", *amounts)


def run_side(fleet: Path, trace: Path, *options: str) -> tuple[dict[str, Any], float]:
    """Return the result of a configuration, and the CPU seconds of the command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    out = run_backtest(fleet, trace, *options)
    seconds = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    side: dict[str, Any] = json.loads(out)["backtest"]["sides"]["head"]
    return side, seconds


def run_backtest(fleet: Path, trace: Path, *options: str, output: str = "json") -> bytes:
    """Run the backtest, and return its output."""
    words = ["simulate", str(fleet), "--trace", str(trace), "--now", NOW, "-o", output, *options]
    result = subprocess.run([sys.executable, "-m", "reconciler", *words], stdout=-1, check=True)
    return result.stdout


def print_advice_at_rest(case: str, candidates: str, folder: Path) -> None:
    """Print the CPU time and the results of advice for a running fleet."""
    maker = [sys.executable, str(BENCH / "make_bench.py"), str(folder), case]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    files = folder / case
    words = ["advise", str(files / "desired"), "--now", "2026-03-01T12:00:00Z", "-o", "json"]
    words += ["--snapshot", str(files / "snapshot.json"), "--catalog", str(files / "catalog.json")]
    found, seconds = run_timed([*words, "--candidates", candidates])
    judged = len(found["advice"]) + len(found["workloads"]) + len(found["refused"])
    judged += len(found["noEffect"])
    saved = found["together"]["perMonth"] if found["together"] else 0.0
    print(
        f"{case}: {judged} candidates, {found['evaluations']} simulated fleets, "
        f"{len(found['advice'])} proposals, combined savings ${-saved:,.0f}/month, "
        f"{seconds:.0f} CPU s"
    )


def run_timed(words: list[str]) -> tuple[Any, float]:
    """Return the JSON output of a command, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    run = [sys.executable, "-m", "reconciler", *words]
    out = subprocess.run(run, stdout=-1, check=True).stdout
    return json.loads(out), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def print_kept_savings(fleet: Path, trace: Path, candidates: str, seeds: str) -> None:
    """Print the savings of advice on the first half of a trace and on the second, unseen half."""
    rows = read_rows(str(trace))
    middle = max(float(row["creation_time"]) for row in rows) / 2
    folder = fleet.parent
    first, second = folder / "first.csv", folder / "second.csv"
    early = [row for row in rows if float(row["creation_time"]) < middle]
    write_rows(first, [row | clipped_times(row, middle) for row in early], 0)
    write_rows(second, [row for row in rows if float(row["creation_time"]) >= middle], middle)
    snapshot = folder / "snapshot.json"
    present = peak_pods(early)
    snapshot.write_text(json.dumps(pending_snapshot(present)))
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "--message", "fleet"]):
        author = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"]
        subprocess.run(["git", *author, *words], cwd=fleet, check=True)
    options = ["--snapshot", str(snapshot), "--trace", str(first), "--candidates", candidates]
    words = ["advise", str(fleet), "--now", NOW, "--write", "--auto-approve", "-o", "json"]
    found, seconds = run_timed([*words, *options])
    proposal = found["together"] or (found["advice"] or [None])[0]
    if proposal is None:
        print("No advice was found on the first half.")
        return
    out = json.loads(run_backtest(fleet, second, "--base", "HEAD", "--seeds", seeds))["backtest"]
    sides = out["sides"]["base"], out["sides"]["head"]
    predicted, predicted_savings = proposal["backtest"], proposal["backtest"]["perMonth"]
    share = -100 * predicted_savings / predicted["base"]["dollarsPerMonth"]
    saved = 100 * (1 - sides[1]["dollars"] / sides[0]["dollars"])
    print(
        f"{len(present)} pods in the snapshot; advice: {', '.join(proposal['parts'])} "
        f"({seconds:.0f} CPU s)"
    )
    row = "{:28} {:>12} {:>10} {:>16} {:>16}"
    print(row.format("", "$/month", "saved", "p99 s before", "p99 s after"))
    waits = [predicted[side]["waitingSeconds"]["p99"] for side in ("base", "head")]
    print(
        row.format(
            "predicted on the first half", f"{predicted_savings:,.0f}", f"{share:.1f}%", *waits
        )
    )
    change = sides[1]["dollarsPerMonth"] - sides[0]["dollarsPerMonth"]
    waits = [side["waitingSeconds"]["p99"] for side in sides]
    print(row.format("measured on the second half", f"{change:,.0f}", f"{saved:.1f}%", *waits))
    print(
        f"Reached: {100 * change / predicted_savings:.0f}% of the predicted savings in dollars, "
        f"{100 * saved / share:.0f}% as a share of the cost"
    )


def clipped_times(row: dict[str, str], end: float) -> dict[str, str]:
    """Return the times of a pod, clipped to the half in which it started."""
    is_bound = row["scheduled_time"] and float(row["scheduled_time"]) <= end
    return {
        "deletion_time": str(min(float(row["deletion_time"]), end)),
        "scheduled_time": row["scheduled_time"] if is_bound else "",
    }


def peak_pods(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """Return the pods that run at the first moment with the most running pods."""

    def running(at: float) -> list[dict[str, str]]:
        begun = [row for row in rows if float(row["creation_time"]) <= at]
        return [row for row in begun if float(row["deletion_time"]) > at]

    return max((running(float(row["creation_time"])) for row in rows), key=len)


def pending_snapshot(rows: list[dict[str, str]]) -> dict[str, Any]:
    """Return a snapshot in which these pods are pending."""
    return {"apiVersion": "v1", "kind": "List", "items": [pending_pod(row) for row in rows]}


def pending_pod(row: dict[str, str]) -> dict[str, Any]:
    """Return a pod of a trace as the cluster shows it while it is pending."""
    amounts = {"cpu": f"{row['cpu_milli']}m", "memory": f"{row['memory_mib']}Mi"}
    limits, tolerations = {}, []
    if int(row["num_gpu"]):
        limits = {GPU: row["num_gpu"]}
        tolerations = [{"key": GPU, "operator": "Exists"}]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": row["name"], "controller": True}
    resources = {"requests": amounts | limits, "limits": limits}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": row["name"],
            "namespace": "trace",
            "ownerReferences": [owner | {"uid": row["name"]}],
        },
        "spec": {
            "containers": [{"name": "main", "image": "main", "resources": resources}],
            "tolerations": tolerations,
        },
        "status": {
            "phase": "Pending",
            "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
        },
    }


GPU = "nvidia.com/gpu"
SEEDS = 8


def print_sweep(fleet: Path, trace: Path) -> None:
    """Print the time of the same replays in several processes."""
    first: tuple[float, bytes] | None = None
    for workers in (1, 2, 4):
        begin = time.perf_counter()
        out = run_backtest(fleet, trace, "--seeds", str(SEEDS), "--workers", str(workers))
        seconds = time.perf_counter() - begin
        first = first or (seconds, out)
        assert out == first[1], "the number of workers does not change the result"
        ideal = first[0] / min(workers, os.cpu_count() or 1)
        overhead = max(0.0, seconds - ideal) * min(workers, os.cpu_count() or 1) / SEEDS
        print(
            f"{workers} processes: {seconds:6.1f} s, speed-up {first[0] / seconds:.2f}, "
            f"{overhead:.2f} s of overhead for each of {SEEDS} evaluations"
        )


if __name__ == "__main__":
    main()
