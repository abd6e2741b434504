"""Batched launches: one instance for each claim, whatever happens to the call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import timedelta

import pytest

from reconciler.adapters.simulated.conditions import START, Fault
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryStateStore
from reconciler.engine.steps.batching import assign_instances
from reconciler.ports.cloud import Instance
from reconciler.ports.journal import Outcome, Verb
from tests.engine.crashes import CutError, Points
from tests.engine.faults import ever_launched, killed_after, launches, lists_late
from tests.engine.test_crash import LARGE
from tests.engine.world import World, a_deployment, a_pool, a_world

ZONE = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["us-east-1a"]}


def many(count: int, *, only: tuple[object, ...] = (), **fields: object) -> World:
    """A fleet that needs that number of identical nodes at once."""
    pool = a_pool("web", template={"requirements": [*LARGE, *only]})
    return a_world(pool, a_deployment("web", "web", count), **fields)


def complaints(world: World, count: int) -> list[str]:
    """Return the defects of a fleet that should have that number of nodes."""
    living = set(world.instances())
    held = Counter(c.status.provider_id.rpartition("/")[2] for c in world.claims.values())
    found = [f"{n} claims have {i}" for i, n in held.items() if n > 1]
    found += [f"{i} lives and no claim has it" for i in sorted(living - set(held))]
    found += [f"{i} does not live" for i in sorted(set(held) - living)]
    found += [f"{len(living)} nodes, not {count}"] if len(living) != count else []
    found += [f"{e.intent.verb} {e.intent.target} in doubt" for e in world.journal.in_doubt()]
    named = {c.status.provider_id.rpartition("/")[2]: c.name for c in world.claims.values()}
    found += [f"{i} is named {n}" for i, n in world.instances().items() if named.get(i) != n]
    return found


def test_identical_launches_share_one_call() -> None:
    world = many(6)
    world.converge(batch_from=2)
    assert launches(world) == 1
    assert complaints(world, 6) == []


def test_below_the_threshold_each_launch_has_its_own_call_and_all_its_tags() -> None:
    world = many(3)
    world.engine().run_once()
    assert launches(world) == 3
    assert sorted(world.instances().values()) == sorted(world.claims)


def test_a_batch_and_each_of_its_claims_have_separate_intents() -> None:
    world = many(4)
    world.converge(batch_from=2)
    entries = world.journal.entries()
    (head,) = [e for e in entries if e.intent.verb is Verb.LAUNCH_BATCH]
    members = [e for e in entries if e.intent.verb is Verb.LAUNCH]
    assert head.intent.parameters["claims"].split() == sorted(world.claims)
    assert {e.intent.parameters["batch"] for e in members} == {head.intent.id}
    assert {e.outcome for e in (head, *members)} == {Outcome.SUCCEEDED}
    assert sorted(e.intent.target for e in members) == sorted(world.claims)


def test_different_launches_are_not_batched() -> None:
    world = a_world(
        a_pool("web", template={"requirements": LARGE}),
        a_pool("batch", template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
        a_deployment("batch", "batch", 3),
    )
    world.converge(batch_from=2)
    assert launches(world) == 2
    assert {pool: n for (pool, _, _), n in world.fleet().items()} == {"web": 3, "batch": 3}


def test_the_rest_of_a_partially_fulfilled_batch_is_launched_elsewhere() -> None:
    world = many(5)
    world.cloud.market.limit("m7i.large", "us-east-1a", "on-demand", 2)
    world.converge(batch_from=2)
    assert complaints(world, 5) == []
    assert launches(world) == 1
    assert Counter(zone for _, _, zone in world.fleet().elements()) == {
        "us-east-1a": 2,
        "us-east-1b": 3,
    }


def test_claims_without_an_instance_are_removed_and_planned_again() -> None:
    world = many(5, only=(ZONE,))
    world.cloud.market.limit("m7i.large", "us-east-1a", "on-demand", 3)
    world.converge(batch_from=2)
    assert len(world.instances()) == len(world.claims) == 3
    (refused,) = world.store.unavailable(world.clock.now())
    assert refused.refusals == 1, "one call is one refusal, however many it refuses"
    world.cloud.market.clear()
    world.clock.advance(200)
    world.converge(batch_from=2)
    assert complaints(world, 5) == []


def plain() -> World:
    return many(4)


def scarce() -> World:
    """EC2 ignores client tokens, returns errors, and has two instances in the first pool."""
    world = many(4)
    world.cloud.honours_tokens = False
    world.cloud.market.limit("m7i.large", "us-east-1a", "on-demand", 2)
    world.cloud.faults.add("CreateFleet", Fault.SERVER_ERROR)
    world.cloud.faults.add("CreateTags", Fault.RESET_AFTER)
    return world


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [plain, scarce])
def test_a_batch_survives_a_crash_at_the_first_point_of_each_kind(
    make: Callable[[], World],
) -> None:
    names = points_of_a_batch(make)
    first = {name: number for number, name in reversed([*names.items()])}
    assert len(first) >= 6, sorted(first)
    assert "after ec2.CreateFleet" in first
    ends_alike_where_killed(make, {number: name for name, number in first.items()})


@pytest.mark.exhaustive
@pytest.mark.parametrize("make", [plain, scarce])
def test_a_batch_survives_a_crash_at_every_point(make: Callable[[], World]) -> None:
    names = points_of_a_batch(make)
    assert len(names) > 20, names
    ends_alike_where_killed(make, names)


def points_of_a_batch(make: Callable[[], World]) -> dict[int, str]:
    """Return the points around the first launch after which the durable state has changed."""
    whole = Points()
    whole.wrap(make()).converge(batch_from=2)
    requested = whole.names.index("after ec2.CreateFleet") + 1
    numbered = enumerate(whole.names[: requested + 40], 1)
    return {number: name for number, name in numbered if name.startswith("after")}


def ends_alike_where_killed(make: Callable[[], World], names: dict[int, str]) -> None:
    for number, name in names.items():
        points = Points()
        world = points.wrap(make())

        def at(reached: int, number: int = number, points: Points = points) -> None:
            if reached == number:
                raise CutError(points.names[-1])

        points.at = at
        try:
            world.converge(batch_from=2)
        except CutError:
            points.at = lambda _: None
            world.converge(batch_from=2)
        points.at = lambda _: None
        assert complaints(world, 4) == [], name
        assert ever_launched(world) == 4, name


def test_instances_that_ec2_lists_late_are_assigned_when_they_appear() -> None:
    world = many(4)
    world.cloud.honours_tokens = False
    lists_late(world, 3)
    killed_after_batch(world)
    world.converge(busy=1.0, batch_from=2)
    assert ever_launched(world) == 4
    assert complaints(world, 4) == []


def killed_after_batch(world: World) -> None:
    converge = world.converge
    world.converge = lambda **how: converge(batch_from=2, **how)  # type: ignore[method-assign]
    killed_after(world, "CreateFleet")
    world.converge = converge  # type: ignore[method-assign]


def test_a_batch_launched_twice_without_idempotency_ends_with_one_instance_per_claim() -> None:
    world = many(3)
    world.cloud.honours_tokens = False
    lists_late(world, 8)
    killed_after_batch(world)
    world.converge(busy=1.0, batch_from=2)
    assert ever_launched(world) == 6
    assert complaints(world, 3) == []


def test_a_batch_whose_instances_have_ended_is_not_repeated() -> None:
    """EC2 shows that the call was made: its claims are removed, and others are launched."""
    world = many(3)
    killed_after_batch(world)
    (batch,) = [e.intent for e in world.journal.entries() if e.intent.verb is Verb.LAUNCH_BATCH]
    world.cloud._account.backend.terminate_instances(list(world.instances()))
    world.clock.advance(60)
    world.converge(batch_from=2)
    members = [e for e in world.journal.entries() if e.intent.parameters.get("batch") == batch.id]
    assert {e.outcome for e in members} == {Outcome.FAILED}
    assert all("EC2 returned 0 more instances" in e.message for e in members)
    assert (launches(world), ever_launched(world)) == (1, 6), "the first call is not counted"
    assert complaints(world, 3) == []


def test_instances_are_adopted_if_the_state_is_lost_before_they_are_tagged() -> None:
    world = many(3)
    world.engine().run_once(batch_from=2)
    assert set(world.instances().values()) == {""}
    world.store, world.journal = MemoryStateStore(), MemoryJournal()
    world.adopt()
    world.converge(batch_from=2)
    assert ever_launched(world) == 3
    assert complaints(world, 3) == []


@pytest.mark.parametrize("fault", [Fault.RESET_AFTER, Fault.TIMEOUT_AFTER, Fault.THROTTLE])
@pytest.mark.parametrize("honours_tokens", [True, False])
def test_a_batch_whose_response_is_lost_is_recovered(fault: Fault, honours_tokens: bool) -> None:
    world = many(3)
    world.cloud.honours_tokens = honours_tokens
    world.cloud.faults.add("CreateFleet", fault, times=3)
    world.converge(batch_from=2)
    assert ever_launched(world) == 3
    assert complaints(world, 3) == []


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.exhaustive)])
def test_many_launches_need_few_calls(count: int) -> None:
    world = many(count)
    engine = world.engine()
    engine.source.read()
    before = len(world.cloud.calls)
    engine.run_once(batch_from=33)
    calls = Counter(call.operation for call in world.cloud.calls[before:])
    assert len(world.instances()) == count
    assert calls["CreateFleet"] == 1
    assert calls.total() <= 40, calls


def an_instance(number: int, state: str = "running") -> Instance:
    at = START + timedelta(seconds=number)
    return Instance(f"i-{number}", "m7i.large", "us-east-1a", "on-demand", state, at, {})


def test_each_instance_is_assigned_once_and_stays_with_its_claim() -> None:
    instances = [an_instance(n) for n in (3, 1, 2)] + [an_instance(0, "terminated")]
    found = assign_instances(["a", "b", "c"], instances, {"b": "i-1", "other": "i-2"})
    assert {name: i.id for name, i in found.items()} == {"b": "i-1", "a": "i-3"}
