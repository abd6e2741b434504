"""The speed of placement, compared with Karpenter: ``python -m benchmarks.placement [CASE ...]``.

Writes the inputs with the ``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default
beside the checkout) into a temporary folder, reads each in a fresh process and prints the CPU
seconds of the placement phase, which starts from decoded objects. It includes the work of
Karpenter's setup (indexing nodes, counting topologies). Karpenter's figures are those of
``karpenter.json``, including its setup. Nothing is asserted.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
CASES = (
    "diverse-1000",
    "diverse-5000",
    "diverse-20000",
    "preferences-4000",
    "preferences-4000-ignore",
    "pending-1000",
    "pending-5000",
    "pending-10000",
    "pending-30000",
    "pending-100000",
    "burst-1000",
    "burst-5000",
)
_ONE_CASE = """
import gc, json, sys, time
from datetime import UTC, datetime
from pathlib import Path
from reconciler.catalog.file import read_catalog
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import LaunchPool, Question
from reconciler.placement.scheduler import Scheduler

folder, now = Path(sys.argv[1]), datetime(2026, 3, 1, 12, tzinfo=UTC)
policy = json.loads((folder / "settings.json").read_text()).get("preferencePolicy", "Respect")
files = sorted((folder / "desired").glob("*.yaml"))
pools = [decode(json.loads(file.read_text()), NodePool) for file in files]
start = time.process_time()
cluster = cluster_state(read_snapshot((folder / "snapshot.json").read_bytes(), "snapshot"))
decoded = time.process_time() - start
catalog = read_catalog((folder / "catalog.json").read_bytes(), "catalog")
catalog.columns
gc.collect()
gc.freeze()
start, started = time.process_time(), time.perf_counter()
pods = pods_to_place(cluster, now)
launch_pools = [LaunchPool(pool, catalog) for pool in pools]
scheduler = Scheduler(launch_pools, cluster, Settings(preference_policy=policy), now)
placement = scheduler.place(Question(pods=pods))
seconds, elapsed = time.process_time() - start, time.perf_counter() - started
print(json.dumps({
    "pods": len(pods),
    "decode": decoded,
    "seconds": seconds,
    "elapsed": elapsed,
    "nodes": len(placement.claims),
    "cost": sum(claim.launch[1].price for claim in placement.claims),
    "unplaced": len(placement.unschedulable) + len(placement.deferred),
}))
"""


def run_once(folder: Path) -> dict[str, Any]:
    """Return the figures of one run on the inputs in a folder, in a fresh process.

    The folder holds ``desired/*.yaml`` (NodePools as JSON), ``snapshot.json``, ``catalog.json`` and
    ``settings.json``. ``seconds`` are CPU seconds, ``elapsed`` wall-clock seconds.
    """
    command = [sys.executable, "-c", _ONE_CASE, str(folder)]
    figures: dict[str, Any] = json.loads(subprocess.check_output(command, text=True, cwd=ROOT))
    return figures


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of one case, the faster of two runs."""
    return min((run_once(folder) for _ in range(2)), key=lambda run: float(run["seconds"]))


def table_row(case: str, ours: dict[str, Any], karpenter: dict[str, Any]) -> str:
    """Return one line of the table; cases without a run of Karpenter have no figures of it."""
    rate = ours["pods"] / ours["seconds"]
    cells = [
        f"{case:24}",
        f"{ours['pods']:7}",
        f"{ours['seconds']:8.2f}",
        f"{rate:9.0f}",
        f"{ours['seconds'] / ours['decode']:6.1f}",
        f"{ours['nodes']:6}",
        f"{ours['cost']:10.2f}",
        f"{ours['unplaced']:11}",
    ]
    if karpenter:
        seconds = karpenter["cpuSeconds"] + karpenter["setupSeconds"]
        nodes, cost = max(karpenter["newNodes"]), max(karpenter["costPerHour"])
        cells.append(
            f"| {seconds:8.2f} {ours['pods'] / seconds:7.0f} {nodes:6} {cost:10.2f} "
            f"{seconds / ours['seconds']:6.1f} x"
        )
    return " ".join(cells)


def main() -> None:
    recorded = json.loads((BENCH / "karpenter.json").read_text(encoding="utf-8"))["solve"]
    print(
        f"{'':24} {'pods':>7} {'CPU s':>8} {'pods/s':>9} {'/read':>6} {'nodes':>6} {'USD/h':>10} "
        f"{'unscheduled':>11} | {'CPU s':>8} {'pods/s':>7} {'nodes':>6} {'USD/h':>10} faster"
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in sys.argv[1:] or CASES:
            maker = [sys.executable, str(BENCH / "make_bench.py"), folder, case]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
            print(table_row(case, measure(Path(folder) / case), recorded.get(case, {})), flush=True)


if __name__ == "__main__":
    main()
