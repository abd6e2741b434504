"""Nodes that go whatever budgets and pods say: the forceful ways, named as such.

They have no replacement that must be ready first; the pods of these nodes count as waiting for a
place from the moment the command starts, so that capacity for them is launched meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.command import Block, BlockCode, Command, ForcefulReason
from reconciler.disruption.cost import scale_down_cost
from reconciler.disruption.gates.policy import forced_out_at
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.settings import FeatureGate, Settings
from reconciler.observed.state import ClusterState, StateNode

UNHEALTHY_SHARE_PERCENT: Final = 20
"""Of how many nodes repair still believes that it is the node and not something else."""


@dataclass(frozen=True, slots=True)
class RepairPolicy:
    """A condition that makes a node unhealthy once it has lasted for ``after``."""

    condition: str
    status: str
    after: timedelta


REPAIR_POLICIES: Final = (
    RepairPolicy("Ready", "False", timedelta(minutes=30)),
    RepairPolicy("Ready", "Unknown", timedelta(minutes=30)),
    RepairPolicy("AcceleratedHardwareReady", "False", timedelta(minutes=10)),
    RepairPolicy("StorageReady", "False", timedelta(minutes=30)),
    RepairPolicy("NetworkingReady", "False", timedelta(minutes=30)),
    RepairPolicy("KernelReady", "False", timedelta(minutes=30)),
    RepairPolicy("ContainerRuntimeReady", "False", timedelta(minutes=30)),
)
"""What the AWS provider asks the core to repair."""


def forceful_commands(
    cluster: ClusterState,
    pools: Mapping[str, NodePool],
    settings: Settings,
    now: datetime,
    interrupted: Mapping[str, str],
) -> tuple[list[Command], list[Block]]:
    """Return the commands that start whatever the budgets say, one for each node.

    ``interrupted`` are NodeClaims that EC2 takes away or whose instance has stopped, with the
    event. A node that goes for several reasons goes for the first of them.
    """
    unhealthy, blocks = _unhealthy(cluster, settings, now)
    taken: dict[str, Command] = {}
    for reason, nodes in (
        (ForcefulReason.INTERRUPTED, _named(cluster, interrupted)),
        (ForcefulReason.EXPIRED, _expired(cluster, settings, now)),
        (ForcefulReason.UNHEALTHY, unhealthy),
    ):
        for node in nodes:
            assert node.claim is not None
            name = node.claim.name
            event = interrupted.get(name, "") if reason is ForcefulReason.INTERRUPTED else ""
            taken.setdefault(name, _delete(node, node.claim, reason, event))
    for surplus, claim in _overprovisioned(cluster, pools, settings, now, taken.keys()):
        taken[claim.name] = _delete(surplus, claim, ForcefulReason.OVERPROVISIONED)
    return list(taken.values()), blocks


def _delete(
    node: StateNode | None, claim: NodeClaim, reason: ForcefulReason, message: str = ""
) -> Command:
    has_node = node is not None and node.node is not None
    pods = node.pods if node is not None else ()
    return Command(
        reason=reason,
        decision="delete",
        nodes=(node.name,) if node is not None and has_node else (),
        node_claims=(claim.name,),
        pods_evicted=sum(pod.is_reschedulable for pod in pods),
        message=message,
    )


def _living(cluster: ClusterState) -> Iterator[StateNode]:
    return (n for n in cluster.nodes if n.claim is not None and not n.is_deleting)


def _named(cluster: ClusterState, names: Mapping[str, str]) -> Iterator[StateNode]:
    return (n for n in _living(cluster) if n.claim is not None and n.claim.name in names)


def _expired(cluster: ClusterState, settings: Settings, now: datetime) -> Iterator[StateNode]:
    """Yield the nodes that are older than may be; the moment itself counts.

    That is what their claim allows, and the ceiling above it where the pool expires gracefully.
    """
    for node in _living(cluster):
        assert node.claim is not None
        at = forced_out_at(node.claim, node.node_pool, settings)
        if at is not None and now >= at:
            yield node


def _unhealthy(
    cluster: ClusterState, settings: Settings, now: datetime
) -> tuple[list[StateNode], list[Block]]:
    """Return the nodes to repair, and blocks where too many of a pool are ill at once."""
    if not settings.gate(FeatureGate.NODE_REPAIR):
        return [], []
    total: dict[str, int] = {}
    ill: dict[str, int] = {}
    due: list[StateNode] = []
    for node in cluster.nodes:
        if node.node is None:
            continue
        total[node.node_pool] = total.get(node.node_pool, 0) + 1
        since = patience_ends(node.node.status.conditions)
        if since is None:
            continue
        ill[node.node_pool] = ill.get(node.node_pool, 0) + 1
        if node.claim is not None and not node.is_deleting and now >= since:
            due.append(node)
    repaired: list[StateNode] = []
    blocks: list[Block] = []
    for node in due:
        limit = -(-total[node.node_pool] * UNHEALTHY_SHARE_PERCENT // 100)
        if ill[node.node_pool] <= limit:
            repaired.append(node)
            continue
        text = f"more than {UNHEALTHY_SHARE_PERCENT}% nodes are unhealthy in the nodepool"
        blocks.append(Block(node.name, ForcefulReason.UNHEALTHY, BlockCode.UNHEALTHY_SHARE, text))
    return repaired, blocks


def patience_ends(conditions: Sequence[Condition]) -> datetime | None:
    """Return when a node's patience ends first, or None if it is well."""
    ends = [
        c.last_transition_time + policy.after
        for c in conditions
        for policy in REPAIR_POLICIES
        if (c.type, c.status) == (policy.condition, policy.status) and c.last_transition_time
    ]
    return min(ends, default=None)


