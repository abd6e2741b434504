"""Memory discovered on one node applies to starting nodes and to later launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from msgspec.structs import replace as with_fields

from reconciler.catalog.catalog import bundled_catalog
from reconciler.engine.observation import observe
from reconciler.engine.reconcile import Mandate, owner_of, reconcile
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.resources import parse_resources
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance
from tests.engine.faults import ClusterAround
from tests.engine.test_crash import LARGE
from tests.engine.world import Engine, World, a_deployment, a_pool, a_world

REAL = "7Gi"
"""What every node really has; the catalog estimates more."""


@dataclass
class Smaller(ClusterAround):
    """A cluster whose nodes have less memory than in the catalog; ``latest`` has not joined."""

    hides_latest: bool = False

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        seen: Snapshot = self.cluster.observe(claims, instances)
        nodes = [
            with_fields(
                n,
                status=with_fields(
                    n.status,
                    capacity={**n.status.capacity, "memory": REAL},
                    allocatable={**n.status.allocatable, "memory": "6.5Gi"},
                ),
            )
            for n in seen.nodes
        ]
        return replace(seen, nodes=tuple(nodes[:1] if self.hides_latest else nodes))


def a_fleet(around: Smaller, replicas: int) -> tuple[World, Engine]:
    pool = a_pool("web", template={"requirements": LARGE})
    world = a_world(pool, a_deployment("web", "web", replicas), around=around.around)
    world.catalog = bundled_catalog("us-east-1")  # that of a file states its types as they are
    return world, world.engine()


def memory_of(claim: NodeClaim) -> int:
    return parse_resources(claim.status.capacity)["memory"]


LEARNED = parse_resources({"memory": REAL})["memory"]


def test_a_launch_uses_the_memory_discovered_on_earlier_nodes() -> None:
    world, engine = a_fleet(Smaller(), 1)
    desired = engine.source.read()  # the daemon keeps it for minutes
    for _ in range(3):
        reconcile(engine.ports, desired, Mandate(engine.tags))
        world.clock.advance(1)
    (first,) = world.claims
    assert memory_of(world.claims[first]) > LEARNED, "nobody knew better then"
    others = [o for o in world.git.objects if o["kind"] != "Deployment"]
    world.git.commit(*others, a_deployment("web", "web", 2))
    engine.source.read()  # the pods come, and the daemon plans with what it has
    reconcile(engine.ports, desired, Mandate(engine.tags))
    (second,) = world.claims.keys() - {first}
    assert memory_of(world.claims[second]) == LEARNED


def test_a_starting_node_promises_at_most_the_discovered_memory() -> None:
    smaller = Smaller(hides_latest=True)
    world, engine = a_fleet(smaller, 2)
    desired = engine.source.read()
    for _ in range(3):
        reconcile(engine.ports, desired, Mandate(engine.tags))
        world.clock.advance(1)
    assert [memory_of(c) > LEARNED for c in world.claims.values()] == [True, True]
    seen = observe(engine.ports, desired.node_pools, owner_of(world.settings))
    cluster = desired.inputs(seen, (), (), 0).cluster
    (waiting,) = [node for node in cluster.nodes if node.node is None]
    assert waiting.capacity["memory"] == LEARNED
