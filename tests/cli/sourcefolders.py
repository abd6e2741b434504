"""Small repositories of each kind of source: Kustomize, Helm, Flux, Argo CD."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  disruption: {consolidateAfter: 1m}
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
        - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m7i]}
"""
CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@latest}]
  subnetSelectorTerms: [{tags: {a: b}}]
  securityGroupSelectorTerms: [{tags: {a: b}}]
"""
WEB = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 1
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers: [{name: web, image: web, resources: {requests: {cpu: "1", memory: 2Gi}}}]
"""
BASE = {
    "base/kustomization.yaml": "resources: [pool.yaml, class.yaml, web.yaml]\n",
    "base/pool.yaml": POOL,
    "base/class.yaml": CLASS,
    "base/web.yaml": WEB,
}
CHART = {
    "Chart.yaml": "apiVersion: v2\nname: nodes\nversion: 0.1.0\n",
    "values.yaml": "role: KarpenterNodeRole\ncpu: 8\nreplicas: 1\n",
    "templates/nodes.yaml": POOL.replace(
        "spec:\n", "spec:\n  limits: {cpu: {{ .Values.cpu }}}\n", 1
    )
    + "---\n"
    + CLASS.replace("role: nodes", "role: {{ .Values.role }}"),
    "templates/web.yaml": WEB.replace("replicas: 1", "replicas: {{ .Values.replicas }}"),
}


def overlay(*lines: str) -> str:
    """Return the kustomization of an overlay."""
    return "\n".join(["resources: [../../base]", *lines, ""])


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write the files of a repository; return its folder."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def below(folder: str, files: Mapping[str, str]) -> dict[str, str]:
    """Return files at paths below a folder."""
    return {f"{folder}/{name}": text for name, text in files.items()}
