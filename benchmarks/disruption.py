"""The resulting cost and the speed of consolidation, compared with Karpenter.

``python -m benchmarks.disruption [CASE ...]`` (``--large`` adds ``fleet-1000``) writes fleets with
the ``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default beside the checkout)
into a temporary folder. Each is consolidated in a fresh process with each search, round after
round: the decisions of a pass are executed at once, each replacement with its cheapest offering,
until a pass finds nothing. Karpenter's figures are those of ``karpenter.json``, measured in the
same way. Its evictions are not recorded, and ``~`` marks an estimate. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
CASES = ("fleet-100", "fleet-300")
LARGE = "fleet-1000"
SEARCHES = ("default", "thorough")
EVICTED_IN_KARPENTERS_ORDER = {"fleet-100": 449, "fleet-300": 1902}
"""Evicted pods if one command a round is started in Karpenter's order, in our own simulation."""
_ONE_CASE = """
import json, sys, time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from msgspec.structs import replace as with_
from reconciler.catalog.file import read_catalog
from reconciler.disruption.candidates import node_price
from reconciler.disruption.decide import decide
from reconciler.disruption.simulation import cluster_after_removal
from reconciler.disruption.inputs import DisruptionInputs
from reconciler.model.decode import decode
from reconciler.model.karpenter.labels import INITIALIZED, INSTANCE_TYPE
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import LaunchPool
from reconciler.placement.question import Placement

folder, search, goal = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3])
now = datetime(2026, 3, 1, 12, tzinfo=UTC)
files = sorted((folder / "desired").glob("*.yaml"))
pools = [decode(json.loads(file.read_text()), NodePool) for file in files]
catalog = read_catalog((folder / "catalog.json").read_bytes(), "catalog")
launch_pools = [LaunchPool(pool, catalog) for pool in pools]
cluster = cluster_state(read_snapshot((folder / "snapshot.json").read_bytes(), "snapshot"))

def cost(cluster):
    owned = [node for node in cluster.nodes if node.claim is not None]
    return sum(node_price(n, catalog.get(n.labels.get(INSTANCE_TYPE, ""))) for n in owned)

def started(node):
    seen, claim = node.node, node.claim
    if seen is None or claim is None or not claim.status.provider_id.startswith("planned"):
        return node
    labels = {**seen.metadata.labels, INITIALIZED: "true"}
    seen = with_(
        seen,
        metadata=with_(seen.metadata, labels=labels),
        spec=with_(seen.spec, taints=claim.spec.taints),
        status=with_(seen.status, conditions=(Condition("Ready", "True"),)),
    )
    steps = ("Launched", "Registered", "Initialized")
    done = tuple(Condition(step, "True", last_transition_time=now) for step in steps)
    return replace(node, node=seen, claim=with_(claim, status=with_(claim.status, conditions=done)))

figures = {"nodes": len(cluster.nodes), "start": cost(cluster)}
seconds, commands, evicted, rounds, converged, reached = 0.0, 0, 0, 0, False, None
while rounds < 1000 and not converged:
    began = time.process_time()
    decisions = decide(DisruptionInputs(
        cluster=cluster, pools=pools, launch_pools=launch_pools, now=now,
        settings=Settings(consolidation_search=search),
        pending=pods_to_place(cluster, now),
    ))
    seconds += time.process_time() - began
    rounds += 1
    converged = not decisions.commands
    for command in decisions.commands:
        cluster = cluster_after_removal(cluster, command.nodes, command.placement or Placement())
        commands += 1
        evicted += command.pods_evicted
    cluster = replace(cluster, nodes=tuple(map(started, cluster.nodes)))
    if reached is None and cost(cluster) <= goal:
        reached = seconds
print(json.dumps(figures | {
    "end": cost(cluster), "seconds": seconds, "commands": commands, "evicted": evicted,
    "rounds": rounds, "converged": converged, "left": len(cluster.nodes), "reached": reached,
}))
"""
HEADING = (
    f"{'':12} {'search':10} {'nodes':>11} {'USD/h before':>12} {'after':>8} {'':>6} "
    f"{'commands':>8} {'evicted':>8} {'pods/USD':>9} {'passes':>6} {'CPU s':>8} {'to equal':>9} "
    f"{'faster':>8}"
)


