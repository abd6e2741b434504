"""How the time of a plan grows with the awkwardness of one tenant's pods.

``python -m benchmarks.awkward [--running] [TEXT ...]`` plans a small cluster of other tenants with
n = 50, 100, 200 and 400 pods of one tenant, whose pods are awkward in one way: each has a rule of
its own, a topology key of its own, and so on; or one pod has n of them. They wait for nodes or,
with ``--running``, run already, one on a node. TEXT selects ways by their names.

Each row shows the CPU seconds that ``reconciler plan`` needs in this process for each n, without
those for n = 0, and the exponent of their growth between 100 and 400. An exponent says little if
the time is short. Where it is shorter than ``SHORT_S`` for 100, n is multiplied by 4 until it is
not, and the row ends with the exponent between the last two. It is in parentheses if ``COUNT_MAX``
is reached before, or if no API server stores so large a pod. The command fails if an exponent
exceeds ``EXPONENT_MAX``.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from reconciler.cli.main import main as reconciler
from tests.placement.builders import (
    HOST,
    PREFERRED,
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pod,
    a_pool,
    apart,
    near,
    on,
    pods,
    spread,
    wanted,
)

COUNTS: Final = (50, 100, 200, 400)
EXPONENT_MAX: Final = 1.3
SHORT_S: Final = 0.15
NOW: Final = "2026-03-01T12:00:00Z"
COUNT_MAX: Final = 25_600
LONG_S: Final = 10.0
"""No larger n is tried after a plan of this time."""
OBJECT_MAX: Final = 1_572_864
"""The size in bytes of the largest request that etcd accepts by default (1.5 MiB)."""
TENANT: Final = "crowd"
OTHERS: Final = ("shop", "tools", "data", "site")

Awkward = Callable[[int], list[Object]]
"""Returns n awkward pods, or pods that are awkward n times, and what belongs to them."""


def _pod(number: int, **fields: object) -> Object:
    """Return the pod with that number, labelled ``app=aNUMBER``."""
    pod = a_pod(f"p-{number:04}", "100m", "64Mi", **fields)  # type: ignore[arg-type]
    pod["metadata"] |= {"namespace": TENANT, "labels": {"app": f"a{number}", "tenant": TENANT}}
    return pod


def _term(key: str, operator: str, value: str) -> Object:
    """Return a term about pods whose label ``app`` is, or is not, a value."""
    expression = {"key": "app", "operator": operator, "values": [value]}
    return {"topologyKey": key, "labelSelector": {"matchExpressions": [expression]}}


def _of_all(key: str) -> Object:
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"tenant": TENANT}}}


def _each(make: Callable[[int], Mapping[str, object]]) -> Awkward:
    """Return n pods with what is made from their numbers."""
    return lambda count: [_pod(number, **make(number)) for number in range(count)]


def _one(make: Callable[[int], Mapping[str, object]]) -> Awkward:
    """Return one pod that is awkward n times."""
    return lambda count: [_pod(0, **make(count))]


def _spread_over(key: str, number: int) -> Object:
    expression = {"key": "app", "operator": "NotIn", "values": [f"z{number}"]}
    selector = {"matchExpressions": [expression]}
    return {**spread(key), "labelSelector": selector}


def _soft_spread_over(key: str, number: int) -> Object:
    return {**_spread_over(key, number), "whenUnsatisfiable": "ScheduleAnyway"}


def _preferring_nodes(values: Sequence[int]) -> Object:
    terms = [
        {"weight": 1 + value % 100, "preference": {
            "matchExpressions": [wanted("example.com/size", "NotIn", f"v{value}")]}}
        for value in values
    ]  # fmt: skip
    return {"affinity": {"nodeAffinity": {PREFERRED: terms}}}


def _preferring_distance(values: Sequence[int]) -> Object:
    terms = [
        {"weight": 1 + v % 100, "podAffinityTerm": _term(ZONE, "NotIn", f"z{v}")} for v in values
    ]
    return {"affinity": {"podAntiAffinity": {PREFERRED: terms}}}


def _with_volumes(count: int) -> list[Object]:
    made: list[Object] = []
    for number in range(count):
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"c{number}"}}
        made.append(_pod(number, volumes=[claim]))
        zone = wanted(ZONE, "In", f"zone-{'abc'[number % 3]}")
        node_affinity = {"required": {"nodeSelectorTerms": [{"matchExpressions": [zone]}]}}
        made.append({
            "kind": "PersistentVolume", "metadata": {"name": f"v{number}"},
            "spec": {"nodeAffinity": node_affinity, "csi": {"driver": "ebs.csi.aws.com"}},
        })  # fmt: skip
        made.append({
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"c{number}", "namespace": TENANT},
            "spec": {"volumeName": f"v{number}"},
        })  # fmt: skip
    return made


def _behind_budgets(operator: str, value: str) -> Awkward:
    """Return n pods and n PodDisruptionBudgets; one selects the pods of its value, or the others.

    ``value`` is the beginning of the label's value.
    """

    def make(count: int) -> list[Object]:
        made = [_pod(number) for number in range(count)]
        for number in range(count):
            selected = {"key": "app", "operator": operator, "values": [f"{value}{number}"]}
            made.append({
                "kind": "PodDisruptionBudget",
                "metadata": {"name": f"b{number:04}", "namespace": TENANT},
                "spec": {"minAvailable": 0, "selector": {"matchExpressions": [selected]}},
                "status": {"disruptionsAllowed": 1},
            })  # fmt: skip
        return made

    return make


def _large(count: int) -> list[Object]:
    """Return pods with 300 containers, init containers, labels, annotations and owners each."""
    made = []
    for number in range(count):
        pod = _pod(number)
        containers = [
            {"name": f"c{i}", "resources": {"requests": {"cpu": "1m", "memory": f"{1 + i % 5}Ki"}}}
            for i in range(300)
        ]
        pod["spec"]["containers"] = containers
        pod["spec"]["initContainers"] = [
            {**item, **({"restartPolicy": "Always"} if i % 2 else {})}
            for i, item in enumerate(containers)
        ]
        pod["metadata"]["labels"] |= {f"example.com/l{i}": f"v{number}" for i in range(300)}
        pod["metadata"]["annotations"] = {f"example.com/a{i}": "x" * 50 for i in range(300)}
        (owner,) = pod["metadata"]["ownerReferences"]
        pod["metadata"]["ownerReferences"] = [{**owner, "name": f"o{i}"} for i in range(300)]
        made.append(pod)
    return made


def _behind_label_keys(_: int) -> Object:
    keys = [f"example.com/k{i}" for i in range(20)]
    return {"topologySpreadConstraints": [{**_of_all(ZONE), "maxSkew": 1, "matchLabelKeys": keys,
                                           "whenUnsatisfiable": "DoNotSchedule"}]}  # fmt: skip


def _in_namespaces(number: int) -> Object:
    """Return anti-affinity towards namespaces that 20 expressions select."""
    labels = [{"key": f"example.com/n{i}", "operator": "DoesNotExist"} for i in range(20)]
    term = {**_term(HOST, "NotIn", f"z{number}"), "namespaceSelector": {"matchExpressions": labels}}
    return {"affinity": apart(term)}


WAYS: Final[Mapping[str, Awkward]] = {
    "requests of its own": lambda n: [
        a_pod(f"p-{i:04}", f"{100 + i}m", f"{64 + i}Mi") for i in range(n)
    ],
    "node affinity of its own": _each(
        lambda i: {"affinity": on([wanted("example.com/size", "NotIn", f"v{i}")])}
    ),
    "tolerations of its own": _each(lambda i: {"tolerations": [{"key": f"t{i}"}]}),
    "repels all others, by host": _each(
        lambda i: {"affinity": apart(_term(HOST, "NotIn", f"z{i}"))}
    ),
    "repels all others, by zone": _each(
        lambda i: {"affinity": apart(_term(ZONE, "NotIn", f"z{i}"))}
    ),
    "repels one other, by host": _each(
        lambda i: {"affinity": apart(_term(HOST, "In", f"a{i + 1}"))}
    ),
    "repels its own tenant's": _each(lambda _: {"affinity": apart(_of_all(HOST))}),
    "follows another, by host": _each(
        lambda i: {"affinity": near(_term(HOST, "In", f"a{max(i - 1, 0)}"))}
    ),
    "follows any, by zone": _each(lambda i: {"affinity": near(_term(ZONE, "NotIn", f"z{i}"))}),
    "spreads by a rule of its own, over zones": _each(
        lambda i: {"topologySpreadConstraints": [_spread_over(ZONE, i)]}
    ),
    "spreads by a rule of its own, over hosts": _each(
        lambda i: {"topologySpreadConstraints": [_spread_over(HOST, i)]}
    ),
    "repels by a key of its own": _each(
        lambda i: {"affinity": apart(_of_all(f"example.com/k{i}"))}
    ),
    "spreads over a key of its own": _each(
        lambda i: {"topologySpreadConstraints": [_soft_spread_over(f"example.com/k{i}", i)]}
    ),
    "prefers nodes of its own": _each(lambda i: _preferring_nodes([i])),
    "prefers distance by a rule of its own": _each(lambda i: _preferring_distance([i])),
    "follows any by zone, repels all by host": _each(
        lambda i: {
            "affinity": {
                **near(_term(ZONE, "NotIn", f"z{i}")),
                **apart(_term(HOST, "NotIn", f"z{i}")),
            }
        }
    ),
    "spreads over zones and hosts, repels all by host": _each(
        lambda i: {
            "topologySpreadConstraints": [_spread_over(ZONE, i), _spread_over(HOST, i)],
            "affinity": apart(_term(HOST, "NotIn", f"z{i}")),
        }
    ),
    "spreads with a skew of its own": _each(
        lambda i: {"topologySpreadConstraints": [{**_spread_over(ZONE, i), "maxSkew": 1 + i}]}
    ),
    "20 host ports of its own": _each(lambda i: {"ports": range(10_000 + 20 * i, 10_020 + 20 * i)}),
    "a host port of its own": _each(lambda i: {"ports": [10_000 + i]}),
    "the same host port": _each(lambda _: {"ports": [10_000]}),
    "a volume of its own": _with_volumes,
    "n PodDisruptionBudgets for each": _behind_budgets("NotIn", "z"),
    "a PodDisruptionBudget of its own": _behind_budgets("In", "a"),
    "a device claim of its own": _each(
        lambda i: {"resourceClaims": [{"name": "d", "resourceClaimName": f"d{i}"}]}
    ),
    "300 containers, labels and owners each": _large,
    "20 matchLabelKeys each": _each(_behind_label_keys),
    "repels in the namespaces that a rule selects": _each(_in_namespaces),
    "20 preferred nodes each": _each(lambda i: _preferring_nodes(range(20 * i, 20 * i + 20))),
    "20 preferred distances each": _each(
        lambda i: _preferring_distance(range(20 * i, 20 * i + 20))
    ),
    "20 soft spreads each": _each(
        lambda i: {
            "topologySpreadConstraints": [
                _soft_spread_over(ZONE, j) for j in range(20 * i, 20 * i + 20)
            ]
        }
    ),
    "20 alternatives each": _each(
        lambda i: {
            "affinity": on(
                *([wanted("example.com/size", "In", f"v{j}")] for j in range(20 * i, 20 * i + 20))
            )
        }
    ),
    "a priority of its own": _each(lambda i: {"priority": i, "preemptionPolicy": "Never"}),
    "urgent, with a priority of its own": _each(lambda i: {"priority": 1_000_000 + i}),
    "behind scheduling gates": _each(lambda i: {"schedulingGates": [{"name": f"g{i}"}]}),
    "overhead of its own": _each(lambda i: {"overhead": {"cpu": f"{i}m", "memory": f"{i}Ki"}}),
    "a new volume of its own": _each(
        lambda i: {
            "volumes": [
                {
                    "name": "data",
                    "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": f"s{i}"}}},
                }
            ]
        }
    ),
    "20 device claims each": _each(
        lambda i: {
            "resourceClaims": [
                {"name": f"d{j}", "resourceClaimName": f"d{i}-{j}"} for j in range(20)
            ]
        }
    ),
    "a node selector of its own": _each(lambda i: {"nodeSelector": {f"example.com/s{i}": "x"}}),
    "a hostname of its own": _each(
        lambda i: {"affinity": on([wanted(HOST, "In", f"crowd-{i:04}")])}
    ),
    "not on 20 hosts of its own": _each(
        lambda i: {"affinity": on([wanted(HOST, "NotIn", *(f"h{i}-{j}" for j in range(20)))])}
    ),
    "a zone and a type of its own": _each(
        lambda i: {
            "affinity": on(
                [
                    wanted(ZONE, "In", f"zone-{'abc'[i % 3]}"),
                    wanted("node.kubernetes.io/instance-type", "NotIn", f"t{i}"),
                ]
            )
        }
    ),
    "one pod: n alternatives": _one(
        lambda n: {"affinity": on(*([wanted("example.com/size", "In", f"v{i}")] for i in range(n)))}
    ),
    "one pod: n conditions": _one(
        lambda n: {"affinity": on([wanted("example.com/size", "NotIn", f"v{i}") for i in range(n)])}
    ),
    "one pod: n rules": _one(
        lambda n: {"affinity": apart(*(_term(HOST, "NotIn", f"z{i}") for i in range(n)))}
    ),
    "one pod: n spreads": _one(
        lambda n: {"topologySpreadConstraints": [_spread_over(ZONE, i) for i in range(n)]}
    ),
    "one pod: n soft spreads": _one(
        lambda n: {"topologySpreadConstraints": [_soft_spread_over(ZONE, i) for i in range(n)]}
    ),
    "one pod: n preferred nodes": _one(lambda n: _preferring_nodes(range(n))),
    "one pod: n preferred distances": _one(lambda n: _preferring_distance(range(n))),
    "one pod: n tolerations": _one(lambda n: {"tolerations": [{"key": f"t{i}"} for i in range(n)]}),
    "one pod: n host ports": _one(lambda n: {"ports": range(10_000, 10_000 + n)}),
}


def others() -> list[Object]:
    """Return what other tenants run and wait for, the same for every n."""
    found: list[Object] = []
    for number, namespace in enumerate(OTHERS):
        node = f"other-{number}"
        found += a_node(node, zone=f"zone-{'abc'[number % 3]}")
        mine = [*pods(2, f"{namespace}-r", node=node), *pods(20, f"{namespace}-w")]
        for pod in mine:
            pod["metadata"]["namespace"] = namespace
        found += mine
    return found


def running(objects: list[Object]) -> list[Object]:
    """Return pods as if each ran on a node of its own."""
    found: list[Object] = []
    for number, item in enumerate(objects):
        if item["kind"] == "Pod":
            node = f"crowd-{number:04}"
            found += a_node(node, zone=f"zone-{'abc'[number % 3]}")
            item["spec"]["nodeName"] = node
            item["status"] = {"phase": "Running"}
        found.append(item)
    return found


class Planner:
    """Plans a folder with one NodePool."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        fleet = folder / "fleet"
        fleet.mkdir()
        disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
        pool = {"apiVersion": "karpenter.sh/v1", **a_pool("default", disruption=disruption)}
        (fleet / "pool.yaml").write_text(json.dumps(pool))
        (folder / "catalog.json").write_text(json.dumps(TYPES))

    def seconds(self, objects: list[Object]) -> float:
        """Return the CPU seconds of a plan with these objects."""
        snapshot = self._folder / "snapshot.json"
        snapshot.write_text(json.dumps({"kind": "List", "items": [*others(), *objects]}))
        line = [
            "plan", str(self._folder / "fleet"), "-o", "json", "--now", NOW,
            "--snapshot", str(snapshot), "--catalog", str(self._folder / "catalog.json"),
        ]  # fmt: skip
        start = time.process_time()
        with redirect_stdout(io.StringIO()):
            code = reconciler(line)
        if code:
            sys.exit(f"Error: plan ended with {code}")
        return time.process_time() - start


