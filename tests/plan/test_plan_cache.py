"""A cached plan equals a recomputed one byte for byte, at any time."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import reconciler
from reconciler.catalog.catalog import bundled_catalog
from reconciler.desired.fleet import Fleet, SourceFile, read_fleet
from reconciler.desired.settings.layers import resolve
from reconciler.disruption.gates.consolidatable import LEFT_OVER
from reconciler.disruption.gates.guards import REPLACEMENT_FAILED
from reconciler.model.billing import COMPUTE, SavingsPlanTerms
from reconciler.model.history import DisruptionRecord, History
from reconciler.model.settings import Settings
from reconciler.observed.reader import SnapshotReader
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.plan.make.factscache import FactsCache
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.plancache import PlanCache, steady_until
from reconciler.plan.planning import plan_of
from reconciler.plan.value.plan import Plan, to_json
from tests.disruption.builders import NOW, SIZES, a_catalog, a_node, a_pod, stamp
from tests.examples import examples
from tests.plan.watched import Notes, Present

READS_THE_CLOCK = {
    "catalog/commitments/coverage.py": "plan/plancache.py: the ends of commitments",
    "catalog/adjusted/discovered.py": "plan/plancache.py: what is remembered of memory",
    "diff/drift.py": "diff/drift.py: type_checked_from",
    "disruption/gates/consolidatable.py": "disruption/calendar.py: consolidatable_at",
    "disruption/candidates.py": "disruption/methods/forceful.py: ranks_by_age",
    "disruption/methods/emptiness.py": "disruption/calendar.py: left_over_until",
    "disruption/methods/repairpolicy.py": "disruption/calendar.py: repair_matches",
    "disruption/methods/reboot.py": "disruption/calendar.py: reboots_forgotten_at",
    "disruption/methods/forceful.py": "disruption/calendar.py: expiry, patience_ends, ranks_by_age",
    "disruption/consolidation/flapdamping.py": "disruption/calendar.py: in_memory",
    "disruption/gates/evictioncost.py": "plan/plancache.py: a price of evictions",
    "disruption/gates/policy.py": "disruption/calendar.py: suspensions, windows, ages",
    "disruption/gates/guards.py": "disruption/calendar.py: rests_until",
    "model/history.py": "disruption/calendar.py: the last day, rollouts",
    "model/kubernetes/pod.py": "disruption/calendar.py: protections of pods",
    "model/windows.py": "disruption/calendar.py: suspensions, windows",
    "model/schedule.py": "disruption/calendar.py: steady_until of budgets and windows",
    "placement/nodes/existing.py": "disruption/calendar.py: consolidatable_at",
    "plan/make/findings.py": "plan/plancache.py: due_at",
}
"""Where the present is compared or reckoned with, and who knows when that turns out otherwise."""

DECIDES_NOTHING = {
    "disruption/calendar.py",  # the moments themselves
    "model/kubernetes/eviction.py",  # how a node empties that is going anyhow
    "plan/explain/node.py",  # tells what was decided
    "placement/binding/queue.py",  # of the simulated cluster, which has a clock of its own
    "placement/binding/scheduler.py",  # of the same clock
    "placement/nodes/template.py",  # what is held now, no moment
    "plan/explain/calendar.py",  # not asked for a plan
    "plan/policies.py",  # judges the plan that was made, each time it is shown
    "plan/plancache.py",
    "plan/rest/continuation.py",  # of a clock of its own, for which no plan is kept
    "plan/rest/limits.py",  # of the same clock
    "plan/render/summary.py",  # how many nodes now
    "plan/render/windows.py",  # times as they are written
    "plan/render/wording.py",
}

LATER = st.sampled_from(
    [
        timedelta(0),
        timedelta(microseconds=1),
        timedelta(seconds=1),
        timedelta(seconds=59),
        timedelta(minutes=5),
        timedelta(minutes=30),
        timedelta(hours=1),
        timedelta(hours=9),
        timedelta(days=3),
    ]
)
SCHEDULES = ("0 13 * * *", "0 */2 * * *", "0 9 * * mon-fri", "0 0 30 2 *")


@cache
def catalog() -> Any:
    return a_catalog()


@st.composite
def a_budget(draw: st.DrawFn) -> dict[str, Any]:
    budget: dict[str, Any] = {"nodes": draw(st.sampled_from(["0", "1", "50%", "100%"]))}
    if draw(st.booleans()):
        budget |= {
            "schedule": draw(st.sampled_from(SCHEDULES)),
            "duration": draw(st.sampled_from(["8h", "5m", "1h30m", "2h"])),
        }
    return budget


@st.composite
def a_pool(draw: st.DrawFn, name: str) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "template": {
            "spec": {
                "nodeClassRef": {"group": "example.com", "kind": "NodeClass", "name": "default"},
                "requirements": [
                    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
                ],
                "expireAfter": "Never",
            }
        },
        "disruption": {
            "consolidationPolicy": draw(st.sampled_from(["WhenEmpty", "WhenEmptyOrUnderutilized"])),
            "consolidateAfter": draw(st.sampled_from(["0s", "0s", "10m", "Never"])),
            "budgets": draw(st.lists(a_budget(), min_size=1, max_size=2)),
        },
    }
    if name == "beta" and draw(st.booleans()):
        spec |= {"replicas": draw(st.integers(0, 2))}
        del spec["disruption"]["consolidationPolicy"]
        spec["disruption"]["consolidateAfter"] = "Never"
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": spec,
    }


@st.composite
def some_nodes(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Up to four nodes with their pods, at all ages that rules of the clock ask about."""
    objects: list[dict[str, Any]] = []
    for index in range(draw(st.integers(0, 4))):
        name, age = f"n{index}", timedelta(minutes=draw(st.sampled_from([0, 4, 10, 59, 60, 1430])))
        since = {"status": "True", "lastTransitionTime": stamp(NOW - age)}
        known: list[dict[str, Any]] = [
            {"type": "Drifted", **since},
            {"type": LEFT_OVER, **since},
            {
                "type": REPLACEMENT_FAILED,
                "reason": "a",
                "message": draw(st.sampled_from("123")),
                **since,
            },
        ]
        objects += a_node(
            name,
            draw(st.sampled_from([*SIZES, "unknown"])),
            pool=draw(st.sampled_from(["alpha", "alpha", "beta", "gone"])),
            quiet=age,
            ready=draw(st.booleans()) or draw(st.booleans()),
            initialized=draw(st.integers(0, 5)) > 0,
            claim={"expireAfter": draw(st.sampled_from(["Never", "1h", "24h", "25h"]))},
            conditions=[c for c in known if draw(st.integers(0, 2)) == 0],
            claim_metadata=draw(
                st.sampled_from([{}, {}, {"deletionTimestamp": stamp(NOW), "finalizers": ["f"]}])
            ),
        )
        ready = objects[-2]["status"]["conditions"][0]
        ready["lastTransitionTime"] = stamp(NOW - age)
        objects += [
            draw(a_bound_pod(f"p{index}-{n}", name)) for n in range(draw(st.integers(0, 3)))
        ]
    return objects


