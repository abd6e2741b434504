"""Node repair of Karpenter 1.15 in the daemon: replace first, with a deadline for the drain."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from typing import Any

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.node import Node
from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, KarpenterVersion
from reconciler.ports.progress import EventKind
from tests.engine.test_crash import LARGE
from tests.engine.unhealthy import UnhealthyNodes
from tests.engine.world import (
    SETTINGS,
    World,
    a_deployment,
    a_node_class,
    a_pdb,
    a_pool,
    a_world,
)

DEADLINE = "karpenter.sh/nodeclaim-termination-timestamp"


@dataclass
class _Illness(UnhealthyNodes):
    """A failed disk of nodes, by provider id, and since when."""

    broken: dict[str, datetime] = field(default_factory=dict)

    def condition_of(self, node: Node) -> Condition | None:
        since = self.broken.get(node.spec.provider_id)
        if since is None:
            return None
        return Condition("StorageReady", "False", "DiskFailure", last_transition_time=since)


def _fleet(budget: str = "1", *more: Any) -> tuple[World, _Illness]:
    gates = {**DEFAULT_FEATURE_GATES, FeatureGate.NODE_REPAIR: True}
    settings = with_fields(SETTINGS, karpenter=KarpenterVersion.V1_15, feature_gates=gates)
    illness = _Illness()
    world = a_world(settings=settings, around=illness.around)
    pool = a_pool("web", budgets=[{"nodes": budget}], template={"requirements": LARGE})
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 5), *more)
    world.converge()
    return world, illness


def _break_one_node(world: World, illness: _Illness) -> NodeClaim:
    claim = world.claims[min(world.claims)]
    illness.broken[claim.status.provider_id] = world.clock.now()
    world.clock.advance(31 * 60)
    return claim


def test_an_unhealthy_node_stays_until_its_replacement_is_ready() -> None:
    world, illness = _fleet()
    sick = _break_one_node(world, illness)

    plan = world.engine().run_once().plan

    (command,) = plan.commands
    assert (command.reason, command.decision) == ("Unhealthy", "replace")
    assert command.termination_grace_period == "10m"
    assert not command.forceful
    assert not world.claims[sick.name].is_deleting
    world.converge()
    assert sick.name not in world.claims
    assert len(world.claims) == 5


def test_each_step_survives_the_end_of_its_process() -> None:
    """The deadline of the drain counts from the moment at which the drain starts."""
    world, illness = _fleet()
    sick = _break_one_node(world, illness)
    launched = len(world.instances())

    for _ in range(60):
        world.engine().run_once()
        found = world.claims.get(sick.name)
        if found is not None and found.is_deleting:
            deleted = found.metadata.deletion_timestamp
            assert deleted is not None
            deadline = datetime.fromisoformat(found.metadata.annotations[DEADLINE])
            assert deadline == (deleted + timedelta(minutes=10)).replace(microsecond=0)
        world.clock.advance(10)

    assert sick.name not in world.claims
    assert len(world.claims) == 5
    assert len(world.instances()) == launched


def test_a_drain_that_a_budget_blocks_ends_at_its_deadline() -> None:
    world, illness = _fleet("1", a_pdb("web", "web", maxUnavailable=0))
    sick = _break_one_node(world, illness)

    world.converge()

    assert sick.name not in world.claims
    assert "Repair: replace" in " ".join(world.recorder.messages(EventKind.COMMAND_STARTED))


def test_a_node_that_recovers_before_its_replacement_is_ready_stays() -> None:
    world, illness = _fleet()
    sick = _break_one_node(world, illness)
    world.engine().run_once()
    illness.broken.clear()

    world.converge()

    assert sick.name in world.claims
    (why,) = world.recorder.messages(EventKind.COMMAND_ROLLED_BACK)
    assert "is healthy again" in why


def test_nothing_is_repaired_beyond_the_budget() -> None:
    world, illness = _fleet("0")
    sick = _break_one_node(world, illness)

    plan = world.engine().run_once().plan

    assert plan.commands == ()
    (waiting,) = [d for d in plan.deferred if d.node_claim == sick.name]
    assert (waiting.reason, waiting.waits_for) == ("Unhealthy", "budget")
    assert [b.allowed for b in plan.budgets if b.reason == "Unhealthy"] == [0]
