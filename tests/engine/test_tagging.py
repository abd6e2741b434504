"""Instances are tagged with the name of their node once it has joined."""

from __future__ import annotations

from reconciler.adapters.simulated.conditions import Fault
from reconciler.engine.steps.upkeep import TAGGED, TAGGED_PER_PASS_MAX
from reconciler.ports.journal import Outcome, Verb
from tests.engine.faults import three_nodes
from tests.engine.world import World, a_deployment, a_node_class, a_pool, a_world


def names(world: World) -> dict[str, str]:
    """Return the Name tags in EC2 by claim."""
    rows = world.cloud.running_instances().values()
    return {tags["karpenter.sh/nodeclaim"]: tags.get("Name", "") for tags in rows}


def tagged(world: World) -> int:
    return sum(c.operation == "CreateTags" for c in world.cloud.calls)


def test_every_instance_is_tagged_with_the_name_of_its_node() -> None:
    world = three_nodes()
    assert names(world) == {name: c.status.node_name for name, c in world.claims.items()}
    assert all(c.metadata.annotations[TAGGED] == "true" for c in world.claims.values())
    entries = [e for e in world.journal.entries() if e.intent.verb is Verb.TAG]
    assert sorted(e.intent.target for e in entries) == sorted(world.claims)
    assert {e.outcome for e in entries} == {Outcome.SUCCEEDED}


def test_instances_are_tagged_once() -> None:
    world = three_nodes()
    before = tagged(world)
    world.converge()
    assert tagged(world) == before


def test_a_name_tag_set_by_the_class_stays() -> None:
    world = a_world()
    named = a_node_class()
    named["spec"]["tags"] = {"Name": "ours"}
    world.git.commit(named, a_pool("web"), a_deployment("web", "web", 1))
    world.converge()
    assert [*names(world).values()] == ["ours"]


def test_instances_beyond_the_limit_of_a_pass_are_tagged_later() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", TAGGED_PER_PASS_MAX + 3))
    world.converge()
    assert all(names(world).values())
    assert len(names(world)) >= TAGGED_PER_PASS_MAX // 2


def test_a_missing_tagging_permission_does_not_stop_the_fleet_and_costs_one_call_a_pass() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 3))
    world.cloud.faults.add("CreateTags", Fault.DENIED, times=None)
    engine = world.engine()
    assert engine.converge().is_quiet
    assert not any(names(world).values())
    before = tagged(world)
    engine.run_once()
    assert tagged(world) == before + 1
    world.cloud.faults.clear()
    engine.run_once()
    assert all(names(world).values())


def test_an_unclear_answer_is_retried() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.faults.add("CreateTags", Fault.RESET_AFTER, times=5)
    world.converge()
    assert all(names(world).values())
    assert world.journal.in_doubt() == []
