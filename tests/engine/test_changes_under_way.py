"""What changes while nodes start or drain, in one process and in a new one for each pass."""

from __future__ import annotations

from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import Taint
from reconciler.observed.fingerprint import Pods
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cluster import FleetUsage, NodeUsage
from reconciler.web.view import fleet_view
from tests.engine.faults import ClusterAround
from tests.engine.interruptions import listening, send_event, sqs, warn
from tests.engine.test_crash import LARGE
from tests.engine.test_interventions import apart, commit
from tests.engine.world import Engine, World, a_deployment, a_node_class, a_pdb, a_pool, a_world

JOINS_LATE = {"joining_s": 60.0}
SPOT: dict[str, Any] = {"capacity_types": ["spot"], "template": {"requirements": LARGE}}
DEMAND: dict[str, Any] = {"template": {"requirements": LARGE}, "budgets": [{"nodes": "3"}]}


@dataclass
class Processes:
    """Passes every few seconds, in one process or in a new one each."""

    restarts: bool
    every_s: float = 10.0
    _engine: Any = None

    def passes(self, world: World, number: int) -> None:
        for _ in range(number):
            if self._engine is None or self.restarts:
                self._engine = listening(world)
            self._engine.run_once()
            world.clock.advance(self.every_s)


@pytest.fixture(
    params=[
        pytest.param(False, marks=pytest.mark.exhaustive, id="one process"),
        pytest.param(True, id="a new process each pass"),
    ]
)
def processes(request: pytest.FixtureRequest) -> Processes:
    return Processes(request.param)


def a_daemon_set(cpu: str) -> dict[str, Any]:
    pod = a_deployment("agent", "web", 1, cpu=cpu)["spec"]["template"]
    del pod["spec"]["nodeSelector"]
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "agent", "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "agent"}}, "template": pod},
    }


