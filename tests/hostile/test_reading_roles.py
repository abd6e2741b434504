"""Each right of the roles for plans, snapshots and overlays is taken away: what then fails."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.kubernetes.kinds import (
    Permission,
    cluster_role,
    overlays_role,
    permissions_of,
    snapshot_role,
)
from reconciler.cli.main import main
from tests.adapters.kubernetes.apiserver import Kube, serving, write_kubeconfig
from tests.cli import test_overlays as overlays_tests
from tests.cli.test_plan_beside_karpenter import DEPLOYMENT, node_pool, node_with_claim
from tests.hostile.threats import Threat, attack
from tests.placement.builders import TYPES, a_pool

NOW = "2026-03-01T12:00:00Z"
READ = permissions_of(writes=False)
fleet = overlays_tests.fleet
POOL = {"kind": "NodePool", "metadata": {"name": "general", "uid": "pool-uid"}, "spec": {}}


@pytest.fixture
def kube(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    """Return a cluster with every kind of object that a plan reads, and its kubeconfig."""
    found = Kube()
    found.absent = frozenset()
    with serving(found) as server:
        write_kubeconfig(tmp_path / "kubeconfig", server)
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        monkeypatch.chdir(tmp_path)
        of_karpenter(found)
        yield found


def rules(permissions: Sequence[Permission]) -> Any:
    return [
        {"apiGroups": [p.group], "resources": [p.resource], "verbs": [p.verb]} for p in permissions
    ]


def of_role(role: dict[str, Any]) -> list[Permission]:
    return [
        Permission(verb, group, resource, "allowed")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    ]


def command(name: str, folder: Path) -> list[str]:
    """Return a command that reads a cluster."""
    if name == "snapshot":
        return ["snapshot", "--out", "cluster.json"]
    places = ["--catalog", str(folder / "catalog.json"), "--set", "cluster=kubeconfig"]
    return ["plan", str(folder / "pools"), "-o", "json", "--now", NOW, *places]


COMMANDS = ("plan", "snapshot")
NEXT = ("plan", "nodeclaims")


@pytest.fixture
def pools(tmp_path: Path) -> Path:
    """Return a folder with a fleet that needs no account at AWS."""
    (tmp_path / "pools").mkdir()
    pool = {"apiVersion": "karpenter.sh/v1", **a_pool("web")}
    (tmp_path / "pools" / "pool.yaml").write_text(json.dumps(pool))
    (tmp_path / "catalog.json").write_text(json.dumps(TYPES))
    return tmp_path


def of_karpenter(kube: Kube) -> None:
    """Add a node of Karpenter, beside which a plan asks nothing at AWS."""
    kinds = ("Node", "NodeClaim")
    for kind, item in zip(kinds, node_with_claim("medium", "zone-a", "web-1"), strict=True):
        kube.add({"apiVersion": "v1", "kind": kind, **item})
    kube.add({"apiVersion": "karpenter.sh/v1", "kind": "NodePool", **node_pool()})
    kube.add({"apiVersion": "apps/v1", "kind": "Deployment", **DEPLOYMENT})


@attack(Threat.CLUSTER, "a plan or a snapshot that calls more than its role allows, or writes")
@pytest.mark.parametrize("name", COMMANDS)
def test_plans_and_snapshots_make_exactly_the_calls_of_their_role(
    name: str, pools: Path, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    role: Any = snapshot_role("r") if name == "snapshot" else cluster_role("r", writes=False)
    kube.rules = role["rules"]
    assert main(command(name, pools)) == 0, capsys.readouterr().err
    calls = {call.permission for call in kube.calls}
    assert {verb for verb, _, _ in calls} == {"list"}
    assert calls == {(p.verb, p.group, p.resource) for p in READ}


@attack(Threat.CLUSTER, "a right of plans and snapshots that they do not need, each taken away")
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("lost", READ, ids=lambda p: p.name)
def test_each_right_of_plans_and_snapshots_is_missed_and_named(
    name: str, lost: Permission, pools: Path, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.rules = rules([p for p in READ if p != lost])
    assert main(command(name, pools)) == 1
    # without Karpenter's NodeClaims, a plan takes the nodes for its own, and needs the account
    named = "ec2:DescribeInstances" if (name, lost.resource) == NEXT else lost.resource
    assert named in capsys.readouterr().err
    assert not Path("cluster.json").exists()


OVERLAYS = of_role(overlays_role("any"))


@attack(Threat.CLUSTER, "a right of overlays that they do not need, each taken away")
@pytest.mark.parametrize("lost", OVERLAYS, ids=lambda p: p.name)
def test_each_right_of_overlays_is_missed_and_named(
    lost: Permission, fleet: Path, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.add(POOL)
    kube.rules = rules(OVERLAYS)
    line = ["overlays", str(fleet), "--apply", "--now", NOW, "--set", "cluster=kubeconfig"]
    if lost.verb in ("delete", "patch"):
        assert main(line) == 0, capsys.readouterr().err
        without = overlays_tests.COMMITTED.partition("commitments:")[0]
        (fleet / "reconciler.yaml").write_text(without)
        overlays_tests.write_pool(fleet, overlays_tests.PREFERENCE.replace("20", "30"))
    kube.rules = rules([p for p in OVERLAYS if p != lost])
    assert main(line) == 1
    assert lost.resource in capsys.readouterr().err
