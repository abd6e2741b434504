"""How many pods scaled workloads have: the present number, the minimum and the maximum."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from reconciler.cli.main import main
from tests.repositories import commit_all, init

NOW: Final = "2026-11-01T12:00:00Z"
FLEET: Final = """
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
        - {key: node.kubernetes.io/instance-type, operator: In, values: [m7i.xlarge]}
---
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@v20250620}]
  subnetSelectorTerms: [{tags: {a: b}}]
  securityGroupSelectorTerms: [{tags: {a: b}}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: x, resources: {requests: {cpu: "3", memory: 1Gi}}}]}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: web, namespace: shop}
spec:
  minReplicas: 2
  maxReplicas: 10
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
"""
QUOTA: Final = """
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: q, namespace: shop}
spec: {hard: {pods: "7"}}
"""


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "fleet.yaml").write_text(FLEET)
    return folder


def plan(capsys: pytest.CaptureFixture[str], fleet: Path, *words: str) -> Any:
    fixed = ("--now", NOW, "--set", "cluster=none", "-o", "json")
    assert main(["plan", str(fleet), *fixed, *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("replicas", "nodes"),
    [("present", 2), ("min", 2), ("max", 10), ("0%", 2), ("50%", 6), ("51%", 7), ("100%", 10)],
)
def test_replicas_chooses_how_many_pods_are_planned(
    fleet: Path, capsys: pytest.CaptureFixture[str], replicas: str, nodes: int
) -> None:
    found = plan(capsys, fleet, "--replicas", replicas)
    assert len(found["nodeClaims"]) == nodes
    assert found["workloads"] == [
        {
            "kind": "Deployment", "namespace": "shop", "name": "web", "min": 2, "present": 2,
            "max": 10, "by": "HorizontalPodAutoscaler/web",
        }
    ]  # fmt: skip
    assert found["atMaximum"] == {"nodes": 10, "perHour": 2.016, "unschedulable": []}


@pytest.mark.parametrize("replicas", ["most", "50", "101%", "-1%", "1.5%"])
def test_another_number_of_replicas_is_an_error(
    fleet: Path, capsys: pytest.CaptureFixture[str], replicas: str
) -> None:
    assert main(["plan", str(fleet), f"--replicas={replicas}"]) == 1
    assert "use present, min, max, or 0% to 100%" in capsys.readouterr().err


def test_the_headline_has_one_line_about_the_maximum(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for output in ("text", "markdown"):
        assert main(["plan", str(fleet), "--now", NOW, "--set", "cluster=none", "-o", output]) == 0
        text = capsys.readouterr().out.replace("&#36;", "$")
        found = [line.strip("- ") for line in text.splitlines() if "every autoscaler" in line]
        assert found == [
            ("If every autoscaler is at its maximum: 10 nodes at first, $1,472/month.")
        ]


def test_limits_that_stop_the_maximum_are_a_warning(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    limited = FLEET.replace("  template:\n", '  limits: {cpu: "24"}\n  template:\n', 1)
    (fleet / "fleet.yaml").write_text(limited)
    found = plan(capsys, fleet)
    assert len(found["nodeClaims"]) == 2
    assert (found["atMaximum"]["nodes"], len(found["atMaximum"]["unschedulable"])) == (6, 4)
    (warning,) = [d for d in found["diagnostics"] if d["code"] == "maximum-limited"]
    assert "4 pods cannot be scheduled" in warning["message"]
    assert main(["plan", str(fleet), "--now", NOW, "--set", "cluster=none"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "6 nodes at first, $883/month, and 4 pods do not fit into the NodePools' limits." in text


def test_a_quota_that_stops_the_maximum_is_a_warning(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "fleet.yaml").write_text(FLEET + QUOTA)
    found = plan(capsys, fleet)
    assert found["atMaximum"]["nodes"] == 7
    (warning,) = [d for d in found["diagnostics"] if d["code"] == "maximum-limited"]
    assert "3 pods of Deployment shop/web are never created" in warning["message"]


def test_a_fleet_without_autoscalers_has_no_maximum(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (fleet / "fleet.yaml").write_text(FLEET.rpartition("---")[0])
    found = plan(capsys, fleet)
    assert not {"workloads", "atMaximum"} & found.keys()


def test_a_change_of_an_autoscaler_is_a_change_of_the_plan(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(fleet)
    commit_all(fleet)
    (fleet / "fleet.yaml").write_text(FLEET.replace("minReplicas: 2", "minReplicas: 5"))
    commit_all(fleet)
    found = plan(capsys, fleet, "--base", "HEAD~1")
    (change,) = found["changes"]
    assert (change["kind"], change["name"]) == ("HorizontalPodAutoscaler", "web")
    rest = found["atRest"]
    assert (rest["before"]["nodes"], rest["after"]["nodes"]) == (2, 5)


def a_pod(number: int) -> dict[str, Any]:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d4f", "uid": "u"}
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": "3"}}}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-5d4f-{number}",
            "namespace": "shop",
            "uid": f"p{number}",
            "labels": {"app": "web", "pod-template-hash": "5d4f"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"containers": [container]},
        "status": {"phase": "Pending", "conditions": [condition]},
    }


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    """A cluster that runs three pods of the workload, with its autoscaler."""
    scaler = {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "minReplicas": 2,
            "maxReplicas": 10,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        },
        "status": {"currentReplicas": 3, "desiredReplicas": 3},
    }
    items = [*map(a_pod, range(3)), scaler]
    file = tmp_path / "snapshot.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    return file


@pytest.mark.parametrize(
    ("replicas", "pods"), [("present", 3), ("min", 2), ("max", 10), ("50%", 6)]
)
def test_a_snapshot_has_the_present_number_and_others_can_be_chosen(
    fleet: Path,
    snapshot: Path,
    capsys: pytest.CaptureFixture[str],
    replicas: str,
    pods: int,
) -> None:
    found = plan(capsys, fleet, "--snapshot", str(snapshot), "--replicas", replicas)
    assert len(found["placements"]) == pods
    (row,) = found["workloads"]
    assert (row["min"], row["present"], row["max"]) == (2, 3, 10)
    assert found["atMaximum"]["nodes"] == 10


def test_a_change_of_an_autoscaler_changes_the_pods_of_a_cluster(
    fleet: Path, snapshot: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init(fleet)
    commit_all(fleet)
    (fleet / "fleet.yaml").write_text(FLEET.replace("minReplicas: 2", "minReplicas: 5"))
    commit_all(fleet)
    found = plan(capsys, fleet, "--base", "HEAD~1", "--snapshot", str(snapshot))
    assert len(found["placements"]) == 5
    rest = found["atRest"]
    assert (rest["before"]["nodes"], rest["after"]["nodes"]) == (3, 5)
