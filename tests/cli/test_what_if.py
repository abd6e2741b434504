"""``plan`` of a cluster after an event that is only supposed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.test_plan_beside_karpenter import (
    LOAD,
    NOW,
    TWO,
    Object,
    a_cluster,
    initialize,
    lists_of,
    node_pool,
    planned,
    running_pod,
)


def movable_pod(node: str, cpu: str = "3") -> Object:
    pod = running_pod(node, cpu)
    del pod["metadata"]["annotations"]
    labels = {"app": "api", "pod-template-hash": "5d9"}
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "api-5d9", "uid": "r"}
    pod["metadata"] |= {"labels": labels, "ownerReferences": [{**owner, "controller": True}]}
    return pod


PODS = (movable_pod("node-web-1"), movable_pod("node-web-2"))


@pytest.fixture
def fleet(tmp_path: Path) -> str:
    """Return a snapshot of a cluster with two full nodes, captured beside its fleet."""
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=PODS)):
        initialize()
        assert main(["snapshot", "fleet", "--out", "cluster.json"]) == 0
    return "cluster.json"


def supposed(
    folder: Path, capsys: pytest.CaptureFixture[str], *words: str
) -> tuple[Object, list[str]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        plan = planned(capsys, "--snapshot", "cluster.json", *words)
    return plan, [d["message"] for d in plan["diagnostics"] if d["code"] == "what-if"]


def launched_pods(plan: Object) -> list[str]:
    return sorted(
        p for c in plan["nodeClaims"] if c["reason"] == "Unschedulable" for p in c["pods"]
    )


@pytest.mark.parametrize("name", ["deploy/api", "shop/Deployment/api"])
def test_a_workload_with_more_replicas_gets_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fleet: str, name: str
) -> None:
    plan, said = supposed(tmp_path, capsys, "--scale", f"{name}=4")
    assert len(launched_pods(plan)) == 2
    assert said[0].endswith("Deployment api has 4 replicas instead of 2")


def test_a_workload_with_fewer_replicas_frees_nodes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fleet: str
) -> None:
    plan, _ = supposed(tmp_path, capsys, "--scale", "deploy/api=0")
    assert {c["reason"] for c in plan["commands"]} == {"Empty"}


@pytest.mark.parametrize("name", ["node-web-1", "web-1"])
def test_the_pods_of_a_drained_node_move(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fleet: str, name: str
) -> None:
    plan, said = supposed(tmp_path, capsys, "--drain", name)
    assert launched_pods(plan) == ["shop/on-node-web-1"]
    assert said == [f"what if: {name} is drained and deleted"]


def test_nothing_is_launched_in_a_zone_that_is_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fleet: str
) -> None:
    plan, said = supposed(tmp_path, capsys, "--zone-down", "us-east-1a")
    assert launched_pods(plan) == ["shop/on-node-web-1"]
    assert {c["launch"]["zone"] for c in plan["nodeClaims"]}.isdisjoint({"us-east-1a"})
    assert said == ["what if: zone us-east-1a has no capacity, and its 1 node is gone"]
    both = ("--zone-down", "us-east-1a", "--zone-down", "us-east-1b")
    assert len(launched_pods(supposed(tmp_path, capsys, *both)[0])) == 2


def test_a_live_cluster_can_be_asked_without_changing_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=PODS)):
        initialize()
        words = ("--context", "shop", "--drain", "web-1")
        assert launched_pods(planned(capsys, *words)) == ["shop/on-node-web-1"]
        assert main(["plan", "fleet", *words]) == 0
        assert "Next:" not in capsys.readouterr().out


def test_a_protected_pod_stays_on_a_drained_node_and_leaves_a_lost_zone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        initialize()
        assert launched_pods(planned(capsys, "--drain", "web-1")) == []
        assert launched_pods(planned(capsys, "--zone-down", "us-east-1a")) == ["shop/on-node-web-1"]


def test_the_workloads_of_a_folder_can_be_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    example = str(Path(__file__).parents[2] / "examples" / "web")
    plain = ("--set", "cluster=none", "-o", "json")
    assert main(["plan", example, *plain]) == 0
    before = json.loads(capsys.readouterr().out)
    assert main(["plan", example, *plain, "--scale", "deploy/frontend=200"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert len(after["nodeClaims"]) > len(before["nodeClaims"])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--scale", "deploy/nothing=3"), "Deployment nothing has no pods to copy"),
        (("--scale", "deploy/api"), '"deploy/api" is not a scale'),
        (("--scale", "api=3"), '"api=3" is not a scale'),
        (("--scale", "job/api=3"), '"job/api=3" is not a scale'),
        (("--scale", "deploy/api=100001"), "100001 replicas are too many"),
        (("--drain", "node-web-3"), '"node-web-3" is neither a Node nor a NodeClaim'),
        (("--drain", "web-1", "--out", "plan.json"), "--out: cannot be used with --with"),
    ],
)
def test_what_cannot_be_supposed_is_named(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fleet: str,
    words: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    assert main(["plan", "fleet", "--snapshot", fleet, *words]) in (1, 2)
    assert says in capsys.readouterr().err


def changed_pool(folder: Path) -> str:
    """Write a change of the NodePool that only allows the other architecture."""
    pool = {"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **node_pool()}
    pool["metadata"] = {"name": "web"}
    del pool["status"]
    need = {"key": "kubernetes.io/arch", "operator": "In", "values": ["arm64"]}
    pool["spec"]["template"]["spec"]["requirements"] = [need]
    path = folder / "change.yaml"
    path.write_text(json.dumps(pool))
    return str(path)


def test_a_cluster_is_planned_without_a_fleet_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["plan", "--context", "shop", "--now", NOW, "-o", "json"]
    with a_cluster(tmp_path, lists_of(node_pool(), *TWO, pods=LOAD)):
        assert main(words) == 0
        plan = json.loads(capsys.readouterr().out)
        assert plan["actor"] == "karpenter"
        assert plan["changes"] == []
        assert plan["cost"]["byNodePool"]["web"]["nodesBefore"] == 2
        assert main([*words, "--with", changed_pool(tmp_path)]) == 0
        plan = json.loads(capsys.readouterr().out)
        (change,) = plan["changes"]
        assert [f["path"] for f in change["fields"]] == ["spec.template.spec.requirements"]
        assert len(plan["drift"]) == 2


def test_objects_of_a_fleet_are_replaced_by_those_of_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fleet: str
) -> None:
    plan, _ = supposed(tmp_path, capsys, "--with", changed_pool(tmp_path))
    assert [c["name"] for c in plan["changes"]] == ["web"]
    assert len(plan["drift"]) == 2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kind: ConfigMap\napiVersion: v1\nmetadata: {name: a}\n", "no object of Karpenter"),
        ("kind: NodePool\napiVersion: karpenter.sh/v1\nmetadata: {name: a}\n", "spec"),
        ("", "there is nothing to read"),
    ],
)
def test_a_file_that_cannot_replace_anything_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fleet: str,
    text: str,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "change.yaml"
    path.write_text(text)
    capsys.readouterr()
    assert main(["plan", "fleet", "--snapshot", fleet, "--with", str(path)]) != 0
    assert says in "".join(capsys.readouterr())


def test_a_cluster_without_node_pools_is_not_an_empty_fleet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lists = lists_of(node_pool()) | {"/apis/karpenter.sh/v1/nodepools": []}
    with a_cluster(tmp_path, lists):
        assert main(["plan", "--context", "shop"]) == 1
        assert "the cluster has no NodePool" in capsys.readouterr().err
