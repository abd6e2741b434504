"""``plan``, ``snapshot`` and ``init`` of a cluster whose nodes are Karpenter's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.kubernetes.kinds import NODE_CLAIM, OBSERVED, OF_KARPENTER
from reconciler.assembly.inputs.request import FleetRequest
from reconciler.assembly.inputs.timings import Timings
from reconciler.cli.main import main
from reconciler.simulate.change import SimulatedChange
from reconciler.simulate.planinputs import read_inputs
from tests.adapters.kubernetes.apiserver import write_kubeconfig
from tests.cli.karpenterapi import Lists, serving
from tests.repositories import commit_all, init

NOW = "2026-03-02T09:00:00Z"
EARLIER = "2026-03-02T07:00:00Z"
HASHES = {"karpenter.sh/nodepool-hash": "7", "karpenter.sh/nodepool-hash-version": "v3"}
BOOKKEEPING = {"argocd.argoproj.io/tracking-id": "fleet:karpenter.sh/NodePool:web", **HASHES}
Object = dict[str, Any]


def node_pool(group: str = "karpenter.k8s.aws", kind: str = "EC2NodeClass") -> Object:
    """Return a NodePool as the API server returns it: with defaults and bookkeeping."""
    reference = {"group": group, "kind": kind, "name": "default"}
    template = {"spec": {"nodeClassRef": reference, "requirements": [], "expireAfter": "720h"}}
    return {
        "metadata": {"name": "web", "uid": "1", "annotations": BOOKKEEPING},
        "spec": {
            "template": template,
            "disruption": {
                "budgets": [{"nodes": "10%"}],
                "consolidateAfter": "0s",
                "consolidationPolicy": "WhenEmptyOrUnderutilized",
            },
        },
        "status": {"conditions": []},
    }


EC2_CLASS: Object = {
    "metadata": {"name": "default", "annotations": {"karpenter.k8s.aws/ec2nodeclass-hash": "9"}},
    "spec": {
        "role": "node",
        "amiSelectorTerms": [{"alias": "al2023@latest"}],
        "subnetSelectorTerms": [{"tags": {"a": "b"}}],
        "securityGroupSelectorTerms": [{"tags": {"a": "b"}}],
        "metadataOptions": {
            "httpEndpoint": "enabled",
            "httpProtocolIPv6": "disabled",
            "httpPutResponseHopLimit": 1,
            "httpTokens": "required",
        },
    },
}
DEPLOYMENT: Object = {
    "metadata": {
        "name": "karpenter",
        "namespace": "kube-system",
        "labels": {"app.kubernetes.io/name": "karpenter"},
    },
    "spec": {
        "replicas": 1,
        "template": {"spec": {"containers": [{"image": "karpenter/controller:1.14.1"}]}},
    },
}


def node_with_claim(kind: str, zone: str, name: str, **more: str) -> tuple[Object, Object]:
    """Return an initialized Node with its NodeClaim."""
    labels = {
        "karpenter.sh/nodepool": "web",
        "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": kind,
        "topology.kubernetes.io/zone": zone,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        **more,
    }
    amounts = {"cpu": "4", "memory": "16Gi", "pods": "58"}
    usable = {"cpu": "3920m", "memory": "15Gi", "pods": "58"}
    provider_id = f"cloud:///{zone}/{name}"
    conditions = [
        {"type": t, "status": "True", "reason": t, "lastTransitionTime": EARLIER}
        for t in ("Launched", "Registered", "Initialized", "Ready")
    ]
    claim = {
        "metadata": {
            "name": name,
            "labels": labels,
            "annotations": HASHES,
            "creationTimestamp": EARLIER,
        },
        "spec": {"nodeClassRef": {"group": "g", "kind": "k", "name": "default"}},
        "status": {
            "providerID": provider_id,
            "nodeName": f"node-{name}",
            "capacity": amounts,
            "allocatable": usable,
            "conditions": conditions,
        },
    }
    marks = {"karpenter.sh/registered": "true", "karpenter.sh/initialized": "true"}
    node = {
        "metadata": {
            "name": f"node-{name}",
            "labels": {**labels, **marks, "kubernetes.io/hostname": f"node-{name}"},
            "creationTimestamp": EARLIER,
        },
        "spec": {"providerID": provider_id},
        "status": {
            "capacity": amounts,
            "allocatable": usable,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
    return node, claim


def waiting_pod(cpu: str = "3") -> Object:
    unschedulable = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    return {
        "metadata": {"name": "api", "namespace": "shop", "uid": "p", "creationTimestamp": EARLIER},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]},
        "status": {"phase": "Pending", "conditions": [unschedulable]},
    }


def running_pod(node: str, cpu: str) -> Object:
    owner = {"kind": "ReplicaSet", "name": "r", "uid": "r", "controller": True}
    pod = waiting_pod(cpu)
    pod["metadata"] |= {"name": f"on-{node}", "uid": node, "ownerReferences": [owner]}
    pod["metadata"]["annotations"] = {"karpenter.sh/do-not-disrupt": "true"}
    pod["spec"]["nodeName"] = node
    return pod | {"status": {"phase": "Running"}}


def lists_of(pool: Object, *rows: tuple[Object, Object], pods: tuple[Object, ...] = ()) -> Lists:
    lists: Lists = {kind.path: [] for kind in (*OBSERVED, *OF_KARPENTER)}
    return lists | {
        "/api/v1/configmaps": [],
        "/apis/karpenter.sh/v1/nodepools": [pool],
        "/apis/karpenter.k8s.aws/v1/ec2nodeclasses": [EC2_CLASS],
        "/apis/apps/v1/deployments": [DEPLOYMENT],
        "/api/v1/nodes": [node for node, _ in rows],
        NODE_CLAIM.path: [claim for _, claim in rows],
        "/api/v1/pods": list(pods),
    }


@contextmanager
def a_cluster(folder: Path, lists: Lists) -> Iterator[None]:
    with serving(lists) as url, pytest.MonkeyPatch.context() as patch:
        patch.setenv("KUBECONFIG", str(write_kubeconfig(folder / "kubeconfig", url)))
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.chdir(folder)
        yield


def initialize(*words: str) -> None:
    named = ("--name", "web", "--region", "us-east-1", "--ci", "none")
    assert main(["init", "fleet", "--from-cluster", *named, *words]) == 0


def planned(capsys: pytest.CaptureFixture[str], *words: str) -> Object:
    capsys.readouterr()
    status = main(["plan", "fleet", "--now", NOW, "-o", "json", *words])
    printed = capsys.readouterr()
    assert status == 0, printed.err
    plan: Object = json.loads(printed.out)
    return plan


TWO = (
    node_with_claim("m7i.xlarge", "us-east-1a", "web-1"),
    node_with_claim("m7i.xlarge", "us-east-1b", "web-2"),
)
LOAD = (running_pod("node-web-1", "3"), running_pod("node-web-2", "3"))


def test_a_plan_beside_karpenter_has_its_nodes_and_says_whose_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=(*LOAD, waiting_pod()))):
        initialize()
        plan = planned(capsys)
        assert plan["actor"] == "karpenter"
        assert plan["observation"] == "cluster"
        assert plan["cost"]["byNodePool"]["web"]["nodesBefore"] == 2
        (launch,) = plan["nodeClaims"]
        assert launch["pods"] == ["shop/api"]
        said = {d["code"]: d["message"] for d in plan["diagnostics"]}
        assert "2 NodeClaims belong to Karpenter (NodePool web (2))" in said["karpenter-acts"]
        assert "karpenter-running" not in said
        assert main(["plan", "fleet", "--now", NOW]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "Karpenter will launch 1 node (2 → 3)" in text
        assert "reconciler apply" not in text


def test_right_after_init_git_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        initialize()
        assert planned(capsys)["changes"] == []
        assert main(["snapshot", "--out", "cluster.json"]) == 0
        assert planned(capsys, "--snapshot", "cluster.json")["changes"] == []


def test_a_change_in_git_is_shown_without_the_defaults_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        initialize()
        file = tmp_path / "fleet" / "nodes" / "nodepool-web.yaml"
        text = file.read_text()
        assert "expireAfter: 720h" in text
        file.write_text(text.replace("expireAfter: 720h", "expireAfter: 48h"))
        (change,) = planned(capsys)["changes"]
        assert [f["path"] for f in change["fields"]] == ["spec.template.spec.expireAfter"]
        file.write_text(text.replace("      expireAfter: 720h\n", ""))
        assert planned(capsys)["changes"] == []


def a_change(folder: Path) -> None:
    """Commit the fleet, and change it in the working tree."""
    initialize()
    init(folder / "fleet")
    commit_all(folder / "fleet")
    file = folder / "fleet" / "nodes" / "nodepool-web.yaml"
    file.write_text(file.read_text().replace("expireAfter: 720h", "expireAfter: 480h"))


def test_the_simulation_of_a_change_beside_karpenter_starts_from_its_nodes(tmp_path: Path) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        a_change(tmp_path)
        request = FleetRequest(path="fleet", base="HEAD", now=datetime.fromisoformat(NOW))
        simulation = read_inputs(request, Timings()).simulation
    assert isinstance(simulation, SimulatedChange)
    assert simulation.snapshot is not None
    assert [node.name for node in simulation.snapshot.nodes] == ["node-web-1", "node-web-2"]


def test_karpenter_removes_the_nodes_of_a_nodepool_that_a_change_deletes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody has to allow it, and no budget delays it; the 10% of this NodePool would."""
    pods = deepcopy(LOAD)
    for pod in pods:
        del pod["metadata"]["annotations"]
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=pods)):
        initialize()
        init(tmp_path / "fleet")
        commit_all(tmp_path / "fleet")
        file = tmp_path / "fleet" / "nodes" / "nodepool-web.yaml"
        file.write_text(file.read_text().replace("name: web", "name: new"))
        plan = planned(capsys, "--base", "HEAD")
    gone = [(c["reason"], c["decision"], c["nodes"]) for c in plan["commands"]]
    assert gone == [("NodePoolDeleted", "delete", [f"node-web-{n}"]) for n in (1, 2)]
    assert plan["deferred"] == []
    pools = plan["atRest"]["byNodePool"]
    assert (pools["web"]["before"]["nodes"], pools["web"]["after"]["nodes"]) == (2, 0)
    assert pools["new"]["after"]["nodes"] > 0
    assert plan["atRest"]["unschedulable"] == []


