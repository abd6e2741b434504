"""Rounds of deletion costs: what they write with the gate, and remove without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from msgspec.structs import replace as with_fields

from reconciler.engine.reconcile import Pass
from reconciler.engine.shown.deletioncosts import NODES_MAX
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, KarpenterVersion
from reconciler.observed.snapshot import Snapshot
from reconciler.ports.cloud import Instance
from reconciler.ports.cluster import Cluster, CostWrites, PodCost
from tests.engine.world import SETTINGS, Engine, a_deployment, a_pool, a_world

KEY = "controller.kubernetes.io/pod-deletion-cost"
OWNER = OwnerReference("ReplicaSet", "web", "apps/v1", controller=True)


@dataclass
class _Costs:
    """The deletion costs that a cluster keeps; ``error`` is what it answers instead."""

    now: dict[str, str] = field(default_factory=dict)
    written: list[PodCost] = field(default_factory=list)
    error: ClusterError | None = None

    def write(self, costs: Sequence[PodCost]) -> CostWrites:
        if self.error is not None:
            return CostWrites({}, self.error)
        for cost in costs:
            self.written.append(cost)
            if cost.wanted is None:
                self.now.pop(cost.name)
            else:
                self.now[cost.name] = cost.wanted
        return CostWrites({"updated": len(costs)})

    def of(self, pod: Pod) -> Pod:
        meta = pod.metadata
        value = self.now.get(meta.name)
        annotations = meta.annotations | ({} if value is None else {KEY: value})
        return with_fields(
            pod, metadata=with_fields(meta, annotations=annotations, owner_references=(OWNER,))
        )


class _Annotated:
    """A cluster whose pods have these costs, and a ReplicaSet as their controller."""

    def __init__(self, inner: Cluster, costs: _Costs) -> None:
        self._inner = inner
        self._costs = costs

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def observe(self, claims: Sequence[NodeClaim], instances: Sequence[Instance]) -> Snapshot:
        seen = self._inner.observe(claims, instances)
        return replace(seen, pods=tuple(map(self._costs.of, seen.pods)))


class _Fleet:
    """A fleet that has converged, whose pods have deletion costs."""

    def __init__(self, replicas: int = 3, *, gate: bool = True) -> None:
        self.costs = _Costs()
        pool = a_pool("web", disruption={"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]})
        self.world = a_world(pool, a_deployment("web", "web", replicas, cpu="3"))
        self.world.converge()
        self.start(gate=gate)

    def start(self, *, gate: bool) -> None:
        """Start another process, with the gate or without it."""
        gates = {**DEFAULT_FEATURE_GATES, FeatureGate.POD_DELETION_COST_MANAGEMENT: gate}
        self.world.settings = replace(
            SETTINGS, karpenter=KarpenterVersion.V1_15, feature_gates=gates
        )
        engine = self.world.engine()
        cluster = _Annotated(engine.ports.cluster, self.costs)
        self._engine = Engine(
            replace(engine.ports, pod_costs=self.costs, cluster=cluster),  # type: ignore[arg-type]
            engine.source,
        )

    def run(self, minutes: float = 2) -> Pass:
        self.world.clock.advance(minutes * 60)
        return self._engine.run_once()

    def forbidden(self) -> list[str]:
        return self.world.recorder.messages("Forbidden")


def test_pods_get_the_rank_of_their_node_once() -> None:
    fleet = _Fleet()

    found = fleet.run()

    assert sorted(fleet.costs.now.values()) == ["-1", "-2", "-3"]
    assert found.costs is not None
    assert dict(found.costs.pending) == {"web": 3}
    second = fleet.run()
    assert second.costs is not None
    assert dict(second.costs.results) == {"updated": 3}
    assert len(fleet.costs.written) == 3, "a second round has nothing to change"


def test_a_round_starts_a_minute_after_the_last_one() -> None:
    fleet = _Fleet()
    fleet.run()
    fleet.costs.now.clear()

    fleet.run(minutes=0.5)
    assert not fleet.costs.now
    fleet.run(minutes=0.6)
    assert fleet.costs.now


def test_a_round_writes_to_a_limited_number_of_nodes() -> None:
    fleet = _Fleet(replicas=NODES_MAX + 10)

    fleet.run()
    assert len(fleet.costs.now) == NODES_MAX
    fleet.run()
    assert len(fleet.costs.now) == NODES_MAX + 10


def test_what_was_written_is_removed_without_the_gate_also_by_another_process() -> None:
    fleet = _Fleet()
    fleet.run()
    written = dict(fleet.costs.now)

    fleet.start(gate=False)
    fleet.costs.now["other"] = "100"
    fleet.run()

    assert written
    assert fleet.costs.now == {"other": "100"}


def test_nothing_is_written_without_the_gate() -> None:
    fleet = _Fleet(gate=False)

    assert fleet.run().costs is not None or not fleet.costs.written
    assert not fleet.costs.written


def test_a_missing_right_is_reported_once_and_stops_nothing_else() -> None:
    fleet = _Fleet()
    fleet.costs.error = ClusterError("missing permission: patch pods", remedy="grant it")

    for _ in range(4):
        assert fleet.run().plan is not None

    assert len(fleet.forbidden()) == 1
    assert "missing permission: patch pods" in fleet.forbidden()[0]