@st.composite
def a_bound_pod(draw: st.DrawFn, name: str, node: str) -> dict[str, Any]:
    protection = draw(st.sampled_from(["", "", "true", "7m", "0s", "x"]))
    metadata: dict[str, Any] = {"labels": {"app": draw(st.sampled_from(["a", "b"]))}}
    if protection:
        metadata["annotations"] = {"karpenter.sh/do-not-disrupt": protection}
    if draw(st.integers(0, 6)) == 0:
        metadata["deletionTimestamp"] = stamp(NOW - timedelta(seconds=30))
    started = draw(st.sampled_from([{}, {"startTime": stamp(NOW - timedelta(minutes=5))}]))
    cpu = draw(st.sampled_from(["0.1", "1", "3"]))
    return a_pod(name, node, cpu, metadata=metadata, status=started)


@st.composite
def some_config(draw: st.DrawFn) -> dict[str, Any]:
    """The settings that depend on time."""
    config: dict[str, Any] = {"featureGates": {"NodeRepair": True, "StaticCapacity": True}}
    config["karpenter"] = draw(st.sampled_from(["1.14", "1.15"]))
    disruption: dict[str, Any] = {}
    if draw(st.booleans()):
        disruption["windows"] = [
            {
                "schedule": draw(st.sampled_from(SCHEDULES)),
                "duration": "1h",
                "owner": "us",
                "timeZone": draw(st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"])),
            }
        ]
    if draw(st.booleans()):
        until = stamp(NOW + draw(st.sampled_from([timedelta(minutes=5), timedelta(hours=9)])))
        disruption["suspend"] = [{"owner": "me", "until": until}]
    if draw(st.booleans()):
        disruption["budgets"] = draw(st.lists(a_budget(), min_size=1, max_size=2))
    if draw(st.booleans()):
        config |= {"expirationPolicy": "Graceful", "expirationCeiling": "1h"}
    if draw(st.booleans()):
        config |= draw(
            st.sampled_from(
                [{"minimumAge": "1h"}, {"undoPeriod": "1h"}, {"progressDeadline": "30m"}]
            )
        )
    for place in (config, disruption):
        if draw(st.integers(0, 3)) == 0:
            place["maximumPerDay"] = draw(st.sampled_from(["1", "2", "50%"]))
    return {**config, **({"disruption": disruption} if disruption else {})}


class World(msgspec.Struct, frozen=True):
    """The inputs of a plan, as a loop reads them for each pass."""

    pools: tuple[dict[str, Any], ...]
    objects: tuple[dict[str, Any], ...]
    config: dict[str, Any]
    serial: int = 0
    unavailable: tuple[tuple[str, str, str, str], ...] = ()
    removable: frozenset[str] = frozenset()
    interrupted: dict[str, str] = {}
    counts: bool = False
    taken: tuple[DisruptionRecord, ...] = ()

    def inputs(self, now: datetime, reader: SnapshotReader | None = None) -> Inputs:
        files = [
            SourceFile(f"{p['metadata']['name']}.yaml", json.dumps(p).encode()) for p in self.pools
        ]
        fleet, found = read_fleet(files, any_class=True, allow_empty=True)
        assert [f for f in found if f.severity == "error"] == []
        content = json.dumps({"kind": "List", "items": self.objects}).encode()
        read = reader.read if reader is not None else read_snapshot
        return Inputs(
            fleet=fleet,
            cluster=cluster_state(read(content, "snapshot")),
            catalog=catalog(),
            settings=resolve(self.config, {}).settings,
            now=now,
            any_class=True,
            base=[_pool_that_was("gone"), *self.pools],
            compared_with="records",
            serial=self.serial,
            unavailable=self.unavailable,
            allow_removal=self.removable,
            interrupted=self.interrupted,
            history=History(taken=self.taken) if self.counts else None,
            lists_blockers=not self.counts,  # since when they hold is kept by whoever plans
        )


def _pool_that_was(name: str) -> dict[str, Any]:
    window = {"nodes": "0", "schedule": "0 13 * * *", "duration": "1h"}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": {"spec": {}}, "disruption": {"budgets": [window]}},
    }


