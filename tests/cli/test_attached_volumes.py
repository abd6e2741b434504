"""How many EBS volumes an instance type attaches limits the pods of a node, new or starting."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from reconciler.cli.main import main
from tests.cli.test_scaled_workloads import FLEET, NOW, plan

POOL: Final = FLEET.partition("---\napiVersion: apps/v1")[0]
CLASS: Final = """---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: gp3}
provisioner: ebs.csi.aws.com
volumeBindingMode: WaitForFirstConsumer
"""


def stateful_set(replicas: int, claims: int = 1, cpu: str = "10m") -> str:
    container = {"name": "c", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    template = {"metadata": {"labels": {"app": "db"}}, "spec": {"containers": [container]}}
    spec: dict[str, Any] = {
        "replicas": replicas,
        "serviceName": "db",
        "selector": {"matchLabels": {"app": "db"}},
        "template": template,
        "volumeClaimTemplates": [
            {
                "metadata": {"name": f"d{n}"},
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "storageClassName": "gp3",
                    "resources": {"requests": {"storage": "1Gi"}},
                },
            }
            for n in range(claims)
        ],
    }
    data = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db", "namespace": "shop"},
        "spec": spec,
    }
    return f"---\n{json.dumps(data)}\n"


def types(*names: str, family: str = "al2023@v20250620") -> str:
    """Return the NodePool with these instance types, and its class with another image."""
    pool = POOL.replace("values: [m7i.xlarge]", f"values: [{', '.join(names)}]")
    return pool.replace("al2023@v20250620", family) + CLASS


def nodes(capsys: pytest.CaptureFixture[str], folder: Path, content: str, *words: str) -> list[int]:
    """Return the number of pods of each new node, in order."""
    (folder / "fleet.yaml").write_text(content)
    found = plan(capsys, folder, *words)
    assert found["unschedulable"] == []
    return sorted(len(claim["pods"]) for claim in found["nodeClaims"])


@pytest.mark.parametrize("packing", ["default", "cheapest"])
@pytest.mark.parametrize(
    ("content", "expected"),
    [
        pytest.param(types("m7i.xlarge") + stateful_set(31), [31], id="one with all slots"),
        pytest.param(types("m7i.xlarge") + stateful_set(32), [1, 31], id="one more"),
        pytest.param(types("m5.2xlarge") + stateful_set(27), [1, 26], id="shared slots"),
        pytest.param(types("m7i.xlarge") + stateful_set(16, 2), [1, 15], id="two for each pod"),
        pytest.param(
            types("m7i.xlarge", family="bottlerocket@v1.40.0") + stateful_set(31), [1, 30],
            id="two volumes of its own",
        ),
    ],
)  # fmt: skip
def test_a_new_node_takes_as_many_pods_as_it_attaches_volumes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    packing: str,
    content: str,
    expected: list[int],
) -> None:
    assert nodes(capsys, tmp_path, content, "--set", f"packing={packing}") == expected


def test_a_type_that_attaches_more_is_chosen_where_it_costs_less(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four pods of fifteen volumes: two nodes of m7i attach them, of g5.48xlarge none does."""
    content = types("m7i.xlarge", "g5.48xlarge") + stateful_set(4, 15)
    assert nodes(capsys, tmp_path, content, "--set", "packing=cheapest") == [2, 2]


def test_as_karpenter_the_volumes_of_a_new_node_are_not_limited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = types("m7i.xlarge") + stateful_set(40)
    assert nodes(capsys, tmp_path, content, "--set", "decide=karpenter") == [40]


def test_more_volumes_than_any_type_attaches_are_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(types("m7i.xlarge", "m5.large") + stateful_set(1, 32))
    (pod,) = plan(capsys, tmp_path)["unschedulable"]
    (reason,) = pod["reasons"]
    assert reason["code"] == "TooManyVolumes"
    assert "it has 32 EBS volumes" in reason["message"]
    assert "attach at most 31" in reason["message"]


@pytest.mark.parametrize("packing", ["default", "cheapest"])
@pytest.mark.parametrize(
    ("content", "nodes"),
    [
        pytest.param(stateful_set(62), 2, id="two nodes full of volumes"),
        pytest.param(stateful_set(16, 2), 32 / 31, id="two for each pod"),
        pytest.param(stateful_set(4, cpu="3"), 12 / 3.92, id="few volumes on full nodes"),
    ],
)
def test_the_bound_on_cost_counts_volumes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    packing: str,
    content: str,
    nodes: float,
) -> None:
    (tmp_path / "fleet.yaml").write_text(types("m7i.xlarge") + content)
    words = ("--set", f"packing={packing}")
    cost = plan(capsys, tmp_path, *words)["cost"]
    (price,) = {claim["launch"]["price"] for claim in plan(capsys, tmp_path, *words)["nodeClaims"]}
    assert cost["lowerBound"] == pytest.approx(nodes * price, rel=0.1)
    assert cost["lowerBound"] <= cost["after"] + 1e-9
    as_karpenter = plan(capsys, tmp_path, "--set", "decide=karpenter")["cost"]
    assert as_karpenter["lowerBound"] <= cost["lowerBound"]


