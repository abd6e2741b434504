"""Builders of small fleets with simple defaults: a test names only what it is about."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.file import read_catalog
from reconciler.disruption.command import Decisions
from reconciler.disruption.decide import METHODS, decide
from reconciler.disruption.disruptionpass import Method
from reconciler.disruption.inputs import DisruptionInputs
from reconciler.model.decision.changes import DriftedClaim
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import (
    DEFAULT_FEATURE_GATES,
    FeatureGate,
    KarpenterVersion,
    Settings,
)
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import LaunchPool

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
SIZES = {"small": (2, 0.1), "medium": (4, 0.2), "large": (8, 0.4), "huge": (16, 0.8)}
"""CPUs, and the on-demand price in USD an hour; spot costs a third."""


def a_type(name: str, cpu: int, price: float) -> dict[str, Any]:
    return {
        "name": name,
        "capacity": {"cpu": str(cpu), "memory": f"{cpu * 4}Gi", "pods": "110"},
        "requirements": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]},
            {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]},
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
        ],
        "offerings": [
            {"zone": zone, "capacityType": kind, "price": price * factor}
            for zone in ("zone-a", "zone-b")
            for kind, factor in (("on-demand", 1.0), ("spot", 1 / 3))
        ],
    }


def a_catalog(types: Iterable[dict[str, Any]] | None = None) -> Catalog:
    rows = [a_type(n, *s) for n, s in SIZES.items()] if types is None else list(types)
    return read_catalog(json.dumps(rows).encode(), "catalog")


def stamp(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def a_pool(name: str = "default", *, spec: dict[str, Any] | None = None, **more: Any) -> NodePool:
    """Return a pool without limits; ``more`` goes into ``spec.disruption``."""
    disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}], **more}
    requirements = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
    ]
    template = {"spec": {"requirements": requirements, "expireAfter": "Never"}}
    return decode(
        {
            "kind": "NodePool",
            "metadata": {"name": name},
            "spec": {"template": template, "disruption": disruption, **(spec or {})},
        },
        NodePool,
    )


def a_pod(name: str, node: str | None, cpu: str = "1", **fields: Any) -> dict[str, Any]:
    """Return a pod of a ReplicaSet; without a node it is pending."""
    metadata = {
        "name": name,
        "namespace": "default",
        "uid": name,
        "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "app"}],
        **fields.pop("metadata", {}),
    }
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Running"} if node else {"phase": "Pending", "conditions": [waiting]}
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    spec = {"containers": [container], **({"nodeName": node} if node else {})}
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {**spec, **fields.pop("spec", {})},
        "status": {**status, **fields.pop("status", {})},
    }


def a_node(
    name: str,
    size: str = "medium",
    *,
    pool: str = "default",
    zone: str = "zone-a",
    capacity_type: str = "on-demand",
    quiet: timedelta = timedelta(hours=1),
    ready: bool = True,
    initialized: bool = True,
    annotations: dict[str, str] | None = None,
    claim: dict[str, Any] | None = None,
    conditions: Sequence[dict[str, Any]] = (),
    claim_metadata: dict[str, Any] | None = None,
    labels: dict[str, str | None] | None = None,
) -> list[dict[str, Any]]:
    """Return the Node and its NodeClaim ``claim-NAME``."""
    own: dict[str, str | None] = {
        "karpenter.sh/nodepool": pool,
        "karpenter.sh/capacity-type": capacity_type,
        "topology.kubernetes.io/zone": zone,
        "node.kubernetes.io/instance-type": size,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        **(labels or {}),
    }
    known = {key: value for key, value in own.items() if value is not None}
    cpu = SIZES.get(size, (4, 0.0))[0]
    amounts = {"cpu": str(cpu), "memory": f"{cpu * 4}Gi", "pods": "110"}
    began = stamp(NOW - quiet)
    steps = ("Launched", "Registered", *(("Initialized",) if initialized else ()))
    node_labels = {**known, "karpenter.sh/registered": "true", "kubernetes.io/hostname": name}
    if initialized:
        node_labels["karpenter.sh/initialized"] = "true"
    return [
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": node_labels, "annotations": annotations or {}},
            "spec": {"providerID": f"fake:///{name}"},
            "status": {
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            },
        },
        {
            "kind": "NodeClaim",
            "metadata": {
                "name": f"claim-{name}",
                "labels": known,
                "creationTimestamp": began,
                **(claim_metadata or {}),
            },
            "spec": claim or {},
            "status": {
                "providerID": f"fake:///{name}",
                "nodeName": name,
                "capacity": amounts,
                "allocatable": amounts,
                "conditions": [
                    *({"type": s, "status": "True", "lastTransitionTime": began} for s in steps),
                    *conditions,
                ],
            },
        },
    ]


def unhealthy(
    since: datetime = NOW - timedelta(hours=1),
    kind: str = "StorageReady",
    status: str = "False",
    reason: str = "Broken",
) -> list[dict[str, Any]]:
    """Return a condition of a Node for which it is repaired, half an hour after ``since``."""
    at = stamp(since)
    return [{"type": kind, "status": status, "reason": reason, "lastTransitionTime": at}]


def repairing(*gates: FeatureGate, **more: Any) -> Settings:
    """Return the settings of a fleet that repairs nodes as Karpenter 1.15 does."""
    on = dict.fromkeys((FeatureGate.NODE_REPAIR, *gates), True)
    known = {"karpenter": KarpenterVersion.V1_15, **more}
    return Settings(feature_gates={**DEFAULT_FEATURE_GATES, **on}, **known)


def a_cluster(*objects: Any) -> ClusterState:
    """Return the cluster of these objects; lists of objects are flattened."""
    items = [i for o in objects for i in (o if isinstance(o, list) else [o])]
    content = json.dumps({"kind": "List", "items": items}).encode()
    return cluster_state(read_snapshot(content, "snapshot"))


def drifted(*nodes: str) -> tuple[DriftedClaim, ...]:
    return tuple(
        DriftedClaim(node_claim=f"claim-{n}", node=n, node_pool="default", reason="NodePoolDrifted")
        for n in nodes
    )


def a_situation(cluster: ClusterState, pools: Sequence[NodePool], **facts: Any) -> DisruptionInputs:
    catalog = facts.pop("catalog", None) or a_catalog()
    now = facts.pop("now", NOW)
    settings = facts.pop("settings", None) or Settings()
    launch_pools = [LaunchPool(pool, catalog) for pool in pools]
    defaults: dict[str, Any] = {"drifted": (), "pending": pods_to_place(cluster, now)}
    return DisruptionInputs(
        cluster=cluster,
        pools=pools,
        launch_pools=launch_pools,
        settings=settings,
        now=now,
        **{**defaults, **facts},
    )


def decided(
    *objects: Any, pools: Sequence[NodePool] = (), methods: Sequence[Method] = METHODS, **facts: Any
) -> Decisions:
    """Return the decisions of a pass on a fleet of these objects; one simple pool by default."""
    pools = pools or [a_pool()]
    return decide(a_situation(a_cluster(*objects), pools, **facts), methods)


def brief(decisions: Decisions) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return reason, decision and nodes of each command."""
    return [(str(c.reason), c.decision, c.nodes) for c in decisions.commands]


def refusal_of(decisions: Decisions, node: str) -> str:
    """Return the messages for which a node is blocked."""
    return "; ".join(b.message for b in decisions.blocked if b.node == node)
