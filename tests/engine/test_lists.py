"""Lists of EC2 that are late, truncated or wrong: unknown is not empty.

Each test fails if the guard that it covers is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as with_fields
from datetime import timedelta
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from reconciler.adapters.simulated.conditions import Fault
from reconciler.adapters.simulated.memory import MemoryJournal, MemoryShelf, MemoryStateStore
from reconciler.engine.ownership import UnknownInstancesError
from reconciler.model.errors import CloudError, ClusterError, TransientCloudError
from reconciler.model.karpenter.labels import NODEPOOL_HASH, NODEPOOL_HASH_VERSION
from reconciler_embedded.wire import Request, Response
from reconciler_embedded.wire import error as aws_error
from tests.engine.faults import (
    a_world_beside,
    asks_for_fleet,
    commit_drift,
    launches,
    lists_late,
    lists_nothing,
    tainted,
    three_nodes,
    wire,
)
from tests.engine.test_crash import LARGE, complaints
from tests.engine.world import (
    SETTINGS,
    a_deployment,
    a_node_class,
    a_pool,
    a_world,
)


def test_an_answer_without_details_is_completed_by_the_next_observation() -> None:
    world = a_world(a_pool("web"), a_deployment("web", "web", 1))

    def terse(request: Request, handle: Callable[[Request], Response]) -> Response:
        answer = handle(request)
        if request.operation != "CreateFleet":
            return answer
        body = answer.body
        for tag in (b"launchTemplateAndOverrides", b"instanceType"):
            start, end = body.find(b"<" + tag), body.find(b"</" + tag + b">")
            if start >= 0:
                body = body[:start] + body[end + len(tag) + 3 :]
        return Response(answer.status, body, answer.headers)

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

    def wrong(request: Request, handle: Callable[[Request], Response]) -> Response:
        answer = handle(request)
        if request.operation != "CreateFleet":
            return answer
        return Response(answer.status, answer.body.replace(b"us-east-1a", b"us-east-1b"), {})

    wire(world, wrong)
    world.converge()
    world.clock.advance(120)
    world.converge()
    assert launches(world) == 1
    (claim,) = world.claims.values()
    assert claim.metadata.labels["topology.kubernetes.io/zone"] == "us-east-1a"
    assert claim.is_true("Initialized")


def test_hashes_of_another_version_are_not_compared() -> None:
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
def test_an_incomplete_list_decides_nothing(fault: Fault, error: type[Exception]) -> None:
    world = three_nodes()
    world.page_size = 1
    commit_drift(world)
    serial, entries = world.store.serial(), world.journal.entries()
    world.cloud.faults.add("DescribeInstances", fault, times=None, skip=2)
    with pytest.raises(error):
        world.engine().run_once()
    assert (world.store.serial(), world.journal.entries()) == (serial, entries)
    world.cloud.faults.clear()
    world.converge(deadline=timedelta(minutes=5))
    assert len(world.instances()) == 3


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (403, "UnauthorizedOperation", CloudError),
        (503, "RequestLimitExceeded", TransientCloudError),
    ],
)
def test_a_fleet_that_cannot_be_listed_is_left_alone(
    status: int, code: str, kind: type[Exception]
) -> None:
    """Each instance can still be described by its id, which does not replace a list."""
    world = three_nodes()
    commit_drift(world)
    serial, entries = world.store.serial(), world.journal.entries()

    def unlisted(request: Request, handle: Callable[[Request], Response]) -> Response:
        if asks_for_fleet(request):
            return aws_error("ec2", status, code, "no list today", "r-1")
        return handle(request)

    wire(world, unlisted)
    with pytest.raises(kind, match="DescribeInstances"):
        world.engine().run_once()
    assert (world.store.serial(), world.journal.entries()) == (serial, entries)


def test_a_cluster_that_cannot_be_listed_is_left_alone() -> None:
    """Without visible nodes and pods, every node of the fleet would seem empty."""
    world = three_nodes()
    commit_drift(world)
    serial, entries = world.store.serial(), world.journal.entries()

    class Dark:
        def __init__(self, cluster: Any) -> None:
            self._cluster = cluster

        def observe(self, *_: Any) -> Any:
            raise ClusterError("no list today", where="GET /api/v1/nodes")

        def __getattr__(self, name: str) -> Any:
            return getattr(self._cluster, name)

    world.around = lambda port, name: Dark(port) if name == "cluster" else port
    with pytest.raises(ClusterError, match="no list today"):
        world.engine().run_once()
    assert (world.store.serial(), world.journal.entries()) == (serial, entries)


def test_instances_on_the_last_page_are_observed() -> None:
    """A lost state has no ids to describe: a reported instance was listed."""
    world = three_nodes()
    world.page_size = 1
    world.store, world.journal, world.shelf = MemoryStateStore(), MemoryJournal(), MemoryShelf()
    seen = world.engine().run_once(decides=False).seen
    assert {i.id for i in seen.unclear_owners.unknown} == set(world.instances())
    assert len(seen.unclear_owners.unknown) == 3


def test_an_unlisted_instance_is_described_before_it_counts_as_gone() -> None:
    world = three_nodes()
    before = world.instances()
    lists_nothing(world)
    engine = world.engine()
    for _ in range(8):
        engine.run_once()
        world.clock.advance(15)
    assert world.instances() == before
    assert set(world.claims) == set(before.values())
    assert launches(world) == 3


def test_a_briefly_empty_list_terminates_and_launches_nothing() -> None:
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


def test_instances_of_others_are_ignored_if_the_server_ignores_filters() -> None:
    world = three_nodes()
    for name in ("them", "also-them"):
        other = with_fields(SETTINGS, fleet=name, cluster_name=name)
        a_world_beside(world, other).converge()

    def without_filters(request: Request, handle: Callable[[Request], Response]) -> Response:
        if request.operation != "DescribeInstances":
            return handle(request)
        kept = [(k, v) for k, v in request.form if not k.startswith("Filter")]
        return handle(with_fields(request, body=urlencode(kept).encode()))

    wire(world, without_filters)
    commit_drift(world)
    world.converge()
    ours = [t for t in world.cloud.running_instances().values() if t["reconciler/fleet"] == "test"]
    assert len(ours) == 3
    assert len(world.cloud.running_instances()) == 9
    assert len(world.claims) == 3


def test_a_lost_state_stops_the_fleet_until_it_is_adopted() -> None:
    world = three_nodes()
    before = world.instances()
    world.store, world.journal, world.shelf = MemoryStateStore(), MemoryJournal(), MemoryShelf()
    with pytest.raises(UnknownInstancesError, match="reconciler state adopt"):
        world.converge()
    assert (world.instances(), world.claims, launches(world)) == (before, {}, 3)
    assert world.adopt() == []
    world.converge()
    assert world.instances() == before
    assert {c.name for c in world.claims.values()} == set(before.values())
    assert complaints(world, world.fleet()) == []


def test_a_node_left_tainted_by_a_lost_state_is_untainted() -> None:
    world = three_nodes()
    commit_drift(world, budget="1")
    world.engine().run_once()
    assert tainted(world)
    world.store, world.journal = MemoryStateStore(), MemoryJournal()
    commit_drift(world, budget="0")
    world.adopt()
    world.converge()
    assert tainted(world) == []


@pytest.mark.parametrize("stopping_s", [0.0, 60.0])
def test_an_instance_terminated_by_others_is_replaced(stopping_s: float) -> None:
    world = three_nodes(stopping_s=stopping_s)
    victim, name = next(iter(world.instances().items()))
    world.cloud.reclaim_instance(victim)
    started = world.clock.now()
    world.converge()
    assert victim not in world.instances()
    assert name not in world.claims
    assert complaints(world, world.fleet()) == []
    assert len(world.instances()) == 3
    assert world.clock.now() - started < timedelta(seconds=100)


def test_a_change_in_git_without_drift_is_recorded_once() -> None:
    world = three_nodes()
    world.git.commit(
        a_node_class(),
        a_pool("web", budgets=[{"nodes": "2"}], template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
    )
    assert [c.name for c in world.converge().plan.changes] == ["web"]
    assert world.converge().plan.changes == ()
