"""The contract of the port for every cluster, simulated or behind the Kubernetes API."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.taint import Taint
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cluster import Cluster
from tests.adapters.kubernetes import sandbox as real
from tests.adapters.simulated import builders as imitated

DISRUPTED = Taint("karpenter.sh/disrupted", "NoSchedule")
REBOOTING = Taint("karpenter.sh/rebooting", "NoSchedule")
UNREGISTERED = Taint("karpenter.sh/unregistered", "NoExecute")
HELD = {"karpenter.sh/do-not-disrupt": "true"}


@dataclass
class Stage:
    """A cluster with one node of one claim, which has joined and can run pods."""

    cluster: Cluster
    claim: NodeClaim
    observe: Callable[[], Snapshot]
    now: datetime

    @property
    def name(self) -> str:
        (node,) = self.observe().nodes
        return node.name

    def node(self) -> Node:
        (node,) = self.observe().nodes
        return node

    def drain(self, name: str, deadline_s: float | None = None) -> int:
        """Take a step of a drain, as a pass does after its observation."""
        self.observe()
        deadline = None if deadline_s is None else self.now + timedelta(seconds=deadline_s)
        step = self.cluster.drain(name, deadline, self.now)
        assert step is not None
        return step.pods + step.volumes


@contextmanager
def embedded(_: Path, pods: int, held: bool) -> Iterator[Stage]:
    workload = imitated.pods(pods)
    if held:
        workload = tuple(
            replace(p, metadata=replace(p.metadata, annotations=HELD)) for p in workload
        )
    sandbox = imitated.a_sandbox(*workload, nodes=1)
    sandbox.observe()
    (claim,) = sandbox.claims.values()
    if pods:
        sandbox.observe_registered()
    yield Stage(sandbox.cluster, claim, sandbox.observe, sandbox.now)


@contextmanager
def kubernetes(path: Path, pods: int, held: bool) -> Iterator[Stage]:
    quarantine = {"key": UNREGISTERED.key, "effect": UNREGISTERED.effect}
    items = [real.a_pod(f"web-{n}") for n in range(pods)]
    for item in items if held else ():
        item["metadata"]["annotations"] = HELD
    with real.a_sandbox(path, real.a_node(taints=[quarantine]), *items) as sandbox:
        yield Stage(sandbox.cluster, real.a_claim(), sandbox.observe, real.NOW)


Open = Callable[..., AbstractContextManager[Stage]]


@pytest.fixture(params=[embedded, kubernetes], ids=lambda opened: opened.__name__)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    return lambda pods=0, held=False: request.param(tmp_path, pods, held)


def test_registration_removes_the_unregistered_taint_once(opened: Open) -> None:
    with opened() as stage:
        name = stage.name
        assert UNREGISTERED in stage.node().spec.taints
        for _ in range(2):
            stage.cluster.register(name, stage.claim)
            node = stage.node()
            assert UNREGISTERED not in node.spec.taints
            assert node.metadata.labels["karpenter.sh/registered"] == "true"
            assert stage.claim.metadata.labels.items() <= node.metadata.labels.items()
            assert node.metadata.labels.get("karpenter.sh/initialized") is None
        stage.cluster.initialize(name)
        stage.cluster.initialize(name)
        assert stage.node().metadata.labels["karpenter.sh/initialized"] == "true"


def test_the_taint_is_added_once_and_removed(opened: Open) -> None:
    with opened() as stage:
        name = stage.name
        stage.cluster.taint(name)
        stage.cluster.taint(name)
        assert stage.node().spec.taints.count(DISRUPTED) == 1
        stage.cluster.untaint(name)
        stage.cluster.untaint(name)
        assert DISRUPTED not in stage.node().spec.taints


def test_the_fence_of_a_reboot_is_added_once_and_removed(opened: Open) -> None:
    with opened() as stage:
        name = stage.name
        for _ in range(2):
            stage.cluster.fence(name)
            assert stage.node().spec.taints.count(REBOOTING) == 1
        stage.cluster.taint(name)
        for _ in range(2):
            stage.cluster.unfence(name)
            assert REBOOTING not in stage.node().spec.taints
        assert DISRUPTED in stage.node().spec.taints


def test_a_node_that_reboots_is_initialized_again(opened: Open) -> None:
    with opened() as stage:
        name = stage.name
        stage.cluster.register(name, stage.claim)
        for _ in range(2):
            stage.cluster.initialize(name)
            assert stage.node().metadata.labels["karpenter.sh/initialized"] == "true"
            stage.cluster.uninitialize(name)
            stage.cluster.uninitialize(name)
            assert "karpenter.sh/initialized" not in stage.node().metadata.labels


def test_a_second_drain_begins_after_the_fence_was_removed(opened: Open) -> None:
    with opened(pods=2) as stage:
        name = stage.name
        stage.cluster.fence(name)
        assert [stage.drain(name) for _ in range(4)][-1] == 0
        stage.cluster.unfence(name)
        stage.cluster.fence(name)
        assert [stage.drain(name) for _ in range(4)][-1] == 0


def test_a_drained_node_is_empty_and_stays_so(opened: Open) -> None:
    with opened(pods=3) as stage:
        name = stage.name
        stage.cluster.taint(name)
        left = [stage.drain(name) for _ in range(4)]
        assert left[-1] == 0
        assert left == sorted(left, reverse=True)
        assert all(pod.spec.node_name != name for pod in stage.observe().pods)


def test_protected_pods_delay_a_drain_until_the_deadline(opened: Open) -> None:
    with opened(pods=2, held=True) as stage:
        name = stage.name
        stage.cluster.taint(name)
        assert [stage.drain(name), stage.drain(name, 31)] == [2, 2]
        stage.drain(name, 30)
        assert stage.drain(name, 30) == 0


def test_operations_on_a_deleted_node_do_nothing(opened: Open) -> None:
    with opened() as stage:
        name = stage.name
        stage.cluster.delete_node(name)
        stage.cluster.delete_node(name)
        assert stage.observe().nodes == ()
        stage.cluster.untaint(name)
        stage.cluster.unfence(name)
        stage.cluster.uninitialize(name)
        assert stage.drain(name) == 0
        for change in (
            lambda: stage.cluster.taint(name),
            lambda: stage.cluster.fence(name),
            lambda: stage.cluster.register(name, stage.claim),
            lambda: stage.cluster.initialize(name),
        ):
            with pytest.raises(ClusterError, match=f'Node {name}: nodes "{name}" not found'):
                change()


def test_claims_are_mirrored_unchanged(opened: Open) -> None:
    with opened() as stage:
        assert stage.observe().node_claims == (stage.claim,)
