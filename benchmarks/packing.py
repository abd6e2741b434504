"""The savings of cheapest packing: ``python -m benchmarks.packing [--every] [TEXT]``.

Plans the random scenarios of the conformance folder (``CONFORMANCE``, by default beside the
checkout) that use the EC2 catalog and have no nodes yet, or all of them with ``--every``, with
default packing and with ``packing=cheapest``, in this process. Prints the cost of the new nodes
(USD an hour) compared with Karpenter's (``costAtMost``) and with the lower bound, and the CPU
milliseconds of the placement alone. TEXT selects scenarios whose name contains it. Nothing is
asserted.

``python -m benchmarks.packing --examples`` prints the table of decision 24: the first plans of the
examples. CPU is that of the complete command, the minimum of three runs.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.file import read_catalog
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.settings.layers import resolve
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import cluster_state
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Placement, Question
from reconciler.placement.scheduler import Scheduler
from reconciler.plan.make.facts import Facts
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance")
EC2 = "aws-us-east-1"
DESIRED = {"NodePool", "NodeOverlay", "EC2NodeClass", "TestNodeClass", "KWOKNodeClass"}


class PackingResult(NamedTuple):
    """The results of one scenario: USD an hour, new nodes, CPU milliseconds."""

    name: str
    pods: int
    default: float
    cheapest: float
    karpenter: float
    bound: float
    nodes: tuple[int, int]
    milliseconds: tuple[float, float]
    unplaced: tuple[int, int]


@cache
def load_catalog(name: str) -> Catalog:
    return read_catalog((FOLDER / "catalogs" / f"{name}.json").read_bytes(), name)


def load_scenarios(text: str, *, every: bool) -> Iterator[dict[str, Any]]:
    for path in sorted((FOLDER / "scenarios" / "random").glob("*.json")):
        scenario: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        has_nodes = any(o["kind"] == "Node" for o in scenario["objects"])
        if text in scenario["name"] and (every or (scenario["catalog"] == EC2 and not has_nodes)):
            yield scenario


def scenario_inputs(scenario: dict[str, Any], packing: str) -> Inputs:
    """Return the inputs of a scenario, as the command line would read them."""
    desired = [o for o in scenario["objects"] if o["kind"] in DESIRED]
    others = [o for o in scenario["objects"] if o["kind"] not in DESIRED]
    files = [SourceFile(f"{i:03}.yaml", json.dumps(o).encode()) for i, o in enumerate(desired)]
    fleet, _ = read_fleet(files, any_class=True, allow_empty=True)
    options = [f"packing={packing}"]
    for key, value in (scenario.get("settings") or {}).items():
        for name, item in value.items() if isinstance(value, dict) else [("", value)]:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            options.append(f"{key}.{name}={text}" if name else f"{key}={text}")
    snapshot = json.dumps({"apiVersion": "v1", "kind": "List", "items": others}).encode()
    return Inputs(
        fleet=fleet,
        cluster=cluster_state(read_snapshot(snapshot, "snapshot")),
        catalog=load_catalog(scenario["catalog"]),
        settings=resolve(fleet.config, {}, options, fleet="benchmark").settings,
        now=datetime.fromisoformat(scenario["now"]),
        any_class=True,
    )


def place_pods(inputs: Inputs, facts: Facts) -> tuple[Scheduler, Placement, float]:
    """Return a scheduler, its placement, and the CPU milliseconds of its second run."""
    pods = pods_to_place(facts.cluster, inputs.now)
    for _ in range(2):
        scheduler = Scheduler(facts.types.ready, facts.cluster, inputs.settings, inputs.now)
        start = time.process_time()
        placement = scheduler.place(Question(pods=pods))
        seconds = time.process_time() - start
    return scheduler, placement, 1000 * seconds


def measure_scenario(scenario: dict[str, Any]) -> PackingResult:
    found = []
    for packing in ("default", "cheapest"):
        inputs = scenario_inputs(scenario, packing)
        facts = facts_of(inputs)
        found.append((*place_pods(inputs, facts), facts))
    (_, default, before, _), (scheduler, cheapest, after, facts) = found
    seats = {pod for claim in cheapest.claims for pod in claim.pods} | cheapest.on_nodes.keys()
    placed = [pod for pod in facts.cluster.pods if pod.key in seats]
    return PackingResult(
        name=scenario["name"],
        pods=len(pods_to_place(facts.cluster, datetime.fromisoformat(scenario["now"]))),
        default=hourly_cost(default),
        cheapest=hourly_cost(cheapest),
        karpenter=scenario.get("expect", {}).get("costAtMost", 0.0),
        bound=scheduler.lower_bound(placed).cost,
        nodes=(len(default.claims), len(cheapest.claims)),
        milliseconds=(before, after),
        unplaced=(count_unplaced(default), count_unplaced(cheapest)),
    )


def hourly_cost(placement: Placement) -> float:
    return sum(claim.launch[1].price for claim in placement.claims)


def count_unplaced(placement: Placement) -> int:
    return len(placement.unschedulable) + len(placement.deferred)


def main() -> None:
    arguments = [a for a in sys.argv[1:] if a != "--every"]
    every = "--every" in sys.argv
    print(
        f"{'':38}{'pods':>5} {'nodes':>9} {'default':>9} {'cheapest':>9} {'Karpenter':>9} "
        f"{'bound':>9} {'/Karp.':>7} {'/bound':>7} {'ms':>11}"
    )
    lines = []
    for scenario in load_scenarios(arguments[0] if arguments else "", every=every):
        line = measure_scenario(scenario)
        lines.append(line)
        print(
            f"{line.name:38}{line.pods:5} {line.nodes[0]:4}{line.nodes[1]:5} {line.default:9.4f} "
            f"{line.cheapest:9.4f} {line.karpenter:9.4f} {line.bound:9.4f} "
            f"{ratio(line.cheapest, line.karpenter):7.3f} {ratio(line.cheapest, line.bound):7.3f} "
            f"{line.milliseconds[0]:5.0f} {line.milliseconds[1]:5.0f}",
            flush=True,
        )
    if lines:
        print_summary(lines)


EXAMPLES = ("web", "batch-spot", "multi-team", "maintenance-windows")


def print_examples() -> None:
    """Print the first plans of the examples with each packing, as rows of a Markdown table."""
    print("| example | default | cheapest | minimum | nodes | CPU, cheapest relative to default |")
    print("|---|---|---|---|---|---|")
    for name in EXAMPLES:
        (default, before), (cheapest, after) = (
            first_plan(name, p) for p in ("default", "cheapest")
        )
        nodes = [len(plan["nodeClaims"]) for plan in (default, cheapest)]
        dollars = [plan["cost"]["after"] for plan in (default, cheapest)]
        print(
            f"| `{name}` | {dollars[0]:.3f} | {dollars[1]:.3f} | "
            f"{default['cost']['lowerBound']:.3f} | {nodes[0]} → {nodes[1]} | "
            f"{after / before:.1f} |"
        )


def first_plan(example: str, packing: str) -> tuple[dict[str, Any], float]:
    """Return the first plan of an example, and its CPU seconds."""
    words = ["plan", str(ROOT / "examples" / example), "--set", "cluster=none", "-o", "json"]
    words += ["--set", f"packing={packing}", "--now", "2026-03-02T12:00:00Z"]
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        command = [sys.executable, "-m", "reconciler", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=False)  # 2 means changes
        seconds.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before)
    plan: dict[str, Any] = json.loads(done.stdout)
    return plan, min(seconds)


def ratio(amount: float, base: float) -> float:
    return amount / base if base else 1.0


def print_summary(lines: list[PackingResult]) -> None:
    worse = [
        x.name
        for x in lines
        if (x.unplaced[1], x.cheapest) > (x.unplaced[0], x.default * (1 + 1e-9))
    ]
    to_karpenter = [ratio(x.cheapest, x.karpenter) for x in lines]
    to_bound = [ratio(x.cheapest, x.bound) for x in lines]
    default = [ratio(x.default, x.bound) for x in lines]
    print(f"\n{len(lines)} scenarios; worse than default packing: {', '.join(worse) or 'none'}")
    print(
        f"Relative to Karpenter's cost: mean {mean(to_karpenter):.3f}, "
        f"median {median(to_karpenter):.3f}"
    )
    print(f"Relative to the lower bound: mean {mean(to_bound):.3f}, median {median(to_bound):.3f}")
    print(
        f"Default packing, relative to the lower bound: mean {mean(default):.3f}, "
        f"median {median(default):.3f}"
    )


if __name__ == "__main__":
    print_examples() if "--examples" in sys.argv else main()
