"""The accuracy of the cost of a change in a plan, for generated pull requests.

``python -m benchmarks.change [--count N] [--seeds N] [--only TEXT] [--large]`` writes fleets into
temporary repositories: the examples, which have their own workloads, and generated ones of the
``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default beside the checkout). Each
pull request changes one thing.

The actual cost is that of ``simulate --base``: the engine itself with all latencies, run until
nothing is left to do. ``atRest`` of ``plan --base`` is compared with it, and so is the result of
the planner alone, which ``plan`` shows for fleets that are too large to be simulated in every pull
request; ``--large`` selects only such fleets. The error is the difference as a share of the cost of
the fleet before the change. A change of at most 0.5% of that cost counts as zero when signs are
compared: less than one node in these fleets. With ``--seeds N`` the actual cost is the mean of N
simulations, whose range is printed, and OUT marks a cost outside the interval that the plan states.
Nothing is asserted.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import zip_longest
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
from msgspec.structs import replace

from reconciler.assembly.inputs.timings import Timings
from reconciler.catalog.file import read_catalog
from reconciler.cli.main import main as reconciler
from reconciler.cli.parser import commandline
from reconciler.cli.parser.commandline import COMMANDS
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.model.history import History
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.compare import compare_with_base
from reconciler.plan.rest.continuation import Work, continue_fleet
from reconciler.plan.rest.world import RestingFleet
from reconciler.simulate.planinputs import read_inputs
from reconciler.source.plainyaml import load_all

ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
EXAMPLES = ("web", "batch-spot", "multi-team", "maintenance-windows")
SETTLED = ("fleet-17", "fleet-25", "fleet-35", "fleet-57")
RAW = ("fleet-11", "fleet-21")
LARGE = ("fleet-230", "fleet-260")
NOTABLE = 0.005
GOOD = 0.02
CENT_PART = 0.0001

Objects = list[dict[str, Any]]
Change = Callable[[Objects], None]


@dataclass
class Fleet:
    """A fleet as files, and the arguments for its cluster; an example has none."""

    name: str
    objects: Objects
    words: list[str] = field(default_factory=list)


def objects_of_kind(objects: Objects, kind: str) -> Objects:
    return [item for item in objects if item["kind"] == kind]


def node_template(pool: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = pool["spec"]["template"]["spec"]
    return found


def set_requirement(pool: dict[str, Any], key: str, operator: str, *values: str) -> None:
    rows = node_template(pool).setdefault("requirements", [])
    rows[:] = [row for row in rows if row["key"] != key]
    rows.append({"key": key, "operator": operator, "values": list(values)})


def change_all_pools(change: Callable[[dict[str, Any]], None]) -> Change:
    def applied(objects: Objects) -> None:
        for pool in objects_of_kind(objects, "NodePool"):
            change(pool)

    return applied


def change_one_pool(change: Callable[[dict[str, Any]], None], index: int = 0) -> Change:
    return lambda objects: change(objects_of_kind(objects, "NodePool")[index])


def change_disruption(**values: Any) -> Change:
    return change_all_pools(lambda pool: pool["spec"].setdefault("disruption", {}).update(values))


def change_workloads(change: Callable[[dict[str, Any]], None]) -> Change:
    def applied(objects: Objects) -> None:
        for item in objects_of_kind(objects, "Deployment"):
            change(item["spec"])

    return applied


def change_settings(**values: Any) -> Change:
    return lambda objects: objects_of_kind(objects, "Configuration")[0].update(values)


def scale_replicas(spec: dict[str, Any], factor: float) -> None:
    spec["replicas"] = max(1, round(spec.get("replicas", 1) * factor))


def increase_cpu_requests(spec: dict[str, Any]) -> None:
    for container in spec["template"]["spec"]["containers"]:
        requests = container.get("resources", {}).get("requests", {})
        if "cpu" in requests:
            text = str(requests["cpu"])
            milli = int(text[:-1]) if text.endswith("m") else round(float(text) * 1000)
            requests["cpu"] = f"{milli * 3 // 2}m"


def add_service(objects: Objects) -> None:
    requests = {"cpu": "750m", "memory": "1536Mi"}
    labels = {"app": "newcomer"}
    spec = {"containers": [{"name": "main", "image": "app", "resources": {"requests": requests}}]}
    objects.append(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "newcomer", "namespace": "shop"},
            "spec": {
                "replicas": 12,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }
    )


def change_image(objects: Objects) -> None:
    for item in objects_of_kind(objects, "EC2NodeClass"):
        item["spec"]["amiSelectorTerms"] = [{"alias": "al2023@v20250801"}]
        item["spec"]["tags"] = {"release": "2"}


def add_overlay(objects: Objects) -> None:
    change_settings(featureGates={"NodeOverlay": True})(objects)
    rows = [{"key": "karpenter.k8s.aws/instance-category", "operator": "In", "values": ["c"]}]
    objects.append(
        {
            "apiVersion": "karpenter.sh/v1alpha1",
            "kind": "NodeOverlay",
            "metadata": {"name": "expensive"},
            "spec": {"weight": 5, "requirements": rows, "priceAdjustment": "+30%"},
        }
    )


def remove_last_pool(objects: Objects) -> None:
    objects.remove(objects_of_kind(objects, "NodePool")[-1])


CT, ARCH = "karpenter.sh/capacity-type", "kubernetes.io/arch"
K = "karpenter.k8s.aws/instance-"
WINDOW = [{"nodes": "0", "schedule": "0 9 * * *", "duration": "8h"}, {"nodes": "20%"}]
POOL_CHANGES: dict[str, Change] = {
    "budgets of 10%": change_disruption(budgets=[{"nodes": "10%"}]),
    "on-demand only": change_all_pools(lambda p: set_requirement(p, CT, "In", "on-demand")),
    "nodes of at most 8 cpu": change_all_pools(lambda p: set_requirement(p, f"{K}cpu", "Lt", "9")),
    "new image": change_image,
    "label on the nodes": change_all_pools(
        lambda p: p["spec"]["template"].setdefault("metadata", {}).update(labels={"team": "one"})
    ),
    "budget of 1 node": change_disruption(budgets=[{"nodes": "1"}]),
    "spot allowed": change_all_pools(lambda p: set_requirement(p, CT, "In", "spot", "on-demand")),
    "WhenEmpty": change_disruption(consolidationPolicy="WhenEmpty", consolidateAfter="1m"),
    "arm64 and amd64": change_one_pool(lambda p: set_requirement(p, ARCH, "In", "arm64", "amd64")),
    "expireAfter of a week": change_all_pools(
        lambda p: node_template(p).update(expireAfter="168h")
    ),
    "memory-optimized only": change_one_pool(
        lambda p: set_requirement(p, f"{K}category", "In", "r")
    ),
    "newest generations": change_all_pools(
        lambda p: set_requirement(p, f"{K}generation", "Gt", "6")
    ),
    "nodes of at least 8 cpu": change_all_pools(lambda p: set_requirement(p, f"{K}cpu", "Gt", "7")),
    "packing": change_settings(packing="cheapest"),
    "consolidateAfter of 10 minutes": change_disruption(consolidateAfter="10m"),
    "weight": change_one_pool(lambda p: p["spec"].update(weight=100), -1),
    "c is more expensive": add_overlay,
    "two zones": change_all_pools(
        lambda p: set_requirement(
            p, "topology.kubernetes.io/zone", "In", "us-east-1a", "us-east-1b"
        )
    ),
    "limits": change_one_pool(lambda p: p["spec"].update(limits={"cpu": "40"})),
    "NodePool removed": remove_last_pool,
    "disruption window": change_disruption(budgets=WINDOW),
    "taint": change_one_pool(
        lambda p: node_template(p).update(
            taints=[{"key": "team", "value": "one", "effect": "NoSchedule"}]
        ),
        -1,
    ),
    "thorough search": change_settings(consolidation={"search": "thorough"}),
}
WORKLOAD_CHANGES: dict[str, Change] = {
    "twice the replicas": change_workloads(lambda spec: scale_replicas(spec, 2)),
    "half the replicas": change_workloads(lambda spec: scale_replicas(spec, 0.5)),
    "50% more CPU requested": change_workloads(increase_cpu_requests),
    "new service": add_service,
}


def example_fleet(name: str) -> Fleet:
    """Return an example with its workloads."""
    files = sorted((ROOT / "examples" / name).rglob("*.yaml"))
    objects = [o for f in files for o in load_all(f.read_bytes())]
    return Fleet(name, objects)


def generated_fleet(name: str, folder: Path, *, settled: bool) -> Fleet:
    """Return a generated fleet; a ``settled`` one was simulated until it was stable."""
    maker = [sys.executable, str(BENCH / "make_bench.py"), str(folder), name]
    subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
    home = folder / name
    pools = [json.loads(f.read_text()) for f in sorted((home / "desired").glob("*.yaml"))]
    settings = {"apiVersion": "reconciler/v1", "kind": "Configuration", "fleet": name}
    if settled:
        (home / "snapshot.json").write_bytes(_encode_snapshot(_settled_cluster(home)))
    words = ["--snapshot", str(home / "snapshot.json"), "--catalog", str(home / "catalog.json")]
    return Fleet(name if settled else f"{name} raw", [*pools, settings], words)


def _settled_cluster(home: Path) -> ClusterState:
    files = [SourceFile(f.name, f.read_bytes()) for f in sorted((home / "desired").glob("*.yaml"))]
    inputs = Inputs(
        fleet=read_fleet(files, any_class=True)[0],
        cluster=cluster_state(read_snapshot((home / "snapshot.json").read_bytes(), "snapshot")),
        catalog=read_catalog((home / "catalog.json").read_bytes(), "catalog"),
        settings=Settings(),
        now=NOW.replace(day=1),
        any_class=True,
    )
    rest = continue_fleet(inputs, RestingFleet(inputs.cluster), inputs.now, History(), Work(10**9))
    assert rest.rested, home
    return rest.world.cluster


def _encode_snapshot(cluster: ClusterState) -> bytes:
    def objects() -> Iterator[dict[str, Any]]:
        for version, kind, items in (
            ("v1", "Node", [n.node for n in cluster.nodes if n.node is not None]),
            ("karpenter.sh/v1", "NodeClaim", [n.claim for n in cluster.nodes if n.claim]),
            ("v1", "Pod", cluster.pods),
            ("apps/v1", "DaemonSet", cluster.daemon_sets),
            ("policy/v1", "PodDisruptionBudget", cluster.pod_disruption_budgets),
        ):
            for item in items:
                yield {"apiVersion": version, "kind": kind, **msgspec.to_builtins(item)}

    return msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": list(objects())})


def large_pull_requests(folder: Path) -> Iterator[tuple[Fleet, str, Change]]:
    """Yield the changes of NodePools, alternating between the fleets that are not simulated."""
    generated = [generated_fleet(name, folder, settled=True) for name in LARGE]
    for turn, (name, change) in enumerate(POOL_CHANGES.items()):
        yield generated[turn % len(generated)], name, change


def pull_requests(folder: Path) -> Iterator[tuple[Fleet, str, Change]]:
    """Yield fleets with one change each: NodePools of all fleets, workloads of the examples."""
    examples = [example_fleet(name) for name in EXAMPLES]
    generated = [generated_fleet(name, folder, settled=True) for name in SETTLED]
    generated += [generated_fleet(name, folder, settled=False) for name in RAW]
    own = [(f, n, c) for f in examples for n, c in WORKLOAD_CHANGES.items()]
    pools = [
        (fleet, name, change)
        for turn, (name, change) in enumerate(POOL_CHANGES.items())
        for fleet in (
            generated[turn % len(generated)],
            (*examples, *generated)[(3 * turn + 1) % 10],
        )
    ]
    for pair in zip_longest(pools, own):
        yield from (row for row in pair if row is not None)


def write_repository(fleet: Fleet, change: Change, folder: Path) -> Path:
    """Write the fleet before the change and after it, as two commits."""
    folder.mkdir(parents=True)
    objects: Objects = json.loads(json.dumps(fleet.objects))
    _run_git(folder, "init", "-q")
    for turn in range(2):
        if turn:
            change(objects)
        rest = [item for item in objects if item["kind"] != "Configuration"]
        (folder / "fleet.yaml").write_text("\n---\n".join(map(json.dumps, rest)))
        (folder / "reconciler.yaml").write_text(
            json.dumps(objects_of_kind(objects, "Configuration")[0])
        )
        _run_git(folder, "add", "-A")
        _run_git(folder, "commit", "-qm", "change", "--allow-empty")
    return folder


def _run_git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    subprocess.run(["git", *who, *words], cwd=folder, check=True)


def run_command(command: str, folder: Path, words: Iterable[str]) -> tuple[dict[str, Any], float]:
    """Return the JSON output of a command, and its CPU seconds."""
    out, began = io.StringIO(), time.process_time()
    line = [command, str(folder), *words, "--base", "HEAD~1", "-o", "json"]
    with contextlib.redirect_stdout(out):
        code = reconciler([*line, "--now", _now_text()])
    assert code == 0, line
    found: dict[str, Any] = json.loads(out.getvalue())
    return found, time.process_time() - began


def planner_cost(folder: Path, words: Iterable[str]) -> float:
    """Return the cost of the change by the planner alone, in USD an hour."""
    line = ["plan", str(folder), *words, "--base", "HEAD~1", "--now", _now_text()]
    invocation = commandline.read(line, COMMANDS)
    assert invocation is not None, line
    inputs = read_inputs(invocation.request.fleet, Timings())
    assert inputs.against is not None, line
    return compare_with_base(replace(inputs, simulation=None), inputs.against)[0].per_hour


def _now_text() -> str:
    return NOW.isoformat().replace("+00:00", "Z")


@dataclass
class Row:
    """One pull request: its actual cost, that of the plan and that of the planner, USD an hour.

    ``interval`` is what the plan states, from the lowest to the highest run. ``seconds`` are the
    CPU seconds of the plan and of a simulation.
    """

    fleet: str
    change: str
    before: float
    actual: float
    plan: float
    planner: float
    interval: tuple[float, float]
    seconds: tuple[float, float]
    notes: str = ""

    @property
    def is_inside(self) -> bool:
        """Whether the interval contains the actual cost, to a hundredth of a cent an hour."""
        low, high = self.interval
        return low - CENT_PART <= self.actual <= high + CENT_PART

    def error(self, answer: float) -> float:
        """Return the error of an answer as a share of the cost of the fleet."""
        return (answer - self.actual) / self.before if self.before else 0.0

    def has_sign(self, answer: float) -> bool:
        """Return whether an answer has the sign of the actual cost."""
        return self._sign(self.actual) == self._sign(answer)

    def _sign(self, amount: float) -> int:
        if abs(amount) <= NOTABLE * self.before:
            return 0
        return 1 if amount > 0 else -1

    def __str__(self) -> str:
        share = self.actual / self.before if self.before else 0.0
        return (
            f"{self.fleet:20} {self.change:32} {self.before:8.3f} {self.actual:+9.4f} "
            f"{share:+7.1%} {self._format_answer(self.plan)} {'' if self.is_inside else 'OUT':3} "
            f"{self._format_answer(self.planner)} "
            f"{self.seconds[0]:6.1f} {self.seconds[1]:7.1f}  {self.notes}"
        )

    def _format_answer(self, answer: float) -> str:
        mark = "" if self.has_sign(answer) else "SIGN"
        return f"{answer:+9.4f} {self.error(answer):+7.2%} {mark:4}"


HEADING = (
    f"{'fleet':20} {'change':32} {'USD/h':>8} {'actual':>9} {'':>7} {'plan':>9} "
    f"{'error':>7} {'':4} {'':3} {'planner':>9} {'error':>7} {'':4} {'CPU s':>6} {'actual s':>7}"
)


def measure_change(fleet: Fleet, name: str, change: Change, folder: Path, seeds: int) -> Row:
    """Return the actual cost, the mean over the seeds, and the two answers."""
    repository = write_repository(fleet, change, folder)
    words = list(fleet.words)
    if change is remove_last_pool:
        words += [
            "--allow-removal",
            objects_of_kind(fleet.objects, "NodePool")[-1]["metadata"]["name"],
        ]
    plan, seconds = run_command("plan", repository, words)
    cost_by_planner = planner_cost(repository, words)
    simulations = [
        run_command("simulate", repository, [*words, "--seed", str(n)]) for n in range(seeds)
    ]
    merges, found = [simulation["merge"] for simulation, _ in simulations], plan["atRest"]
    costs = [merge["after"] - merge["before"] for merge in merges]
    actual, before = fmean(costs), fmean(merge["before"] for merge in merges)
    slow = fmean(spent for _, spent in simulations)
    parts = (
        [] if all(simulation["converged"] for simulation, _ in simulations) else ["not converged"]
    )
    if max(costs) > min(costs):
        parts.append(f"actual from {min(costs):+.4f} to {max(costs):+.4f}")
    parts += [f"{len(found['unschedulable'])} unschedulable"] if found["unschedulable"] else []
    parts += [f"bounds {found['bounds']}"] if found["bounds"] else []
    notes = "; ".join(parts)
    costs_of = (before, actual, found["perHour"], cost_by_planner)
    stated = found["difference"] or {"low": found["perHour"], "high": found["perHour"]}
    interval = (stated["low"], stated["high"])
    return Row(fleet.name, name, *costs_of, interval, (seconds, slow), notes)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.change")
    parser.add_argument("--count", type=int, default=0, help="only the first N (default: all)")
    parser.add_argument("--seeds", type=int, default=1, help="simulations of each (default: 1)")
    parser.add_argument("--only", default="", help="only those whose fleet or change contains this")
    parser.add_argument("--large", action="store_true", help="fleets that plan does not simulate")
    args = parser.parse_args()
    source = large_pull_requests if args.large else pull_requests
    print(HEADING)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, (fleet, change, apply) in enumerate(source(folder)):
            if args.count and len(rows) >= args.count:
                break
            if args.only not in f"{fleet.name} {change}":
                continue
            home = folder / "repositories" / str(number)
            rows.append(measure_change(fleet, change, apply, home, args.seeds))
            print(rows[-1], flush=True)
    inside = sum(row.is_inside for row in rows)
    print(f"the interval of the plan contains the actual cost of {inside} of {len(rows)} changes")
    for what, answers in (("plan", [r.plan for r in rows]), ("planner", [r.planner for r in rows])):
        pairs = list(zip(rows, answers, strict=True))
        good = sum(abs(row.error(answer)) <= GOOD for row, answer in pairs)
        signs = sum(row.has_sign(answer) for row, answer in pairs)
        print(f"{what}: {len(rows)} changes, {signs} with the right sign, {good} within {GOOD:.0%}")


if __name__ == "__main__":
    main()
