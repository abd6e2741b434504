"""Prometheus metrics of a daemon.

Where Karpenter has a metric with the same meaning, its name and labels are used, so that
existing dashboards and alerts keep working. Our own metrics begin with ``reconciler_``. Gauges show
the last pass; counters start at zero with the process.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from threading import Lock
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import Metric

from reconciler import __version__
from reconciler.disruption.methods.staticdrift import RESERVATION_FULL, TERMINATES_FIRST
from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.world import World
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE, MIN_VALUES_RELAXED, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.progress import EventKind, Progress
from reconciler.ports.state import RunningCommand
from reconciler.web.gauges import LastPass, claim_label, snake_case

PASS_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
REBOOT_BUCKETS: Final = (10, 20, 40, 80, 160, 320, 640, 1280)
CALL_BUCKETS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

_CONSOLIDATION: Final = (DisruptionReason.EMPTY, DisruptionReason.UNDERUTILIZED)

_TERMINATES_FIRST: Final = (
    (TERMINATES_FIRST, "static-at-limit"),
    (RESERVATION_FULL, "no-reserved-capacity"),
)
"""Why commands remove a node first: what their message states, and Karpenter's name for it."""


class CallMetrics:
    """The calls of AWS and Kubernetes, which the fleets of a process share."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._lock = Lock()
        self._calls = Counter(
            "reconciler_api_calls",
            "Calls to AWS and Kubernetes; outcome is ok or an error code.",
            ["service", "operation", "outcome"],
            registry=registry,
        )
        self._duration = Histogram(
            "reconciler_api_call_duration_seconds",
            "Duration of calls to AWS and Kubernetes, including retries.",
            ["service", "operation"],
            buckets=CALL_BUCKETS,
            registry=registry,
        )

    def record_call(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Record a call of an API; ``outcome`` is ``ok`` or the code of its error."""
        with self._lock:
            self._calls.labels(service, operation, outcome).inc()
            self._duration.labels(service, operation).observe(seconds)


class FleetMetrics:
    """The metrics of one fleet; the loop writes them, and any thread may read them."""

    def __init__(self, calls: CallMetrics | None = None) -> None:
        self.registry: Final = CollectorRegistry()
        self._lock = Lock()
        self._claims: dict[str, NodeClaim] | None = None
        self._counters = _Counters(self.registry)
        self._calls = calls or CallMetrics(self.registry)
        self._last = LastPass()
        self.registry.register(self._last)

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        with self._lock:
            return generate_latest(self.registry)

    def families(self) -> list[Metric]:
        """Return all metrics with their samples."""
        with self._lock:
            return list(self.registry.collect())

    def record_pass(
        self, world: World, desired: PlannedFleet, result: Pass, seconds: float
    ) -> None:
        """Record a pass that ended after ``seconds``."""
        in_doubt = len(world.journal.in_doubt())
        with self._lock:
            self._counters.record_pass(result, seconds)
            self._count_claims({claim.name: claim for claim in result.seen.claims})
            self._last.show(desired, result, in_doubt, time.time())

    def record_start(self) -> None:
        """Record that a pass starts, which only the holder of the lease does."""
        with self._lock:
            self._counters.lease.set(1)

    def record_failure(self) -> None:
        """Record a pass that failed."""
        with self._lock:
            self._counters.passes.labels("failed").inc()

    def record_event(self, progress: Progress) -> None:
        """Record an event.

        A fleet that another process acts for is shown by that one.
        """
        with self._lock:
            self._counters.record_event(progress)
            if progress.kind in (EventKind.STANDBY, EventKind.LEASE_LOST):
                self._claims = None
                self._last.clear()

    def record_call(self, service: str, operation: str, outcome: str, seconds: float) -> None:
        """Record a call of an API; ``outcome`` is ``ok`` or the code of its error."""
        self._calls.record_call(service, operation, outcome, seconds)

    def _count_claims(self, now: dict[str, NodeClaim]) -> None:
        """Count what was created and terminated since the last pass of this process."""
        before, self._claims = self._claims, now
        if before is None:
            return
        for name in now.keys() - before.keys():
            self._counters.count_created(now[name])
        for name in before.keys() - now.keys():
            self._counters.count_terminated(before[name])


class _MakeCounter(Protocol):
    def __call__(self, name: str, meaning: str, *labels: str) -> Counter:
        """Register a counter; its name has a common prefix."""


