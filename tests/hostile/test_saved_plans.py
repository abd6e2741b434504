"""Saved plans that were forged, edited, damaged or overtaken by events.

An attacker who can write the file of a plan can also write its digest, so most of these files have
the right one. Nothing must be applied that the planner did not just decide.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reconciler.cli.main import main
from reconciler.engine.observation import observe
from reconciler.engine.reconcile import owner_of
from reconciler.model.errors import StalePlanError, UnreadableError
from reconciler.plan.approval import encode_saved_plan, plan_differences, read_saved_plan
from reconciler.plan.plancache import PlanCache
from reconciler.plan.value.plan import Plan, to_json
from tests.cli.test_end_to_end import Shop, shop
from tests.engine.crashes import CutError, Points
from tests.engine.faults import commit_drift, launches, three_nodes
from tests.engine.test_crash import LARGE
from tests.engine.world import World, a_deployment, a_node_class, a_pool, a_world
from tests.hostile.threats import Threat, attack

__all__ = ("shop",)

QUIET = ("-q", "--interval", "100ms")


def plan_of(world: World) -> Plan:
    """Return the plan that a preview makes of the world as it is."""
    engine = world.engine()
    desired = engine.source.read()
    seen = observe(engine.ports, desired.node_pools, owner_of(desired.settings))
    store = world.store
    return desired.plan(
        seen, store.unavailable(seen.at), store.objects(), store.serial(), PlanCache()
    )


def forged(plan: Plan, change: Callable[[dict[str, Any]], None]) -> Plan:
    """Return a forged plan: changed, with a matching digest."""
    data = json.loads(encode_saved_plan(plan))
    change(data)
    return read_saved_plan(sealed(data), "plan.json")


def sealed(data: dict[str, Any]) -> bytes:
    """Return the file of a plan with the matching digest."""
    del data["digest"]
    content = to_json(msgspec.json.decode(json.dumps(data), type=Plan))
    return json.dumps({**json.loads(content), "digest": sha256(content).hexdigest()}).encode()


def touched(world: World) -> tuple[Any, ...]:
    """Return everything that an apply could have changed."""
    commands = [(c.id, c.phase) for c in world.store.commands()]
    tainted = sorted(n for n, node in _shelf(world).items() if "disrupted" in str(node))
    return (launches(world), sorted(world.cloud.running_instances()), commands, tainted)


def _shelf(world: World) -> dict[str, Any]:
    kept = world.shelf.read("cluster")
    return {"cluster": kept} if kept else {}


def drifted() -> World:
    """Return three drifted nodes; budgets allow one of them at a time."""
    world = three_nodes()
    commit_drift(world, budget="1")
    return world


def add_launches(plan: dict[str, Any]) -> None:
    """Add four launches of the largest type, as copies of one that was planned."""
    (claim, *_), (action, *_) = plan["nodeClaims"], plan["actions"]
    for number in range(4):
        name = f"{claim['name']}-{number}"
        launch = {**claim["launch"], "instanceType": "m7i.xlarge", "price": 0.0001}
        plan["nodeClaims"].append(
            {**claim, "name": name, "instanceTypes": ["m7i.xlarge"], "launch": launch}
        )
        plan["actions"].append({**action, "id": f"provision/{name}", "nodeClaim": name})


def widen(plan: dict[str, Any]) -> None:
    for entry in plan["nodeClaims"][0]["requirements"]:
        if entry["key"] == "node.kubernetes.io/instance-type":
            entry["values"] = ["m7i.xlarge"]


def as_spot(plan: dict[str, Any]) -> None:
    for entry in plan["nodeClaims"][0]["requirements"]:
        if entry["key"] == "karpenter.sh/capacity-type":
            entry["values"] = ["spot"]


FORGED_LAUNCHES: dict[str, Callable[[dict[str, Any]], None]] = {
    "four more launches": add_launches,
    "another instance type": widen,
    "another capacity type": as_spot,
    "another zone": lambda p: p["nodeClaims"][0]["launch"].update(zone="us-east-1b"),
    "another label": lambda p: p["nodeClaims"][0]["labels"].update(trusted="true"),
    "another taint": lambda p: p["nodeClaims"][0].update(
        taints=[{"key": "a", "effect": "NoExecute"}]
    ),
    "another image": lambda p: p["nodeClasses"][0]["images"][0].update(id="ami-00000000000000bad"),
    "another subnet": lambda p: p["nodeClasses"][0].update(subnets=["subnet-bad"]),
    "another security group": lambda p: p["nodeClasses"][0].update(securityGroups=["sg-bad"]),
    "another user data": lambda p: p["nodeClasses"][0]["spec"].update(userData="sha256:00"),
    "another tag": lambda p: p["nodeClasses"][0]["spec"].update(tags={"owner": "somebody"}),
    "another node class": lambda p: p["nodeClaims"][0].update(nodeClass="other"),
    "fewer launches": lambda p: p.update(nodeClaims=[], actions=[]),
}


@pytest.fixture(scope="module")
def waiting() -> World:
    """Return a world with pending pods and no nodes; rejections do not change it."""
    return a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 2))


@attack(Threat.PLAN, "a plan file with copied input digests and other launches")
@pytest.mark.parametrize("change", FORGED_LAUNCHES.values(), ids=FORGED_LAUNCHES)
def test_forged_launches_are_refused(
    waiting: World, change: Callable[[dict[str, Any]], None]
) -> None:
    plan = forged(plan_of(waiting), change)
    with pytest.raises(StalePlanError):
        waiting.engine().run_once(approved=plan)
    assert touched(waiting) == (0, [], [], [])


@pytest.fixture(scope="module")
def rolling() -> World:
    """Return three drifted nodes of which budgets allow one; rejections do not change them."""
    return drifted()


def take_all(plan: dict[str, Any]) -> None:
    """Add one forceful command that removes every node, whatever the budget."""
    (command,) = plan["commands"]
    waiting = plan["deferred"]
    command["nodes"] += [d["node"] for d in waiting]
    command["nodeClaims"] += [d["nodeClaim"] for d in waiting]
    command.update(forceful=True, decision="delete", replacements=[])


def as_forceful(plan: dict[str, Any]) -> None:
    plan["commands"][0].update(forceful=True)


def as_removal(plan: dict[str, Any]) -> None:
    """Remove the node without a replacement."""
    plan["commands"][0].update(decision="delete", replacements=[])
    plan["nodeClaims"] = []
    removals = [a for a in plan["actions"] if a["kind"] == "terminate"]
    plan["actions"] = [a | {"dependsOn": [], "wave": 0} for a in removals]


def of_another_node(plan: dict[str, Any]) -> None:
    other = plan["deferred"][0]
    plan["commands"][0].update(nodes=[other["node"]], nodeClaims=[other["nodeClaim"]])


FORGED_COMMANDS: dict[str, Callable[[dict[str, Any]], None]] = {
    "every node, forceful": take_all,
    "forceful": as_forceful,
    "without a replacement": as_removal,
    "another node": of_another_node,
    "another reason": lambda p: p["commands"][0].update(reason="Expired"),
    "without its order": lambda p: [a.update(dependsOn=[]) for a in p["actions"]],
    "no command": lambda p: p.update(commands=[]),
}


@attack(Threat.PLAN, "a plan file with copied input digests and other disruption commands")
@pytest.mark.parametrize("change", FORGED_COMMANDS.values(), ids=FORGED_COMMANDS)
def test_forged_commands_are_refused(
    rolling: World, change: Callable[[dict[str, Any]], None]
) -> None:
    before = touched(rolling)
    plan = forged(plan_of(rolling), change)
    with pytest.raises(StalePlanError):
        rolling.engine().run_once(approved=plan)
    assert touched(rolling) == before
    assert len(before[1]) == 3


@attack(Threat.PLAN, "a forceful removal in a plan file against a budget of 0")
def test_a_budget_of_zero_holds_against_a_forged_removal() -> None:
    world = three_nodes()
    commit_drift(world, budget="0")
    honest = plan_of(world)
    assert honest.commands == ()
    before = touched(world)

    def remove(plan: dict[str, Any]) -> None:
        victim = plan["deferred"][0]
        plan["commands"] = [
            {
                "id": "forged", "reason": "Drifted", "decision": "delete", "forceful": True,
                "nodes": [victim["node"]], "nodeClaims": [victim["nodeClaim"]],
            }
        ]  # fmt: skip
        plan["actions"] = [
            {"id": "terminate/x", "kind": "terminate", "command": "forged", "node": victim["node"]}
        ]

    with pytest.raises(StalePlanError, match=r"no longer planned: delete .*Drifted.*budget"):
        world.engine().run_once(approved=forged(honest, remove))
    assert touched(world) == before


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each leaf; of a list, those of the first entry stand for all."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, (*path, key))
    elif isinstance(value, list) and value:
        yield from leaves(value[0], (*path, 0))
    else:
        yield path


def mutated(data: dict[str, Any], path: tuple[Any, ...]) -> None:
    """Change one leaf to another value of its type."""
    *above, last = path
    at: Any = data
    for step in above:
        at = at[step]
    value = at[last]
    at[last] = (
        not value if isinstance(value, bool)
        else value + 1 if isinstance(value, (int, float))
        else ["x"] if isinstance(value, list)
        else {"x": "y"} if isinstance(value, dict)
        else "2031-01-01T00:00:00Z" if isinstance(value, str) and re.match(r"20\d\d-", value)
        else f"{value or ''}x"
    )  # fmt: skip


def outcome(world: World) -> tuple[Any, ...]:
    """Return the effects, without the generated names of each world."""
    commands = [(c.reason, c.decision, len(c.node_claims)) for c in world.store.commands()]
    specs = sorted(msgspec.json.encode(c.spec) for c in world.claims.values())
    return (launches(world), world.fleet(), commands, specs)


@pytest.mark.exhaustive
@attack(Threat.PLAN, "a plan file in which any one value was changed")
def test_any_changed_value_is_refused_or_has_no_effect() -> None:
    """Every leaf in turn; accepted changes are then combined in one plan and applied.

    Its effects equal those of an unmodified plan in an identical world.
    """
    world, twin = drifted(), drifted()
    honest = plan_of(world)
    assert honest.commands
    assert honest.node_claims
    assert len(plan_of(twin).commands) == len(honest.commands)
    base = json.loads(encode_saved_plan(honest))
    before, harmless, refused = touched(world), [], 0
    for path in leaves(base):
        data = json.loads(encode_saved_plan(honest))
        if path == ("digest",):
            continue
        mutated(data, path)
        with pytest.raises(UnreadableError, match=r"changed after it was saved|not a plan"):
            read_saved_plan(json.dumps(data).encode(), "plan.json")
        try:
            plan = read_saved_plan(sealed(data), "plan.json")
            if not plan_differences(plan, honest):
                harmless.append(path)
                continue
            world.engine().run_once(approved=plan)
        except (UnreadableError, StalePlanError, msgspec.ValidationError):
            refused += 1
        else:
            pytest.fail(f"carried out: {path}")
        assert touched(world) == before, path
    assert refused > len(harmless)
    together = json.loads(encode_saved_plan(honest))
    for path in harmless:
        mutated(together, path)
    world.engine().run_once(approved=read_saved_plan(sealed(together), "plan.json"))
    twin.engine().run_once(approved=plan_of(twin))
    assert outcome(world) == outcome(twin)
    effects = {"nodeClaims", "commands", "nodeClasses", "inputs"}
    let_through = {p for p in harmless if p[0] in effects and "equalCandidates" not in p}
    assert {p[-1] for p in let_through} <= {"name", "id", "score", "savingsPerEviction"}


EXTREMES: tuple[Any, ...] = (
    -1,
    2**62,
    1e308,
    -1e308,
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59Z",
)


@attack(Threat.PLAN, "a plan file with the largest and smallest numbers and times, well sealed")
def test_no_extreme_value_of_a_plan_is_an_internal_error() -> None:
    """Guards: the types of ``Plan``, and the comparison with the plan that is made now."""
    world = drifted()
    honest = plan_of(world)
    base = json.loads(encode_saved_plan(honest))
    before, refused = touched(world), 0
    for path in leaves(base):
        for extreme in EXTREMES:
            data = json.loads(encode_saved_plan(honest))
            at: Any = data
            for step in path[:-1]:
                at = at[step]
            if path == ("digest",) or isinstance(at[path[-1]], bool):
                continue
            if isinstance(at[path[-1]], str) != isinstance(extreme, str):
                continue
            at[path[-1]] = extreme
            try:
                plan = read_saved_plan(sealed(data), "plan.json")
                refused += bool(plan_differences(plan, honest))
            except (UnreadableError, msgspec.ValidationError):
                refused += 1
    assert refused
    assert touched(world) == before


FOREIGN: dict[str, Callable[[dict[str, Any]], None]] = {
    "another release": lambda p: p["inputs"].update(engine="0.0.1"),
    "another revision": lambda p: p["inputs"].update(git="0" * 32),
    "another catalog": lambda p: p["inputs"].update(catalog="0" * 32),
    "other settings": lambda p: p["inputs"].update(settings="0" * 32),
    "another cluster": lambda p: p["inputs"].update(snapshot="0" * 32),
    "no inputs": lambda p: p["inputs"].update(dict.fromkeys(p["inputs"], "")),
    "a node of another owner": lambda p: p["commands"][0].update(
        nodes=["ip-10-0-0-9.ec2.internal"], nodeClaims=["stranger-1"]
    ),
    "launch parameters of no node class": lambda p: p["nodeClasses"][0]["spec"].update(
        role="administrator", userData="#!/bin/sh"
    ),
}


@attack(Threat.PLAN, "a plan of another release, revision, cluster or owner, well sealed")
@pytest.mark.parametrize("change", FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_plan_is_refused(
    rolling: World, change: Callable[[dict[str, Any]], None]
) -> None:
    """Guards: ``changed_inputs`` and ``plan_differences``."""
    before = touched(rolling)
    with pytest.raises((StalePlanError, UnreadableError)):
        rolling.engine().run_once(approved=forged(plan_of(rolling), change))
    assert touched(rolling) == before


ORDERS: dict[str, Callable[[list[dict[str, Any]]], None]] = {
    "two actions of one name": lambda actions: actions.append(actions[0]),
    "an action that waits for none": lambda actions: actions[-1].update(dependsOn=["nowhere"]),
    "an action that waits for itself": lambda actions: actions[-1].update(
        dependsOn=[actions[-1]["id"]]
    ),
    "a circle": lambda actions: [
        one.update(dependsOn=[other["id"]])
        for one, other in zip(actions, [*actions[1:], actions[0]], strict=True)
    ],
}


@attack(Threat.PLAN, "a plan file whose actions wait for each other, themselves or nothing")
@pytest.mark.parametrize("change", ORDERS.values(), ids=ORDERS)
def test_actions_without_an_order_are_not_a_plan(
    rolling: World, change: Callable[[list[dict[str, Any]]], None]
) -> None:
    """Guard: ``_fault_of_order``."""
    with pytest.raises(UnreadableError, match=r"not a plan: (two actions|an action waits)"):
        forged(plan_of(rolling), lambda plan: change(plan["actions"]))


def test_a_plan_is_accepted_while_its_inputs_are_unchanged() -> None:
    world = drifted()
    plan = plan_of(world)
    world.clock.advance(1200)
    done = world.engine().run_once(approved=read_saved_plan(encode_saved_plan(plan), "plan.json"))
    assert done.plan.digest == plan.digest
    assert len(done.plan.commands) == 1
    assert world.store.plan(plan.digest).carried_out_at == world.clock.now()


@attack(Threat.PLAN, "a plan that was approved before its disruption window closed")
def test_a_closed_window_makes_the_plan_stale() -> None:
    world = three_nodes()
    opens = world.clock.now()
    budgets = [
        {"nodes": "1", "schedule": f"{opens.minute} {opens.hour} * * *", "duration": "10m"},
        {"nodes": "0", "schedule": f"{(opens + timedelta(minutes=10)).minute} "
                                   f"{(opens + timedelta(minutes=10)).hour} * * *",
         "duration": "23h50m"},
    ]  # fmt: skip
    world.git.commit(
        a_node_class(),
        a_pool("web", labels={"version": "2"}, budgets=budgets, template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
    )
    plan = plan_of(world)
    assert len(plan.commands) == 1
    world.clock.advance(1200)
    before = touched(world)
    with pytest.raises(StalePlanError, match=r"no longer planned: replace .*: deferred by"):
        world.engine().run_once(approved=plan)
    assert touched(world) == before


@attack(Threat.PLAN, "an image that the account published after the approval")
def test_a_new_image_makes_the_plan_stale(waiting: World) -> None:
    plan = plan_of(waiting)
    older = msgspec.structs.replace(
        plan,
        node_classes=tuple(
            msgspec.structs.replace(c, images=c.images[1:]) for c in plan.node_classes
        ),
    )
    with pytest.raises(StalePlanError, match=r"EC2NodeClass default differs: images"):
        waiting.engine().run_once(approved=older)
    assert launches(waiting) == 0


@attack(Threat.PLAN, "a second approval of nodes, by a plan that was interrupted")
def test_an_interrupted_plan_is_finished_and_starts_nothing_new() -> None:
    """Two nodes drift; the plan takes one. Resumed, it must not go on to the second."""
    world = drifted()
    plan = plan_of(world)
    world.engine().run_once(approved=plan)
    (begun,) = world.store.commands()
    result = world.engine().converge(approved=plan)
    assert result.under_way == 0
    assert result.unapproved > 0, "what the next plan has to be asked for"
    assert sum(c.is_true("Initialized") for c in world.claims.values()) == 3
    gone = set(begun.node_claims)
    assert not gone & set(world.claims)
    replaced = [c for c in world.claims.values() if c.metadata.labels.get("version") == "2"]
    assert len(replaced) == 1


CUTS = (
    "after store.put_plan",
    "after store.put_command",
    "after cluster.taint",
    "after journal.begin",
    "before ec2.CreateFleet",
    "after ec2.CreateFleet",
)
"""Points of the first pass of an approved plan, in the order in which they first occur."""


def begun(points: Points, world: World, plan: Plan) -> tuple[int, list[str]]:
    """Run the first pass of an approved plan; return the points before it and those in it."""
    before = len(points.names)
    world.engine().run_once(approved=plan)
    return before, points.names[before:]


@pytest.mark.exhaustive
@attack(Threat.PLAN, "a process that is killed at any point of an approved plan, and restarted")
def test_an_approved_plan_interrupted_anywhere_is_finished_and_not_exceeded() -> None:
    """The plan takes one of three drifted nodes: resumed, it ends with one replaced or none."""
    points = Points()
    world = points.wrap(drifted())
    _, names = begun(points, world, plan_of(world))
    for kind in CUTS:
        points = Points()
        world = points.wrap(drifted())
        plan, old = plan_of(world), set(world.instances())
        cut = len(points.names) + names.index(kind) + 1

        def kill(number: int, cut: int = cut) -> None:
            if number == cut:
                raise CutError

        points.at = kill
        with pytest.raises(CutError):
            world.engine().run_once(approved=plan)
        points.at = lambda _: None
        result = world.engine().converge(approved=plan)
        assert result.under_way == 0, kind
        living = set(world.instances())
        assert len(living) == 3, kind
        assert len(old - living) <= 1, kind
        is_before_any_effect = names.index(kind) <= names.index("after store.put_plan")
        if is_before_any_effect:
            assert len(old - living) == 1, f"{kind}: nothing was begun, so all of it is carried out"


def at_another_time(by: timedelta) -> Callable[[dict[str, Any]], None]:
    """Return a change of the time at which a plan was made."""

    def change(plan: dict[str, Any]) -> None:
        made = datetime.fromisoformat(plan["at"])
        plan["at"] = (made + by).isoformat().replace("+00:00", "Z")

    return change


@attack(Threat.PLAN, "a plan that was applied, with another time so that it seems to be a new one")
@pytest.mark.parametrize("by", [timedelta(hours=1), timedelta(days=-400)], ids=["later", "earlier"])
def test_another_time_does_not_make_a_plan_new(by: timedelta) -> None:
    """Guard: ``plan_differences``. The digest is another one, so no record shows that it ran."""
    world = drifted()
    plan = plan_of(world)
    world.engine().converge(approved=plan)
    edited = forged(plan, at_another_time(by))
    assert edited.digest != plan.digest
    before = touched(world)
    with pytest.raises(StalePlanError):
        world.engine().run_once(approved=edited)
    assert touched(world) == before


@attack(Threat.PLAN, "a plan with another time, applied while nothing else has changed")
def test_another_time_causes_nothing_but_what_is_planned_now() -> None:
    """Whoever edits the file can approve the present decision of the planner, and no other."""
    world, twin = drifted(), drifted()
    world.engine().run_once(approved=forged(plan_of(world), at_another_time(timedelta(minutes=1))))
    twin.engine().run_once(approved=plan_of(twin))
    assert outcome(world) == outcome(twin)


@attack(Threat.PLAN, "a plan of the future, so that it is never older than the recorded history")
def test_a_plan_of_the_future_is_refused(shop: Shop, tmp_path: Path) -> None:
    """Guard: ``AHEAD_MAX``."""
    out = str(tmp_path / "plan.json")
    shop.run("plan", "--out", out)
    data = json.loads(Path(out).read_bytes())
    at_another_time(timedelta(minutes=10))(data)
    late = write(tmp_path / "late.json", sealed(data))
    assert main([*shop.words("apply", "--plan", late, *QUIET)]) == 4
    assert "which is in the future" in shop.capsys.readouterr().err
    assert shop.cloud.running_instances() == {}


def write(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from tests.cli.test_plan import CATALOG, DEPLOYMENT, a_fleet

    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    return a_fleet(tmp_path, DEPLOYMENT, CATALOG)


def saved(fleet: Path, *more: str) -> dict[str, Any]:
    """Save a plan next to the fleet and return its content."""
    out = fleet.parent / "plan.json"
    catalog = str(fleet.parent / "catalog.json")
    assert main(["plan", str(fleet), "--catalog", catalog, "--out", str(out), *more]) == 0
    data: dict[str, Any] = json.loads(out.read_bytes())
    return data


def _with(**fields: Any) -> Callable[[dict[str, Any]], bytes]:
    return lambda data: sealed({**data, **fields})


def _written(**fields: Any) -> Callable[[dict[str, Any]], bytes]:
    return lambda data: json.dumps({**data, **fields}).encode()


GAP = {
    "limited": False,
    "lowerBound": 1.0,
    "minimum": 1.0,
    "pods": 1,
    "pricePerHour": 2.0,
    "unschedulable": 0,
    "parts": [{"change": "a", "constraint": "b", "owner": "", "pricePerHour": 1e308}],
}
BOUND = {"lowerBound": 1.0, "boundGap": 1.0, "boundHeldBy": "Packing"}
BAD_FILES: dict[str, tuple[Callable[[dict[str, Any]], bytes], str]] = {
    "empty": (lambda _: b"", "not a plan"),
    "not JSON": (lambda _: b"\x00\xff\xfe", "not a plan"),
    "not UTF-8": (lambda d: json.dumps(d).encode().replace(b'"at"', b'"\xff"'), "not a plan"),
    "a lone surrogate": (lambda d: json.dumps({**d, "fleet": "\ud800"}).encode(), "not a plan"),
    "truncated": (lambda d: json.dumps(d).encode()[:-40], "not a plan"),
    "a list": (lambda _: b"[]", "not a plan"),
    "deeply nested": (lambda _: b'{"changes": ' + b"[" * 200_000, "not a plan"),
    "a deeply nested value": (
        lambda d: (
            json.dumps({**d, "x": 0}).replace('"x": 0', '"x": ' + "[" * 9000 + "]" * 9000).encode()
        ),
        "reconciler plan --out",
    ),
    "a number beyond all": (
        lambda d: json.dumps(d).replace('"serial": 0', '"serial": 1e400').encode(),
        "not a plan",
    ),
    "a gap beyond all": (
        lambda d: json.dumps({**d, "gap": GAP, "cost": {**d["cost"], **BOUND}}).encode(),
        "a number or a time that no plan has",
    ),
    "a choice of great length": (_written(comparedWith="x" * 100_000), "not a plan"),
    "a text for a list": (lambda d: json.dumps({**d, "actions": "all"}).encode(), "not a plan"),
    "a moment without a zone": (
        lambda d: json.dumps({**d, "at": "2026-01-01T00:00:00"}).encode(),
        "not a plan",
    ),
    "no digest": (
        lambda d: json.dumps({k: v for k, v in d.items() if k != "digest"}).encode(),
        "no digest",
    ),
    "a wrong digest": (lambda d: json.dumps({**d, "digest": "0" * 64}).encode(), "was changed"),
    "a digest of another type": (lambda d: json.dumps({**d, "digest": 1}).encode(), "was changed"),
    "edited": (lambda d: json.dumps({**d, "nodeClaims": []}).encode(), "was changed after"),
    "content of its own": (
        lambda d: json.dumps({**d, "sourcePath": "/etc"}).encode(),
        "fields that are unknown",
    ),
    "another kind": (_with(kind="Order"), "not a plan of reconciler"),
    "a record of what was carried out": (_with(approvedAs="0" * 12), "applied already"),
    "the text output of plan": (lambda _: b"web at abc\n  + launch 1", "not a plan"),
}


@attack(Threat.PLAN, "a malformed plan file")
@pytest.mark.parametrize(("content", "expected"), BAD_FILES.values(), ids=BAD_FILES)
def test_a_file_that_is_not_a_plan_is_refused_in_one_line(
    fleet: Path,
    capsys: pytest.CaptureFixture[str],
    content: Callable[[dict[str, Any]], bytes],
    expected: str,
) -> None:
    data = saved(fleet)
    file = write(fleet.parent / "bad.json", content(data))
    capsys.readouterr()
    assert main(["apply", file, str(fleet)]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert expected in output.err
    assert output.err.count("\n") == 1
    assert len(output.err) < 500
    assert not (fleet / ".reconciler").exists(), "nothing is opened for a file that is not a plan"


@attack(Threat.PLAN, "a plan file larger than any plan")
def test_reading_stops_at_the_size_limit(
    fleet: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(fleet)
    capsys.readouterr()
    monkeypatch.setattr("reconciler.plan.approval.SIZE_MAX", 1000)
    assert main(["apply", str(fleet.parent / "plan.json"), str(fleet)]) == 1
    assert "maximum size of a saved plan" in capsys.readouterr().err


@attack(Threat.PLAN, "a plan file that names the folder of the fleet itself")
def test_a_plan_does_not_contain_the_path_of_its_fleet(
    fleet: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = saved(fleet)
    assert str(fleet) not in json.dumps(data)
    elsewhere = fleet.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    capsys.readouterr()
    assert main(["apply", "../plan.json"]) == 1
    assert "pass the fleet folder: `reconciler apply ../plan.json FOLDER`" in (
        capsys.readouterr().err
    )
    assert list(elsewhere.iterdir()) == []


@attack(Threat.PLAN, "a plan of another fleet")
def test_a_plan_of_another_fleet_is_refused(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved(fleet, "--set", "fleet=other")
    capsys.readouterr()
    assert main(["apply", str(fleet.parent / "plan.json"), str(fleet)]) == 1
    assert 'belongs to fleet "other", but this is fleet "fleet"' in capsys.readouterr().err


@attack(Threat.PLAN, "a symbolic link in place of a saved plan")
def test_a_symbolic_link_is_replaced_and_not_written_through(fleet: Path) -> None:
    target = fleet.parent / "victim"
    target.write_text("precious")
    (fleet.parent / "plan.json").symlink_to(target)
    saved(fleet)
    assert target.read_text() == "precious"
    assert not (fleet.parent / "plan.json").is_symlink()


@attack(Threat.PLAN, "another user who reads or replaces a saved plan")
def test_a_saved_plan_is_readable_only_by_its_owner(fleet: Path) -> None:
    before = os.umask(0)
    try:
        saved(fleet)
    finally:
        os.umask(before)
    assert (fleet.parent / "plan.json").stat().st_mode & 0o777 == 0o600


def test_a_plan_that_cannot_be_saved_leaves_nothing_behind(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet.parent / "plan.json").mkdir()
    before = sorted(fleet.parent.iterdir())
    catalog = str(fleet.parent / "catalog.json")
    words = ["plan", str(fleet), "--catalog", catalog]
    assert main([*words, "--out", str(fleet.parent / "plan.json")]) == 1
    assert main([*words, "--out", str(fleet.parent / "a\0b")]) == 1
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(fleet.parent.iterdir()) == before


def test_a_failed_write_keeps_the_previous_plan(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = saved(fleet)
    names = sorted(fleet.parent.iterdir())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AssertionError):
        saved(fleet)
    assert sorted(fleet.parent.iterdir()) == names
    assert json.loads((fleet.parent / "plan.json").read_bytes()) == first


@attack(Threat.PLAN, "an approved plan that is applied through a pipeline, edited, and repeated")
def test_a_saved_plan_can_be_applied(shop: Shop, tmp_path: Path) -> None:
    out = str(tmp_path / "plan.json")
    shop.run("plan", "--out", out)
    data = json.loads(Path(out).read_bytes())
    assert len(data["nodeClaims"]) == 2

    add_launches(data)
    bad = write(tmp_path / "bad.json", sealed(data))
    assert main([*shop.words("apply", "--plan", bad, *QUIET)]) == 4
    assert "no longer planned: launch of m7i.xlarge" in shop.capsys.readouterr().err
    assert shop.cloud.running_instances() == {}

    shop.commit(3)
    assert main([*shop.words("apply", "--plan", out, *QUIET)]) == 4
    assert "git changed" in shop.capsys.readouterr().err
    assert shop.cloud.running_instances() == {}

    shop.commit(2)
    stopped = main(shop.words("apply", "--plan", out, *QUIET, "--timeout", "1ms"))
    assert (stopped, len(shop.cloud.running_instances())) == (1, 2), "begun, and out of time"
    shop.run("apply", "--plan", out, *QUIET)
    assert shop.rests(2)
    planned = {claim["launch"]["instanceType"] for claim in data["nodeClaims"][:2]}
    assert {i.instance_type for i in shop.cloud._account.backend.all_instances()} == planned

    assert main([*shop.words("apply", "--plan", out, *QUIET)]) == 4
    assert "it was already applied" in shop.capsys.readouterr().err
    assert shop.rests(2)
