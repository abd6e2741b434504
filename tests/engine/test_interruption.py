"""Interruption events of EC2: what is removed, what replaces it, and what is left alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as with_

from reconciler.adapters.simulated.conditions import Fault
from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate, Pass, reconcile
from reconciler.ports.journal import Verb
from reconciler.ports.state import CommandPhase
from tests.engine.crashes import CutError
from tests.engine.faults import commit_drift, three_nodes
from tests.engine.interruptions import (
    listening,
    messages_left,
    polling_statuses,
    send_event,
    show_again,
    sqs,
    warn,
)
from tests.engine.test_crash import LARGE
from tests.engine.world import TAGS, Engine, World, a_deployment, a_pdb, a_pool, a_world


def three_spot_nodes() -> World:
    """A fleet of three spot nodes whose budgets allow no disruption."""
    world = a_world(
        a_pool(
            "web",
            budgets=[{"nodes": "0"}],
            capacity_types=["spot"],
            template={"requirements": LARGE},
        ),
        a_deployment("web", "web", 3),
    )
    world.converge()
    sqs(world)
    return world


def a_pass(engine: Engine, **mandate: bool) -> Pass:
    return reconcile(engine.ports, engine.source.read(), Mandate(engine.tags, **mandate))


def victim_of(world: World) -> tuple[str, str]:
    """Return an instance and its claim."""
    return next(iter(world.instances().items()))


def test_a_spot_warning_drains_and_replaces_the_node_and_avoids_the_offering() -> None:
    world = three_spot_nodes()
    instance, claim = victim_of(world)
    zone = world.claims[claim].metadata.labels["topology.kubernetes.io/zone"]
    at = f"{world.clock.now():%Y-%m-%dT%H:%M:%SZ}"
    warn(world, instance)
    engine = listening(world)
    result = a_pass(engine)
    (command,) = result.plan.commands
    assert (command.reason, command.forceful) == ("Interrupted", True)
    assert command.message == f"spot interruption warning at {at}"
    assert messages_left(world) == 0
    (lost,) = world.store.unavailable(world.clock.now())
    assert (lost.zone, lost.capacity_type, lost.refusals) == (zone, "spot", 1)
    engine.converge()
    assert instance not in world.instances()
    assert len(world.instances()) == 3
    (entry,) = [e for e in world.journal.entries() if e.intent.verb is Verb.TERMINATE]
    assert entry.intent.reason == f"Interrupted: spot interruption warning at {at}"
    assert f"{at})" in world.recorder.messages("CommandStarted")[-1]


@pytest.mark.parametrize("between", [False, True])
def test_an_event_received_twice_has_the_effect_of_one(*, between: bool) -> None:
    world = three_spot_nodes()
    instance, _ = victim_of(world)
    engine = listening(world)
    warn(world, instance)
    if between:
        a_pass(engine)
    warn(world, instance)
    engine.converge()
    warn(world, instance)
    engine.converge()
    assert len(world.instances()) == 3
    assert len(world.recorder.messages("Interrupted")) == 1
    assert len(world.recorder.messages("CommandStarted")) == 1
    (lost,) = world.store.unavailable(world.clock.now())
    assert lost.refusals == 1
    assert messages_left(world) == 0


def test_a_rebalance_recommendation_is_only_reported_by_default() -> None:
    world = three_spot_nodes()
    instance, claim = victim_of(world)
    send_event(world, "EC2 Instance Rebalance Recommendation", instance_id=instance)
    engine = listening(world)
    assert a_pass(engine).is_quiet
    assert world.recorder.messages("RebalanceRecommended") == [
        f"{world.claims[claim].status.node_name}: rebalance recommendation"
    ]
    assert (messages_left(world), len(world.instances())) == (0, 3)


def test_a_rebalance_recommendation_replaces_the_node_if_enabled() -> None:
    world = three_spot_nodes()
    instance, _ = victim_of(world)
    send_event(world, "EC2 Instance Rebalance Recommendation", instance_id=instance)
    engine = listening(world)
    engine.converge(replaces_rebalanced=True)
    assert instance not in world.instances()
    assert len(world.instances()) == 3
    assert world.store.unavailable(world.clock.now()) == []


def test_a_more_urgent_event_replaces_an_earlier_one() -> None:
    world = three_spot_nodes()
    instance, claim = victim_of(world)
    send_event(world, "EC2 Instance Rebalance Recommendation", instance_id=instance)
    warn(world, instance)
    a_pass(listening(world), replaces_rebalanced=True)
    mark = world.claims[claim].condition("Interrupted")
    assert mark is not None
    assert mark.reason == "SpotInterruption"
    assert len(world.store.unavailable(world.clock.now())) == 1


def test_a_scheduled_change_removes_every_instance_that_it_names() -> None:
    world = three_spot_nodes()
    going = [*world.instances()][:2]
    send_event(
        world,
        "AWS Health Event",
        "aws.health",
        service="EC2",
        eventTypeCategory="scheduledChange",
        affectedEntities=[{"entityValue": i} for i in (*going, "i-0000000000strange")],
    )
    listening(world).converge()
    assert not {*going} & world.instances().keys()
    assert len(world.instances()) == 3
    assert world.store.unavailable(world.clock.now()) == []


def test_a_scheduled_event_removes_the_instance_without_a_queue() -> None:
    world = three_spot_nodes()
    instance, _ = victim_of(world)
    world.cloud.health.announce(instance, "instance-retirement", world.clock.now())
    engine = polling_statuses(world)
    (command,) = a_pass(engine).plan.commands
    assert (command.reason, command.forceful) == ("Interrupted", True)
    assert command.message.startswith("scheduled instance-retirement, not before ")
    engine.converge()
    assert instance not in world.instances()
    assert len(world.instances()) == 3
    assert world.store.unavailable(world.clock.now()) == []


@pytest.mark.parametrize("ails", [True, False])
def test_an_instance_with_failing_status_checks_does_not_wait_for_pods(*, ails: bool) -> None:
    """The pods of a failed instance are gone; for a scheduled event, budgets still apply."""
    world = three_spot_nodes()
    commit_drift(world, a_pdb("holds", "web", minAvailable=3), budget="0")
    instance, _ = victim_of(world)
    if ails:
        world.cloud.health.impair(instance, world.clock.now())
    else:
        world.cloud.health.announce(instance, "instance-stop", world.clock.now())
    world.clock.advance(120)
    engine = polling_statuses(world)
    for _ in range(3):
        a_pass(engine)
    assert (instance in world.instances()) is not ails


@pytest.mark.parametrize("state", ["stopping", "stopped", "shutting-down", "terminated"])
def test_an_instance_terminated_by_others_removes_its_claim(state: str) -> None:
    world = three_spot_nodes()
    instance, claim = victim_of(world)
    if state in ("stopping", "stopped"):
        world.cloud._account.backend.get_instance(instance)._state.name = state
        world.cloud._account.forget_answers()
    else:
        world.cloud.reclaim_instance(instance)
    send_event(world, "EC2 Instance State-change Notification", instance_id=instance, state=state)
    listening(world).converge()
    assert claim not in world.claims
    assert len(world.instances()) == 3


def test_an_offering_of_a_lost_reservation_is_unavailable_for_a_while() -> None:
    world = three_spot_nodes()
    instance, claim = victim_of(world)
    known = world.claims[claim]
    labels = {
        **known.metadata.labels,
        "karpenter.sh/capacity-type": "reserved",
        "karpenter.k8s.aws/capacity-reservation-id": "cr-1",
    }
    metadata = with_(known.metadata, labels=labels)
    world.store.put_node_claims([with_(known, metadata=metadata)])
    send_event(
        world, "EC2 Capacity Reservation Instance Interruption Warning", instance_id=instance
    )
    listening(world).converge()
    assert claim not in world.claims
    (lost,) = world.store.unavailable(world.clock.now())
    assert (lost.capacity_type, lost.reservation_id) == ("reserved", "cr-1")


def test_events_about_other_instances_and_invalid_messages_have_no_effect() -> None:
    world = three_spot_nodes()
    client, url = sqs(world)
    client.send_message(QueueUrl=url, MessageBody="garbage")
    warn(world, "i-00000000000000bad")
    assert a_pass(listening(world)).is_quiet
    assert (messages_left(world), len(world.instances())) == (0, 3)


def test_an_interrupted_node_no_longer_waits_for_its_replacement() -> None:
    world = three_nodes(latencies={"joining_s": 60.0})
    engine = listening(world)
    commit_drift(world)
    while not any(c.phase is CommandPhase.WAITING for c in world.store.commands()):
        a_pass(engine)
        world.clock.advance(1)
    before = set(world.instances())
    waiting = next(c for c in world.store.commands() if c.phase is CommandPhase.WAITING)
    claim = waiting.node_claims[0]
    instance = next(i for i, name in world.instances().items() if name == claim)
    send_event(
        world,
        "AWS Health Event",
        "aws.health",
        service="EC2",
        eventTypeCategory="scheduledChange",
        affectedEntities=[{"entityValue": instance}],
    )
    for _ in range(3):
        a_pass(engine)
    assert instance not in world.instances()
    engine.converge()
    assert not before & {i for i, name in world.instances().items() if name == claim}
    assert len(world.instances()) == 3


def test_an_unreadable_queue_is_a_finding_and_stops_nothing() -> None:
    world = three_spot_nodes()
    world.cloud.faults.add("ReceiveMessage", Fault.DENIED, times=None)
    world.git.commit(*world.git.objects[:-1], a_deployment("web", "web", 4))
    engine = listening(world)
    result = engine.converge()
    found = [d for d in result.plan.diagnostics if d.code == "interruption-queue"]
    assert [d.severity for d in found] == ["warning"]
    assert "UnauthorizedOperation" in found[0].message
    assert len(world.instances()) == 4


def test_an_event_wakes_the_daemon_at_once() -> None:
    world = three_spot_nodes()
    instance, _ = victim_of(world)
    engine = listening(world)
    warned, passes = [world.clock.now()], iter(range(40))

    def stop() -> bool:
        number = next(passes, None)
        if number == 4:
            warn(world, instance)
            warned.append(world.clock.now())
        gone = instance not in world.instances() and len(world.instances()) == 3
        return gone or number is None

    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=1.0, quiet=3600.0),
        stop=stop,
        next_change=lambda _: None,
    )
    (heard,) = [p.at for p in world.recorder.events if p.kind == "Interrupted"]
    assert heard == warned[-1]
    assert instance not in world.instances()
    assert len(world.instances()) == 3


def test_an_event_is_received_again_if_the_process_dies_before_deleting_it() -> None:
    world = three_spot_nodes()
    instance, _ = victim_of(world)
    warn(world, instance)
    engine = listening(world)

    class Mortal:
        def __getattr__(self, name: str) -> object:
            return getattr(engine.ports.interruptions, name)

        def acknowledge(self, _: object) -> None:
            raise CutError

    dying = replace(engine.ports, interruptions=Mortal())
    with pytest.raises(CutError):
        a_pass(Engine(dying, engine.source))
    assert messages_left(world) == 1
    show_again(world)
    listening(world).converge()
    assert instance not in world.instances()
    assert (messages_left(world), len(world.instances())) == (0, 3)
    (lost,) = world.store.unavailable(world.clock.now())
    assert lost.refusals == 1
