"""Who costs what: the cost of nodes, divided among the pods that run on them.

The rule is in ``docs/cost-allocation.md``. A pod's weight on a node is the largest share that it
requests of any of the node's resources, and the cost of the node is divided by weight. So idle
capacity, DaemonSets and what the system reserves are paid in the same proportion. The cost of a
node without pods is divided like that of the other nodes of its NodePool, and where these have no
pods either, like that of the fleet.

Amounts are whole billionths of a dollar an hour, so that the parts add up to the fleet exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from reconciler.model.grouping import Grouping
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import StateNode

NANODOLLARS: Final = 10**9
"""How many of the units of this module are a dollar."""

IDLE: Final = ""
"""The group of what nobody pays: nodes of a fleet without any pods."""
IDLE_NAME: Final = "(idle)"
"""What is shown for it."""

_WEIGHT: Final = 10**12
"""The weight of a pod that requests all of a resource of its node."""
_JOB_OF_CRON_JOB: Final = re.compile(r"(?P<name>.+)-\d{8,10}", re.ASCII)
_NOT_SHARED: Final = frozenset(
    {
        "pod-template-hash",
        "rollouts-pod-template-hash",
        "controller-revision-hash",
        "pod-template-generation",
        "statefulset.kubernetes.io/pod-name",
        "apps.kubernetes.io/pod-index",
        "batch.kubernetes.io/controller-uid",
        "batch.kubernetes.io/job-completion-index",
        "batch.kubernetes.io/job-name",
        "controller-uid",
        "job-name",
    }
)
"""Labels that differ between the pods of a workload, or with each of its revisions."""

_KEPT_AS: Final = "_allocation_weights"

ROWS_MAX: Final = 2_000
"""How many rows are recorded for a fleet."""


def workload_of(pod: Pod) -> str:
    """Return the kind and the name of the workload of a pod: a Deployment, not its ReplicaSet.

    A Job whose name ends with a time, as a CronJob names its Jobs, belongs to that CronJob.
    """
    owner = pod.metadata.controller
    if owner is None:
        return f"Pod {pod.key}"
    kind, name = owner.kind, owner.name
    digest = pod.metadata.labels.get("pod-template-hash", "")
    if kind == "ReplicaSet" and digest and name.endswith(f"-{digest}"):
        kind, name = "Deployment", name.removesuffix(f"-{digest}")
    elif kind == "Job" and (made := _JOB_OF_CRON_JOB.fullmatch(name)):
        kind, name = "CronJob", made["name"]
    return f"{kind} {pod.namespace}/{name}"


def choose_grouping(text: str, pods: Iterable[Pod]) -> Grouping:
    """Return the grouping that is asked for, else the one that tells the payers apart.

    That is the namespace, or the workload where all pods that pay are in one namespace.

    Raises:
        ValueError: ``text`` is neither empty nor a grouping.
    """
    if text:
        return Grouping.from_text(text)
    namespaces = {pod.namespace for pod in pods if pod.is_reschedulable}
    return Grouping(by_workload=len(namespaces) == 1)


@dataclass(frozen=True, slots=True)
class NodeCost:
    """A node whose cost is divided: billionths of a dollar an hour, and the pods that pay for it.

    These are the pods that would need another node, each as its workload and its weight.
    """

    node_pool: str
    nanodollars: int
    weights: Sequence[tuple[WorkloadKey, int]]


def node_cost(node: StateNode, per_hour: float | None) -> NodeCost:
    """Return a node of a cluster; one without a price costs nothing."""
    return NodeCost(node.node_pool, nanodollars(per_hour), _weights(node))


def _weights(node: StateNode) -> Sequence[tuple[WorkloadKey, int]]:
    """Return the weights of a node, kept with it: several readers of one pass need them."""
    known: Sequence[tuple[WorkloadKey, int]] | None = node.__dict__.get(_KEPT_AS)
    if known is None:
        allocatable = node.allocatable
        known = [(workload_key(p), weight(p, allocatable)) for p in node.reschedulable]
        node.__dict__[_KEPT_AS] = known
    return known


def nanodollars(dollars: float | None) -> int:
    """Return an amount in billionths of a dollar, 0 if it is unknown."""
    return 0 if dollars is None else round(dollars * NANODOLLARS)


def weight(pod: Pod, allocatable: Mapping[str, int]) -> int:
    """Return the largest share of a resource that a pod requests, in ``1e-12``; at least 1.

    Each pod requests one of the pods that a node takes, so a pod without requests counts too.
    """
    shares = (
        amount * _WEIGHT // allocatable[name]
        for name, amount in pod.requests().items()
        if allocatable.get(name, 0) > 0
    )
    return max(1, min(_WEIGHT, max(shares, default=1)))


@dataclass(frozen=True, slots=True)
class WorkloadCost:
    """What equal pods of a workload cost, in billionths of a dollar an hour.

    ``labels`` are those that all revisions and all pods of a workload have in common. ``idle`` is
    the part for capacity that no pod requests. ``workload`` is empty for what nobody pays.
    """

    namespace: str
    workload: str
    labels: tuple[tuple[str, str], ...]
    pods: int
    nanodollars: int
    idle: int

    @property
    def per_hour(self) -> float:
        """USD an hour."""
        return round(self.nanodollars / NANODOLLARS, 9)


def abridge(rows: Sequence[WorkloadCost], most: int = ROWS_MAX) -> tuple[WorkloadCost, ...]:
    """Return at most about ``most`` rows: the cheapest of a namespace become one, without labels.

    The sums of the fleet and of each namespace stay exact.
    """
    if len(rows) <= most:
        return tuple(rows)
    ordered = sorted(rows, key=lambda row: (-row.nanodollars, row.namespace, row.workload))
    merged: dict[str, WorkloadCost] = {}
    for row in ordered[most:]:
        known = merged.get(row.namespace)
        merged[row.namespace] = WorkloadCost(
            row.namespace,
            f"Other {row.namespace}",
            (),
            row.pods + (known.pods if known else 0),
            row.nanodollars + (known.nanodollars if known else 0),
            row.idle + (known.idle if known else 0),
        )
    return tuple(sorted((*ordered[:most], *merged.values()), key=_row_order))


def _row_order(row: WorkloadCost) -> WorkloadKey:
    return row.namespace, row.workload, row.labels


WorkloadKey = tuple[str, str, tuple[tuple[str, str], ...]]


def allocate(nodes: Iterable[NodeCost]) -> tuple[WorkloadCost, ...]:
    """Divide the cost of nodes among the workloads on them; the parts add up exactly.

    They are in the order of their names. What is left over where nothing has pods is one more part,
    without a name.
    """
    ledger = _Ledger()
    empty: list[NodeCost] = []
    for node in nodes:
        if node.weights:
            ledger.charge_node(node)
        else:
            empty.append(node)
    ledger.charge_empty_nodes(empty)
    return ledger.rows()


class _Ledger:
    """The running totals of each workload, and those in each NodePool."""

    def __init__(self) -> None:
        self._pods: dict[WorkloadKey, int] = {}
        self._amounts: dict[WorkloadKey, int] = {}
        self._idle: dict[WorkloadKey, int] = {}
        self._by_pool: dict[str, dict[WorkloadKey, int]] = {}

    def charge_node(self, node: NodeCost) -> None:
        weights: dict[WorkloadKey, int] = {}
        for key, share in node.weights:
            weights[key] = weights.get(key, 0) + share
            self._pods[key] = self._pods.get(key, 0) + 1
        pool = self._by_pool.setdefault(node.node_pool, {})
        total = max(_WEIGHT, sum(weights.values()))
        for key, amount in divide(node.nanodollars, weights).items():
            self._add(key, amount, amount - node.nanodollars * weights[key] // total)
            pool[key] = pool.get(key, 0) + amount

    def charge_empty_nodes(self, nodes: Sequence[NodeCost]) -> None:
        """Divide empty nodes like the others of their NodePool, or else like the fleet."""
        in_fleet = dict(self._amounts)
        left: dict[str, int] = {}
        for node in nodes:
            left[node.node_pool] = left.get(node.node_pool, 0) + node.nanodollars
        for pool, amount in sorted(left.items()):
            shares = self._by_pool.get(pool, {})
            if not any(shares.values()):
                shares = in_fleet if any(in_fleet.values()) else {("", IDLE, ()): 1}
            for key, part in divide(amount, shares).items():
                self._add(key, part, part)

    def rows(self) -> tuple[WorkloadCost, ...]:
        return tuple(
            WorkloadCost(
                *key, self._pods.get(key, 0), self._amounts[key], min(self._idle[key], amount)
            )
            for key, amount in sorted(self._amounts.items())
        )

    def _add(self, key: WorkloadKey, amount: int, idle: int) -> None:
        self._amounts[key] = self._amounts.get(key, 0) + amount
        self._idle[key] = self._idle.get(key, 0) + max(idle, 0)


def workload_key(pod: Pod) -> WorkloadKey:
    """Return the workload of a pod: its namespace, its name, and the labels that its pods share."""
    labels = pod.metadata.labels.items()
    shared = tuple(sorted((k, v) for k, v in labels if k not in _NOT_SHARED))
    return pod.namespace, workload_of(pod), shared


def divide(amount: int, weights: Mapping[WorkloadKey, int]) -> dict[WorkloadKey, int]:
    """Divide a whole amount in proportion to the weights, which are not all 0.

    The parts add up exactly: what rounding leaves goes to the largest remainders, then by name.
    """
    total = sum(weights.values())
    parts = {key: divmod(amount * share, total) for key, share in weights.items()}
    left = amount - sum(whole for whole, _ in parts.values())
    ordered = sorted(parts, key=lambda key: (-parts[key][1], key))
    favoured = set(ordered[:left])
    return {key: whole + (key in favoured) for key, (whole, _) in parts.items()}


@dataclass(frozen=True, slots=True)
class GroupCost:
    """What a group of workloads costs, in billionths of a dollar an hour."""

    name: str
    pods: int = 0
    nanodollars: int = 0
    idle: int = 0

    @property
    def shown_name(self) -> str:
        """The name for people."""
        return self.name or IDLE_NAME

    @property
    def per_hour(self) -> float:
        """USD an hour."""
        return round(self.nanodollars / NANODOLLARS, 9)

    @property
    def idle_per_hour(self) -> float:
        """The part for capacity that no pod requests, USD an hour."""
        return round(self.idle / NANODOLLARS, 9)


def group_costs(rows: Iterable[WorkloadCost], by: Grouping) -> tuple[GroupCost, ...]:
    """Return the cost of each group, the most expensive first."""
    found: dict[str, GroupCost] = {}
    for row in rows:
        name = (
            IDLE
            if row.workload == IDLE
            else by.group_of(row.namespace, row.workload, dict(row.labels))
        )
        known = found.get(name, GroupCost(name))
        found[name] = GroupCost(
            name,
            known.pods + row.pods,
            known.nanodollars + row.nanodollars,
            known.idle + row.idle,
        )
    return tuple(sorted(found.values(), key=lambda group: (-group.nanodollars, group.name)))