@st.composite
def worlds(draw: st.DrawFn) -> World:
    waiting = [
        a_pod(f"w{n}", None, draw(st.sampled_from(["0.5", "3", "99"])))
        for n in range(draw(st.integers(0, 2)))
    ]
    ages = draw(st.lists(st.sampled_from([1, 600, 1439]), max_size=1))
    return World(
        (draw(a_pool("alpha")), draw(a_pool("beta"))),
        (*draw(some_nodes()), *waiting),
        draw(some_config()),
        counts=draw(st.booleans()),
        taken=tuple(DisruptionRecord(NOW - timedelta(minutes=age), "alpha") for age in ages),
    )


@st.composite
def changed(draw: st.DrawFn, world: World) -> World:
    """Return the world after one change, or as it is."""
    changes: list[dict[str, Any]] = [
        {},
        {},
        {"serial": world.serial + 1},
        {"unavailable": (("medium", "zone-a", "on-demand", ""),)},
        {"removable": frozenset({"gone"})},
        {"interrupted": {"claim-n0": "SpotInterruption"}},
        {"config": draw(some_config())},
        {"pools": (draw(a_pool("alpha")), world.pools[-1])},
        {"objects": draw(_other_objects(world.objects))},
        {"objects": draw(_other_objects(world.objects))},
    ]
    return replace(world, **draw(st.sampled_from(changes)))