def shared_claim(replicas: int) -> str:
    claim = (
        "---\n{apiVersion: v1, kind: PersistentVolumeClaim, metadata: {name: c, namespace: shop}, "
        "spec: {accessModes: [ReadWriteOnce], storageClassName: gp3, "
        "resources: {requests: {storage: 1Gi}}}}\n"
    )
    deployment = {
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "w", "namespace": "shop"},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": "w"}},
            "template": {"metadata": {"labels": {"app": "w"}}, "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "10m"}}}],
                "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
            }},
        },
    }  # fmt: skip
    return claim + f"---\n{json.dumps(deployment)}\n"


def test_a_volume_that_pods_share_is_attached_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the bound as well: it is that of the pods' memory and CPU."""
    content = types("m7i.xlarge") + shared_claim(40)
    assert nodes(capsys, tmp_path, content) == [40]
    cost = plan(capsys, tmp_path)["cost"]
    assert 0 < cost["lowerBound"] <= cost["after"]


def test_a_simulation_ends_with_the_nodes_of_the_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fleet.yaml").write_text(types("m7i.xlarge") + stateful_set(40))
    assert main(["simulate", str(tmp_path), "--now", NOW, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["fleet"]) == 2
    assert max(claim["pods"] for claim in found["fleet"]) <= 31


KIND: Final = "g5.48xlarge"
"""It has nine slots, one of them for its own volume."""


def a_node_with_volumes(joined: bool) -> list[dict[str, Any]]:
    """Return a node with eight pods that have a volume each, running or in flight."""
    labels = {
        "karpenter.sh/nodepool": "general", "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": KIND, "topology.kubernetes.io/zone": "us-east-1a",
        "kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux",
    }  # fmt: skip
    amounts = {"cpu": "190", "memory": "700Gi", "pods": "700", "ephemeral-storage": "17Gi"}
    done = ("Launched", *(("Registered", "Initialized") if joined else ()))
    reference = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    claim = {
        "apiVersion": "karpenter.sh/v1", "kind": "NodeClaim",
        "metadata": {"name": "n", "labels": labels, "creationTimestamp": NOW},
        "spec": {"nodeClassRef": reference, "requirements": [], "expireAfter": "Never"},
        "status": {
            "providerID": "aws:///us-east-1a/i-1", "capacity": amounts, "allocatable": amounts,
            "conditions": [
                {"type": t, "status": "True", "reason": t, "lastTransitionTime": NOW} for t in done
            ],
        },
    }  # fmt: skip
    objects: list[dict[str, Any]] = [claim]
    if joined:
        own = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
        objects.append(
            {
                "apiVersion": "v1", "kind": "Node",
                "metadata": {"name": "n", "labels": {**labels, **own}},
                "spec": {"providerID": "aws:///us-east-1a/i-1"},
                "status": {
                    "capacity": amounts, "allocatable": amounts,
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
        )  # fmt: skip
    gp3 = {
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "gp3"},
        "provisioner": "ebs.csi.aws.com", "volumeBindingMode": "WaitForFirstConsumer",
    }  # fmt: skip
    return [gp3, *objects, *(o for n in range(9) for o in a_pod_with_volume(n, "n" * (n < 8)))]


def a_pod_with_volume(number: int, node: str) -> list[dict[str, Any]]:
    waiting = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Running"} if node else {"phase": "Pending", "conditions": [waiting]}
    return [
        {
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": f"c{number}", "namespace": "shop"},
            "spec": {"storageClassName": "gp3"},
        },
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": f"p{number}", "namespace": "shop", "uid": f"u{number}"},
            "spec": {
                "containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}],
                "volumes": [
                    {"name": "v", "persistentVolumeClaim": {"claimName": f"c{number}"}}
                ],
                **({"nodeName": node} if node else {}),
            },
            "status": status,
        },
    ]  # fmt: skip


@pytest.mark.parametrize("joined", [True, False], ids=["running", "in flight"])
@pytest.mark.parametrize(("reported", "new"), [(None, 1), (8, 1), (9, 0)])
def test_an_existing_node_takes_what_its_driver_reports_or_what_its_type_attaches(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    joined: bool,
    reported: int | None,
    new: int,
) -> None:
    items = a_node_with_volumes(joined)
    if reported is not None:
        driver = {"name": "ebs.csi.aws.com", "nodeID": "i-1", "allocatable": {"count": reported}}
        items.append(
            {
                "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": {"name": "n"},
                "spec": {"drivers": [driver]},
            }
        )  # fmt: skip
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    folder = tmp_path / "fleet"
    folder.mkdir()
    (folder / "fleet.yaml").write_text(types(KIND))
    found = plan(capsys, folder, "--snapshot", str(snapshot))
    assert found["unschedulable"] == []
    assert len(found["nodeClaims"]) == new
