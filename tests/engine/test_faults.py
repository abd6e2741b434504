"""Each way in which reconcilers have hurt their fleets: one test that fails without its guard."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_fields
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from reconciler.adapters.simulated.faults import Fault
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf, MemoryStateStore
from reconciler.adapters.simulated.wire import Answer, Request
from reconciler.engine.loop import Pulse, run
from reconciler.engine.reconcile import Mandate
from reconciler.model.errors import CloudError, ClusterError, TransientCloudError, UnreadableError
from reconciler.model.labels import NODEPOOL_HASH, NODEPOOL_HASH_VERSION
from reconciler.model.nodeclaim import NodeClaim
from reconciler.model.settings import Settings
from reconciler.ports import Verb
from tests.engine.crashes import CutError, Points
from tests.engine.test_crash import EITHER, LARGE, complaints
from tests.engine.world import (
    SETTINGS,
    TAGS,
    Git,
    World,
    a_deployment,
    a_node_class,
    a_pdb,
    a_pool,
    a_world,
)

ON_DEMAND = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}


def three_nodes(**fields: Any) -> World:
    """A fleet of three nodes, each full with one pod; every node may go at once."""
    world = a_world(
        a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
        **fields,
    )
    world.converge()
    return world


def moved(world: World, *more: dict[str, Any], budget: str = "3", **pool: Any) -> None:
    """Let git move so that all nodes drift."""
    world.git.commit(
        a_node_class(),
        a_pool(
            "web",
            labels={"version": "2"},
            budgets=[{"nodes": budget}],
            template={"requirements": LARGE},
            **pool,
        ),
        a_deployment("web", "web", 3),
        *more,
    )


def a_world_beside(world: World, settings: Settings) -> World:
    """Return another fleet in the same account."""
    return World(world.clock, world.cloud, Git(world.git.objects), settings=settings)


def launches(world: World) -> int:
    return sum(call.operation == "CreateFleet" for call in world.cloud.calls)


def ever_launched(world: World) -> int:
    return len(world.cloud._account.backend.all_instances())


def wire(world: World, change: Callable[[Request, Callable[[Request], Answer]], Answer]) -> None:
    """Put something between boto3 and EC2."""
    handle = world.cloud.handle
    world.cloud.handle = lambda request: change(request, handle)  # type: ignore[method-assign]


def lists_late(world: World, seconds: float) -> None:
    """Let DescribeInstances leave out what is younger than that."""

    def late(request: Request, handle: Callable[[Request], Answer]) -> Answer:
        if request.operation != "DescribeInstances":
            return handle(request)
        oldest = world.clock.now().replace(tzinfo=None) - timedelta(seconds=seconds)
        reservations = world.cloud._account.backend.reservations.values()
        kept = {id(r): r.instances for r in reservations}
        for r in reservations:
            r.instances = [i for i in r.instances if i.launch_time <= oldest]
        try:
            return handle(request)
        finally:
            for r in reservations:
                r.instances = kept[id(r)]

    wire(world, late)


def killed_after(world: World, operation: str) -> None:
    """Run until EC2 has carried a call out, and no further."""

    def die(done: str) -> None:
        if done == operation:
            world.cloud.after_call = lambda _: None
            raise CutError(done)

    world.cloud.after_call = die
    with pytest.raises(CutError):
        world.converge(busy=1.0)


def test_a_launch_that_ec2_does_not_list_yet_is_not_repeated_after_a_crash() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.honours_tokens = False
    lists_late(world, 3)
    killed_after(world, "CreateFleet")
    world.converge(busy=1.0)
    assert ever_launched(world) == 1
    assert complaints(world, world.fleet()) == []


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


def test_a_launch_in_doubt_is_not_taken_for_an_orphan() -> None:
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


def test_an_answer_with_an_error_and_an_instance_is_read_twice() -> None:
    world = a_world(a_pool("web", template={"requirements": EITHER}), a_deployment("web", "web", 1))
    world.cloud.market.refuse("m7i.large", "us-east-1a")
    world.engine().run_once()
    assert world.fleet() == {("web", "c7i.large", "us-east-1a"): 1}
    (refused,) = world.store.unavailable(world.clock.now())
    assert (refused.instance_type, refused.zone) == ("m7i.large", "us-east-1a")
    world.converge()
    assert launches(world) == 1


def test_an_answer_without_details_is_completed_by_a_look() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))

    def terse(request: Request, handle: Callable[[Request], Answer]) -> Answer:
        answer = handle(request)
        if request.operation != "CreateFleet":
            return answer
        body = answer.body
        for tag in (b"launchTemplateAndOverrides", b"instanceType"):
            start, end = body.find(b"<" + tag), body.find(b"</" + tag + b">")
            if start >= 0:
                body = body[:start] + body[end + len(tag) + 3 :]
        return Answer(answer.status, body, answer.headers)

    wire(world, terse)
    lists_late(world, 1)
    world.converge(busy=1.0)
    world.clock.advance(120)
    assert world.converge().is_quiet
    assert launches(world) == 1
    (claim,) = world.claims.values()
    assert claim.metadata.labels["topology.kubernetes.io/zone"].startswith("us-east-1")
    assert claim.status.allocatable


def test_an_answer_that_names_the_wrong_zone_is_corrected() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))

    def wrong(request: Request, handle: Callable[[Request], Answer]) -> Answer:
        answer = handle(request)
        if request.operation != "CreateFleet":
            return answer
        return Answer(answer.status, answer.body.replace(b"us-east-1a", b"us-east-1b"), {})

    wire(world, wrong)
    world.converge()
    world.clock.advance(120)
    world.converge()
    assert launches(world) == 1
    (claim,) = world.claims.values()
    assert claim.metadata.labels["topology.kubernetes.io/zone"] == "us-east-1a"
    assert claim.is_true("Initialized")


def test_a_claim_that_was_never_launched_is_forgotten() -> None:
    world = three_nodes()
    some = next(iter(world.claims.values()))
    bare = NodeClaim(replace(some.metadata, name="web-never"), some.spec)
    world.store.put_node_claims([bare])
    world.converge()
    assert "web-never" not in world.claims
    assert len(world.instances()) == 3


def test_a_launch_that_is_refused_leaves_no_claim_behind_wherever_it_is_killed() -> None:
    def make() -> World:
        world = a_world(
            a_pool("web", capacity_types=["spot", "on-demand"]), a_deployment("web", "web", 1)
        )
        world.cloud.market.refuse(capacity_type="spot")
        return world

    whole = Points()
    whole.wrap(make()).engine().run_once()
    for number in range(1, len(whole.names) + 1):
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


def test_where_no_spot_is_left_on_demand_is_taken() -> None:
    world = a_world(
        a_pool("web", capacity_types=["spot", "on-demand"]), a_deployment("web", "web", 1)
    )
    world.cloud.market.refuse(capacity_type="spot")
    world.converge()
    (claim,) = world.claims.values()
    assert claim.metadata.labels["karpenter.sh/capacity-type"] == "on-demand"
    assert launches(world) <= 3


def test_a_refused_pool_is_left_alone_for_longer_each_time() -> None:
    world = a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 1))
    world.cloud.market.refuse()
    end = world.clock.now() + timedelta(hours=3)
    engine = world.engine()
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        pulse=Pulse(busy=5.0, quiet=30.0),
        stop=lambda: world.clock.now() >= end,
        next_change=lambda _: None,
    )
    assert 5 <= launches(world) <= 10
    world.cloud.market.clear()
    world.clock.advance(3600)
    world.converge()
    assert len(world.instances()) == 1


def test_a_refusal_that_names_no_offering_is_about_all_of_them() -> None:
    world = a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 1))

    def vague(request: Request, handle: Callable[[Request], Answer]) -> Answer:
        answer = handle(request)
        if request.operation != "CreateFleet":
            return answer
        body = (
            b"<CreateFleetResponse><errorSet><item><errorCode>InsufficientInstanceCapacity"
            b"</errorCode></item></errorSet></CreateFleetResponse>"
        )
        return Answer(200, body, answer.headers)

    world.cloud.market.refuse()
    wire(world, vague)
    world.converge()
    assert launches(world) == 1


def test_a_call_that_is_refused_for_capacity_is_about_all_that_it_asked_for() -> None:
    world = a_world(a_pool("web", template={"requirements": LARGE}), a_deployment("web", "web", 1))

    def blunt(request: Request, handle: Callable[[Request], Answer]) -> Answer:
        if request.operation != "CreateFleet":
            return handle(request)
        body = (
            b"<Response><Errors><Error><Code>InsufficientInstanceCapacity</Code>"
            b"<Message>none</Message></Error></Errors><RequestID>1</RequestID></Response>"
        )
        world.cloud.calls.append(world.cloud.calls[-1].__class__("CreateFleet", "1", 400))
        return Answer(400, body, {})

    wire(world, blunt)
    world.converge()
    assert launches(world) == 1
    assert len(world.store.unavailable(world.clock.now())) == 2


def test_a_launch_that_is_denied_is_repeated_ever_more_slowly() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.cloud.faults.add("CreateFleet", Fault.DENIED, times=20)
    world.converge(busy=1.0)
    assert len(world.instances()) == 1
    assert world.clock.now() - min(p.at for p in world.ears.heard) > timedelta(minutes=10)


def test_hashes_of_another_version_say_nothing() -> None:
    world = three_nodes()
    old = {NODEPOOL_HASH: "123", NODEPOOL_HASH_VERSION: "v2"}
    for claim in world.claims.values():
        metadata = replace(claim.metadata, annotations={**claim.metadata.annotations, **old})
        world.store.put_node_claims([replace(claim, metadata=metadata)])
    before = world.instances()
    world.converge()
    assert world.instances() == before


@pytest.mark.parametrize(
    ("fault", "error"), [(Fault.DENIED, CloudError), (Fault.SERVER_ERROR, TransientCloudError)]
)
def test_a_list_that_breaks_off_decides_nothing(fault: Fault, error: type[Exception]) -> None:
    world = three_nodes(page_size=1)
    moved(world)
    serial, entries = world.store.serial(), world.journal.entries()
    world.cloud.faults.add("DescribeInstances", fault, times=None, skip=2)
    with pytest.raises(error):
        world.engine().run_once()
    assert (world.store.serial(), world.journal.entries()) == (serial, entries)
    world.cloud.faults.clear()
    world.converge()
    assert len(world.instances()) == 3


def test_a_list_that_is_empty_for_a_moment_ends_nothing_and_launches_nothing() -> None:
    world = three_nodes()
    before = world.instances()
    lists_late(world, 10_000)
    engine = world.engine()
    for _ in range(4):
        engine.run_once()
        world.clock.advance(5)
    assert world.instances() == before
    assert launches(world) == 3
    world.clock.advance(20_000)
    world.converge()
    assert world.instances() == before
    assert launches(world) == 3
    assert complaints(world, world.fleet()) == []


def test_a_server_that_ignores_filters_shows_nothing_of_others() -> None:
    world = three_nodes()
    for name in ("them", "also-them"):
        other = with_fields(SETTINGS, fleet=name, cluster_name=name)
        a_world_beside(world, other).converge()

    def without_filters(request: Request, handle: Callable[[Request], Answer]) -> Answer:
        if request.operation != "DescribeInstances":
            return handle(request)
        kept = [(k, v) for k, v in request.form if not k.startswith("Filter")]
        return handle(with_fields(request, body=urlencode(kept).encode()))

    wire(world, without_filters)
    moved(world)
    world.converge()
    ours = [t for t in world.cloud.living().values() if t["reconciler/fleet"] == "test"]
    assert len(ours) == 3
    assert len(world.cloud.living()) == 9
    assert len(world.claims) == 3


def test_a_lost_state_takes_the_fleet_in_again_at_once() -> None:
    world = three_nodes()
    before = world.instances()
    world.store, world.journal, world.shelf = MemoryStateStore(), MemoryJournal(), MemoryShelf()
    world.converge()
    assert world.instances() == before
    assert {c.name for c in world.claims.values()} == set(before.values())
    assert complaints(world, world.fleet()) == []


def test_a_node_that_a_lost_state_left_tainted_is_given_back() -> None:
    world = three_nodes()
    moved(world, budget="1")
    world.engine().run_once()
    assert tainted(world)
    world.store, world.journal = MemoryStateStore(), MemoryJournal()
    moved(world, budget="0")
    world.converge()
    assert tainted(world) == []


def tainted(world: World) -> list[str]:
    nodes = world.engine().ports.cluster._record.nodes  # type: ignore[attr-defined]
    return [
        name
        for name, record in nodes.items()
        if any(t.key == "karpenter.sh/disrupted" for t in record.node.spec.taints)
    ]


@pytest.mark.parametrize("stopping_s", [0.0, 60.0])
def test_an_instance_that_somebody_terminates_is_replaced(stopping_s: float) -> None:
    world = three_nodes(stopping_s=stopping_s)
    victim, name = next(iter(world.instances().items()))
    world.cloud.vanish(victim)
    started = world.clock.now()
    world.converge()
    assert victim not in world.instances()
    assert name not in world.claims
    assert complaints(world, world.fleet()) == []
    assert len(world.instances()) == 3
    assert world.clock.now() - started < timedelta(seconds=100)


def test_a_node_that_never_joins_is_given_up_after_fifteen_minutes() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1), latencies={"joining_s": 1e6})
    engine = world.engine()
    engine.run_once()
    (first,) = world.instances()
    world.clock.advance(899)
    engine.run_once()
    assert list(world.instances()) == [first]
    world.clock.advance(1)
    engine.run_once()
    assert first not in world.instances()
    assert "never joined" in world.ears.said("Failed")[0]


def test_a_drain_that_a_budget_of_pods_holds_up_says_which() -> None:
    world = three_nodes()
    moved(world, a_pdb("holds", "web", minAvailable=3), budget="1")
    victim, name = next(iter(world.instances().items()))
    claim = world.claims[name]
    metadata = replace(claim.metadata, deletion_timestamp=world.clock.now())
    world.store.put_node_claims([replace(claim, metadata=metadata)])
    engine = world.engine()
    for _ in range(3):
        engine.run_once()
        world.clock.advance(60)
    (said,) = world.ears.said("Draining")
    assert "PodDisruptionBudget default/holds holds default/web-" in said
    world.clock.advance(600)
    engine.run_once()
    assert world.ears.said("Stalled") == [said]
    assert victim in world.instances()


def test_a_replacement_that_vanishes_gives_the_old_node_back() -> None:
    world = three_nodes(latencies={"ready_s": 30.0})
    moved(world, budget="1")
    engine = world.engine()
    engine.run_once()
    (old,) = tainted(world)
    (command,) = world.store.commands()
    new = next(i for i, name in world.instances().items() if name in command.replacements)
    moved(world, budget="0")
    world.cloud.vanish(new)
    for _ in range(3):
        engine.run_once()
        world.clock.advance(1)
    assert old not in tainted(world)
    assert world.store.commands() == []
    assert "is gone" in world.ears.said("CommandRolledBack")[0]
    world.converge()
    assert complaints(world, world.fleet()) == []


def test_a_replacement_that_never_gets_ready_gives_the_old_node_back() -> None:
    world = three_nodes()
    world.clock.advance(7200)
    world.latencies = {"ready_s": 3600.0}
    moved(world, budget="1")
    engine = world.engine()
    engine.run_once()
    assert tainted(world)
    moved(world, budget="0")
    world.clock.advance(601)
    engine.run_once()
    assert tainted(world) == []
    assert "was not ready" in world.ears.said("CommandRolledBack")[0]


def test_a_move_that_git_takes_back_is_rolled_back() -> None:
    world = three_nodes()
    original = world.git.objects
    before = set(world.instances())
    moved(world)
    engine = world.engine()
    engine.run_once()
    assert len(tainted(world)) == 3
    world.git.commit(*original)
    engine.run_once()
    engine.run_once()
    assert tainted(world) == []
    assert before <= set(world.instances())
    world.converge()
    assert before == set(world.instances())


def test_a_taint_that_could_not_be_taken_back_is_taken_back_later() -> None:
    world = three_nodes()
    refusals = [ClusterError("the API server is busy")] * 2

    class Flaky:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

        def untaint(self, node: str) -> None:
            if refusals:
                raise refusals.pop()
            self._cluster.untaint(node)

    world.around = lambda port, name: Flaky(port) if name == "cluster" else port
    original = world.git.objects
    moved(world, budget="1")
    engine = world.engine()
    engine.run_once()
    world.git.commit(*original)
    for _ in range(3):
        engine.run_once()
        world.clock.advance(1)
    world.converge()
    assert refusals == []
    assert complaints(world, world.fleet()) == []


def test_an_empty_node_that_gets_a_pod_before_it_goes_stays() -> None:
    world = three_nodes()
    world.git.commit(
        a_node_class(),
        a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": LARGE}),
        a_deployment("web", "web", 2),
    )
    points = Points()
    points.wrap(world)

    def at(_: int) -> None:
        if points.names[-1] == "after store.put_command":
            raise CutError(points.names[-1])

    points.at = at
    with pytest.raises(CutError):
        world.converge()
    points.at = lambda _: None
    (command,) = world.store.commands()
    assert command.reason == "Empty"
    world.git.commit(
        a_node_class(),
        a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
    )
    before = set(world.instances())
    world.converge()
    assert set(world.instances()) == before
    assert "not empty any more" in world.ears.said("CommandRolledBack")[0]


def test_a_node_counts_as_quiet_only_since_its_last_pod_left() -> None:
    pool = a_pool("web", after="5m", budgets=[{"nodes": "3"}], template={"requirements": LARGE})
    world = a_world(pool, a_deployment("web", "web", 2))
    world.converge()
    world.clock.advance(3600)
    world.converge()
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 1))
    world.converge()
    assert len(world.instances()) == 2
    world.clock.advance(299)
    world.converge()
    assert len(world.instances()) == 2
    world.clock.advance(1)
    world.converge()
    assert len(world.instances()) == 1


def test_the_daemon_keeps_the_last_good_revision_and_goes_on_with_it() -> None:
    world = three_nodes()
    engine = world.engine()
    victim = next(iter(world.instances()))
    passes = iter(range(40))

    def stop() -> bool:
        number = next(passes, None)
        if number == 4:
            world.git.unreadable = UnreadableError("the checkout is empty")
            world.git.commit()
        if number == 8:
            world.cloud.vanish(victim)
        return number is None

    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        pulse=Pulse(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    assert len(world.ears.said("InvalidRevision")) == 1
    assert "stays in force" in world.ears.said("InvalidRevision")[0]
    assert victim not in world.instances()
    assert len(world.instances()) == 3


def test_the_daemon_survives_a_git_that_cannot_be_asked() -> None:
    world = three_nodes()
    engine = world.engine()
    asked = iter(range(30))

    class Source:
        def read(self) -> Any:
            return engine.source.read()

        def fingerprint(self) -> str:
            if next(asked, 0) % 3 == 2:
                raise UnreadableError("the remote does not answer")
            return engine.source.fingerprint()

    passes = iter(range(20))
    run(
        engine.ports,
        Source(),
        Mandate(TAGS),
        pulse=Pulse(),
        stop=lambda: next(passes, None) is None,
        next_change=lambda _: None,
    )
    assert len(world.instances()) == 3


def test_a_revision_that_could_not_be_read_for_a_moment_is_carried_out_later() -> None:
    world = three_nodes()
    engine = world.engine()
    passes = iter(range(60))

    def stop() -> bool:
        number = next(passes, None)
        if number == 3:
            moved(world)
            world.git.unreadable = TransientCloudError("busy")
        if number == 6:
            world.git.unreadable = None
        return number is None

    before = set(world.instances())
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        pulse=Pulse(busy=5.0),
        stop=stop,
        next_change=lambda _: None,
    )
    assert not before & set(world.instances())


def test_what_git_changes_without_moving_a_node_is_recorded_once() -> None:
    world = three_nodes()
    world.git.commit(
        a_node_class(),
        a_pool("web", budgets=[{"nodes": "2"}], template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
    )
    assert [c.name for c in world.converge().plan.changes] == ["web"]
    assert world.converge().plan.changes == ()


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
