"""Builders of small clusters as Kubernetes objects: a test names only what it is about.

Objects stay plain data, so that the independent check of ``conformance/feasibility.py`` can read
the same ones as the scheduler.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from reconciler.catalog.catalog import Catalog
from reconciler.catalog.file import read_catalog
from reconciler.model.decode import decode
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import format_resources
from reconciler.model.settings import DEFAULT_FEATURE_GATES, Settings
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.placement.nodes.existing import SchedulerMemory
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import LaunchPool, Placement, Question
from reconciler.placement.scheduler import Scheduler

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ZONE = "topology.kubernetes.io/zone"
HOST = "kubernetes.io/hostname"
CAPACITY_TYPE = "karpenter.sh/capacity-type"
ARCH = "kubernetes.io/arch"
ZONES = ("zone-a", "zone-b", "zone-c")

Object = dict[str, Any]


def a_type(
    name: str,
    cpu: int,
    price: float,
    *,
    memory: str | None = None,
    arch: str = "amd64",
    zones: Iterable[str] = ZONES,
    extra: dict[str, str] | None = None,
    offerings: Sequence[Object] = (),
) -> Object:
    """Return a type that has 4 GiB for each core and costs a third as spot."""
    return {
        "name": name,
        "capacity": {
            "cpu": str(cpu),
            "memory": memory or f"{4 * cpu}Gi",
            "pods": "20",
            **(extra or {}),
        },
        "overhead": {"cpu": "100m", "memory": "100Mi"},
        "requirements": [
            {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]},
            {"key": ARCH, "operator": "In", "values": [arch]},
            {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]},
            {"key": "example.com/size", "operator": "In", "values": [str(cpu)]},
        ],
        "offerings": [
            *(
                {"zone": zone, "capacityType": kind, "price": round(price * factor, 6)}
                for zone in zones
                for kind, factor in (("on-demand", 1.0), ("spot", 1 / 3))
            ),
            *offerings,
        ],
    }


TYPES = (
    a_type("small", 2, 0.1),
    a_type("medium", 4, 0.2),
    a_type("large", 8, 0.4),
    a_type("huge", 16, 0.8),
    a_type("arm", 8, 0.3, arch="arm64"),
    a_type("gpu", 8, 2.0, zones=("zone-a",), extra={"example.com/gpu": "2"}),
)


@lru_cache(maxsize=32)
def _catalog(text: str) -> Catalog:
    return read_catalog(text.encode(), "catalog")


def a_catalog(types: Sequence[Object]) -> Catalog:
    """Return the catalog of these types; equal ones are created once."""
    return _catalog(json.dumps(list(types)))


def a_pool(name: str = "default", *requirements: Object, **spec: Any) -> Object:
    """Return a NodePool; ``taints``, ``startupTaints`` and ``labels`` go into its template."""
    template: Object = {
        "spec": {
            "nodeClassRef": {"group": "example.com", "kind": "Class", "name": "default"},
            "requirements": list(requirements),
            "expireAfter": "Never",
        }
    }
    for key in ("taints", "startupTaints"):
        if key in spec:
            template["spec"][key] = spec.pop(key)
    if "labels" in spec:
        template["metadata"] = {"labels": spec.pop("labels")}
    return {"kind": "NodePool", "metadata": {"name": name}, "spec": {"template": template, **spec}}


def wanted(key: str, operator: str, *values: str, min_values: int | None = None) -> Object:
    """Return a requirement entry."""
    entry = {"key": key, "operator": operator, "values": list(values)}
    return entry if min_values is None else {**entry, "minValues": min_values}


def a_pod(
    name: str,
    cpu: str = "1",
    memory: str = "1Gi",
    *,
    node: str | None = None,
    labels: dict[str, str] | None = None,
    more: dict[str, str] | None = None,
    ports: Sequence[int] = (),
    owner: tuple[str, str] = ("apps/v1", "ReplicaSet"),
    **spec: Any,
) -> Object:
    """Return a pod that is pending, or runs on ``node``; other arguments go into its spec."""
    requests = {"cpu": cpu, "memory": memory, **(more or {})}
    container: Object = {"name": "main", "resources": {"requests": requests}}
    if ports:
        container["ports"] = [{"hostPort": p, "containerPort": p} for p in ports]
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status: Object = {"phase": "Running"} if node else {"phase": "Pending", "conditions": [waits]}
    if node:
        spec["nodeName"] = node
    owners = [{"apiVersion": owner[0], "kind": owner[1], "name": name.rpartition("-")[0]}]
    return {
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": name,
            "labels": labels or {},
            "ownerReferences": owners,
        },
        "spec": {"containers": [container], **spec},
        "status": status,
    }


def pods(count: int, name: str = "app", **fields: Any) -> list[Object]:
    """Return ``count`` equal pods, labelled ``app=NAME``."""
    fields.setdefault("labels", {"app": name})
    return [a_pod(f"{name}-{i:02d}", **fields) for i in range(count)]


def a_node(
    name: str,
    cpu: str = "4",
    *,
    zone: str | None = "zone-a",
    pool: str = "default",
    taints: Sequence[Object] = (),
    initialized: bool = True,
    deleting: bool = False,
    labels: dict[str, str] | None = None,
) -> list[Object]:
    """Return a Node of a pool, and its NodeClaim ``claim-NAME``."""
    own = {
        "karpenter.sh/nodepool": pool,
        CAPACITY_TYPE: "on-demand",
        "node.kubernetes.io/instance-type": "medium",
        ARCH: "amd64",
        "kubernetes.io/os": "linux",
        **({ZONE: zone} if zone else {}),
        **(labels or {}),
    }
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "20"}
    marks = {HOST: name, "karpenter.sh/registered": "true"}
    if initialized:
        marks["karpenter.sh/initialized"] = "true"
    claim_metadata: Object = {"name": f"claim-{name}", "labels": own}
    if deleting:
        claim_metadata["deletionTimestamp"] = "2026-03-01T11:59:00Z"
    return [
        {
            "kind": "Node",
            "metadata": {"name": name, "labels": {**own, **marks}},
            "spec": {"providerID": f"fake:///{name}", "taints": list(taints)},
            "status": {"capacity": amounts, "allocatable": amounts},
        },
        {
            "kind": "NodeClaim",
            "metadata": claim_metadata,
            "spec": {"taints": list(taints)},
            "status": {
                "providerID": f"fake:///{name}",
                "capacity": amounts,
                "allocatable": amounts,
            },
        },
    ]


def a_daemon_set(name: str, cpu: str, **spec: Any) -> Object:
    """Return a DaemonSet whose pods request ``cpu``."""
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return {
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"template": {"spec": {"containers": [container], **spec}}},
    }


def spread(key: str, app: str = "app", skew: int = 1, *, soft: bool = False, **more: Any) -> Object:
    """Return a spread constraint over pods labelled ``app=APP``."""
    return {
        "maxSkew": skew,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway" if soft else "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": app}},
        **more,
    }


def rule(key: str, app: str = "app", **more: Any) -> Object:
    """Return a term of pod affinity or anti-affinity about pods labelled ``app=APP``."""
    return {"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}, **more}


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def near(*terms: Object) -> Object:
    return {"podAffinity": {REQUIRED: list(terms)}}


def apart(*terms: Object) -> Object:
    return {"podAntiAffinity": {REQUIRED: list(terms)}}


def on(*terms: Sequence[Object]) -> Object:
    """Return required node affinity: alternatives, each a list of requirement entries."""
    selected = [{"matchExpressions": list(term)} for term in terms]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": selected}}}


def a_scheduler(
    objects: Iterable[Object],
    *,
    types: Sequence[Object] = TYPES,
    gates: dict[str, bool] | None = None,
    cluster: ClusterState | None = None,
    memory: SchedulerMemory | None = None,
    **settings: Any,
) -> tuple[Scheduler, Any]:
    """Return the scheduler of a cluster, and the cluster: the given one, or that of objects."""
    known = list(objects)
    pools = [decode(o, NodePool) for o in known if o["kind"] == "NodePool"]
    rest = [o for o in known if o["kind"] != "NodePool"]
    if cluster is None:
        content = json.dumps({"kind": "List", "items": rest}).encode()
        cluster = cluster_state(read_snapshot(content, ""))
    catalog = a_catalog(types)
    chosen = Settings(feature_gates={**DEFAULT_FEATURE_GATES, **(gates or {})}, **settings)
    launch_pools = [LaunchPool(pool, catalog) for pool in pools]
    return Scheduler(launch_pools, cluster, chosen, NOW, memory=memory), cluster


def placed(objects: Iterable[Object], **how: Any) -> Placement:
    """Return the placement of the pods of a cluster that need a node."""
    scheduler, cluster = a_scheduler(objects, **how)
    return scheduler.place(Question(pods=pods_to_place(cluster, NOW)))


def plan_of(placement: Placement) -> Object:
    """Return the part of a plan that placement decides, in the contract's format."""
    claims = []
    for claim in placement.claims:
        kind, offering = claim.launch
        claims.append(
            {
                "name": claim.name,
                "nodePool": claim.node_pool.name,
                "pods": list(claim.pods),
                "requests": format_resources(claim.requests),
                "requirements": [
                    {"key": s.key, "operator": str(s.operator), "values": list(s.values)}
                    for s in claim.requirements.specs()
                ],
                "instanceTypes": [t.name for t in claim.types[:60]],
                "labels": dict(claim.labels),
                "launch": {
                    "instanceType": kind.name,
                    "zone": offering.zone,
                    "capacityType": offering.capacity_type,
                    "price": offering.price,
                },
            }
        )
    seats = [{"pod": p, "nodeClaim": c.name} for c in placement.claims for p in c.pods]
    seats += [{"pod": pod, "node": node} for pod, node in placement.on_nodes.items()]
    refused = {**placement.unschedulable, **placement.deferred}
    return {
        "nodeClaims": claims,
        "placements": seats,
        "unschedulable": [
            {"pod": pod, "reasons": [{"code": r.code, "message": r.message} for r in reasons]}
            for pod, reasons in refused.items()
        ],
        "commands": [],
    }


def groups(placement: Placement) -> list[list[str]]:
    """Return the pods of each new NodeClaim, without their namespace."""
    return sorted(sorted(key.partition("/")[2] for key in c.pods) for c in placement.claims)


def zones(placement: Placement) -> list[str]:
    """Return the zone of each new NodeClaim with a single zone, sorted."""
    found = [c.requirements.fixed_labels().get(ZONE, "") for c in placement.claims]
    return sorted(zone for zone in found if zone)
