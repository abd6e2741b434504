"""A small fleet with changes that save, for the tests of ``reconciler advise``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.repositories import commit_all, init

NOW = "2026-03-02T09:00:00Z"
ZONES = ("us-east-1a", "us-east-1b")
POOL = """\
# Nodes of the web team.
apiVersion: karpenter.sh/v1
kind: NodePool
metadata:
  name: web
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - key: karpenter.k8s.aws/instance-family   # agreed with the team
          operator: In
          values: [m7i]
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
      expireAfter: Never
  disruption:
    consolidationPolicy: WhenEmptyOrUnderutilized
    consolidateAfter: 30s
    budgets:
      - nodes: "100%"
"""
NODE_CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {cluster: shop}}]
  securityGroupSelectorTerms: [{tags: {cluster: shop}}]
"""
WORKLOAD = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: shop}
spec:
  replicas: 6
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: 1500m, memory: 1Gi}}}]
"""
SETTINGS = "apiVersion: reconciler/v1\nkind: Configuration\nfleet: shop\n"
TRACE = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
a,1500,1024,0,0,,LS,Succeeded,0,7200,30
b,1500,1024,0,0,,LS,Succeeded,600,4200,630
"""


def instance_type(family: str, price: float, size: str = "large", vcpus: int = 2) -> dict[str, Any]:
    labels = {
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": f"{family}.{size}",
        "karpenter.k8s.aws/instance-family": family,
        "karpenter.k8s.aws/instance-category": "m",
        "karpenter.k8s.aws/instance-generation": family[1],
        "karpenter.k8s.aws/instance-cpu": str(vcpus),
    }
    return {
        "name": f"{family}.{size}",
        "capacity": {
            "cpu": str(vcpus),
            "memory": f"{4 * vcpus}Gi",
            "pods": "29",
            "ephemeral-storage": "20Gi",
        },
        "overhead": {"cpu": "100m"},
        "requirements": [{"key": k, "operator": "In", "values": [v]} for k, v in labels.items()],
        "offerings": [
            {"zone": zone, "capacityType": kind, "price": round(price * share, 4)}
            for zone in ZONES
            for kind, share in (("on-demand", 1.0), ("spot", 0.4))
        ],
    }


def write_fleet(folder: Path) -> None:
    """Create a repository with one commit in the folder: six pods, each of which fills a node.

    The catalog stands beside it.
    """
    folder.mkdir()
    init(folder)
    (folder / "pool.yaml").write_text(POOL)
    (folder / "class.yaml").write_text(NODE_CLASS)
    (folder / "workload.yaml").write_text(WORKLOAD)
    (folder / "reconciler.yaml").write_text(SETTINGS)
    commit_all(folder)
    write_catalog(
        folder, instance_type("m7i", 0.10), instance_type("m7a", 0.08), instance_type("m5", 0.05)
    )


def write_catalog(fleet: Path, *types: dict[str, Any]) -> None:
    """Write the catalog beside the fleet."""
    (fleet.parent / "catalog.json").write_text(json.dumps(types))


def words(fleet: Path, *more: str) -> list[str]:
    """Return the arguments of a command for the fleet."""
    return [str(fleet), "--catalog", str(fleet.parent / "catalog.json"), "--now", NOW, *more]


def a_running_node(number: int) -> list[dict[str, Any]]:
    """Return a NodeClaim, its node, and the pod of the workload that fills it."""
    name, created = f"web-{number}", "2026-01-01T00:00:00Z"
    labels = {
        "karpenter.sh/nodepool": "web",
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
        "karpenter.sh/capacity-type": "on-demand",
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "node.kubernetes.io/instance-type": "m7i.large",
        "karpenter.k8s.aws/instance-family": "m7i",
        "topology.kubernetes.io/zone": ZONES[0],
        "kubernetes.io/hostname": name,
    }
    kinds = ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
    ready = [{"type": kind, "status": "True", "lastTransitionTime": created} for kind in kinds]
    amounts = {"cpu": "2", "memory": "8Gi", "pods": "29", "ephemeral-storage": "20Gi"}
    metadata = {"name": name, "creationTimestamp": created, "labels": labels}
    address = f"aws:///{ZONES[0]}/i-{number:017}"
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    seen = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "api", "uid": "1"}
    return [
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": metadata,
            "spec": {"nodeClassRef": reference},
            "status": {"providerID": address, "nodeName": name, **seen},
        },
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": metadata,
            "spec": {"providerID": address},
            "status": seen,
        },
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"api-{number}",
                "namespace": "shop",
                "labels": {"app": "api"},
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "nodeName": name,
                "containers": [
                    {"name": "api", "image": "api", "resources": {"requests": {"cpu": "1500m"}}}
                ],
            },
            "status": {"phase": "Running"},
        },
    ]
