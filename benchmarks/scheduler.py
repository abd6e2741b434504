"""The decisions of kube-scheduler, answered by the binder.

``python -m benchmarks.scheduler [--seeds N] FILE...``

Each FILE has recorded decisions, bursts or sequences (``shared/conformance/scheduler``). The output
has one JSON line for each of them: ``{"name", "node"}`` with the node of the pod (null if it is
unschedulable), or ``{"name", "runs": [{NODE: pods}, ...]}`` with the pods of each node (or
``pending``) in the end, for each seed.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from reconciler.model.decode import decode
from reconciler.model.karpenter.capacitybuffer import ReplicaSet, StatefulSet
from reconciler.model.kubernetes.cluster import (
    PersistentVolume,
    PersistentVolumeClaim,
    Service,
    StorageClass,
)
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.kubernetes.node import CSINode, Node
from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.binding.scheduler import NodeBinder, node_infos
from reconciler.placement.binding.selection import Volumes
from reconciler.placement.topology.peers import Owners

Group = dict[str, Any]
"""A recorded state with its decisions, a burst, or a sequence."""

BURST_NAMESPACES = {"shop": {"team": "blue"}}


def load(path: Path) -> list[Group]:
    """Return the groups of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        groups: list[Group] = json.load(file)
    return groups


class RecordedCluster:
    """The objects of a recorded state besides its nodes and pods."""

    def __init__(self, group: Group) -> None:
        self._objects: list[Group] = group.get("objects", [])
        self.namespaces = group.get("namespaces") or BURST_NAMESPACES
        self.owners = Owners(tuple(self._all("Service", Service)), dict(self._selectors(group)))
        self.volumes = Volumes(
            {c.key: c for c in self._all("PersistentVolumeClaim", PersistentVolumeClaim)},
            {v.metadata.name: v for v in self._all("PersistentVolume", PersistentVolume)},
            {c.metadata.name: c for c in self._all("StorageClass", StorageClass)},
            {},
            {n.metadata.name: n for n in self._all("CSINode", CSINode)},
        )

    def _all(self, kind: str, model: Any) -> list[Any]:
        return [decode(o, model) for o in self._objects if o["kind"] == kind]

    def _selectors(self, group: Group) -> Iterator[tuple[tuple[str, str], LabelSelector]]:
        for kind, model in (("ReplicaSet", ReplicaSet), ("StatefulSet", StatefulSet)):
            for item in self._all(kind, model):
                yield (kind, f"{item.metadata.namespace}/{item.metadata.name}"), item.spec.selector
        if not self._objects:
            for owner in group.get("replicaSets", ()):
                app, namespace = owner["app"], owner["namespace"]
                yield ("ReplicaSet", f"{namespace}/{app}-rs"), LabelSelector({"app": app})
        if "template" in group:
            metadata = group["template"]["metadata"]
            for owner in metadata.get("ownerReferences", ()):
                key = f"{metadata.get('namespace', 'default')}/{owner['name']}"
                yield (owner["kind"], key), LabelSelector({"app": metadata["labels"]["app"]})

    def binder(self, nodes: list[Node], pods_on: dict[str, list[Pod]], seed: int) -> NodeBinder:
        """Return a binder for the nodes and the pods on them."""
        return NodeBinder(
            node_infos(nodes, pods_on),
            self.namespaces,
            volumes=replace(self.volumes, zones={}),
            owners=self.owners,
            seed=seed,
        )


def pods_by_node(pods: list[Group]) -> dict[str, list[Pod]]:
    """Return the pods that use their nodes; one that has ended does not."""
    found: dict[str, list[Pod]] = {}
    for pod in (decode(p, Pod) for p in pods):
        if not pod.is_terminal:
            found.setdefault(pod.spec.node_name, []).append(pod)
    return found


def decisions(group: Group, seed: int) -> Iterator[Group]:
    """Yield the answer to each decision on a state."""
    cluster, nodes = RecordedCluster(group), [decode(n, Node) for n in group["nodes"]]
    on = pods_by_node(group["pods"])
    for case in group["cases"]:
        bound = cluster.binder(nodes, on, seed).bind([decode(case["pod"], Pod)])
        yield {"name": case["name"], "node": next((n.name for n in bound.values()), None)}


def run(group: Group, seed: int) -> dict[str, int]:
    """Return how many pods each node has at the end of a burst or sequence."""
    cluster, nodes = RecordedCluster(group), [decode(n, Node) for n in group["nodes"]]
    on = pods_by_node(group.get("bound", []))
    placed: dict[str, str] = {}
    waiting: list[Pod] = []
    pods: list[Pod] = []
    for present, arriving in steps(group, nodes):
        pods += arriving
        waiting += arriving
        for key, node in cluster.binder(present, on, seed).bind(waiting).items():
            placed[key] = node.name
        for pod in waiting:
            if pod.key in placed:
                on.setdefault(placed[pod.key], []).append(pod)
        waiting = [pod for pod in waiting if pod.key not in placed]
    return dict(Counter(placed.get(pod.key, "pending") for pod in pods))


def steps(group: Group, nodes: list[Node]) -> Iterator[tuple[list[Node], list[Pod]]]:
    """Yield the nodes that are there and the pods that arrive, one step after another."""
    if "pending" in group:
        pods = [decode(p, Pod) for p in group["pending"]]
        late: list[str] = group["late"]
        for count in range(len(late) + 1):
            present = [n for n in nodes if n.name not in late[count:]]
            yield present, pods if not count else []
        return
    template = group["template"]
    pods = [
        decode({**template, "metadata": {**template["metadata"], "name": f"w{number}"}}, Pod)
        for number in range(group["pods"])
    ]
    if group["late"]:
        early = nodes[: len(nodes) - group["late"]]
        yield early, pods[: group["lateAfter"]]
        yield nodes, pods[group["lateAfter"] :]
    else:
        yield nodes, pods


def answers(paths: list[Path], seeds: int) -> Iterator[Group]:
    """Yield the answer to every group of the files."""
    for path in paths:
        for group in load(path):
            if "cases" in group:
                yield from decisions(group, 1)
            else:
                runs = [run(group, seed) for seed in range(1, seeds + 1)]
                yield {"name": group["name"], "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler")
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--seeds", type=int, default=5, help="runs of a burst (default: 5)")
    args = parser.parse_args()
    for answer in answers(args.files, args.seeds):
        print(json.dumps(answer))


if __name__ == "__main__":
    main()
