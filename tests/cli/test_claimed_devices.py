"""A plan for pods that claim devices of nodes that do not exist yet."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.sourcefolders import CLASS, POOL

FLEET = """\
apiVersion: reconciler/v1
kind: Configuration
fleet: devices
clusterName: devices
karpenter: "1.15"
aws: {region: us-east-1}
featureGates: {DRANVIDIAGPU: true}
"""
OF_GPUS = POOL.replace("instance-family", "instance-category").replace("[m7i]", "[g, m]")
CLAIMING = """\
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: gpu.nvidia.com}
spec:
  selectors: [{cel: {expression: "device.driver == 'gpu.nvidia.com'"}}]
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: gpus, namespace: ml}
spec:
  spec: {devices: {requests: [{name: gpu, exactly: {deviceClassName: gpu.nvidia.com, count: 4}}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: train, namespace: ml}
spec:
  resourceClaims: [{name: gpu, resourceClaimTemplateName: gpus}]
  containers:
    - {name: c, image: x, resources: {requests: {cpu: "1", memory: 1Gi}, claims: [{name: gpu}]}}
"""


def test_a_plan_states_no_minimum_that_leaves_out_the_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reconciler.yaml").write_text(FLEET)
    (tmp_path / "objects.yaml").write_text(f"{OF_GPUS}---\n{CLASS}---\n{CLAIMING}")
    assert main(["plan", str(tmp_path), "--set", "cluster=none", "-o", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["cost"]["after"] > 1  # four GPUs
    assert plan["cost"].get("lowerBound") is None
    assert main(["plan", str(tmp_path), "--set", "cluster=none"]) == 0
    assert "Lower bound" not in capsys.readouterr().out
