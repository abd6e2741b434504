"""Launches that fail, hang or are refused: never two instances, never a claim that waits forever.

Each test fails if the guard that it covers is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from reconciler.adapters.simulated.conditions import Fault
from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.karpenter.labels import INSTANCE_TYPE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.journal import Verb
from reconciler_embedded.wire import Request, Response
from tests.engine.crashes import CutError, Points
from tests.engine.faults import (
    ON_DEMAND,
    ever_launched,
    killed_after,
    launches,
    lists_late,
    three_nodes,
    wire,
)
from tests.engine.test_crash import EITHER, LARGE, complaints
from tests.engine.world import (
    TAGS,
    World,
    a_deployment,
    a_node_class,
    a_pool,
    a_world,
)


def test_a_launch_that_ec2_does_not_list_yet_is_not_repeated_after_a_crash() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.honours_tokens = False
    lists_late(world, 3)
    killed_after(world, "CreateFleet")
    world.converge(busy=1.0)
    assert ever_launched(world) == 1
    assert complaints(world, world.fleet()) == []


def test_a_repeated_launch_has_the_client_token_of_the_first() -> None:
    """EC2 lists it only after the wait has ended: only the client token prevents a second one."""
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    lists_late(world, 20)
    killed_after(world, "CreateFleet")
    world.converge(busy=1.0)
    assert launches(world) == 1, "beside the call that was cut off"
    assert ever_launched(world) == 1


def test_of_two_instances_for_one_intent_the_second_is_terminated() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.honours_tokens = False
    lists_late(world, 8)
    killed_after(world, "CreateFleet")
    world.converge(busy=1.0)
    assert ever_launched(world) == 2
    (instance,) = world.instances()
    (claim,) = world.claims.values()
    assert claim.status.provider_id.endswith(instance)
    (orphan,) = [e for e in world.journal.entries() if e.intent.verb is Verb.TERMINATE]
    assert orphan.intent.reason == "Orphaned"


def test_a_launch_in_doubt_is_not_treated_as_an_orphan() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.faults.add("CreateFleet", Fault.RESET_AFTER)
    world.cloud.faults.add("DescribeInstances", Fault.THROTTLE, skip=2, times=5)
    engine = world.engine()
    engine.run_once()
    assert [e.intent.verb for e in world.journal.in_doubt()] == [Verb.LAUNCH]
    (instance,) = world.instances()
    world.clock.advance(60)
    world.cloud.faults.add("DescribeInstances", Fault.THROTTLE, times=5)
    engine.run_once()
    world.converge()
    assert list(world.instances()) == [instance]


def test_both_the_error_and_the_instance_of_an_answer_are_used() -> None:
    world = a_world(a_pool("web", template={"requirements": EITHER}), a_deployment("web", "web", 1))
    world.cloud.market.refuse("m7i.large", "us-east-1a")
    world.engine().run_once()
    assert world.fleet() == {("web", "c7i.large", "us-east-1a"): 1}
    (refused,) = world.store.unavailable(world.clock.now())
    assert (refused.instance_type, refused.zone) == ("m7i.large", "us-east-1a")
    world.converge()
    assert launches(world) == 1


def test_a_claim_that_was_never_launched_is_forgotten() -> None:
    world = three_nodes()
    some = next(iter(world.claims.values()))
    bare = NodeClaim(replace(some.metadata, name="web-never"), some.spec)
    world.store.put_node_claims([bare])
    world.engine().run_once()
    assert "web-never" not in world.claims, "one look is enough to see that nobody asked for it"
    world.converge()
    assert len(world.instances()) == 3


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "every", [False, pytest.param(True, marks=pytest.mark.exhaustive)], ids=["first", "every"]
)
def test_a_refused_launch_leaves_no_claim_wherever_the_process_is_killed(
    every: bool,
) -> None:
    """By default at the first point of each kind, in an exhaustive run at every point."""

    def make() -> World:
        world = a_world(
            a_pool("web", capacity_types=["spot", "on-demand"]), a_deployment("web", "web", 1)
        )
        world.cloud.market.refuse(capacity_type="spot")
        return world

    whole = Points()
    whole.wrap(make()).engine().run_once()
    kinds = {name for name in whole.names if name.startswith("after")}
    assert len(kinds) > 4
    some = [whole.names.index(kind) + 1 for kind in sorted(kinds)]
    for number in range(1, len(whole.names) + 1) if every else some:
        points = Points()
        world = points.wrap(make())

        def at(reached: int, number: int = number, points: Points = points) -> None:
            if reached == number:
                raise CutError(points.names[-1])

        points.at = at
        with pytest.raises(CutError):
            world.engine().run_once()
        points.at = lambda _: None
        world.converge()
        assert complaints(world, world.fleet()) == [], whole.names[number - 1]
        assert list(world.fleet().values()) == [1]


def test_on_demand_is_launched_if_spot_is_unavailable() -> None:
    world = a_world(
        a_pool("web", capacity_types=["spot", "on-demand"]), a_deployment("web", "web", 1)
    )
    world.cloud.market.refuse(capacity_type="spot")
    world.converge()
    (claim,) = world.claims.values()
    assert claim.metadata.labels["karpenter.sh/capacity-type"] == "on-demand"
    assert launches(world) <= 3


@pytest.mark.exhaustive
def test_each_refusal_of_an_offering_doubles_its_unavailability() -> None:
    world = a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 1))
    world.cloud.market.refuse()
    end = world.clock.now() + timedelta(hours=3)
    engine = world.engine()
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=5.0, quiet=30.0),
        stop=lambda: world.clock.now() >= end,
        next_change=lambda _: None,
    )
    assert 5 <= launches(world) <= 10
    world.cloud.market.clear()
    world.clock.advance(3600)
    world.converge()
    assert len(world.instances()) == 1


def test_a_refusal_without_an_offering_concerns_all_requested_offerings() -> None:
    world = a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 1))

    def vague(request: Request, handle: Callable[[Request], Response]) -> Response:
        answer = handle(request)
        if request.operation != "CreateFleet":
            return answer
        body = (
            b"<CreateFleetResponse><errorSet><item><errorCode>InsufficientInstanceCapacity"
            b"</errorCode></item></errorSet></CreateFleetResponse>"
        )
        return Response(200, body, answer.headers)

    world.cloud.market.refuse()
    wire(world, vague)
    world.converge()
    assert launches(world) == 1


def test_a_capacity_error_of_the_call_concerns_all_requested_offerings() -> None:
    world = a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 1))

    def blunt(request: Request, handle: Callable[[Request], Response]) -> Response:
        if request.operation != "CreateFleet":
            return handle(request)
        body = (
            b"<Response><Errors><Error><Code>InsufficientInstanceCapacity</Code>"
            b"<Message>none</Message></Error></Errors><RequestID>1</RequestID></Response>"
        )
        world.cloud.calls.append(world.cloud.calls[-1].__class__("CreateFleet", "1", 400))
        return Response(400, body, {})

    wire(world, blunt)
    world.converge()
    assert launches(world) == 1
    assert len(world.store.unavailable(world.clock.now())) == 2


def test_a_denied_launch_is_retried_with_growing_delays() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.faults.add("CreateFleet", Fault.DENIED, times=20)
    world.converge(busy=1.0)
    assert len(world.instances()) == 1
    assert world.clock.now() - min(p.at for p in world.recorder.events) > timedelta(minutes=10)


def test_a_claim_that_git_declares_is_launched_once() -> None:
    claim = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodeClaim",
        "metadata": {"name": "own", "labels": {"karpenter.sh/nodepool": "web", "pool": "web"}},
        "spec": {
            "nodeClassRef": {
                "group": "karpenter.k8s.aws",
                "kind": "EC2NodeClass",
                "name": "default",
            },
            "requirements": [*LARGE, ON_DEMAND],
            "resources": {"requests": {"cpu": "1"}},
        },
    }
    pool = a_pool("web", after="Never", template={"requirements": LARGE})
    world = a_world(pool, claim, a_deployment("web", "web", 1))
    world.converge()
    assert world.converge().is_quiet
    assert "own" in world.instances().values()
    assert launches(world) == len(world.instances())


def test_a_replacement_is_only_of_types_that_cost_less() -> None:
    policy = "WhenEmptyOrUnderutilized"
    large = {"key": INSTANCE_TYPE, "operator": "In", "values": ["m7i.xlarge"]}
    service = a_deployment("web", "web", 1)
    world = a_world(a_pool("web", policy=policy, template={"requirements": [large]}), service)
    world.converge()
    world.git.commit(a_node_class(), a_pool("web", policy=policy), service)
    world.clock.advance(60)
    (command,) = world.engine().run_once().plan.commands
    assert command.reason == "Underutilized"
    fresh = {n: c for n, c in world.claims.items() if n in command.replacements}
    (named,) = [
        r.values for c in fresh.values() for r in c.spec.requirements if r.key == INSTANCE_TYPE
    ]
    assert sorted(named) == ["c7i.large", "m7i.large"]
