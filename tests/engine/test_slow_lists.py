"""A pass does not wait for a list of EC2 that takes long: it uses the one before."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, TypeVar

from reconciler.ports.calls import InlineCalls
from tests.engine.faults import launches, lists_late
from tests.engine.world import Engine, World, a_deployment, a_pool, a_world

T = TypeVar("T")


class SlowReads(InlineCalls):
    """Calls of which a read ends only when the test says so, unless the pass insists on it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = False
        self._running: Future[Any] | None = None

    def read(self, name: str, call: Callable[[], T], within_s: float | None) -> T | None:
        if self._running is None:
            self._running = Future()
            self._running.set_result(call())
        if self.is_slow and within_s is not None:
            return None
        done, self._running = self._running, None
        found: T = done.result()
        return found


def slow_engine(world: World) -> tuple[Engine, SlowReads]:
    engine, calls = world.engine(), SlowReads()
    return Engine(replace(engine.ports, calls=calls), engine.source), calls


def test_a_pass_launches_nodes_while_ec2_is_slow_to_list_instances() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    engine, calls = slow_engine(world)
    engine.run_once()
    assert launches(world) == 1
    calls.is_slow = True
    world.git.commit(*world.git.objects[:-1], a_deployment("web", "web", 2, cpu="1500m"))
    world.clock.advance(1)
    engine.run_once()
    assert launches(world) > 1


def test_a_list_is_no_evidence_about_later_launches() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    engine, calls = slow_engine(world)
    engine.run_once()
    calls.is_slow = True
    for _ in range(8):
        world.clock.advance(7)  # together longer than EC2's list may lag
        engine.run_once()
        (claim,) = world.claims.values()
        assert not claim.is_deleting
        assert claim.condition("InstanceMissing") is None
        assert not claim.is_true("Registered"), "the instance of its node is not known yet"
    calls.is_slow = False
    world.clock.advance(1)
    engine.run_once()
    (claim,) = world.claims.values()
    assert claim.is_true("Registered")
    assert launches(world) == 1


def test_a_pass_waits_for_a_new_list_after_a_minute() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    engine, calls = slow_engine(world)
    engine.run_once()
    calls.is_slow = True
    world.clock.advance(61)
    seen = engine.run_once().seen
    assert [i.id for i in seen.instances] == [*world.instances()]
    assert seen.listed_at == world.clock.now()


def test_the_same_list_is_evidence_only_once() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))
    world.converge()
    engine, calls = slow_engine(world)
    lists_late(world, 3600)
    world.clock.advance(1)
    engine.run_once()
    (claim,) = world.claims.values()
    assert claim.is_true("InstanceMissing")
    calls.is_slow = True
    for _ in range(5):
        world.clock.advance(10)
        engine.run_once()
        assert [c.name for c in world.claims.values() if not c.is_deleting] == [claim.name]
    calls.is_slow = False
    world.clock.advance(1)
    engine.run_once()  # reads the list that was begun nine seconds after the first
    engine.run_once()
    assert claim.name not in {c.name for c in world.claims.values() if not c.is_deleting}
