"""People change the fleet while the engine is at work, and it ends as they want it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from reconciler.engine.steps.lifecycle import delete_with_reason
from tests.engine.world import World, a_deployment, a_node_class, a_pool, a_world

NOMINATED = 20.0
"""For how long a node that is ready waits for its pods, in seconds."""


def apart(name: str, pool: str, replicas: int) -> dict[str, Any]:
    """Return a Deployment whose pods run on separate nodes."""
    made = a_deployment(name, pool, replicas)
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": name}},
    }
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    made["spec"]["template"]["spec"]["affinity"] = {"podAntiAffinity": required}
    return made


def commit(world: World, *objects: Any) -> None:
    world.git.commit(a_node_class(), *objects)


def launching(*objects: Any) -> World:
    """Return a fleet whose nodes were requested in a pass and have not joined yet."""
    world = a_world(*objects)
    world.engine().run_once()
    assert world.instances()
    return world


@pytest.mark.parametrize(("first", "then"), [(2, 5), (5, 2), (3, 0), (1, 3)])
def test_a_deployment_that_is_scaled_during_a_launch_has_as_many_nodes_as_pods(
    first: int, then: int
) -> None:
    world = launching(a_pool("web"), apart("web", "web", first))
    commit(world, a_pool("web"), apart("web", "web", then))
    world.converge()
    world.clock.advance(NOMINATED)
    world.converge()
    assert len(world.instances()) == then


def test_nodes_of_a_pool_that_is_removed_during_their_launch_wait_for_a_permission() -> None:
    web = (a_pool("web"), apart("web", "web", 1))
    world = launching(*web, a_pool("old"), apart("old", "old", 2))
    commit(world, *web)
    world.converge()
    assert _pools(world) == {"web": 1, "old": 2}
    world.git.allow_removal = frozenset({"old"})
    world.converge()
    assert _pools(world) == {"web": 1}


def test_an_instance_that_is_terminated_in_the_console_before_it_joins_is_replaced() -> None:
    world = launching(a_pool("web"), apart("web", "web", 3))
    lost = min(world.instances())
    world.cloud.reclaim_instance(lost)
    world.converge()
    assert len(world.instances()) == 3
    assert lost not in world.instances()


def test_a_claim_that_is_deleted_before_its_node_joins_is_replaced() -> None:
    world = launching(a_pool("web"), apart("web", "web", 2))
    first = world.claims[min(world.claims)]
    gone = delete_with_reason(first, world.clock.now(), "Deleted", "by a person")
    world.store.put_node_claims([gone])
    world.converge()
    assert len(world.instances()) == 2
    assert first.name not in world.claims


def _pools(world: World) -> Counter[str]:
    found: Counter[str] = Counter()
    for (pool, _, _), count in world.fleet().items():
        found[pool] += count
    return found
