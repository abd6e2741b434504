"""Fleets with faults: late, killed or interrupted calls of EC2."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from reconciler.model.settings import Settings
from reconciler_embedded.wire import Request, Response
from tests.engine.crashes import CutError
from tests.engine.test_crash import LARGE
from tests.engine.world import (
    Git,
    World,
    a_deployment,
    a_node_class,
    a_pool,
    a_world,
)

ON_DEMAND = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}


class ClusterAround:
    """A wrapper around a cluster; calls that a test does not override reach the cluster."""

    cluster: Any = None

    def around(self, port: Any, name: str) -> Any:
        """Replace the cluster among the ports of a world."""
        if name != "cluster":
            return port
        self.cluster = port
        return self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.cluster, name)


def three_nodes(**fields: Any) -> World:
    """A fleet of three nodes, each full with one pod; budgets allow all of them at once."""
    world = a_world(
        a_pool("web", budgets=[{"nodes": "3"}], template={"requirements": LARGE}),
        a_deployment("web", "web", 3),
        **fields,
    )
    world.converge()
    return world


def commit_drift(world: World, *more: dict[str, Any], budget: str = "3", **pool: Any) -> None:
    """Commit a change that drifts all nodes."""
    world.git.commit(
        a_node_class(),
        a_pool(
            "web",
            labels={"version": "2"},
            budgets=[{"nodes": budget}],
            template={"requirements": LARGE},
            **pool,
        ),
        a_deployment("web", "web", 3),
        *more,
    )


def a_world_beside(world: World, settings: Settings) -> World:
    """Return another fleet in the same account."""
    return World(world.clock, world.cloud, Git(world.git.objects), settings=settings)


def launches(world: World) -> int:
    return sum(call.operation == "CreateFleet" for call in world.cloud.calls)


def ever_launched(world: World) -> int:
    return len(world.cloud._account.backend.all_instances())


def wire(
    world: World, change: Callable[[Request, Callable[[Request], Response]], Response]
) -> None:
    """Insert a wrapper between boto3 and EC2."""
    handle = world.cloud.respond
    world.cloud.respond = lambda request: change(request, handle)  # type: ignore[method-assign]


def lists_late(world: World, seconds: float) -> None:
    """Make DescribeInstances omit instances younger than that."""

    def late(request: Request, handle: Callable[[Request], Response]) -> Response:
        if request.operation != "DescribeInstances":
            return handle(request)
        oldest = world.clock.now().replace(tzinfo=None) - timedelta(seconds=seconds)
        account = world.cloud._account
        reservations = account.backend.reservations.values()
        kept = {id(r): r.instances for r in reservations}
        for r in reservations:
            r.instances = [i for i in r.instances if i.launch_time <= oldest]
        account.forget_answers()
        try:
            return handle(request)
        finally:
            for r in reservations:
                r.instances = kept[id(r)]
            account.forget_answers()

    wire(world, late)


def asks_for_fleet(request: Request) -> bool:
    """Return whether a call lists instances by the tag of the fleet, not by id or intent."""
    filters = {value for key, value in request.form if key.endswith(".Name")}
    listed = request.operation == "DescribeInstances" and "tag:reconciler/fleet" in filters
    return listed and "tag:reconciler/intent" not in filters


def lists_nothing(world: World) -> None:
    """Make EC2 list no instance of the fleet from now on; each can still be described by its id."""

    def forgetful(request: Request, handle: Callable[[Request], Response]) -> Response:
        if not asks_for_fleet(request):
            return handle(request)
        account = world.cloud._account
        backend = account.backend
        kept, backend.reservations = backend.reservations, type(backend.reservations)()
        account.forget_answers()
        try:
            return handle(request)
        finally:
            backend.reservations = kept
            account.forget_answers()

    wire(world, forgetful)


def killed_after(world: World, operation: str) -> None:
    """Run until EC2 has executed a call, and stop there."""

    def die(done: str) -> None:
        if done == operation:
            world.cloud.after_call = lambda _: None
            raise CutError(done)

    world.cloud.after_call = die
    with pytest.raises(CutError):
        world.converge(busy=1.0)


def tainted(world: World) -> list[str]:
    nodes = world.engine().ports.cluster._record.nodes  # type: ignore[attr-defined]
    return [
        name
        for name, record in nodes.items()
        if any(t.key == "karpenter.sh/disrupted" for t in record.node.spec.taints)
    ]
