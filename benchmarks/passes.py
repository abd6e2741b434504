"""The cost of a pass when nothing has changed: ``python -m benchmarks.passes [CASE ...]``.

Writes clusters with the ``make_bench.py`` of the conformance folder (``CONFORMANCE``, by default
beside the checkout) into a temporary folder. For each, a fresh process runs passes of the engine
and measures CPU seconds: the first pass; two over the same cluster, read again a second later; one
after the requests of a pod have changed. A pass is everything except the effects: reading the
cluster's answer (JSON), updating the claims, planning. Planning is also measured separately, as is
recording the workload afterwards. The peak of memory is that of the complete process. Nothing is
asserted.
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
CASES = ("pending-10000", "pending-100000", "fleet-1000", "fleet-10000")
_ONE_CASE = """
import gc, json, resource, sys, time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from msgspec.structs import replace as with_fields
from reconciler.adapters.database.state import open_state
from reconciler.adapters.simulated.conditions import SimulatedClock
from reconciler.adapters.simulated.watched import first_state
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryStateStore
from reconciler.catalog.file import read_catalog
from reconciler.simulate.building import SimulatedFleet
from reconciler.assembly.inputs.watching import NullNotifier
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_pools
from reconciler.engine.reconcile import Mandate, reconcile
from reconciler.engine.workloadtrace import WorkloadRecorder
from reconciler.engine.steps.upkeep import TAGGED
from reconciler.engine.world import World
from reconciler.model.settings import Settings
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import read_snapshot
from reconciler.plan.value.plan import Revision
from reconciler.plan.plancache import PlanCache

gc.set_threshold(200_000, 20, 20)
folder, now = Path(sys.argv[1]), datetime(2026, 3, 1, 12, tzinfo=UTC)
DONE = {TAGGED: "true"}  # a fleet that has run for a while

class Cluster:
    # returns the current text, as an API would; ignores changes
    def __init__(self, text):
        self.text, self._reader = text, SnapshotReader()
    def observe(self, claims, instances):
        return replace(self._reader.read(self.text, "snapshot"), node_claims=tuple(claims))
    def register(self, node, claim): pass
    def initialize(self, node): pass
    def add_finalizer(self, node): pass
    def problem(self): return ""

class Compute:
    def __init__(self, instances): self._instances = instances
    def instances(self): return self._instances
    def look_up(self, ids): return ()

class Timed(PlanCache):
    spent = 0.0
    def plan(self, inputs, *args):
        start = time.process_time()
        made = super().plan(inputs, *args)
        self.spent = time.process_time() - start
        return made

listed = json.loads((folder / "snapshot.json").read_bytes())
text = json.dumps(listed).encode()
pod = next(i for i in listed["items"] if i["kind"] == "Pod")
pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "77m"
other = json.dumps(listed).encode()
del listed, pod
catalog = read_catalog((folder / "catalog.json").read_bytes(), "catalog")
files = [SourceFile(f.name, f.read_bytes()) for f in sorted((folder / "desired").glob("*.yaml"))]
fleet, _ = read_fleet(files, any_class=True)
state = first_state(read_snapshot(text, "snapshot"), now, timedelta(0))
store = MemoryStateStore()
store.put_node_claims([
    with_fields(c, metadata=with_fields(c.metadata, annotations=c.metadata.annotations | DONE))
    for c in state.claims
])
cluster, clock = Cluster(text), SimulatedClock(now)
world = World(clock, Compute(state.instances), cluster, store, MemoryJournal(), NullNotifier())
desired = SimulatedFleet(
    fleet=fleet, head=Revision(), tree="", node_pools=node_pools(fleet), classes={},
    settings=Settings(), catalog=catalog, any_class=True,
)
del state
cache, passes, plans, records = Timed(), [], [], []
recorder = WorkloadRecorder(open_state(str(folder / "state"), "bench", needs_lease=False).trace)
for step in range(4):
    cluster.text = other if step == 3 else text
    gc.collect()
    start = time.process_time()
    result = reconcile(world, desired, Mandate({}, decides=False), cache)
    passes.append(time.process_time() - start)
    plans.append(cache.spent)
    start = time.process_time()
    recorder.record_pass(world, result.seen, desired)
    records.append(time.process_time() - start)
    clock.advance(1)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps({"passes": passes, "plans": plans, "records": records, "peak": peak}))
"""


def measure(folder: Path) -> dict[str, Any]:
    """Return the figures of one case."""
    command = [sys.executable, "-c", _ONE_CASE, str(folder)]
    figures: dict[str, Any] = json.loads(subprocess.check_output(command, text=True, cwd=ROOT))
    return figures


def table_row(case: str, figures: dict[str, Any]) -> str:
    """Return one line of the table: passes, planning alone, recording in percent, peak memory."""
    passes, plans = _cells(figures["passes"]), _cells(figures["plans"])
    shares = zip(figures["records"], figures["passes"], strict=True)
    first, *unchanged, changed = [100 * record / spent for record, spent in shares]
    records = f"{first:5.1f} {min(unchanged):5.1f} {changed:5.1f}"
    return f"{case:16} {passes} | {plans} | {records} {figures['peak']:7.0f}"


def _cells(seconds: list[float]) -> str:
    first, *unchanged, changed = seconds
    again = min(unchanged)
    return f"{first:7.2f} {again:8.2f} {again / first:5.2f} {changed:8.2f} {changed / first:5.2f}"


def main() -> None:
    heading = f"{'first':>7} {'same':>8} {'':5} {'one pod':>8} {'':5}"
    print(
        f"{'CPU s of a pass':16} {heading} | planning alone {'':22} | recording, % {'peak MB':>12}"
    )
    with tempfile.TemporaryDirectory() as folder:
        for case in sys.argv[1:] or CASES:
            maker = [sys.executable, str(BENCH / "make_bench.py"), folder, case]
            subprocess.run(maker, check=True, stdout=subprocess.DEVNULL)
            print(table_row(case, measure(Path(folder) / case)), flush=True)


if __name__ == "__main__":
    main()