def slow_to_end(name: str, replicas: int, grace_s: int) -> dict[str, Any]:
    made = a_deployment(name, "web", replicas)
    made["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = grace_s
    return made


def draining(pool: dict[str, Any], web: dict[str, Any], processes: Processes) -> World:
    """Return three nodes, one or more of which has begun to drain because of drift."""
    world = a_world(a_pool("web", **pool), web, latencies={"joining_s": 30.0, "leaving_s": None})
    world.converge()
    sqs(world)
    commit(world, a_pool("web", labels={"version": "2"}, **pool), web)
    for _ in range(10):
        processes.passes(world, 1)
        if leaving(world):
            return world
    raise AssertionError("no drain has begun")


def leaving(world: World) -> list[NodeClaim]:
    return [claim for claim in world.claims.values() if claim.is_deleting]


def instance_of(world: World, claim: NodeClaim) -> str:
    return next(i for i, name in world.instances().items() if name == claim.name)


def pools_and_types(world: World) -> list[str]:
    return sorted(kind for _, kind, _ in world.fleet().elements())


def test_a_daemon_set_that_grows_during_a_launch_gets_the_missing_node_at_once(
    processes: Processes,
) -> None:
    """Two pods were to share a node: beside the larger daemon, only one of them fits."""
    web = (a_pool("web"), a_deployment("web", "web", 2))
    world = a_world(*web, a_daemon_set("100m"), latencies=JOINS_LATE)
    processes.passes(world, 1)
    assert pools_and_types(world) == ["m7i.xlarge"]
    commit(world, *web, a_daemon_set("1100m"))
    processes.passes(world, 1)
    assert len(world.instances()) == 2
    processes.passes(world, 20)
    assert len(world.instances()) == 2
    assert world.recorder.kinds()["Launched"] == 2


def test_a_daemon_set_that_grows_within_the_room_of_a_launch_launches_nothing(
    processes: Processes,
) -> None:
    web = (a_pool("web"), a_deployment("web", "web", 2))
    world = a_world(*web, a_daemon_set("100m"), latencies=JOINS_LATE)
    processes.passes(world, 1)
    commit(world, *web, a_daemon_set("900m"))
    processes.passes(world, 20)
    assert world.recorder.kinds()["Launched"] == 1


def test_a_budget_that_is_added_during_a_drain_stops_no_pod_that_terminates(
    processes: Processes,
) -> None:
    web = slow_to_end("web", 3, 60)
    world = draining(DEMAND, web, processes)
    commit(world, *world.git.objects[1:], a_pdb("late", "web", minAvailable=3))
    processes.passes(world, 12)
    assert not any("late" in text for text in world.recorder.messages("Draining"))
    assert (len(world.instances()), leaving(world)) == (3, [])


def test_a_budget_that_is_added_before_the_first_eviction_is_obeyed(processes: Processes) -> None:
    """Two pods fill one node: the second is evicted only when the budget allows it."""
    web = slow_to_end("web", 2, 60)
    pool = {"template": {"requirements": [_is_type("m7i.xlarge")]}}
    holds = a_pdb("holds", "web", maxUnavailable=1)
    world = draining(pool, web, processes)
    commit(world, *world.git.objects[1:], holds)
    processes.passes(world, 24)
    assert (pools_and_types(world), leaving(world)) == (["m7i.xlarge"], [])


def _is_type(name: str) -> dict[str, Any]:
    return {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}


def test_a_spot_warning_during_a_drain_makes_the_offering_unavailable(
    processes: Processes,
) -> None:
    """The next replacements are of other offerings; the drain goes on (aws reference 5.2)."""
    world = draining(SPOT | {"budgets": [{"nodes": "1"}]}, slow_to_end("web", 3, 90), processes)
    (claim,) = leaving(world)
    instance = instance_of(world, claim)
    warn(world, instance)
    processes.passes(world, 1)
    (lost,) = world.store.unavailable(world.clock.now())
    zone = claim.metadata.labels["topology.kubernetes.io/zone"]
    assert (lost.instance_type, lost.zone, lost.capacity_type) == ("m7i.large", zone, "spot")
    assert len(world.recorder.messages("Interrupted")) == 1
    world.cloud.reclaim_instance(instance)
    processes.passes(world, 12)
    assert claim.name not in world.claims
    assert 3 <= len(world.instances()) <= 4


def test_the_end_of_a_drained_instance_is_no_interruption(processes: Processes) -> None:
    world = draining(DEMAND, slow_to_end("web", 3, 60), processes)
    first = instance_of(world, leaving(world)[0])
    send_event(
        world,
        "EC2 Instance State-change Notification",
        instance_id=first,
        state="shutting-down",
    )
    processes.passes(world, 12)
    assert world.recorder.messages("Interrupted") == []


@dataclass
class _Unreachable(ClusterAround):
    """Makes the nodes of instances unreachable, as the node lifecycle controller shows them."""

    nodes: set[str] = field(default_factory=set)

    def observe(self, *args: Any) -> Snapshot:
        seen: Snapshot = self.cluster.observe(*args)
        return with_fields(seen, nodes=tuple(self._changed(node) for node in seen.nodes))

    def _changed(self, node: Any) -> Any:
        if node.spec.provider_id not in self.nodes:
            return node
        lost = Condition("Ready", "Unknown", "NodeStatusUnknown")
        others = tuple(c for c in node.status.conditions if c.type != "Ready")
        key = "node.kubernetes.io/unreachable"
        taints = (Taint(key, "NoSchedule"), Taint(key, "NoExecute"))
        return replace(
            node,
            status=replace(node.status, conditions=(*others, lost)),
            spec=replace(node.spec, taints=(*node.spec.taints, *taints)),
        )


@pytest.mark.parametrize("when", ["starting", "running"])
def test_a_node_that_is_unreachable_for_a_while_is_neither_removed_nor_replaced(
    when: str, processes: Processes
) -> None:
    lost = _Unreachable()
    pool = a_pool("web", policy="WhenEmptyOrUnderutilized", **DEMAND)
    world = a_world(pool, a_deployment("web", "web", 3), around=lost.around, latencies=JOINS_LATE)
    processes.passes(world, 1 if when == "starting" else 12)
    before = world.instances()
    lost.nodes = {world.claims[min(world.claims)].status.provider_id}
    processes.passes(world, 18)
    lost.nodes = set()
    processes.passes(world, 12)
    assert world.instances() == before
    assert not leaving(world)
    assert all(claim.is_true("Initialized") for claim in world.claims.values())


def test_a_class_that_is_not_ready_during_a_launch_keeps_the_nodes_and_launches_no_more(
    processes: Processes,
) -> None:
    pool = a_pool("web", template={"requirements": LARGE})
    world = a_world(pool, apart("web", "web", 2), latencies=JOINS_LATE)
    processes.passes(world, 1)
    before = world.instances()
    broken = a_node_class()
    broken["spec"]["subnetSelectorTerms"] = [{"tags": {"no": "subnet"}}]
    world.git.commit(broken, pool, apart("web", "web", 3))
    processes.passes(world, 12)
    assert world.instances() == before
    assert all(claim.is_true("Initialized") for claim in world.claims.values())
    commit(world, pool, apart("web", "web", 3))
    processes.passes(world, 12)
    assert before.items() < world.instances().items()
    assert len(world.instances()) == 3


def test_the_nodes_of_pods_that_were_deleted_before_they_were_bound_are_removed_as_empty(
    processes: Processes,
) -> None:
    """Only after ``consolidateAfter``, which counts from the initialization."""
    pool = a_pool("web", after="60s", **DEMAND)
    world = a_world(pool, apart("web", "web", 3), latencies=JOINS_LATE)
    processes.passes(world, 1)
    commit(world, pool, apart("web", "web", 1))
    processes.passes(world, 12)
    assert len(world.instances()) == 3
    processes.passes(world, 8)
    assert len(world.instances()) == 1
    assert len(world.recorder.messages("CommandStarted")) >= 1


@dataclass
class _EndsSlowly(ClusterAround):
    """Shows pods that a controller has deleted as terminating, until their grace period ends."""

    grace: timedelta
    clock: Any = None
    _last: dict[str, Pod] = field(default_factory=dict)
    _ending: dict[str, Pod] = field(default_factory=dict)

    def observe(self, *args: Any) -> Snapshot:
        seen: Snapshot = self.cluster.observe(*args)
        now = self.clock.now()
        present = {pod.key: pod for pod in seen.pods}
        for key, pod in self._last.items():
            if key not in present and pod.spec.node_name:
                ends = replace(pod.metadata, deletion_timestamp=now + self.grace)
                self._ending[key] = replace(pod, metadata=ends)
        self._last = present
        self._ending = {
            key: pod
            for key, pod in self._ending.items()
            if pod.metadata.deletion_timestamp and pod.metadata.deletion_timestamp > now
        }
        return with_fields(seen, pods=Pods((*seen.pods, *self._ending.values())))


def test_consolidate_after_counts_from_the_moment_pods_begin_to_end(
    processes: Processes,
) -> None:
    """Not from the end of their grace period, and not before (Karpenter ``podevents``)."""
    ends = _EndsSlowly(timedelta(seconds=40))
    pool = a_pool("web", after="60s", **DEMAND)
    world = a_world(pool, a_deployment("web", "web", 2), around=ends.around)
    ends.clock = world.clock
    processes.passes(world, 12)
    commit(world, pool, a_deployment("web", "web", 1))
    began = world.clock.now()
    processes.passes(world, 20)
    (empty,) = [e.at for e in world.recorder.events if e.kind == "CommandStarted"]
    assert timedelta(seconds=60) <= empty - began <= timedelta(seconds=80)
    assert len(world.instances()) == 1


def test_a_node_whose_pods_end_is_empty_for_the_plan_the_status_and_the_dashboard() -> None:
    """One definition of the pods on a node: none of those that end, or of a DaemonSet."""
    ends = _EndsSlowly(timedelta(seconds=40))
    pool = a_pool("web", **DEMAND)
    web = (pool, a_daemon_set("50m"))
    world = a_world(*web, a_deployment("web", "web", 2), around=ends.around)
    ends.clock = world.clock
    kept: list[FleetUsage] = []
    engine = world.engine()
    ports = with_fields(engine.ports, keep_usage=kept.append)
    engine = Engine(ports, engine.source)
    for replicas in (2, 2, 2, 1):
        commit(world, *web, a_deployment("web", "web", replicas))
        result = engine.run_once()
        world.clock.advance(5)
    counts = [len(node.reschedulable) for node in result.seen.state().nodes]
    pods = [len(node.pods) for node in result.seen.state().nodes]
    assert (sorted(counts), sorted(pods)) == ([0, 1], [2, 2])
    (command,) = result.plan.commands
    assert command.reason == "Empty"
    view = fleet_view(engine.source.read(), result)
    assert {node.name: node.pods for node in view.nodes} == {
        node.name: len(node.reschedulable) for node in result.seen.state().nodes
    }
    assert tuple(node.name for node in view.nodes if not node.pods) == command.nodes
    assert sorted(usage.pods for usage in kept[-1].nodes.values()) == [0, 1]
    recorded = {name: [pod.name for pod in pods] for name, pods in kept[-1].pods.items()}
    assert recorded == {
        node.claim.name: [pod.metadata.name for pod in node.pods if pod.is_active]
        for node in result.seen.state().nodes
        if node.claim is not None
    }
    (shown,) = view.pools
    total = NodeUsage.total(kept[-1].nodes.values())
    assert (shown.cpu, shown.memory) == (total.share("cpu"), total.share("memory"))
