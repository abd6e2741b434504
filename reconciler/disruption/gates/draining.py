"""Determine which drains never end: of nodes that are being removed, and of those that will be.

A drain waits for pods that cannot be evicted until something ends it: the termination grace period
of the NodeClaim, the time in its annotation, a limit of the command, or EC2, which takes the
instance. Without any of these the node stays and costs what it costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from reconciler.disruption.gates.pdb import PodDisruptionBudgets, list_budgets
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, TERMINATION_TIMESTAMP
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.state import ClusterState, StateNode

if TYPE_CHECKING:
    from reconciler.disruption.command import Command


def removed_nodes(cluster: ClusterState, commands: Iterable[Command]) -> frozenset[str]:
    """Return the names of the nodes that commands remove."""
    named = {n for c in commands if c.removes_nodes for n in (*c.nodes, *c.node_claims)}
    if not named:
        return frozenset()
    return frozenset(
        node.name
        for node in cluster.nodes
        if node.name in named or (node.claim is not None and node.claim.name in named)
    )


def drains_of(
    cluster: ClusterState, removed: Collection[str], bounded: Collection[str], now: datetime
) -> Mapping[str, list[Pod]]:
    """Return the pods that each drain waits for without end, by the name of its node.

    ``removed`` are the nodes that commands remove, ``bounded`` those whose command ends the drain.
    A drain that ends has no such pods.
    """
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    return {
        node.name: [] if node.name in bounded else pods_blocking_drain(node, budgets, now)
        for node in cluster.nodes
        if node.is_deleting or node.name in removed
    }


def pods_blocking_drain(node: StateNode, budgets: PodDisruptionBudgets, now: datetime) -> list[Pod]:
    """Return the pods that a drain of the node waits for without end."""
    if node.claim is not None and _ends_by_itself(node.claim):
        return []
    return [
        pod
        for pod in node.pods
        if not pod.is_daemon
        and pod.is_active
        and pod.is_drainable(now)
        and (not pod.is_evictable(now) or budgets.is_fully_blocked(pod, now))
    ]


def _ends_by_itself(claim: NodeClaim) -> bool:
    """Return whether the drain of a NodeClaim has a limit, or is over."""
    if claim.termination_grace_period is not None or claim.is_true("InstanceTerminating"):
        return True
    try:
        at = datetime.fromisoformat(claim.metadata.annotations.get(TERMINATION_TIMESTAMP, ""))
    except ValueError:
        return False
    return at.tzinfo is not None


def describe_endless_drain(
    blocking: Sequence[Pod], budgets: PodDisruptionBudgets, now: datetime
) -> str:
    """Return why a drain that waits for these pods never ends.

    A pod that two budgets select is never evicted: the eviction API refuses to choose one.
    """
    first = blocking[0]
    names = [budget.key for budget in budgets.budgets_selecting(first)]
    why = f"{DO_NOT_DISRUPT} protects pod {first.key}"
    if budgets.is_fully_blocked(first, now):
        why = f"PodDisruptionBudget {names[0]} never allows the eviction of pod {first.key}"
        if len(names) > 1:
            found = list_budgets(names)
            why = f"PodDisruptionBudgets {found} select pod {first.key}, so it is never evicted"
    more = f" and {len(blocking) - 1} more" if len(blocking) > 1 else ""
    return f"its drain never ends: {why}{more}, and it has no terminationGracePeriod"
