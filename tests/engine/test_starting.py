"""A pass starts exactly the actions of its plan that are ready."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace as fields

import pytest
from msgspec.structs import replace

from reconciler.engine.effects import Effects
from reconciler.engine.observation import observe
from reconciler.engine.reconcile import owner_of
from reconciler.engine.steps.commands import start_commands
from reconciler.engine.steps.starting import start_plan
from reconciler.model.errors import StalePlanError
from reconciler.plan.plancache import PlanCache
from reconciler.plan.value.plan import to_json
from reconciler.ports.journal import Verb
from reconciler.ports.state import RecordedPlan
from tests.engine.faults import commit_drift, tainted, three_nodes
from tests.engine.test_refusing_node import Stubborn
from tests.engine.world import a_deployment, a_pool, a_world


def test_starting_a_plan_again_starts_nothing_twice() -> None:
    world = three_nodes(latencies={"ready_s": 30.0})
    commit_drift(world, budget="1")
    engine = world.engine()
    plan = engine.run_once().plan
    assert [a.kind for a in plan.actions] == ["provision", "replace", "terminate"]
    reported, instances, journal = (
        world.recorder.kinds(),
        world.instances(),
        world.journal.entries(),
    )

    desired = engine.source.read()
    seen = observe(engine.ports, desired.node_pools, owner_of(world.settings))
    assert start_plan(engine.ports, desired, plan, seen, engine.tags, 0) is False

    assert world.recorder.kinds()["CommandStarted"] == reported["CommandStarted"] == 1
    assert world.recorder.kinds()["Launched"] == reported["Launched"]
    assert world.instances() == instances
    assert world.journal.entries() == journal


def test_a_node_is_tainted_before_its_replacement_is_launched() -> None:
    world = three_nodes()
    commit_drift(world, budget="1")
    before = len(world.journal.entries())
    world.engine().run_once()
    verbs = [e.intent.verb for e in reversed(world.journal.entries())][before:]
    assert verbs.index(Verb.TAINT) < verbs.index(Verb.LAUNCH)
    assert len(tainted(world)) == 1


def test_a_command_with_replacements_starts_only_with_all_its_taints() -> None:
    """One that only deletes starts with those that it has."""
    world = three_nodes()
    commit_drift(world, budget="3")
    engine = world.engine()
    desired = engine.source.read()
    seen = observe(engine.ports, desired.node_pools, owner_of(world.settings))
    plan = desired.plan(seen, (), (), 0, PlanCache())
    first, second, *_ = plan.commands
    both = replace(first, nodes=(*first.nodes, *second.nodes))
    deletes = replace(both, replacements=())
    stubborn = Stubborn({"taint"}, chosen=second.nodes[0])
    ports = fields(engine.ports, cluster=stubborn.around(engine.ports.cluster, "cluster"))
    effects = Effects(ports, desired.revision, 0)
    actions = tuple(replace(a, command=first.id) if a.command else a for a in plan.actions)
    for command, starts in ((both, False), (deletes, True)):
        changed = replace(plan, commands=(command,), actions=actions)
        assert start_commands(effects, changed, {first.id}, seen) == {first.id: starts}


def test_launches_are_requested_in_the_order_of_the_plan() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 3), a_pool("batch"),
                    a_deployment("job", "batch", 2))  # fmt: skip
    plan = world.engine().run_once().plan
    requested = [e.intent.target for e in reversed(world.journal.entries())]
    assert len(requested) >= 3
    assert requested == [claim.name for claim in plan.node_claims]


def test_a_launch_outside_the_graph_of_the_plan_is_not_started() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 2))
    engine = world.engine()
    desired = engine.source.read()
    seen = observe(engine.ports, desired.node_pools, owner_of(world.settings))
    fresh = desired.plan(seen, (), (), 0, PlanCache())
    cut = replace(fresh, actions=fresh.actions[:1])
    start_plan(engine.ports, desired, cut, seen, engine.tags, 0)
    assert list(world.claims) == [fresh.actions[0].node_claim]


@pytest.mark.parametrize("begun", [False, True])
def test_an_approved_plan_has_started_only_if_it_was_applied(begun: bool) -> None:
    """A plan may be recorded without being applied; then another desired state makes it stale."""
    world = three_nodes()
    commit_drift(world, budget="1")
    engine = world.engine()
    desired = engine.source.read()
    seen = observe(engine.ports, desired.node_pools, owner_of(world.settings))
    plan = desired.plan(seen, (), (), 0, PlanCache())
    applied_at = world.clock.now() if begun else None
    record = RecordedPlan(plan.digest, "r", plan.at, plan.serial, to_json(plan), applied_at)
    engine.ports.store.put_plan(record)
    commit_drift(world, budget="2")
    with nullcontext() if begun else pytest.raises(StalePlanError):
        assert engine.run_once(approved=plan).plan.actions == ()