def measure(folder: Path, search: str, goal: float) -> dict[str, Any]:
    """Return the figures of one fleet with one search, and when its cost reached ``goal``."""
    command = [sys.executable, "-c", _ONE_CASE, str(folder), search, str(goal)]
    figures: dict[str, Any] = json.loads(subprocess.check_output(command, text=True, cwd=ROOT))
    return figures


def table_row(case: str, search: str, ours: dict[str, Any], karpenter: dict[str, Any]) -> str:
    """Return one line of the table; a run that did not converge is marked ``…``.

    The ratio after the cost is relative to Karpenter's cost. ``to equal`` is the time until that
    cost was reached, and ``faster`` refers to it, since an aborted run has no end to compare with.
    """
    saved = ours["start"] - ours["end"]
    share = f"{ours['end'] / karpenter['costEnd']:5.3f}x" if karpenter else ""
    reached = ours["reached"]
    faster = f"{karpenter['decisionCPUSeconds'] / reached:6.0f} x" if reached else ""
    until = "" if reached is None else f"{reached:.2f}"
    return (
        f"{case:12} {search:10} {ours['nodes']:>4} → {ours['left']:>4} {ours['start']:12.2f} "
        f"{ours['end']:8.2f} {share:>6} {ours['commands']:8} {ours['evicted']:8} "
        f"{ours['evicted'] / saved if saved else 0:9.1f} {ours['rounds']:6} "
        f"{ours['seconds']:8.2f} {until:>9} {faster:>8}{_end_mark(ours)}"
    )


def karpenter_row(case: str, karpenter: dict[str, Any]) -> str:
    """Return Karpenter's line of the table."""
    evicted = EVICTED_IN_KARPENTERS_ORDER.get(case)
    saved = karpenter["costStart"] - karpenter["costEnd"]
    pods = f"{f'~{evicted}':>8} {f'~{evicted / saved:.1f}':>9}" if evicted else f"{'?':>8} {'?':>9}"
    return (
        f"{case:12} {'Karpenter':10} {karpenter['nodesStart']:>4} → {karpenter['nodesEnd']:>4} "
        f"{karpenter['costStart']:12.2f} {karpenter['costEnd']:8.2f} {'':>6} "
        f"{karpenter['commands']:8} {pods} {karpenter['commands'] + 1:6} "
        f"{karpenter['decisionCPUSeconds']:8.2f} {'':>9} {'':>8}{_end_mark(karpenter)}"
    )


def _end_mark(figures: dict[str, Any]) -> str:
    return "" if figures["converged"] else "…"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.disruption")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"default: {' '.join(CASES)}")
    parser.add_argument("--search", action="append", choices=SEARCHES, help="default: both")
    parser.add_argument("--large", action="store_true", help=f"add {LARGE}")
    args = parser.parse_args()
    cases = [*(args.cases or CASES), *([LARGE] if args.large else [])]
    text = (BENCH / "karpenter.json").read_text(encoding="utf-8")
    recorded = json.loads(text)["consolidation"]
    print(HEADING)
    with tempfile.TemporaryDirectory() as folder:
        for case in cases:
            maker = [sys.executable, str(BENCH / "make_bench.py"), folder, case]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
            karpenter = recorded.get(case, {})
            if karpenter:
                print(karpenter_row(case, karpenter))
            for search in args.search or SEARCHES:
                figures = measure(Path(folder) / case, search, karpenter.get("costEnd", 0.0))
                print(table_row(case, search, figures, karpenter), flush=True)


if __name__ == "__main__":
    main()
