"""Forceful methods: nodes that are removed regardless of budgets and pods.

They do not wait for replacements. The pods of these nodes count as pending as soon as the command
starts, so capacity for them is launched in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from reconciler.disruption.candidates import scale_down_cost
from reconciler.disruption.command import Block, BlockCode, Command, ForcefulReason
from reconciler.disruption.gates.policy import forceful_expiry_at
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.settings import FeatureGate, Settings
from reconciler.observed.state import ClusterState, StateNode

UNHEALTHY_SHARE_PERCENT: Final = 20
"""The maximum share of unhealthy nodes; above it, repair assumes another cause and stops."""


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
"""The repair policies of the AWS provider."""


def forceful_commands(
    cluster: ClusterState,
    pools: Mapping[str, NodePool],
    settings: Settings,
    now: datetime,
    interrupted: Mapping[str, str],
) -> tuple[list[Command], list[Block]]:
    """Return the commands that ignore budgets, one for each node.

    ``interrupted`` are NodeClaims that EC2 reclaims or whose instance has stopped, with the event.
    A node to which several reasons apply is removed for the first of them.
    """
    unhealthy, blocks = _nodes_to_repair(cluster, settings, now)
    commands: dict[str, Command] = {}
    for reason, nodes in (
        (ForcefulReason.INTERRUPTED, _nodes_of_claims(cluster, interrupted)),
        (ForcefulReason.EXPIRED, _expired_nodes(cluster, settings, now)),
        (ForcefulReason.UNHEALTHY, unhealthy),
    ):
        for node in nodes:
            assert node.claim is not None
            name = node.claim.name
            event = interrupted.get(name, "") if reason is ForcefulReason.INTERRUPTED else ""
            commands.setdefault(name, _delete_command(node, node.claim, reason, event))
    for surplus, claim in _surplus_claims(cluster, pools, settings, now, commands.keys()):
        commands[claim.name] = _delete_command(surplus, claim, ForcefulReason.OVERPROVISIONED)
    return list(commands.values()), blocks


def _delete_command(
    node: StateNode | None, claim: NodeClaim, reason: ForcefulReason, message: str = ""
) -> Command:
    has_node = node is not None and node.node is not None
    return Command(
        reason=reason,
        decision="delete",
        nodes=(node.name,) if node is not None and has_node else (),
        node_claims=(claim.name,),
        pods_evicted=len(node.reschedulable) if node is not None else 0,
        message=message,
    )


def _running_nodes(cluster: ClusterState) -> Iterator[StateNode]:
    return (n for n in cluster.nodes if n.claim is not None and not n.is_deleting)


def _nodes_of_claims(cluster: ClusterState, names: Mapping[str, str]) -> Iterator[StateNode]:
    return (n for n in _running_nodes(cluster) if n.claim is not None and n.claim.name in names)


def _expired_nodes(cluster: ClusterState, settings: Settings, now: datetime) -> Iterator[StateNode]:
    """Yield the nodes that have expired; the boundary is included.

    The limit is that of their claim, or the separate maximum age if the pool expires gracefully.
    """
    for node in _running_nodes(cluster):
        assert node.claim is not None
        at = forceful_expiry_at(node.claim, node.node_pool, settings)
        if at is not None and now >= at:
            yield node


def _nodes_to_repair(
    cluster: ClusterState, settings: Settings, now: datetime
) -> tuple[list[StateNode], list[Block]]:
    """Return the nodes to repair, and blocks if too many nodes of a pool are unhealthy."""
    if not settings.gate(FeatureGate.NODE_REPAIR):
        return [], []
    total: dict[str, int] = {}
    unhealthy: dict[str, int] = {}
    due: list[StateNode] = []
    for node in cluster.nodes:
        if node.node is None:
            continue
        total[node.node_pool] = total.get(node.node_pool, 0) + 1
        since = toleration_ends_at(node.node.status.conditions)
        if since is None:
            continue
        unhealthy[node.node_pool] = unhealthy.get(node.node_pool, 0) + 1
        if node.claim is not None and not node.is_deleting and now >= since:
            due.append(node)
    repaired: list[StateNode] = []
    blocks: list[Block] = []
    for node in due:
        limit = -(-total[node.node_pool] * UNHEALTHY_SHARE_PERCENT // 100)
        if unhealthy[node.node_pool] <= limit:
            repaired.append(node)
            continue
        text = f"more than {UNHEALTHY_SHARE_PERCENT}% nodes are unhealthy in the nodepool"
        blocks.append(Block(node.name, ForcefulReason.UNHEALTHY, BlockCode.UNHEALTHY_SHARE, text))
    return repaired, blocks


def toleration_ends_at(conditions: Sequence[Condition]) -> datetime | None:
    """Return when the first toleration of an unhealthy condition ends, or None if healthy."""
    ends = [
        c.last_transition_time + policy.after
        for c in conditions
        for policy in REPAIR_POLICIES
        if (c.type, c.status) == (policy.condition, policy.status) and c.last_transition_time
    ]
    return min(ends, default=None)


def _surplus_claims(
    cluster: ClusterState,
    pools: Mapping[str, NodePool],
    settings: Settings,
    now: datetime,
    removed_claims: Collection[str],
) -> Iterator[tuple[StateNode | None, NodeClaim]]:
    """Yield the excess of static pools: unlaunched claims, then empty nodes, then the cheapest.

    A node with a pod that must not be disrupted comes last, but is not excluded.
    """
    if not settings.gate(FeatureGate.STATIC_CAPACITY):
        return
    for name in sorted(pools):
        pool = pools[name]
        if pool.is_static and not pool.is_deleting:
            claims = [
                row for row in _claims_of_pool(cluster, name) if row[1].name not in removed_claims
            ]
            surplus = len(claims) - (pool.spec.replicas or 0)
            if surplus > 0:
                claims.sort(key=lambda row: _scale_down_key(row[0], row[1], now))
                yield from claims[:surplus]


def scales_down_by_age(cluster: ClusterState, pool: NodePool, settings: Settings) -> bool:
    """Return whether the pool is about to choose nodes to remove by age, which always changes."""
    if not settings.gate(FeatureGate.STATIC_CAPACITY) or not pool.is_static or pool.is_deleting:
        return False
    return sum(1 for _ in _claims_of_pool(cluster, pool.name)) > (pool.spec.replicas or 0)


def _claims_of_pool(
    cluster: ClusterState, pool: str
) -> Iterator[tuple[StateNode | None, NodeClaim]]:
    """Yield the claims of a pool that stay, with their nodes; a claim may not be launched yet."""
    for claim in cluster.unlaunched:
        if claim.node_pool == pool and not claim.is_deleting:
            yield None, claim
    for node in _running_nodes(cluster):
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
