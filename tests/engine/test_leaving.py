"""Termination of nodes, and rollback of commands that fail.

Each test fails if the guard that it covers is removed.
"""

from __future__ import annotations

from dataclasses import replace as with_fields
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.windows import Suspension
from reconciler.observed.snapshot import Snapshot
from tests.engine.crashes import Points
from tests.engine.faults import commit_drift, tainted, three_nodes
from tests.engine.test_crash import LARGE, complaints
from tests.engine.world import (
    a_deployment,
    a_node_class,
    a_pdb,
    a_pool,
    a_world,
)


def test_a_node_that_never_joins_is_removed_after_fifteen_minutes() -> None:
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
    assert "never joined" in world.recorder.messages("Failed")[0]


def test_a_blocked_drain_names_the_pod_disruption_budget() -> None:
    world = three_nodes()
    commit_drift(world, a_pdb("holds", "web", minAvailable=3), budget="1")
    victim, name = next(iter(world.instances().items()))
    claim = world.claims[name]
    metadata = replace(claim.metadata, deletion_timestamp=world.clock.now())
    world.store.put_node_claims([replace(claim, metadata=metadata)])
    engine = world.engine()
    for _ in range(3):
        engine.run_once()
        world.clock.advance(60)
    (message,) = world.recorder.messages("Draining")
    assert "PodDisruptionBudget default/holds blocks the eviction of default/web-" in message
    world.clock.advance(600)
    engine.run_once()
    assert world.recorder.messages("Stalled") == [message]
    assert victim in world.instances()


def test_a_blocked_drain_names_all_budgets_that_select_a_pod() -> None:
    """The eviction API evicts no pod that several budgets select, whatever they allow."""
    world = three_nodes()
    both = [a_pdb(name, "web", maxUnavailable="50%") for name in ("one", "two")]
    commit_drift(world, *both, budget="1")
    claim = world.claims[min(world.claims)]
    metadata = replace(claim.metadata, deletion_timestamp=world.clock.now())
    world.store.put_node_claims([replace(claim, metadata=metadata)])
    world.engine().run_once()
    (message,) = world.recorder.messages("Draining")
    assert "PodDisruptionBudgets default/one and default/two select default/web-" in message
    assert "it is never evicted" in message


def test_a_command_is_rolled_back_if_its_replacement_disappears() -> None:
    world = three_nodes(latencies={"ready_s": 30.0})
    commit_drift(world, budget="1")
    engine = world.engine()
    engine.run_once()
    (old,) = tainted(world)
    (command,) = world.store.commands()
    new = next(i for i, name in world.instances().items() if name in command.replacements)
    commit_drift(world, budget="0")
    world.cloud.reclaim_instance(new)
    for _ in range(3):
        engine.run_once()
        world.clock.advance(1)
    assert old not in tainted(world)
    assert world.store.commands() == []
    assert "is gone" in world.recorder.messages("CommandRolledBack")[0]
    world.converge()
    assert complaints(world, world.fleet()) == []


def test_a_command_is_rolled_back_if_its_replacement_never_becomes_ready() -> None:
    world = three_nodes()
    world.clock.advance(7200)
    world.latencies = {"ready_s": 3600.0}
    commit_drift(world, budget="1")
    engine = world.engine()
    engine.run_once()
    assert tainted(world)
    commit_drift(world, budget="0")
    world.clock.advance(601)
    engine.run_once()
    assert tainted(world) == []
    assert "was not ready" in world.recorder.messages("CommandRolledBack")[0]


def test_a_command_reverted_in_git_is_rolled_back() -> None:
    world = three_nodes()
    original = world.git.objects
    before = set(world.instances())
    commit_drift(world)
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


def test_a_command_suspended_while_replacements_start_is_rolled_back() -> None:
    world = three_nodes()
    before = set(world.instances())
    commit_drift(world)
    world.engine().run_once()
    assert len(tainted(world)) == 3
    frozen = Suspension(owner="platform-team", until=world.clock.now() + timedelta(hours=1))
    world.settings = with_fields(world.settings, suspensions=(frozen,))
    world.converge()
    assert tainted(world) == []
    assert before <= set(world.instances())
    assert "platform-team suspended disruption" in world.recorder.messages("CommandRolledBack")[0]


def test_a_command_whose_pods_are_protected_while_replacements_start_is_rolled_back() -> None:
    """Decisions count these pods on the replacements; the check counts them where they are."""
    world = three_nodes()
    before = set(world.instances())
    commit_drift(world)
    world.engine().run_once()
    assert len(tainted(world)) == 3

    class Protecting:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def observe(self, *seen: Any) -> Snapshot:
            found: Snapshot = self._cluster.observe(*seen)
            return with_fields(found, pods=tuple(map(protected, found.pods)))

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

    world.around = lambda port, name: Protecting(port) if name == "cluster" else port
    engine = world.engine()
    for _ in range(3):
        world.clock.advance(60)
        engine.run_once()
    assert before <= set(world.instances())
    assert DO_NOT_DISRUPT in world.recorder.messages("CommandRolledBack")[0]


def protected(pod: Pod) -> Pod:
    return replace(pod, metadata=replace(pod.metadata, annotations={DO_NOT_DISRUPT: "true"}))


def test_a_failed_removal_of_a_taint_is_retried() -> None:
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
    commit_drift(world, budget="1")
    engine = world.engine()
    engine.run_once()
    world.git.commit(*original)
    for _ in range(3):
        engine.run_once()
        world.clock.advance(1)
    world.converge()
    assert refusals == []
    assert complaints(world, world.fleet()) == []


def test_an_empty_node_that_gets_a_pod_before_termination_stays() -> None:
    world = three_nodes()
    pool = a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": LARGE})
    world.git.commit(a_node_class(), pool, a_deployment("web", "web", 2))
    points = Points()
    points.wrap(world)

    def at(_: int) -> None:
        if points.names[-1] == "before cluster.taint" and world.git.objects[-1] != third:
            world.git.commit(a_node_class(), pool, third)
            engine.source.read()
            claims, instances = list(world.claims.values()), engine.ports.compute.instances()
            engine.ports.cluster.observe(claims, instances)

    third = a_deployment("web", "web", 3)
    points.at = at
    engine = world.engine()
    before = set(world.instances())
    engine.converge()
    assert "Emptiness: delete" in world.recorder.messages("CommandStarted")[-1]
    assert "no longer empty" in world.recorder.messages("CommandRolledBack")[0]
    assert set(world.instances()) == before


def test_consolidate_after_counts_from_the_departure_of_the_last_pod() -> None:
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
