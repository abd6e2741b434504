"""Prometheus metrics of a daemon.

Where Karpenter 1.14 has a metric with the same meaning, its name and labels are used, so that
existing dashboards and alerts keep working. Our own metrics begin with ``reconciler_``. Gauges show
the last pass; counters start at zero with the process.
"""

from __future__ import annotations

import time
from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from reconciler import __version__
from reconciler.engine.desired import Desired
from reconciler.engine.reconcile import Pass
from reconciler.engine.world import World
from reconciler.model.karpenter.labels import (
    ARCH,
    CAPACITY_TYPE,
    INSTANCE_TYPE,
    MIN_VALUES_RELAXED,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MILLI, NODES, add, parse_resources, pods
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.value.disruption import PlannedCommand
from reconciler.ports.progress import EventKind, Progress

PASS_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
CALL_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_NODE_LABELS: Final = (
    "node_name",
    "nodepool",
    "instance_type",
    "capacity_type",
    "zone",
    "arch",
    "resource_type",
)
_WORD_START: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


class FleetMetrics:
    """The metrics of one fleet; the loop writes them, and any thread may read them."""

    def __init__(self) -> None:
        self.registry: Final = CollectorRegistry()
        self._lock = Lock()
        self._claims: dict[str, NodeClaim] | None = None
        self._counters = _Counters(self.registry)
        self._last = _LastPass()
        self.registry.register(self._last)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        with self._lock:
            return generate_latest(self.registry)

    def passed(self, world: World, desired: Desired, result: Pass, seconds: float) -> None:
        """Record a pass that ended after ``seconds``."""
        in_doubt = len(world.journal.in_doubt())
        with self._lock:
            self._counters.passed(result, seconds)
            self._count_claims({claim.name: claim for claim in result.seen.claims})
            self._last.show(desired, result, in_doubt, time.time())

    def started(self) -> None:
        """Record that a pass starts, which only the holder of the lease does."""
        with self._lock:
            self._counters.lease.set(1)

    def failed(self) -> None:
        """Record a pass that failed."""
        with self._lock:
            self._counters.passes.labels("failed").inc()

    def happened(self, progress: Progress) -> None:
        """Record an event."""
        with self._lock:
            self._counters.happened(progress)

    def called(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Record a call of an API; ``outcome`` is ``ok`` or the code of its error."""
        with self._lock:
            self._counters.calls.labels(service, operation, outcome).inc()
            self._counters.call_duration.labels(service, operation).observe(seconds)

    def _count_claims(self, now: dict[str, NodeClaim]) -> None:
        """Count what was created and terminated since the last pass of this process."""
        before, self._claims = self._claims, now
        if before is None:
            return
        for name in now.keys() - before.keys():
            self._counters.created_one(now[name])
        for name in before.keys() - now.keys():
            self._counters.terminated_one(before[name])


class _Counters:
    """What is counted over the life of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        build = Gauge(
            "karpenter_build_info",
            "Constant 1, labelled with the version of reconciler.",
            ["version"],
            registry=registry,
        )
        build.labels(__version__).set(1)
        self.passes = Counter(
            "reconciler_passes",
            "Passes of the reconcile loop, by result.",
            ["result"],
            registry=registry,
        )
        self.pass_duration = Histogram(
            "reconciler_pass_duration_seconds",
            "Duration of a pass.",
            buckets=PASS_BUCKETS,
            registry=registry,
        )
        self.events = Counter(
            "reconciler_events", "Events as in the log, by kind.", ["kind"], registry=registry
        )
        self.calls = Counter(
            "reconciler_api_calls",
            "Calls of AWS and Kubernetes; outcome is ok or an error code.",
            ["service", "operation", "outcome"],
            registry=registry,
        )
        self.call_duration = Histogram(
            "reconciler_api_call_duration_seconds",
            "Duration of calls of AWS and Kubernetes, including retries.",
            ["service", "operation"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )
        self.created = Counter(
            "karpenter_nodeclaims_created",
            "NodeClaims created.",
            ["reason", "nodepool", "min_values_relaxed"],
            registry=registry,
        )
        self.terminated = Counter(
            "karpenter_nodeclaims_terminated",
            "NodeClaims terminated.",
            ["nodepool", "capacity_type", "zone"],
            registry=registry,
        )
        self.disrupted = Counter(
            "karpenter_nodeclaims_disrupted",
            "NodeClaims that disruption commands remove.",
            ["reason", "nodepool", "capacity_type"],
            registry=registry,
        )
        self.decisions = Counter(
            "karpenter_voluntary_disruption_decisions",
            "Disruption commands started.",
            ["decision", "reason", "consolidation_type"],
            registry=registry,
        )
        self.failures = Counter(
            "karpenter_voluntary_disruption_queue_failures",
            "Disruption commands rolled back.",
            registry=registry,
        )
        self.interruptions = Counter(
            "karpenter_interruption_received_messages",
            "Interruption events that concern a node of this fleet.",
            ["message_type"],
            registry=registry,
        )
        self.savings = Counter(
            "reconciler_consolidation_savings_dollars_per_hour",
            "Sum of the hourly savings of the commands started.",
            registry=registry,
        )
        self.lease = Gauge(
            "reconciler_lease_held",
            "1 while this process holds the lease of its fleet, else 0.",
            registry=registry,
        )
        self.invalid_since = Gauge(
            "reconciler_invalid_revision_since_timestamp_seconds",
            "Since when the newest revision is invalid or unreadable; 0 if it is not.",
            registry=registry,
        )
        self._is_invalid_from = 0.0
        self._reasons: dict[str, str] = {}

    def passed(self, result: Pass, seconds: float) -> None:
        self.passes.labels("succeeded").inc()
        self.pass_duration.observe(seconds)
        pools = {claim.name: claim for claim in result.seen.claims}
        for planned in result.plan.node_claims:
            self._reasons[planned.name] = planned.reason
        for command in result.plan.commands:
            self._decided(command, pools)

    def _decided(self, command: PlannedCommand, claims: Mapping[str, NodeClaim]) -> None:
        reason = snake_case(command.reason)
        self.decisions.labels(command.decision, reason, _consolidation_type(command)).inc()
        if command.savings is not None and command.savings > 0:
            self.savings.inc(command.savings)
        for name in command.node_claims:
            if name in claims:
                claim = claims[name]
                self.disrupted.labels(reason, claim.node_pool, _label(claim, CAPACITY_TYPE)).inc()

    def created_one(self, claim: NodeClaim) -> None:
        reason = snake_case(self._reasons.pop(claim.name, "provisioned"))
        relaxed = claim.metadata.annotations.get(MIN_VALUES_RELAXED, "false")
        self.created.labels(reason, claim.node_pool, relaxed).inc()

    def terminated_one(self, claim: NodeClaim) -> None:
        self._reasons.pop(claim.name, None)
        self.terminated.labels(
            claim.node_pool, _label(claim, CAPACITY_TYPE), _label(claim, ZONE)
        ).inc()

    def happened(self, progress: Progress) -> None:
        self.events.labels(progress.kind.value).inc()
        match progress.kind:
            case EventKind.COMMAND_ROLLED_BACK:
                self.failures.inc()
            case EventKind.INTERRUPTED | EventKind.REBALANCE_RECOMMENDED:
                self.interruptions.labels(snake_case(progress.reason)).inc()
            case EventKind.STANDBY | EventKind.LEASE_LOST:
                self.lease.set(0)
            case EventKind.LEASE_ACQUIRED:
                self.lease.set(1)
            case EventKind.INVALID_REVISION:
                self._is_invalid_from = self._is_invalid_from or progress.at.timestamp()
                self.invalid_since.set(self._is_invalid_from)
            case EventKind.REVISION:
                self._is_invalid_from = 0.0
                self.invalid_since.set(0)
            case _:
                pass


def snake_case(word: str) -> str:
    """Return a reason as Karpenter labels it: ``Underutilized`` → ``underutilized``."""
    return "".join(
        f"_{letter}" if i and letter in _WORD_START else letter for i, letter in enumerate(word)
    ).lower()


def _consolidation_type(command: PlannedCommand) -> str:
    match command.reason:
        case "Empty":
            return "empty"
        case "Underutilized":
            return "multi" if len(command.node_claims) > 1 else "single"
        case _:
            return ""


def _label(claim: NodeClaim, name: str) -> str:
    return claim.metadata.labels.get(name, "")


class _LastPass(Collector):
    """The state that the last pass left, as gauges; nothing before the first pass."""

    def __init__(self) -> None:
        self._families: tuple[GaugeMetricFamily, ...] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the last pass."""
        yield from self._families

    def show(self, desired: Desired, result: Pass, in_doubt: int, at: float) -> None:
        """Replace the gauges by those of a pass that ended at the Unix time ``at``."""
        state = result.seen.state()
        self._families = (
            *_pass_gauges(desired, result, in_doubt, at),
            *_cost_gauges(result),
            *_pod_gauges(result, state),
            *_pool_gauges(desired, result, state),
            *_node_gauges(state),
        )


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, value=value)


def _gauges(
    name: str, text: str, labels: Iterable[str], rows: Mapping[tuple[str, ...], float]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=list(labels))
    for values, amount in sorted(rows.items()):
        family.add_metric(values, amount)
    return family


def _pass_gauges(
    desired: Desired, result: Pass, in_doubt: int, at: float
) -> Iterator[GaugeMetricFamily]:
    plan, seen = result.plan, result.seen
    yield _gauge(
        "reconciler_last_pass_timestamp_seconds", "When the last pass ended successfully.", at
    )
    yield _gauges(
        "reconciler_revision_info",
        "Constant 1, labelled with the commit in effect.",
        ["revision"],
        {(desired.revision,): 1},
    )
    yield _gauges(
        "reconciler_plan_actions",
        "Actions of the last plan, by kind.",
        ["kind"],
        {(kind,): n for kind, n in Tally(a.kind.value for a in plan.actions).items()},
    )
    yield _gauge(
        "reconciler_operations_in_progress", "Operations not finished yet.", result.under_way
    )
    yield _gauge("reconciler_journal_in_doubt", "Journalled effects without an outcome.", in_doubt)
    yield _gauges(
        "reconciler_unclear_instances",
        "Instances whose tags and records disagree; launches and disruption are suspended.",
        ["state"],
        {
            ("unknown",): len(seen.doubts.unknown),
            ("contested",): len(seen.doubts.contested),
        },
    )
    yield _gauges(
        "reconciler_blocked_nodes",
        "Nodes that a disruption method selected and that cannot be disrupted.",
        ["nodepool", "reason"],
        Tally((blocked.node_pool, snake_case(blocked.reason)) for blocked in plan.blocked),
    )
    yield _gauges(
        "reconciler_drifted_nodeclaims",
        "NodeClaims that differ from git, by reason.",
        ["nodepool", "reason"],
        Tally((drifted.node_pool, drifted.reason) for drifted in plan.drift),
    )


def _cost_gauges(result: Pass) -> Iterator[GaugeMetricFamily]:
    cost = result.plan.cost
    yield _gauges(
        "karpenter_nodepools_cost_total",
        "Cost of the nodes of a NodePool in USD an hour, by list prices and overlays.",
        ["nodepool"],
        {(pool,): pool_cost.before for pool, pool_cost in cost.by_node_pool.items()},
    )
    yield _gauges(
        "reconciler_cost_dollars_per_hour",
        "Cost of the fleet in USD an hour: now, and once the last plan is applied.",
        ["when"],
        {("now",): cost.before, ("planned",): cost.after},
    )
    yield _gauge("reconciler_unpriced_nodes", "Nodes without a known price.", cost.unpriced)


def _pod_gauges(result: Pass, state: ClusterState) -> Iterator[GaugeMetricFamily]:
    pending, now = state.pending, result.seen.at
    waiting = [
        (now - pod.metadata.creation_timestamp).total_seconds()
        for pod in pending
        if pod.metadata.creation_timestamp is not None
    ]
    yield _gauges(
        "karpenter_scheduler_queue_depth",
        "Pending pods.",
        ["controller"],
        {("provisioner",): len(pending)},
    )
    yield _gauges(
        "karpenter_scheduler_unschedulable_pods_count",
        "Pending pods that no NodePool can serve.",
        ["controller"],
        {("provisioner",): len(result.plan.unschedulable)},
    )
    yield _gauge(
        "reconciler_oldest_pending_pod_seconds",
        "Age of the oldest pending pod, 0 without one.",
        max(waiting, default=0.0),
    )


def _pool_gauges(
    desired: Desired, result: Pass, state: ClusterState
) -> Iterator[GaugeMetricFamily]:
    usage: dict[tuple[str, ...], float] = {}
    for pool in desired.node_pools:
        owned = [claim for claim in result.seen.claims if claim.node_pool == pool.name]
        amounts = add(*(parse_resources(claim.status.capacity) for claim in owned))
        amounts = {**amounts, NODES: pods(len(owned))}
        usage |= {(pool.name, name): amount / MILLI for name, amount in amounts.items()}
    yield _gauges(
        "karpenter_nodepools_usage",
        "Capacity of the nodes of a NodePool.",
        ["nodepool", "resource_type"],
        usage,
    )
    yield _gauges(
        "karpenter_nodepools_limit",
        "Limits of a NodePool.",
        ["nodepool", "resource_type"],
        dict(_limits(desired.node_pools)),
    )
    yield _gauges(
        "karpenter_nodepools_allowed_disruptions",
        "Nodes of a NodePool that its budgets allow to be disrupted now.",
        ["nodepool", "reason"],
        {(b.node_pool, snake_case(b.reason)): b.allowed for b in result.plan.budgets},
    )
    yield _gauge("karpenter_cluster_state_node_count", "Nodes of the cluster.", len(state.nodes))
    yield _gauges(
        "reconciler_nodeclaims",
        "NodeClaims by NodePool, capacity type and phase.",
        ["nodepool", "capacity_type", "phase"],
        Tally((c.node_pool, _label(c, CAPACITY_TYPE), _phase(c)) for c in result.seen.claims),
    )


def _limits(pools: Iterable[NodePool]) -> Iterator[tuple[tuple[str, str], float]]:
    for pool in pools:
        for name, amount in pool.limits().items():
            yield (pool.name, name), amount / MILLI


def _phase(claim: NodeClaim) -> str:
    if claim.is_deleting:
        return "terminating"
    reached = (kind for kind in ("Initialized", "Registered", "Launched") if claim.is_true(kind))
    return next(reached, "pending").lower()


def _node_gauges(state: ClusterState) -> Iterator[GaugeMetricFamily]:
    nodes = [node for node in state.nodes if node.is_managed and node.node is not None]
    kinds = (
        ("karpenter_nodes_allocatable", "Allocatable resources of a node.", _allocatable),
        (
            "karpenter_nodes_total_pod_requests",
            "Resources requested by the pods of a node, including DaemonSets.",
            _requested,
        ),
        (
            "karpenter_nodes_total_daemon_requests",
            "Resources requested by the DaemonSet pods of a node.",
            _requested_by_daemons,
        ),
    )
    for name, text, amounts_of in kinds:
        rows = {
            (*_identity(node), resource): amount / MILLI
            for node in nodes
            for resource, amount in amounts_of(node).items()
        }
        yield _gauges(name, text, _NODE_LABELS, rows)
    allocatable = add(*(node.allocatable for node in nodes))
    requested = add(*(node.used for node in nodes))
    yield _gauges(
        "karpenter_cluster_utilization_percent",
        "Share of the allocatable resources that pods request, in percent.",
        ["resource_type"],
        {
            (name,): 100 * requested.get(name, 0) / amount
            for name, amount in allocatable.items()
            if amount > 0
        },
    )


def _allocatable(node: StateNode) -> Mapping[str, int]:
    return node.allocatable


def _requested(node: StateNode) -> Mapping[str, int]:
    return node.used


def _requested_by_daemons(node: StateNode) -> Mapping[str, int]:
    return node.daemons_used


def _identity(node: StateNode) -> tuple[str, ...]:
    labels = (INSTANCE_TYPE, CAPACITY_TYPE, ZONE, ARCH)
    return (node.name, node.node_pool, *(node.labels.get(label, "") for label in labels))
