"""The state of a fleet after the last pass of a daemon, as gauges."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from reconciler.engine.planning import PlannedFleet
from reconciler.engine.reconcile import Pass
from reconciler.engine.steps.bookkeeping import workload_costs
from reconciler.model.grouping import BY_NAMESPACE
from reconciler.model.karpenter.labels import ARCH, CAPACITY_TYPE, INSTANCE_TYPE, ZONE
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MILLI, NODES, add_resources, parse_resources, pod_amount
from reconciler.observed.allocation import GroupCost, group_costs
from reconciler.observed.state import ClusterState, StateNode
from reconciler.web.costs import limit_groups

_NODE_LABELS: Final = (
    "node_name",
    "nodepool",
    "instance_type",
    "capacity_type",
    "zone",
    "arch",
    "resource_type",
)
SERIES_MAX: Final = 200
"""How many groups of a grouping of costs have a series of their own, the most expensive ones."""
_WORD_START: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def snake_case(word: str) -> str:
    """Return a reason as Karpenter labels it: ``Underutilized`` → ``underutilized``."""
    return "".join(
        f"_{letter}" if i and letter in _WORD_START else letter for i, letter in enumerate(word)
    ).lower()


def claim_label(claim: NodeClaim, name: str) -> str:
    """Return a label of a claim, empty without it."""
    return claim.metadata.labels.get(name, "")


class LastPass(Collector):
    """The state after the last pass, as gauges; nothing before the first pass."""

    def __init__(self) -> None:
        self._families: tuple[GaugeMetricFamily, ...] = ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges of the last pass."""
        yield from self._families

    def clear(self) -> None:
        """Show nothing until the next pass."""
        self._families = ()

    def show(self, desired: PlannedFleet, result: Pass, in_doubt: int, at: float) -> None:
        """Replace the gauges by those of a pass that ended at the Unix time ``at``."""
        state = result.seen.state()
        self._families = (
            *_pass_gauges(desired, result, in_doubt, at),
            *_cost_gauges(result),
            *_payer_gauges(desired, state),
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
    desired: PlannedFleet, result: Pass, in_doubt: int, at: float
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
    yield _gauge(
        "reconciler_journal_in_doubt", "Journalled operations without a known outcome.", in_doubt
    )
    yield _gauges(
        "reconciler_unclear_instances",
        "Instances whose tags and records disagree; launches and disruption are suspended.",
        ["state"],
        {
            ("unknown",): len(seen.unclear_owners.unknown),
            ("contested",): len(seen.unclear_owners.contested),
        },
    )
    yield _gauges(
        "reconciler_blocked_nodes",
        "Nodes selected for disruption that cannot be disrupted.",
        ["nodepool", "reason"],
        Tally((blocked.node_pool, snake_case(blocked.reason)) for blocked in plan.blocked),
    )
    yield _gauges(
        "reconciler_drifted_nodeclaims",
        "NodeClaims that have drifted, by reason.",
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
        "Cost of the fleet in USD an hour: now, and after the last plan is applied.",
        ["when"],
        {("now",): cost.before, ("planned",): cost.after},
    )
    yield _gauge("reconciler_unpriced_nodes", "Nodes without a known price.", cost.unpriced)


def _payer_gauges(desired: PlannedFleet, state: ClusterState) -> Iterator[GaugeMetricFamily]:
    rows = workload_costs(state, desired)
    yield from _namespace_gauges(group_costs(rows, BY_NAMESPACE))
    found: dict[bool, dict[tuple[str, ...], GroupCost]] = {True: {}, False: {}}
    for by in desired.settings.metrics_costs_by:
        known = () if by.label is None else (by.label,)
        for group in limit_groups(group_costs(rows, by), SERIES_MAX):
            found[by.by_workload][*known, group.name] = group
    yield from _workload_gauges(found[True])
    yield from _label_gauges(found[False])


def _workload_gauges(groups: Mapping[tuple[str, ...], GroupCost]) -> Iterator[GaugeMetricFamily]:
    yield _gauges(
        "reconciler_workload_cost_dollars_per_hour",
        "Cost of the pods of a workload in USD an hour, with its share of idle capacity; only with "
        "`workload` in `metrics.costsBy`.",
        ["workload"],
        {key: group.per_hour for key, group in groups.items()},
    )
    yield _gauges(
        "reconciler_workload_idle_dollars_per_hour",
        "The part of the cost of a workload for capacity that no pod requests, in USD an hour.",
        ["workload"],
        {key: group.idle_per_hour for key, group in groups.items()},
    )


def _label_gauges(groups: Mapping[tuple[str, ...], GroupCost]) -> Iterator[GaugeMetricFamily]:
    yield _gauges(
        "reconciler_label_cost_dollars_per_hour",
        "Cost of the pods with a label in USD an hour, with its share of idle capacity; only for "
        "the labels in `metrics.costsBy`.",
        ["label", "value"],
        {key: group.per_hour for key, group in groups.items()},
    )
    yield _gauges(
        "reconciler_label_idle_dollars_per_hour",
        "The part of the cost of a label for capacity that no pod requests, in USD an hour.",
        ["label", "value"],
        {key: group.idle_per_hour for key, group in groups.items()},
    )


def _namespace_gauges(groups: Sequence[GroupCost]) -> Iterator[GaugeMetricFamily]:
    yield _gauges(
        "reconciler_namespace_cost_dollars_per_hour",
        "Cost of the pods of a namespace in USD an hour, with its share of idle capacity.",
        ["namespace"],
        {(group.name,): group.per_hour for group in groups},
    )
    yield _gauges(
        "reconciler_namespace_idle_dollars_per_hour",
        "The part of the cost of a namespace for capacity that no pod requests, in USD an hour.",
        ["namespace"],
        {(group.name,): group.idle_per_hour for group in groups},
    )


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
    desired: PlannedFleet, result: Pass, state: ClusterState
) -> Iterator[GaugeMetricFamily]:
    usage: dict[tuple[str, ...], float] = {}
    for pool in desired.node_pools:
        owned = [claim for claim in result.seen.claims if claim.node_pool == pool.name]
        amounts = add_resources(*(parse_resources(claim.status.capacity) for claim in owned))
        amounts = {**amounts, NODES: pod_amount(len(owned))}
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
        Tally((c.node_pool, claim_label(c, CAPACITY_TYPE), _phase(c)) for c in result.seen.claims),
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
            _pod_requests,
        ),
        (
            "karpenter_nodes_total_daemon_requests",
            "Resources requested by the DaemonSet pods of a node.",
            _daemon_requests,
        ),
    )
    for name, text, amounts_of in kinds:
        rows = {
            (*_node_label_values(node), resource): amount / MILLI
            for node in nodes
            for resource, amount in amounts_of(node).items()
        }
        yield _gauges(name, text, _NODE_LABELS, rows)
    yield _cluster_utilization(nodes)


def _cluster_utilization(nodes: Sequence[StateNode]) -> GaugeMetricFamily:
    allocatable = add_resources(*(node.allocatable for node in nodes))
    requested = add_resources(*(node.used for node in nodes))
    return _gauges(
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


def _pod_requests(node: StateNode) -> Mapping[str, int]:
    return node.used


def _daemon_requests(node: StateNode) -> Mapping[str, int]:
    return node.daemons_used


def _node_label_values(node: StateNode) -> tuple[str, ...]:
    labels = (INSTANCE_TYPE, CAPACITY_TYPE, ZONE, ARCH)
    return (node.name, node.node_pool, *(node.labels.get(label, "") for label in labels))
