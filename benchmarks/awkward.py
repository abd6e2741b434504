"""How the time of a plan grows with the awkwardness of one tenant's pods.

``python -m benchmarks.awkward [--running] [--simulate] [TEXT ...]`` plans a small cluster of other
tenants with n = 50, 100, 200 and 400 pods of one tenant, whose pods are awkward in one way: each
has a rule of its own, a topology key of its own, and so on; or one pod has n of them. They wait for
nodes or, with ``--running``, run already, one on a node. With ``--simulate``, the longest pass of
a simulated half hour is measured instead: there are more passes as well where there is more to do,
which delays nobody. No larger n is tried after a run of ``RUN_S``. TEXT selects ways by names.

Each row shows the CPU seconds that ``reconciler plan`` needs in this process for each n, without
those for n = 0, and the exponent of their growth between 100 and 400. An exponent says little if
the time is short. Where it is shorter than ``SHORT_S`` for 100, n is multiplied by 4 until it is
not, and the row ends with the exponent between the last two. It is in parentheses if ``COUNT_MAX``
is reached before, or if no API server stores so large a pod. The command fails if an exponent
exceeds ``EXPONENT_MAX``.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, Final

from benchmarks.awkwardpods import WAYS, Awkward
from reconciler.cli.main import main as reconciler
from reconciler.simulate import driver
from tests.placement.builders import TYPES, Object, a_node, a_pool, pods
from tests.placement.devices import a_gpu_type, a_template, gpus

COUNTS: Final = (50, 100, 200, 400)
EXPONENT_MAX: Final = 1.3
SHORT_S: Final = 0.15
NOW: Final = "2026-03-01T12:00:00Z"
COUNT_MAX: Final = 25_600
LONG_S: Final = 10.0
"""No larger n is tried after a plan of this time."""
RUN_S: Final = 60.0
OBJECT_MAX: Final = 1_572_864
"""The size in bytes of the largest request that etcd accepts by default (1.5 MiB)."""
DEVICES: Final = a_gpu_type("devices", 64, 30.0, a_template(gpus(16)))
OTHERS: Final = ("shop", "tools", "data", "site")


CONDITIONS: Final = ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")


def ready_node(name: str, number: int) -> list[Object]:
    """Return a Node and its NodeClaim that consolidation may consider.

    A NodePool whose nodes are not ready has none left in its budgets: nothing would be evaluated.
    """
    node, claim = a_node(name, zone=f"zone-{'abc'[number % 3]}")
    since = {"creationTimestamp": "2026-03-01T10:00:00Z"}
    for item, conditions in ((node, ("Ready",)), (claim, CONDITIONS)):
        item["metadata"] |= since
        item["status"]["conditions"] = [
            {"type": name, "status": "True", "lastTransitionTime": "2026-03-01T10:05:00Z"}
            for name in conditions
        ]
    return [node, claim]


def others(*, are_evaluated: bool = True) -> list[Object]:
    """Return what other tenants run and wait for, the same for every n.

    ``are_evaluated`` is whether consolidation considers their nodes.
    """
    found: list[Object] = []
    for number, namespace in enumerate(OTHERS):
        node = f"other-{number}"
        zone = f"zone-{'abc'[number % 3]}"
        found += ready_node(node, number) if are_evaluated else a_node(node, zone=zone)
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
            found += ready_node(node, number)
            item["spec"]["nodeName"] = node
            item["status"] = {"phase": "Running"}
        found.append(item)
    return found


class Planner:
    """Plans a folder with one NodePool, or runs another command on it."""

    def __init__(
        self, folder: Path, *, simulates: bool = False, evaluates_others: bool = True
    ) -> None:
        self._folder = folder
        self._others = others(are_evaluated=evaluates_others)
        self._simulates = simulates
        self._command = ("simulate", "--seeds", "1", "--until", "30m") if simulates else ("plan",)
        self.took = 0.0
        fleet = folder / "fleet"
        fleet.mkdir()
        disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
        pool = {"apiVersion": "karpenter.sh/v1", **a_pool("default", disruption=disruption)}
        (fleet / "pool.yaml").write_text(json.dumps(pool))
        (fleet / "reconciler.yaml").write_text('karpenter: "1.15"\n')  # with claims of devices
        (folder / "catalog.json").write_text(json.dumps([*TYPES, DEVICES]))

    def seconds(self, objects: list[Object]) -> float:
        """Return the CPU seconds of a plan with these objects, or of the longest pass.

        ``took`` has those of the command.
        """
        snapshot = self._folder / "snapshot.json"
        snapshot.write_text(json.dumps({"kind": "List", "items": [*self._others, *objects]}))
        line = [
            *self._command, str(self._folder / "fleet"), "-o", "json", "--now", NOW,
            "--snapshot", str(snapshot), "--catalog", str(self._folder / "catalog.json"),
        ]  # fmt: skip
        gc.collect()
        gc.freeze()  # the objects that a plan was written from are not those of its process
        start = time.process_time()
        with redirect_stdout(io.StringIO()), timed_passes() as passes:
            code = reconciler(line)
        if code:
            sys.exit(f"Error: {self._command[0]} ended with {code}")
        self.took = time.process_time() - start
        return max(passes) if self._simulates else self.took


@contextmanager
def timed_passes() -> Iterator[list[float]]:
    """Yield the CPU seconds of each pass of a simulation that is run meanwhile."""
    passes: list[float] = []
    reconcile = driver.reconcile

    def timed(*arguments: Any) -> Any:
        start = time.process_time()
        try:
            return reconcile(*arguments)
        finally:
            passes.append(time.process_time() - start)

    driver.reconcile = timed
    try:
        yield passes
    finally:
        driver.reconcile = reconcile


def exponent(seconds: Mapping[int, float], high: int = COUNTS[-1]) -> float:
    """Return the exponent of growth from a quarter of a count, or the first, to the count."""
    first = high // 4 if high // 4 in seconds else min(seconds)
    low, more = (max(seconds[n], 1e-3) for n in (first, high))
    return math.log(more / low) / math.log(high / first) if high > first else 0.0


def measure(
    seconds: Callable[[list[Object]], float], make: Awkward, is_long: Callable[[], bool]
) -> dict[int, float]:
    """Return the seconds by n: for ``COUNTS``, and for more while those are too short.

    A run that ``is_long`` is the last.
    """
    took: dict[int, float] = {}
    for count in COUNTS:
        took[count] = seconds(make(count))
        if is_long():
            return took
    while took[(high := max(took)) // 4] < SHORT_S and took[high] < LONG_S and high < COUNT_MAX:
        made = make(4 * high)
        if max(len(json.dumps(item)) for item in made) > OBJECT_MAX:
            break
        took[4 * high] = seconds(made)
        if is_long():
            break
    return took


def main(arguments: Sequence[str]) -> int:
    """Print a row for each way; return 1 if an exponent is too large."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--running", action="store_true", help="the pods run already")
    parser.add_argument("--simulate", action="store_true", help="measure the longest pass of a run")
    parser.add_argument("text", nargs="*", help="parts of the names of ways")
    chosen = parser.parse_args(arguments)
    too_fast: list[str] = []
    print(f"{'':42}" + "".join(f"{count:>8}" for count in COUNTS) + "  exponent")
    with tempfile.TemporaryDirectory() as folder:
        planner = Planner(Path(folder), simulates=chosen.simulate)
        planner.seconds([])
        base = min(planner.seconds([]) for _ in range(3))

        def seconds(made: list[Object]) -> float:
            return planner.seconds(running(made) if chosen.running else made) - base

        for name, make in WAYS.items():
            if chosen.text and not any(text in name for text in chosen.text):
                continue
            took = measure(seconds, make, lambda: planner.took > RUN_S)
            high = max(took)
            grows, is_short = exponent(took, high), took.get(high // 4, SHORT_S) < SHORT_S
            shown = f"({grows:.1f})" if is_short else f"{grows:.2f}"
            row = "".join(f"{took[n]:8.2f}" if n in took else f"{'-':>8}" for n in COUNTS)
            more = "".join(f"  n = {n}: {took[n]:.2f} s" for n in took if n not in COUNTS)
            print(f"{name:42}{row}{shown:>10}{more}", flush=True)
            if not is_short and grows > EXPONENT_MAX:
                too_fast.append(name)
    return 1 if too_fast else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