def _overprovisioned(
    cluster: ClusterState,
    pools: Mapping[str, NodePool],
    settings: Settings,
    now: datetime,
    taken: Collection[str],
) -> Iterator[tuple[StateNode | None, NodeClaim]]:
    """Yield what static pools have too many of: unlaunched claims, empty nodes, the cheapest.

    A pod that must not be disrupted makes its node the last to go, but does not keep it.
    """
    if not settings.gate(FeatureGate.STATIC_CAPACITY):
        return
    for name in sorted(pools):
        pool = pools[name]
        if pool.is_static and not pool.is_deleting:
            owned = [row for row in _owned(cluster, name) if row[1].name not in taken]
            surplus = len(owned) - (pool.spec.replicas or 0)
            if surplus > 0:
                owned.sort(key=lambda row: _scale_down_key(row[0], row[1], now))
                yield from owned[:surplus]


def ranks_by_age(cluster: ClusterState, pool: NodePool, settings: Settings) -> bool:
    """Return whether the pool is about to choose by age whom to let go: each moment may differ."""
    if not settings.gate(FeatureGate.STATIC_CAPACITY) or not pool.is_static or pool.is_deleting:
        return False
    return sum(1 for _ in _owned(cluster, pool.name)) > (pool.spec.replicas or 0)


def _owned(cluster: ClusterState, pool: str) -> Iterator[tuple[StateNode | None, NodeClaim]]:
    """Yield the claims of a pool that stay, with their nodes; one may not have been launched."""
    for claim in cluster.unlaunched:
        if claim.node_pool == pool and not claim.is_deleting:
            yield None, claim
    for node in _living(cluster):
        if node.claim is not None and node.claim.node_pool == pool:
            yield node, node.claim


def _scale_down_key(
    node: StateNode | None, claim: NodeClaim, now: datetime
) -> tuple[int, bool, float, str]:
    if node is None:
        return (0, False, 0.0, claim.name)
    protected = any(not pod.is_disruptable(now) for pod in node.pods)
    daemons_only = all(pod.is_daemon for pod in node.pods)
    if daemons_only and not protected:
        return (1, False, 0.0, claim.name)
    return (2, protected, scale_down_cost(node.pods, claim, now), claim.name)