@st.composite
def _other_objects(draw: st.DrawFn, objects: tuple[dict[str, Any], ...]) -> tuple[Any, ...]:
    """Return the objects with one more, one less, or one that is another."""
    if not objects or draw(st.booleans()):
        return (*objects, a_pod("another", None, draw(st.sampled_from(["1", "8"]))))
    at = draw(st.integers(0, len(objects) - 1))
    item = objects[at]
    labels = {**item["metadata"].get("labels", {}), "app": "changed"}
    unready = {**item["status"], "conditions": [{"type": "Ready", "status": "Unknown"}]}
    others: list[list[dict[str, Any]]] = [
        [],
        [{**item, "metadata": {**item["metadata"], "labels": labels}}],
        [{**item, "status": unready}],
    ]
    return (*objects[:at], *draw(st.sampled_from(others)), *objects[at + 1 :])


@pytest.mark.exhaustive
@settings(max_examples=examples(30), deadline=None)
@given(worlds(), st.data())
def test_cached_results_do_not_change_plans(world: World, data: st.DataObject) -> None:
    cache, reader, now = PlanCache(), SnapshotReader(), NOW

    for _ in range(4):
        inputs = world.inputs(now, reader)
        assert to_json(cache.plan(inputs)) == to_json(plan_of(world.inputs(now)))
        world = data.draw(changed(world))
        now = data.draw(_moments(inputs))


def _moments(inputs: Inputs) -> st.SearchStrategy[datetime]:
    """Return moments from now on, those around the one up to which nothing changes among them."""
    until = steady_until(inputs)
    near = [until - datetime.resolution, until, until + datetime.resolution] if until else []
    later = LATER.map(lambda span: inputs.now + span)
    return st.one_of(later, st.sampled_from(near)) if near else later


@settings(max_examples=examples(60), deadline=None)
@given(worlds(), LATER)
def test_every_time_dependent_rule_announces_when_it_changes(
    world: World, later: timedelta
) -> None:
    inputs = world.inputs(NOW + later)
    notes = Notes(inputs.now)

    plan = plan_of(replace(inputs, now=Present(inputs.now, notes)))

    assert [value for value in _values(replace(plan, at=NOW)) if isinstance(value, Present)] == []
    until = steady_until(inputs)
    if notes.flips:
        assert until is not None
        assert until <= min(notes.flips)


def _values(value: Any) -> Iterator[Any]:
    """Yield everything that a plan says."""
    if isinstance(value, msgspec.Struct):
        value = [getattr(value, name) for name in value.__struct_fields__]
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _values(item)
    else:
        yield value


def test_the_end_of_a_commitment_causes_a_new_plan() -> None:
    ends = NOW + timedelta(days=3)
    plan = SavingsPlanTerms(COMPUTE, 1.0, used_elsewhere=0.0, until=ends)
    inputs = Inputs(
        fleet=Fleet(),
        cluster=ClusterState(),
        catalog=bundled_catalog("us-east-1"),
        settings=Settings(savings_plans=(plan,)),
        now=NOW,
    )

    assert steady_until(inputs) == ends


def test_every_module_that_uses_the_current_time_declares_its_deadlines() -> None:
    root = Path(reconciler.__file__).parent
    floors = ("model", "observed", "catalog", "placement", "disruption", "diff", "plan")
    found = {
        path.relative_to(root).as_posix()
        for floor in floors
        for path in sorted((root / floor).rglob("*.py"))
        if _reckons(ast.parse(path.read_text(encoding="utf-8")))
    }

    assert found - DECIDES_NOTHING == READS_THE_CLOCK.keys()


def _reckons(tree: ast.AST) -> bool:
    operands: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            operands += [node.left, *node.comparators]
        elif isinstance(node, ast.BinOp):
            operands += [node.left, node.right]
    names = [o.id if isinstance(o, ast.Name) else getattr(o, "attr", "") for o in operands]
    return any(name in ("now", "_now") for name in names)


class Counted:
    """Counts the plans that are made, by a phase that each of them goes through."""

    def __init__(self) -> None:
        self.made = 0

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        self.made += phase == "catalog"
        yield


