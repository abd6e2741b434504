"""``consolidateAfter`` counts from the last change of the pods on a node, also while they end."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace as with_fields

from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.snapshot import Snapshot
from tests.engine.world import World, a_deployment, a_pool, a_world

AFTER = timedelta(seconds=60)


@dataclass
class LingeringPods:
    """A cluster whose pods take time to end: they are terminating first, then gone."""

    cluster: Any
    world: World
    grace: timedelta
    running: dict[str, Pod] = field(default_factory=dict)
    ending: dict[str, tuple[Pod, datetime]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)

    def observe(self, *args: Any) -> Snapshot:
        seen: Snapshot = self.cluster.observe(*args)
        now = self.world.clock.now()
        here = {pod.key: pod for pod in seen.pods}
        for key, pod in self.running.items():
            if key not in here and pod.spec.node_name:
                ends = with_fields(pod.metadata, deletion_timestamp=now + self.grace)
                self.ending[key] = with_fields(pod, metadata=ends), now + self.grace
        self.running = here
        self.ending = {key: kept for key, kept in self.ending.items() if now < kept[1]}
        return replace(seen, pods=(*seen.pods, *(pod for pod, _ in self.ending.values())))


def a_world_whose_pods_linger(grace: timedelta, **pool: Any) -> World:
    world = a_world(a_pool("web", after="60s", **pool), a_deployment("web", "web", 1))
    world.around = lambda port, name: (
        LingeringPods(port, world, grace) if name == "cluster" else port
    )
    return world


@pytest.mark.parametrize("policy", ["WhenEmpty", "WhenEmptyOrUnderutilized"])
@pytest.mark.parametrize("grace_s", [5, 30, 90])
def test_a_node_stays_for_consolidate_after_once_its_pods_begin_to_end(
    grace_s: int, policy: str
) -> None:
    world = a_world_whose_pods_linger(timedelta(seconds=grace_s), policy=policy)
    engine = world.engine()
    engine.converge()
    world.clock.advance(600)
    engine.run_once()
    assert len(world.instances()) == 1
    world.git.commit(*(item for item in world.git.objects if item["kind"] != "Deployment"))
    began = None
    while world.claims and not any(c.is_deleting for c in world.claims.values()):
        done = engine.run_once()
        began = began or done.seen.at
        world.clock.advance(5)
        assert world.clock.now() < began + timedelta(minutes=5)
    assert began is not None
    assert AFTER <= done.seen.at - began <= AFTER + timedelta(seconds=15)
