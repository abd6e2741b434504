"""A node that cannot be changed does not block others, and is retried."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pytest
from msgspec.structs import replace

from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.observed.snapshot import Snapshot
from reconciler.plan.value.plan import from_json
from reconciler.ports.calls import UnansweredError
from reconciler.ports.cloud import Instance
from reconciler.ports.cluster import DrainStep
from tests.engine.faults import ClusterAround, commit_drift, three_nodes
from tests.engine.test_crash import LARGE, complaints
from tests.engine.world import Engine, World, a_deployment, a_node_class, a_pool, a_world


@dataclass
class Stubborn(ClusterAround):
    """A cluster that refuses ``verbs`` for the first requested node, or for ``all``."""

    verbs: set[str]
    chosen: str = ""
    all: bool = False
    volumes: int = 0
    requested: list[str] = field(default_factory=list)

    def register(self, node: str, claim: NodeClaim) -> None:
        self._judge("register", node)
        self.cluster.register(node, claim)

    def initialize(self, node: str) -> None:
        self._judge("initialize", node)
        self.cluster.initialize(node)

    def taint(self, node: str) -> None:
        self._judge("taint", node)
        self.cluster.taint(node)

    def drain(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep:
        self._judge("drain", node)
        step: DrainStep = self.cluster.drain(node, deadline, now)
        return step if step.pods else DrainStep(volumes=self.volumes)

    def _judge(self, verb: str, node: str) -> None:
        if verb not in self.verbs:
            return
        self.chosen = self.chosen or node
        if self.all or node == self.chosen:
            self.requested.append(verb)
            raise ClusterError("a webhook says no", where=f"PATCH /api/v1/nodes/{node}")


@dataclass
class Slow(ClusterAround):
    """A cluster that answers only the first taints of each pass in time."""

    most: int
    requested: int = 0

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        self.requested = 0
        seen: Snapshot = self.cluster.observe(claims, instances)
        return seen

    def taint(self, node: str) -> None:
        self.requested += 1
        if self.requested > self.most:
            raise UnansweredError(f"taint {node}")
        self.cluster.taint(node)


def changed(world: World, pods: int, version: str = "1") -> None:
    """Commit that number of pods, each of which fills a node; budgets allow all nodes at once."""
    pool = a_pool(
        "web",
        labels={"version": version},
        budgets=[{"nodes": "100%"}],
        template={"requirements": LARGE},
    )
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", pods))


def a_fleet(pods: int) -> World:
    world = a_world()
    changed(world, pods)
    world.converge()
    assert len(world.instances()) == pods
    world.clock.advance(60)
    return world


def passes(world: World, engine: Engine, count: int) -> None:
    """Run passes, one a second."""
    for _ in range(count):
        engine.run_once()
        world.clock.advance(1)


def labelled(world: World, label: str) -> int:
    engine = world.engine()
    seen = engine.ports.cluster.observe(
        list(world.claims.values()), engine.ports.compute.instances()
    )
    return sum(label in node.metadata.labels for node in seen.nodes)


def test_a_refusing_node_does_not_block_registration_of_others() -> None:
    stubborn = Stubborn({"register"})
    pool = a_pool("web", template={"requirements": LARGE})
    world = a_world(pool, a_deployment("web", "web", 3), around=stubborn.around)
    world.engine().run_once()
    for verb, label in (("register", "registered"), ("initialize", "initialized")):
        stubborn.verbs = {verb}
        for _ in range(3):
            world.clock.advance(1)
            world.engine().run_once()
        assert labelled(world, f"karpenter.sh/{label}") == 2
        assert (
            f"/nodes/{stubborn.chosen}: a webhook says no" in world.recorder.messages("Failed")[-1]
        )
    assert set(stubborn.requested) == {"register", "initialize"}
    stubborn.verbs = set()
    world.converge()
    assert labelled(world, "karpenter.sh/initialized") == 3
    assert complaints(world, world.fleet()) == []


def test_nothing_is_launched_for_nodes_that_cannot_be_tainted() -> None:
    stubborn = Stubborn({"taint"}, all=True)
    world = three_nodes()
    world.around = stubborn.around
    before = set(world.instances())
    commit_drift(world, budget="3")
    engine = world.engine()
    passes(world, engine, 6)
    assert set(world.instances()) == before
    assert world.store.commands() == []
    assert "taint" in world.recorder.messages("CommandRolledBack")[-1]
    assert world.recorder.messages("IllegalTransition") == []
    assert len(stubborn.requested) == 2 * 3, "each is tried again at once, and then left alone"
    stubborn.verbs = set()
    world.clock.advance(16 * 60)
    world.converge()
    assert not before & set(world.instances())
    assert complaints(world, world.fleet()) == []


def test_a_node_that_cannot_be_tainted_does_not_block_replacement_of_others() -> None:
    stubborn = Stubborn({"taint"})
    world = three_nodes()
    world.around = stubborn.around
    before = set(world.instances())
    commit_drift(world, budget="3")
    engine = world.engine()
    passes(world, engine, 20)
    assert len(before & set(world.instances())) == 1, "the others are gone"
    assert len(world.instances()) == 3


def test_a_node_that_cannot_be_tainted_does_not_block_removal_of_empty_ones() -> None:
    stubborn = Stubborn({"taint"})
    world = a_fleet(3)
    world.around = stubborn.around
    changed(world, pods=0)
    engine = world.engine()
    passes(world, engine, 10)
    (left,) = world.claims.values()
    assert left.status.node_name == stubborn.chosen
    assert world.recorder.messages("IllegalTransition") == []
    stubborn.verbs = set()
    world.converge()
    assert world.instances() == {}


def test_empty_nodes_are_removed_in_several_passes_if_tainting_takes_long() -> None:
    slow = Slow(most=2)
    world = a_fleet(7)
    world.around = slow.around
    changed(world, pods=0)
    engine = world.engine()
    engine.run_once()
    (first,) = world.store.commands()
    assert len(first.node_claims) == len(first.node_pools) == 2
    (plan,) = world.store.plans(limit=1)
    (whole,) = from_json(plan.body).commands
    assert whole.savings
    assert first.savings == pytest.approx(whole.savings * 2 / 7)
    assert world.recorder.messages("Retrying")[-1].startswith("taint ip-")
    engine.converge()
    assert world.instances() == {}
    assert world.recorder.messages("CommandRolledBack") == []
    assert world.recorder.messages("IllegalTransition") == []
    assert world.recorder.kinds()["CommandStarted"] == 4
    assert complaints(world, world.fleet()) == []


def test_nodes_are_replaced_in_several_passes_if_tainting_takes_long() -> None:
    slow = Slow(most=2)
    world = a_fleet(5)
    world.around = slow.around
    before = set(world.instances())
    changed(world, pods=5, version="2")
    engine = world.engine()
    engine.run_once()
    assert len(world.store.commands()) == 2
    assert len(set(world.instances()) - before) == 2, "only for nodes with the taint"
    engine.run_once()
    assert len(world.store.commands()) == 4, "nothing is delayed"
    engine.converge()
    assert not before & set(world.instances())
    assert world.recorder.messages("CommandRolledBack") == []
    assert complaints(world, world.fleet()) == []


def test_a_refusing_node_does_not_block_drains_of_others() -> None:
    stubborn = Stubborn({"drain"})
    world = three_nodes()
    world.around = stubborn.around
    before = set(world.instances())
    commit_drift(world, budget="3")
    engine = world.engine()
    passes(world, engine, 12)
    assert len(before & set(world.instances())) == 1, "the others are gone"
    assert "a webhook says no" in world.recorder.messages("Failed")[-1]
    stubborn.verbs = set()
    world.converge()
    assert not before & set(world.instances())
    assert complaints(world, world.fleet()) == []


def test_after_its_pods_a_drain_waits_for_volumes() -> None:
    stubborn = Stubborn(set(), volumes=2)
    world = three_nodes()
    world.around = stubborn.around
    victim, name = next(iter(world.instances().items()))
    claim = world.claims[name]
    metadata = replace(claim.metadata, deletion_timestamp=world.clock.now())
    world.store.put_node_claims([replace(claim, metadata=metadata)])
    engine = world.engine()
    for _ in range(3):
        engine.run_once()
        world.clock.advance(1)
    assert world.recorder.messages("Draining")[-1].endswith("waiting for 2 volumes to be detached")
    assert victim in world.instances()
    stubborn.volumes = 0
    world.converge()
    assert victim not in world.instances()
