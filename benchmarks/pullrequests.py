"""Generated pull requests: fleets in temporary repositories, with one change each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache, partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from reconciler.catalog.file import read_catalog
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.model.history import History
from reconciler.model.settings import Settings
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.rest.continuation import Work, continue_fleet
from reconciler.plan.rest.world import RestingFleet
from reconciler.source.plainyaml import load_all

ROOT = Path(__file__).resolve().parents[1]
BENCH = Path(os.environ.get("CONFORMANCE") or ROOT.parent / "shared" / "conformance") / "bench"
NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOW_TEXT = NOW.isoformat().replace("+00:00", "Z")
EXAMPLES = ("web", "batch-spot", "multi-team", "maintenance-windows")
SETTLED = ("fleet-17", "fleet-25", "fleet-35", "fleet-57")
RAW = ("fleet-11", "fleet-21")
LARGE = ("fleet-230", "fleet-260")
REPLICAS = {"Deployment": "replicas", "Job": "parallelism"}
"""The workloads that are changed, and the field that says how many of their pods run."""

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
        for kind in REPLICAS:
            for item in objects_of_kind(objects, kind):
                change(item)

    return applied


def change_settings(**values: Any) -> Change:
    return lambda objects: objects_of_kind(objects, "Configuration")[0].update(values)


def scale_replicas(item: dict[str, Any], factor: float) -> None:
    spec, name = item["spec"], REPLICAS[item["kind"]]
    spec[name] = max(1, round(spec.get(name, 1) * factor))


def increase_cpu_requests(item: dict[str, Any]) -> None:
    for container in item["spec"]["template"]["spec"]["containers"]:
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
    "twice the replicas": change_workloads(lambda item: scale_replicas(item, 2)),
    "half the replicas": change_workloads(lambda item: scale_replicas(item, 0.5)),
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


@dataclass(frozen=True)
class PullRequest:
    """A change of a fleet; ``make`` returns the fleet, which takes long for a settled one."""

    fleet: str
    name: str
    change: Change
    make: Callable[[], Fleet]


_NamedFleet = tuple[str, Callable[[], Fleet]]


def _settled(name: str, folder: Path) -> _NamedFleet:
    return name, cache(lambda: generated_fleet(name, folder, settled=True))


def large_pull_requests(folder: Path) -> Iterator[PullRequest]:
    """Yield the changes of NodePools, alternating between the fleets that are not simulated."""
    fleets = [_settled(name, folder) for name in LARGE]
    changes = [(name, c) for name, c in POOL_CHANGES.items() if c is not change_image]
    for turn, (name, change) in enumerate(changes):
        fleet, make = _rotated(fleets, turn)
        yield PullRequest(fleet, name, change, make)


def pull_requests(folder: Path) -> Iterator[PullRequest]:
    """Yield fleets with one change each: NodePools of all fleets, workloads of the examples.

    Images are those of the examples: generated fleets have no EC2NodeClass.
    """
    examples: list[_NamedFleet] = [(name, partial(example_fleet, name)) for name in EXAMPLES]
    generated: list[_NamedFleet] = [_settled(name, folder) for name in SETTLED]
    generated += [
        (f"{name} raw", cache(partial(generated_fleet, name, folder, settled=False)))
        for name in RAW
    ]
    own = [
        PullRequest(fleet, name, change, make)
        for fleet, make in examples
        for name, change in WORKLOAD_CHANGES.items()
    ]
    pools = [
        PullRequest(fleet, name, change, make)
        for turn, (name, change) in enumerate(POOL_CHANGES.items())
        for fleet, make in (
            _rotated(examples if change is change_image else generated, turn),
            _rotated([*examples, *generated], 3 * turn + 1),
        )
    ]
    for pair in zip_longest(pools, own):
        yield from (row for row in pair if row is not None)


def _rotated(fleets: Sequence[_NamedFleet], turn: int) -> _NamedFleet:
    return fleets[turn % len(fleets)]


def write_repository(fleet: Fleet, change: Change, folder: Path) -> Path:
    """Write the fleet before the change and after it, as two commits."""
    folder.mkdir(parents=True)
    objects: Objects = json.loads(json.dumps(fleet.objects))
    before = json.dumps(objects)
    _run_git(folder, "init", "-q")
    for turn in range(2):
        if turn:
            change(objects)
            assert json.dumps(objects) != before, f"the pull request of {fleet.name} is empty"
        rest = [item for item in objects if item["kind"] != "Configuration"]
        (folder / "fleet.yaml").write_text("\n---\n".join(map(json.dumps, rest)))
        (folder / "reconciler.yaml").write_text(
            json.dumps(objects_of_kind(objects, "Configuration")[0])
        )
        _run_git(folder, "add", "-A")
        _run_git(folder, "commit", "-qm", "change")
    return folder


def _run_git(folder: Path, *words: str) -> None:
    who = ["-c", "user.name=bench", "-c", "user.email=bench@example.com"]
    at = {"GIT_AUTHOR_DATE": NOW_TEXT, "GIT_COMMITTER_DATE": NOW_TEXT}
    subprocess.run(["git", *who, *words], cwd=folder, check=True, env={**os.environ, **at})