def exponent(seconds: Mapping[int, float], high: int = COUNTS[-1]) -> float:
    """Return the exponent of growth from a quarter of a count to the count."""
    low, more = (max(seconds[n], 1e-3) for n in (high // 4, high))
    return math.log(more / low) / math.log(4)


def measure(seconds: Callable[[list[Object]], float], make: Awkward) -> dict[int, float]:
    """Return the seconds by n: for ``COUNTS``, and for more while those are too short."""
    took = {count: seconds(make(count)) for count in COUNTS}
    while took[(high := max(took)) // 4] < SHORT_S and took[high] < LONG_S and high < COUNT_MAX:
        made = make(4 * high)
        if max(len(json.dumps(item)) for item in made) > OBJECT_MAX:
            break
        took[4 * high] = seconds(made)
    return took


def main(arguments: Sequence[str]) -> int:
    """Print a row for each way; return 1 if an exponent is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--running", action="store_true", help="the pods run already")
    parser.add_argument("text", nargs="*", help="parts of the names of ways")
    chosen = parser.parse_args(arguments)
    too_fast: list[str] = []
    print(f"{'':42}" + "".join(f"{count:>8}" for count in COUNTS) + "  exponent")
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(Path(folder))
        planner.seconds([])
        base = min(planner.seconds([]) for _ in range(3))

        def seconds(made: list[Object]) -> float:
            return planner.seconds(running(made) if chosen.running else made) - base

        for name, make in WAYS.items():
            if chosen.text and not any(text in name for text in chosen.text):
                continue
            took = measure(seconds, make)
            high = max(took)
            grows, is_short = exponent(took, high), took[high // 4] < SHORT_S
            shown = f"({grows:.1f})" if is_short else f"{grows:.2f}"
            row = "".join(f"{took[count]:8.2f}" for count in COUNTS)
            more = "".join(f"  n = {n}: {took[n]:.2f} s" for n in took if n not in COUNTS)
            print(f"{name:42}{row}{shown:>10}{more}", flush=True)
            if not is_short and grows > EXPONENT_MAX:
                too_fast.append(name)
    return 1 if too_fast else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