def a_world(**fields: Any) -> World:
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "alpha"},
        "spec": {
            "template": {
                "spec": {
                    "nodeClassRef": {"group": "g.io", "kind": "NodeClass", "name": "default"},
                    "requirements": [],
                    "expireAfter": "Never",
                }
            },
            "disruption": {"consolidateAfter": "10m", "budgets": [{"nodes": "1"}]},
        },
    }
    nodes = a_node("n0", "large", pool="alpha", quiet=timedelta(minutes=4))
    return World((pool,), (*nodes, a_pod("p0", "n0")), **{"config": {}, **fields})


def _plans(cache: PlanCache, *inputs: Inputs) -> tuple[list[Plan], int]:
    counted = Counted()
    return [cache.plan(one, counted) for one in inputs], counted.made


def test_an_unchanged_cluster_is_planned_once() -> None:
    world, cache, reader = a_world(), PlanCache(), SnapshotReader()
    looks = [world.inputs(NOW + timedelta(seconds=30 * n), reader) for n in range(5)]

    plans, made = _plans(cache, *looks)

    assert made == 1
    assert [plan.at for plan in plans] == [look.now for look in looks]
    assert len({to_json(replace(plan, at=NOW)) for plan in plans}) == 1


def test_a_newly_decoded_cluster_is_recognized_by_its_content() -> None:
    world, cache = a_world(), PlanCache()

    _, made = _plans(cache, world.inputs(NOW), world.inputs(NOW), world.inputs(NOW))

    assert made == 1


def test_a_new_plan_is_made_when_consolidate_after_has_passed() -> None:
    world, cache = a_world(), PlanCache()
    due = NOW + timedelta(minutes=6)

    _, before = _plans(cache, world.inputs(NOW), world.inputs(due - datetime.resolution))
    _, then = _plans(cache, world.inputs(due))

    assert (before, then) == (1, 1)


def test_a_plan_that_weighs_evictions_is_made_anew_each_time() -> None:
    world, cache, reader = a_world(config={"evictionCost": 0.1}), PlanCache(), SnapshotReader()
    looks = [world.inputs(NOW + timedelta(seconds=30 * n), reader) for n in range(3)]

    _, made = _plans(cache, *looks)

    assert made == 3


def test_setting_the_clock_back_causes_a_new_plan() -> None:
    world, cache = a_world(), PlanCache()

    _, made = _plans(cache, world.inputs(NOW), world.inputs(NOW - timedelta(seconds=1)))

    assert made == 2


@pytest.mark.parametrize(
    "change",
    [
        {"unavailable": (("large", "zone-a", "on-demand", ""),)},
        {"removable": frozenset({"alpha"})},
        {"interrupted": {"claim-n0": "SpotInterruption"}},
        {"config": {"minimumAge": "1h"}},
        {"objects": ()},
    ],
    ids=str,
)
def test_every_input_of_a_plan_is_compared(change: dict[str, Any]) -> None:
    world, cache = a_world(), PlanCache()

    _, made = _plans(cache, world.inputs(NOW), replace(world, **change).inputs(NOW))

    assert made == 2


@pytest.mark.parametrize(("waiting", "expected"), [(0, 1), (9, 2)], ids=["empty", "with a launch"])
def test_another_serial_matters_only_if_new_nodes_are_named(waiting: int, expected: int) -> None:
    pods = tuple(a_pod(f"w{n}", None, "3") for n in range(waiting))
    world, cache = a_world(), PlanCache()
    world = replace(world, objects=(*world.objects, *pods))

    plans, made = _plans(cache, world.inputs(NOW), replace(world, serial=1).inputs(NOW))

    assert made == expected
    assert [plan.serial for plan in plans] == [0, 1]


@pytest.mark.parametrize(
    "change",
    [
        {"unavailable": (("small", "zone-a", "on-demand", ""),)},
        {"config": {"featureGates": {"NodeOverlay": True}}},
        {"pools": ()},
    ],
    ids=["an offering is refused", "a setting", "no pools"],
)
def test_types_are_collected_again_only_for_other_inputs(change: dict[str, Any]) -> None:
    world, cache = a_world(), FactsCache()

    first, again, other = (
        facts_of(one.inputs(NOW), cache=cache).types
        for one in (world, world, replace(world, **change))
    )

    assert again is first
    assert other is not first
