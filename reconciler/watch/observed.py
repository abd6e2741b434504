"""What a plan of a watched cluster was made from, as passes are shown and recorded.

So the dashboard, the cost of workloads and their record are those of our own engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from reconciler.desired.objects import node_classes, node_pools
from reconciler.diff.nodeclass import with_observed_status
from reconciler.engine.observation import Observation
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.steps.bookkeeping import fleet_usage
from reconciler.engine.workloadtrace import WorkloadRecorder
from reconciler.observed.snapshot import Snapshot
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import FleetUsage
from reconciler.ports.state import TraceLog


@dataclass(frozen=True, slots=True)
class WatchedPass:
    """A plan of a watched cluster as a pass of an engine that does nothing."""

    desired: PlannedFleet
    result: Pass
    inputs: Inputs


def watched_pass(inputs: Inputs, plan: Plan) -> WatchedPass:
    """Return a plan, with what it was made from, as a pass."""
    snapshot = _snapshot_of(inputs)
    desired = planned_fleet(inputs, snapshot)
    return WatchedPass(desired, Pass(plan, Observation(inputs.now, (), snapshot, ()), 0), inputs)


def planned_fleet(inputs: Inputs, snapshot: Snapshot) -> PlannedFleet:
    """Return desired state as a plan had it, with the status of node classes in a snapshot."""
    return PlannedFleet(
        fleet=inputs.fleet,
        head=inputs.revision,
        tree=inputs.digests.git,
        node_pools=node_pools(inputs.fleet),
        classes=with_observed_status(node_classes(inputs.fleet), snapshot.live),
        settings=inputs.settings,
        catalog=inputs.catalog,
        diagnostics=inputs.diagnostics,
        digests=inputs.digests,
    )


def _snapshot_of(inputs: Inputs) -> Snapshot:
    """Return the objects that a pass reads, as they were planned."""
    cluster = inputs.cluster
    claims = (node.claim for node in cluster.nodes)
    return Snapshot(
        nodes=tuple(node.node for node in cluster.nodes if node.node is not None),
        node_claims=(*(claim for claim in claims if claim is not None), *cluster.unlaunched),
        pods=cluster.pods,
        daemon_sets=cluster.daemon_sets,
        pod_disruption_budgets=cluster.pod_disruption_budgets,
        volume_claims=tuple(cluster.volume_claims.values()),
        volumes=tuple(cluster.volumes.values()),
        storage_classes=tuple(cluster.storage_classes.values()),
        live=tuple(dict(found) for found in inputs.live),
    )


class WatchRecorder:
    """Records what workloads cost and how they change, as a daemon of our own does."""

    def __init__(self, trace: TraceLog, keep_usage: Callable[[FleetUsage], None]) -> None:
        self._workload = WorkloadRecorder(trace)
        self._keep_usage = keep_usage

    def record(self, done: WatchedPass) -> None:
        """Record a pass.

        Raises:
            StateError: the record cannot be written.
        """
        self._keep_usage(fleet_usage(done.result.seen, done.desired))
        self._workload.record(done.result.seen, done.desired)
