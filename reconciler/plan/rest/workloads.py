"""The workloads of another revision on the nodes that are there."""

from __future__ import annotations

from dataclasses import replace as with_fields
from datetime import datetime

from msgspec.structs import replace

from reconciler.model.cluster import PodDisruptionBudgetStatus
from reconciler.model.evictions import disruptions_allowed
from reconciler.model.pod import Pod
from reconciler.observed.state import ClusterState, StateNode
from reconciler.plan.rest.world import waiting


def with_workloads(cluster: ClusterState, wanted: ClusterState, now: datetime) -> ClusterState:
    """Return the nodes of ``cluster`` with the workloads of ``wanted``.

    A pod that both have, with the same spec, labels and annotations, stays where it is. What is
    bound to a node for good, daemons and mirror pods, stays as well.
    """
    fresh = {p.key: waiting(p) for p in wanted.pods if not (p.is_daemon or p.is_mirror)}
    nodes: list[StateNode] = []
    running: dict[str, Pod] = {}
    for node in cluster.nodes:
        kept = tuple(pod for pod in node.pods if _stays(pod, fresh.get(pod.key)))
        running.update((pod.key, pod) for pod in kept)
        nodes.append(node if len(kept) == len(node.pods) else _quiet_from(node, kept, now))
    pods = [running.pop(key, pod) for key, pod in fresh.items()]
    pods += running.values()
    return with_fields(
        wanted,
        nodes=tuple(nodes),
        unlaunched=cluster.unlaunched,
        pods=tuple(pods),
        csi_nodes={**cluster.csi_nodes, **wanted.csi_nodes},
        pod_disruption_budgets=tuple(
            replace(b, status=PodDisruptionBudgetStatus(disruptions_allowed(b, pods)))
            for b in wanted.pod_disruption_budgets
        ),
    )


def _stays(pod: Pod, wanted: Pod | None) -> bool:
    if pod.is_daemon or pod.is_mirror:
        return True
    if wanted is None:
        return False
    one, other = pod.metadata, wanted.metadata
    alike = (one.labels, one.annotations) == (other.labels, other.annotations)
    return alike and replace(pod.spec, node_name="") == wanted.spec


def _quiet_from(node: StateNode, pods: tuple[Pod, ...], now: datetime) -> StateNode:
    claim = node.claim
    if claim is not None:
        claim = replace(claim, status=replace(claim.status, last_pod_event_time=now))
    return with_fields(node, pods=pods, claim=claim)