@pytest.mark.exhaustive
def test_a_change_beside_karpenter_costs_what_it_costs_from_its_snapshot(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        a_change(tmp_path)
        live = planned(capsys, "--base", "HEAD")
        assert main(["snapshot", "fleet", "--now", NOW, "--out", "cluster.json"]) == 0
        captured = planned(capsys, "--base", "HEAD", "--snapshot", "cluster.json")
    assert live["atRest"]["before"]["nodes"] == 2
    assert live["atRest"] == captured["atRest"]


@pytest.mark.parametrize("in_fleet", [False, True])
def test_a_cluster_is_planned_without_any_file(
    in_fleet: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The current context of the kubeconfig names the cluster, and no file of a fleet counts."""
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=(*LOAD, waiting_pod()))):
        if in_fleet:
            initialize()
            shutil.rmtree("fleet/nodes")
            os.chdir("fleet")
        capsys.readouterr()
        assert main(["plan", "--from-cluster", "--now", NOW, "-o", "json"]) == 0
        plan = json.loads(capsys.readouterr().out)
    assert plan["actor"] == "karpenter"
    assert plan["cost"]["byNodePool"]["web"]["nodesBefore"] == 2
    assert [claim["pods"] for claim in plan["nodeClaims"]] == [["shop/api"]]


@pytest.mark.parametrize("more", [["fleet"], ["--snapshot", "x.json"], ["--base", "HEAD"]])
def test_a_plan_without_files_takes_none(
    more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "--from-cluster", *more]) == 1
    assert "--from-cluster: cannot be combined with" in capsys.readouterr().err


def test_a_snapshot_of_a_fleet_has_karpenters_objects_and_gives_the_same_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=(*LOAD, waiting_pod()))):
        initialize()
        live = planned(capsys)
        assert main(["snapshot", "fleet", "--now", NOW, "--out", "cluster.json"]) == 0
    items = json.loads((tmp_path / "cluster.json").read_text())["items"]
    names = {(item["kind"], item["metadata"]["name"]) for item in items if "metadata" in item}
    assert {("NodeClaim", "web-1"), ("NodeClaim", "web-2"), ("NodePool", "web")} <= names
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path)
        captured = planned(capsys, "--snapshot", "cluster.json")
    for key in ("nodeClaims", "placements", "commands", "cost", "actor", "changes", "deferred"):
        assert captured.get(key) == live.get(key), key


def test_our_own_engine_plans_the_nodes_of_a_cluster_that_it_has_not_taken_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        initialize()
        plan = planned(capsys, "--set", "decide=own")
        assert "actor" not in plan
        assert plan["cost"]["byNodePool"]["web"]["nodesBefore"] == 2


def test_initialized_nodes_have_what_they_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node, claim = node_with_claim("m7i.xlarge", "us-east-1a", "web-1")
    node["status"] = {
        **node["status"],
        "allocatable": {"cpu": "12", "memory": "60Gi", "pods": "58"},
    }
    lists = lists_of(
        node_pool(), (node, claim), pods=(running_pod("node-web-1", "3"), waiting_pod("7"))
    )
    with a_cluster(tmp_path, lists):
        initialize()
        assert planned(capsys)["nodeClaims"] == []  # the pod fits on the node
        node["metadata"]["labels"].pop("karpenter.sh/initialized")
        plan = planned(capsys)
        assert "node-capacity" in {d["code"] for d in plan["diagnostics"]}


AKS = ("karpenter.azure.com", "AKSNodeClass")
AKS_ROWS = (
    node_with_claim("Standard_D4s_v5", "eastus-1", "aks-1"),
    node_with_claim("Standard_D8s_v5", "eastus-2", "aks-2"),
)


def aks_lists(*pods: Object) -> Lists:
    node_class = {"metadata": {"name": "default"}, "status": {"conditions": []}}
    version = {"version": "v1beta1", "groupVersion": "karpenter.azure.com/v1beta1"}
    resource = {"name": "aksnodeclasses", "kind": "AKSNodeClass", "namespaced": False}
    lists = lists_of(node_pool(*AKS), *AKS_ROWS, pods=pods)
    del lists["/apis/karpenter.k8s.aws/v1/ec2nodeclasses"]
    return lists | {
        "/apis/karpenter.azure.com/v1beta1/aksnodeclasses": [node_class],
        "/apis/karpenter.azure.com": {"kind": "APIGroup", "preferredVersion": version},
        "/apis/karpenter.azure.com/v1beta1": {"kind": "APIResourceList", "resources": [resource]},
    }


def test_types_of_another_cloud_are_learned_from_its_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = (running_pod("node-aks-1", "3"), running_pod("node-aks-2", "3"), waiting_pod())
    with a_cluster(tmp_path, aks_lists(*pods)):
        initialize()
        plan = planned(capsys)
        (launch,) = plan["nodeClaims"]
        assert set(launch["instanceTypes"]) == {"Standard_D4s_v5", "Standard_D8s_v5"}
        said = " ".join(d["message"] for d in plan["diagnostics"])
        assert "only the 2 instance types of the cluster's own nodes are known" in said
        assert "prices of 2 of them are not known" in said
        assert main(["snapshot", "fleet", "--out", "cluster.json"]) == 0
        kinds = {i["kind"] for i in json.loads(Path("cluster.json").read_text())["items"]}
        assert "AKSNodeClass" in kinds


def test_claims_that_may_not_be_listed_are_not_taken_for_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = lists_of(node_pool(), *TWO, pods=LOAD)
    with a_cluster(tmp_path, lists):
        initialize()
        lists[NODE_CLAIM.path] = 403
        assert main(["plan", "fleet"]) == 1
        assert "nodeclaims" in capsys.readouterr().err