def _counters_of(prefix: str, registry: CollectorRegistry) -> _MakeCounter:
    def counter(name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"{prefix}_{name}", meaning, labels, registry=registry)

    return counter


class _Counters:
    """What is counted over the life of the process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._register_karpenter_metrics(registry)
        self._register_own_metrics(registry)
        self._is_invalid_from = 0.0
        self._reasons: dict[str, str] = {}  # of the claims of the last plan, by name
        self._earlier_reasons = self._reasons

    def _register_karpenter_metrics(self, registry: CollectorRegistry) -> None:
        """Register the metrics that Karpenter has too."""
        build = Gauge(
            "karpenter_build_info",
            "Constant 1, labelled with the version of reconciler.",
            ["version"],
            registry=registry,
        )
        build.labels(__version__).set(1)
        counter = _counters_of("karpenter", registry)
        self.created = counter(
            "nodeclaims_created", "NodeClaims created.", "reason", "nodepool", "min_values_relaxed"
        )
        self.terminated = counter(
            "nodeclaims_terminated", "NodeClaims terminated.", "nodepool", "capacity_type", "zone"
        )
        self.interruptions = counter(
            "interruption_received_messages",
            "Interruption events that concern a node of this fleet.",
            "message_type",
        )
        self._register_disruption_metrics(counter)
        self._register_reboot_metrics(registry)
        self._register_deletion_cost_metrics(registry)

    def _register_disruption_metrics(self, counter: _MakeCounter) -> None:
        """Register the metrics of disruption commands, which Karpenter has too."""
        self.disrupted = counter(
            "nodeclaims_disrupted",
            "NodeClaims removed by disruption commands.",
            "reason",
            "nodepool",
            "capacity_type",
            "consolidation_policy",
        )
        self.pods_disrupted = counter(
            "pods_disruption_initiated",
            "Pods on nodes removed or rebooted by disruption commands, without DaemonSets.",
            "reason",
            "nodepool",
            "capacity_type",
            "consolidation_policy",
            "termination_mode",
        )
        self.decisions = counter(
            "voluntary_disruption_decisions",
            "Disruption commands started.",
            "decision",
            "reason",
            "consolidation_type",
        )
        self.terminated_first = counter(
            "voluntary_disruption_terminate_first_decisions",
            "Disruption commands that remove a node before its replacement starts.",
            "nodepool",
            "reason",
            "terminate_first_reason",
        )
        self.failures = counter(
            "voluntary_disruption_queue_failures", "Disruption commands rolled back."
        )

    def _register_deletion_cost_metrics(self, registry: CollectorRegistry) -> None:
        self.cost_writes = Counter(
            "karpenter_pod_deletion_cost_pod_annotation_writes",
            "Attempts to write deletion costs to pods; result is updated, skipped_notfound, "
            "skipped_conflict or error.",
            ["result"],
            registry=registry,
        )
        self.pending_costs = Gauge(
            "karpenter_pod_deletion_cost_nodes_with_pending_annotation_writes",
            "Nodes to whose pods the last round wrote deletion costs.",
            ["nodepool"],
            registry=registry,
        )

    def _register_reboot_metrics(self, registry: CollectorRegistry) -> None:
        """Register the metrics of reboots, which Karpenter has too."""
        self.reboots = Counter(
            "karpenter_nodes_reboots",
            "Reboots of nodes that have ended; result is succeeded, provider_error, "
            "recovery_timeout or invalid_request.",
            ["result"],
            registry=registry,
        )
        self.reboot_duration = Histogram(
            "karpenter_nodes_reboot_duration_seconds",
            "Duration of reboots, from the request until they have ended.",
            ["result"],
            buckets=REBOOT_BUCKETS,
            registry=registry,
        )
        self.reboot_recovery = Histogram(
            "karpenter_nodes_reboot_recovery_duration_seconds",
            "Duration of reboots from the EC2 call until the node is ready.",
            buckets=REBOOT_BUCKETS,
            registry=registry,
        )

    def _register_own_metrics(self, registry: CollectorRegistry) -> None:
        """Register the metrics that Karpenter does not have."""
        counter = _counters_of("reconciler", registry)

        def gauge(name: str, meaning: str) -> Gauge:
            return Gauge(f"reconciler_{name}", meaning, registry=registry)

        self.passes = counter("passes", "Passes of the reconcile loop, by result.", "result")
        self.events = counter("events", "Events as in the log, by kind.", "kind")
        self.savings = counter(
            "consolidation_savings_dollars_per_hour",
            "Sum of the hourly savings of the commands started.",
        )
        self.lease = gauge(
            "lease_held", "1 while this process holds the lease of its fleet, otherwise 0."
        )
        self.invalid_since = gauge(
            "invalid_revision_since_timestamp_seconds",
            "When the newest revision became invalid or unreadable; 0 if it is valid.",
        )
        self.pass_duration = Histogram(
            "reconciler_pass_duration_seconds",
            "Duration of a pass.",
            buckets=PASS_BUCKETS,
            registry=registry,
        )

    def record_pass(self, result: Pass, seconds: float) -> None:
        self.passes.labels("succeeded").inc()
        self.pass_duration.observe(seconds)
        claims = {claim.name: claim for claim in result.seen.claims}
        pods: dict[str, int] = {}
        if result.started:
            nodes = result.seen.state().nodes
            pods = {n.claim.name: len(n.reschedulable) for n in nodes if n.claim is not None}
        self._earlier_reasons = self._reasons
        self._reasons = {planned.name: planned.reason for planned in result.plan.node_claims}
        if result.costs is not None:
            for outcome, count in result.costs.results.items():
                self.cost_writes.labels(outcome).inc(count)
            self.pending_costs.clear()
            for pool, count in result.costs.pending.items():
                self.pending_costs.labels(pool).set(count)
        for command in result.started:
            self._count_command(command, claims, pods, result.policies)

    def _count_command(
        self,
        command: RunningCommand,
        claims: Mapping[str, NodeClaim],
        pods: Mapping[str, int],
        policies: Mapping[str, str],
    ) -> None:
        reason = snake_case(command.reason)
        self.decisions.labels(command.decision, reason, _consolidation_type(command)).inc()
        if command.savings is not None and command.savings > 0:
            self.savings.inc(command.savings)
        first = next((code for text, code in _TERMINATES_FIRST if text in command.message), None)
        for pool in command.node_pools if first is not None else ():
            self.terminated_first.labels(pool, reason, first).inc()
        for name in command.node_claims:
            if name in claims:
                claim = claims[name]
                consolidates = command.reason in _CONSOLIDATION
                policy = policies.get(claim.node_pool, "") if consolidates else ""
                capacity_type = claim_label(claim, CAPACITY_TYPE)
                labels = reason, claim.node_pool, capacity_type, snake_case(policy)
                self.disrupted.labels(*labels).inc()
                self.pods_disrupted.labels(*labels, _termination_mode(claim)).inc(pods.get(name, 0))

    def count_created(self, claim: NodeClaim) -> None:
        name = claim.name
        reason = self._reasons.get(name) or self._earlier_reasons.get(name, "provisioned")
        relaxed = claim.metadata.annotations.get(MIN_VALUES_RELAXED, "false")
        self.created.labels(snake_case(reason), claim.node_pool, relaxed).inc()

    def count_terminated(self, claim: NodeClaim) -> None:
        self.terminated.labels(
            claim.node_pool, claim_label(claim, CAPACITY_TYPE), claim_label(claim, ZONE)
        ).inc()

    def record_event(self, progress: Progress) -> None:
        self.events.labels(progress.kind.value).inc()
        match progress.kind:
            case EventKind.COMMAND_ROLLED_BACK:
                self.failures.inc()
            case EventKind.REBOOTED | EventKind.REBOOT_FAILED:
                self._count_reboot(progress.facts)
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

    def _count_reboot(self, facts: Mapping[str, str]) -> None:
        result = facts["result"]
        self.reboots.labels(result).inc()
        self.reboot_duration.labels(result).observe(float(facts["seconds"]))
        if result == "succeeded" and "recovery" in facts:
            self.reboot_recovery.observe(float(facts["recovery"]))


def _termination_mode(claim: NodeClaim) -> str:
    grace = claim.termination_grace_period
    if grace is None:
        return "graceful"
    return "eventual" if grace else "forceful"


def _consolidation_type(command: RunningCommand) -> str:
    match command.reason:
        case "Empty":
            return "empty"
        case "Underutilized":
            return "multi" if len(command.node_claims) > 1 else "single"
        case _:
            return ""
