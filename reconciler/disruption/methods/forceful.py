"""Forceful methods: nodes that are removed regardless of budgets and pods.

They do not wait for replacements. The pods of these nodes count as pending as soon as the command
starts, so capacity for them is launched in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from reconciler.disruption.candidates import scale_down_cost
from reconciler.disruption.command import Block, BlockCode, Command, ForcefulReason
from reconciler.disruption.gates.policy import forceful_expiry_at
from reconciler.disruption.methods.repairpolicy import (
    UNHEALTHY_SHARE_PERCENT,
    RepairMatch,
    pools_with_too_many_unhealthy_nodes,
    repair_matches,
    waiting_repair,
)
from reconciler.model.decision.waiting import DeferredClaim
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import DecisionRules, FeatureGate, Settings
from reconciler.observed.state import ClusterState, StateNode


@dataclass(slots=True)
class RepairFindings:
    """The unhealthy nodes that are not repaired now: those that cannot be, and those that wait."""

    blocks: list[Block] = field(default_factory=list)
    deferrals: list[DeferredClaim] = field(default_factory=list)


def forceful_commands(
    cluster: ClusterState,
    pools: Mapping[str, NodePool],
    settings: Settings,
    now: datetime,
    interrupted: Mapping[str, str],
    removed: Collection[str] = (),
) -> tuple[list[Command], RepairFindings]:
    """Return the commands that ignore budgets, one for each node, and which repairs are not due.

    ``interrupted`` are NodeClaims that EC2 reclaims or whose instance has stopped, with the event.
    ``removed`` are deleted NodePools whose nodes may go: Kubernetes deletes those of Karpenter at
    once, as their owner is gone. A node to which several reasons apply is removed for the first of
    them.
    """
    unhealthy, findings = _nodes_to_repair(cluster, settings, now)
    commands: dict[str, Command] = {}
    for reason, nodes in (
        (ForcefulReason.INTERRUPTED, _nodes_of_claims(cluster, interrupted)),
        (ForcefulReason.EXPIRED, _expired_nodes(cluster, settings, now)),
        (ForcefulReason.UNHEALTHY, unhealthy),
        (ForcefulReason.NODE_POOL_DELETED, _nodes_without_owner(cluster, settings, removed)),
    ):
        for node in nodes:
            assert node.claim is not None
            name = node.claim.name
            event = interrupted.get(name, "") if reason is ForcefulReason.INTERRUPTED else ""
            commands.setdefault(name, _delete_command(node, node.claim, reason, event))
    for surplus, claim in _surplus_claims(cluster, pools, settings, now, commands.keys()):
        commands[claim.name] = _delete_command(surplus, claim, ForcefulReason.OVERPROVISIONED)
    findings.deferrals = [d for d in findings.deferrals if d.node_claim not in commands]
    return list(commands.values()), findings


def _delete_command(
    node: StateNode | None, claim: NodeClaim, reason: ForcefulReason, message: str = ""
) -> Command:
    """Return the command that removes a node; the drain of an unhealthy one ends at once."""
    has_node = node is not None and node.node is not None
    return Command(
        reason=reason,
        decision="delete",
        nodes=(node.name,) if node is not None and has_node else (),
        node_claims=(claim.name,),
        pods_evicted=len(node.reschedulable) if node is not None else 0,
        message=message,
        drain_limit=timedelta(0) if reason is ForcefulReason.UNHEALTHY else None,
    )


def _running_nodes(cluster: ClusterState) -> Iterator[StateNode]:
    return (n for n in cluster.nodes if n.claim is not None and not n.is_deleting)


def _nodes_of_claims(cluster: ClusterState, names: Mapping[str, str]) -> Iterator[StateNode]:
    return (n for n in _running_nodes(cluster) if n.claim is not None and n.claim.name in names)


def _nodes_without_owner(
    cluster: ClusterState, settings: Settings, removed: Collection[str]
) -> Iterator[StateNode]:
    """Yield the nodes of deleted NodePools where Karpenter decides; else they are ``Removal``'s."""
    if settings.decide is DecisionRules.KARPENTER:
        yield from (node for node in _running_nodes(cluster) if node.node_pool in removed)


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
) -> tuple[list[StateNode], RepairFindings]:
    """Return the nodes to repair, and what is found about the other unhealthy nodes."""
    findings = RepairFindings()
    if not settings.repairs_forcefully:
        return [], findings
    unhealthy: dict[str, list[tuple[StateNode, RepairMatch]]] = {}
    for node in cluster.nodes:
        matches = () if node.node is None else repair_matches(node.node, settings)
        if matches:
            first = min(matches, key=lambda m: m.tolerated_until)
            unhealthy.setdefault(node.node_pool, []).append((node, first))
    too_many = pools_with_too_many_unhealthy_nodes(cluster, settings)
    repaired: list[StateNode] = []
    for pool, rows in unhealthy.items():
        for node, match in rows:
            if node.claim is None or node.is_deleting:
                continue
            if now < match.tolerated_until:
                findings.deferrals.append(
                    waiting_repair(node, node.claim, match, ForcefulReason.UNHEALTHY)
                )
            elif pool not in too_many:
                repaired.append(node)
            else:
                text = f"more than {UNHEALTHY_SHARE_PERCENT}% nodes are unhealthy in the nodepool"
                code = BlockCode.UNHEALTHY_SHARE
                findings.blocks.append(Block(node.name, ForcefulReason.UNHEALTHY, code, text))
    return repaired, findings


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
