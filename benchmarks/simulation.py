"""What simulations cost: ``python -m benchmarks.simulation [--trace FILE] [--pods N] [CASE ...]``.

Each CASE is a fleet of the ``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default
beside the checkout). It is simulated until nothing is left to do. With ``--trace``, parts of a
trace in openb's form are replayed as well, against two NodePools with default packing: N pods each
from the beginning, the middle and the end of its busiest time, until the last of them has come.

Seconds are CPU seconds of a whole process. Other work on the machine makes them larger, so a fixed
piece of Python is timed with each row: compare rows with the same ``unit`` only. Nothing is
asserted.
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
CASES = ("fleet-100", "fleet-300")
PARTS = (0.05, 0.45, 0.85)
NOW = "2026-03-01T12:00:00Z"
COMPILED = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
"""Modules are compiled once, as in an installation."""
UNIT = "[hash((n % 97, str(n))) for n in range(2_000_000)]"
_TIMES = ("creation_time", "deletion_time", "scheduled_time")
_CLASS = "karpenter.k8s.aws/v1"


def cpu_seconds(words: list[str]) -> tuple[bytes, float]:
    """Return what a process prints, and its CPU seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *words], stdout=-1, check=True, cwd=ROOT, env=COMPILED)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def row(name: str, words: list[str], pods: int = 0) -> str:
    """Return a line of the table: what one simulation takes."""
    before = cpu_seconds(["-c", UNIT])[1]
    out, seconds = cpu_seconds(["-m", "reconciler", "simulate", *words, "-o", "json"])
    unit = (before + cpu_seconds(["-c", UNIT])[1]) / 2
    passes: int = json.loads(out)["passes"]
    each = f"{1e3 * seconds / pods:8.0f}" if pods else f"{'':8}"
    return f"{name:24} {seconds:8.2f} {passes:7} {1e3 * seconds / passes:8.1f} {each} {unit:6.2f}"


def a_bench_fleet(folder: str, case: str) -> list[str]:
    """Write a fleet and its cluster, and return the words that simulate it."""
    maker = [sys.executable, str(BENCH / "make_bench.py"), folder, case]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    home = Path(folder) / case
    seen = ["--snapshot", str(home / "snapshot.json"), "--catalog", str(home / "catalog.json")]
    return [str(home / "desired"), *seen, "--set", "fleet=bench", "--now", NOW]


def _pool(name: str, taints: list[dict[str, str]], **wanted: list[str]) -> dict[str, Any]:
    needs = {"karpenter.sh/capacity-type": ["on-demand"], "kubernetes.io/arch": ["amd64"]}
    needs |= {f"karpenter.k8s.aws/instance-{k.replace('_', '-')}": v for k, v in wanted.items()}
    requirements = [{"key": k, "operator": "In", "values": v} for k, v in sorted(needs.items())]
    reference = {"group": _CLASS.partition("/")[0], "kind": "EC2NodeClass", "name": "default"}
    template = {"nodeClassRef": reference, "requirements": requirements, "taints": taints}
    after = {"consolidationPolicy": "WhenEmptyOrUnderutilized", "consolidateAfter": "1m"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"spec": template}, "disruption": after},
    }


def a_fleet(folder: Path) -> None:
    """Write a fleet with a NodePool for any pods, and one for those with GPUs."""
    selector = [{"tags": {"karpenter.sh/discovery": "bench"}}]
    taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    objects: list[Mapping[str, Any]] = [
        {
            "apiVersion": _CLASS,
            "kind": "EC2NodeClass",
            "metadata": {"name": "default"},
            "spec": {
                "amiSelectorTerms": [{"alias": "al2023@v20250620"}],
                "role": "bench",
                "subnetSelectorTerms": selector,
                "securityGroupSelectorTerms": selector,
            },
        },
        _pool("general", [], category=["c", "m", "r"]),
        _pool("gpu", taints, gpu_manufacturer=["nvidia"]),
    ]
    config = {"apiVersion": "reconciler/v1", "kind": "Configuration", "fleet": "bench"}
    folder.mkdir()
    (folder / "fleet.yaml").write_text("\n---\n".join(map(json.dumps, objects)))
    (folder / "reconciler.yaml").write_text(json.dumps({**config, "clusterName": "bench"}))


def a_part(trace: list[dict[str, str]], first: int, pods: int, file: Path) -> list[str]:
    """Write some pods of a trace, the first of them at its beginning; return words to replay it."""
    part = trace[first : first + pods]
    begin = float(part[0]["creation_time"])
    with file.open("w", newline="") as out:
        writer = csv.DictWriter(out, list(part[0]))
        writer.writeheader()
        for pod in part:
            writer.writerow(pod | {t: str(float(pod[t]) - begin) for t in _TIMES if pod[t]})
    seconds = float(part[-1]["creation_time"]) - begin
    return ["--trace", str(file), "--until", f"{int(seconds) + 1}s", "--now", NOW]


def read_trace(file: str) -> list[dict[str, str]]:
    """Return the rows of a trace, plain or gzipped, in the order in which the pods come."""
    with (gzip.open if file.endswith(".gz") else open)(file, "rt", encoding="utf-8") as text:
        return sorted(csv.DictReader(text), key=lambda pod: float(pod["creation_time"]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulation")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"by default {' '.join(CASES)}")
    parser.add_argument("--trace", metavar="FILE", help="a trace in openb's form")
    parser.add_argument("--pods", type=int, default=200, help="the pods of each part (200)")
    args = parser.parse_args()
    print(f"{'':24} {'CPU s':>8} {'passes':>7} {'ms each':>8} {'ms a pod':>8} {'unit':>6}")
    with tempfile.TemporaryDirectory() as folder:
        for case in args.cases or CASES:
            print(row(case, a_bench_fleet(folder, case)), flush=True)
        if args.trace is None:
            return
        trace, fleet = read_trace(args.trace), Path(folder) / "fleet"
        a_fleet(fleet)
        for share in PARTS:
            first = int(share * len(trace))
            words = a_part(trace, first, args.pods, Path(folder) / "part.csv")
            name = f"trace, {args.pods} from {first}"
            print(row(name, [str(fleet), *words], args.pods), flush=True)


if __name__ == "__main__":
    main()
