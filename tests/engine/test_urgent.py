"""The first response to a reclaimed instance: tainted and drained before the next pass."""

from __future__ import annotations

from reconciler.engine.steps.urgent import FirstResponse
from reconciler.ports.journal import JournalEntry, Outcome, Verb
from tests.engine.faults import three_nodes
from tests.engine.interruptions import listening, sqs, warn
from tests.engine.test_interruption import a_pass, three_spot_nodes, victim_of
from tests.engine.world import Engine, World


def responding(world: World) -> tuple[Engine, FirstResponse]:
    engine = listening(world)
    response = FirstResponse(engine.ports)
    response.set_observation(a_pass(engine).seen)
    return engine, response


def entries(world: World, verb: Verb) -> list[JournalEntry]:
    found = [e for e in world.journal.entries() if e.intent.verb is verb]
    return [e for e in found if "event" in e.intent.parameters]


def test_the_node_is_tainted_and_drained_without_a_pass() -> None:
    world = three_spot_nodes()
    instance, claim = victim_of(world)
    node = world.claims[claim].status.node_name
    engine, response = responding(world)
    warn(world, instance)
    response.respond()
    response.respond()
    for verb in (Verb.TAINT, Verb.DRAIN):
        (entry,) = entries(world, verb)
        assert (entry.intent.target, entry.outcome) == (node, Outcome.SUCCEEDED)
        assert entry.intent.reason == "Interrupted: spot interruption warning"
    result = a_pass(engine)
    assert [c.reason for c in result.plan.commands] == ["Interrupted"]
    untainted = [e for e in world.journal.entries() if e.intent.verb is Verb.UNTAINT]
    assert untainted == [], "the pass does not take the taint for a stray"
    engine.converge()
    assert instance not in world.instances()
    assert len(world.instances()) == 3


def test_nothing_is_done_before_the_first_pass_has_observed_the_fleet() -> None:
    world = three_spot_nodes()
    engine = listening(world)
    warn(world, victim_of(world)[0])
    FirstResponse(engine.ports).respond()
    assert entries(world, Verb.TAINT) == []


def test_an_event_that_ec2_contradicts_has_no_response() -> None:
    world = three_nodes()
    sqs(world)
    _, response = responding(world)
    warn(world, victim_of(world)[0])
    response.respond()
    assert entries(world, Verb.TAINT) == [], "the instance is on-demand, not spot"


def test_an_event_about_an_unknown_instance_has_no_response() -> None:
    world = three_spot_nodes()
    _, response = responding(world)
    warn(world, "i-0123456789abcdef0")
    response.respond()
    assert entries(world, Verb.TAINT) == []
