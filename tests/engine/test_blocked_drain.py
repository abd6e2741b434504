"""A drain that nothing moves waits without passes; what it waits for is what the step counted."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from reconciler.engine.loop import PassIntervals, run
from reconciler.engine.reconcile import Mandate
from reconciler.engine.steps.lifecycle import delete_with_reason
from reconciler.ports.cluster import DrainStep
from tests.engine.faults import ClusterAround
from tests.engine.world import TAGS, World, a_deployment, a_pdb, a_pool, a_world


@dataclass
class Draining(ClusterAround):
    """A cluster in which every step of a drain ends as told."""

    step: DrainStep = field(default_factory=DrainStep)

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep:
        del node, deadline, now
        return self.step


def a_drain(step: DrainStep) -> World:
    """Return a fleet with a node that was deleted by a person and cannot be drained."""
    blocks = a_pdb("web", "web", maxUnavailable=0)
    world = a_world(a_pool("web"), a_deployment("web", "web", 1), blocks)
    world.converge()
    world.around = Draining(step=step).around
    (claim,) = world.claims.values()
    gone = delete_with_reason(claim, world.clock.now(), "Deleted", "by a person")
    world.store.put_node_claims([gone])
    return world


def passes_within(world: World, span: timedelta) -> int:
    """Return the number of passes of a daemon once it has replaced the node."""
    engine = world.engine()
    until = world.clock.now() + timedelta(minutes=3)
    looks: list[datetime] = []
    run(
        engine.ports,
        engine.source,
        Mandate(TAGS),
        intervals=PassIntervals(busy=1.0, quiet=30.0),
        stop=lambda: world.clock.now() >= until,
        next_change=lambda _: None,
        observed=lambda seen: looks.append(seen.at),
    )
    return sum(until - span <= at for at in looks)


@pytest.mark.parametrize(
    ("blocked", "least", "most"), [(True, 2, 4), (False, 50, 61)], ids=["blocked", "moving"]
)
def test_only_a_drain_that_moves_shortens_the_interval_of_passes(
    blocked: bool, least: int, most: int
) -> None:
    world = a_drain(DrainStep(pods=1, is_blocked=blocked))
    assert least <= passes_within(world, timedelta(minutes=1)) <= most


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (DrainStep(pods=1), "waiting for 1 pod to terminate"),
        (DrainStep(pods=12), "waiting for 12 pods to terminate"),
        (DrainStep(volumes=2), "waiting for 2 volumes to be detached"),
    ],
)
def test_a_drain_says_what_its_step_counted(step: DrainStep, text: str) -> None:
    """Also if the pods of the observation have left in the meantime."""
    world = a_drain(step)
    world.git.commit(*(i for i in world.git.objects if i["kind"] != "Deployment"))
    world.engine().run_once()
    (claim,) = (c for c in world.claims.values() if c.is_deleting)
    known = claim.condition("Drained")
    assert known is not None
    assert text in known.message
