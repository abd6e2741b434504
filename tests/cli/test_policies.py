"""Policies from outside: the shipped examples, verdicts in every form, exemptions, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.repositories import commit_all, init

ROOT = Path(__file__).parents[2]
SHIPPED = sorted(path.stem for path in (ROOT / "examples" / "policies").glob("*.yaml"))
NOW = "2026-03-02T12:00:00Z"
POOL = """\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {name: general}
spec:
  template:
    spec:
      nodeClassRef: {group: karpenter.k8s.aws, kind: EC2NodeClass, name: default}
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [spot]}
        - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m7g]}
"""
CLASS = """\
apiVersion: karpenter.k8s.aws/v1
kind: EC2NodeClass
metadata: {name: default}
spec:
  role: nodes
  amiSelectorTerms: [{alias: al2023@v20260115}]
  subnetSelectorTerms: [{id: subnet-0123456789abcdef0}]
  securityGroupSelectorTerms: [{id: sg-0123456789abcdef0}]
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: api, namespace: web}
spec:
  replicas: 8
  selector: {matchLabels: {app: api}}
  template:
    metadata: {labels: {app: api}}
    spec:
      containers: [{name: api, image: api, resources: {requests: {cpu: 1500m, memory: 1Gi}}}]
"""


def instance_type(family: str, price: float) -> dict[str, Any]:
    labels = {"kubernetes.io/arch": "arm64", "karpenter.k8s.aws/instance-family": family}
    return {
        "name": f"{family}.large",
        "capacity": {"cpu": "2", "memory": "8Gi", "pods": "29", "ephemeral-storage": "20Gi"},
        "overhead": {"cpu": "100m"},
        "requirements": [
            {"key": key, "operator": "In", "values": [value]} for key, value in labels.items()
        ],
        "offerings": [
            {"zone": "z-a", "capacityType": kind, "price": amount}
            for kind, amount in (("on-demand", price), ("spot", price / 2))
        ],
    }


CATALOG = [instance_type("m7g", 0.1), instance_type("t3", 0.1), instance_type("x2", 3.0)]


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """Return a repository with one commit, its fleet at rest with eight spot nodes."""
    folder = tmp_path / "shop"
    folder.mkdir()
    init(folder)
    for name, text in (("pool", POOL), ("class", CLASS), ("app", DEPLOYMENT)):
        (folder / f"{name}.yaml").write_text(text)
    (folder / "batch.yaml").write_text(POOL.replace("general", "batch"))
    commit_all(folder)
    (tmp_path / "catalog.json").write_text(json.dumps(CATALOG))
    return folder


Plan = Callable[..., int]


@pytest.fixture
def plan(fleet: Path) -> Plan:
    """Return a function that plans the working tree compared with the first commit."""

    def run(*words: str, base: bool = True) -> int:
        catalog = str(fleet.parent / "catalog.json")
        given = ["--catalog", catalog, "--now", NOW, *(("--base", "HEAD") if base else ())]
        return main(["plan", str(fleet), *given, *words])

    return run


def write(folder: Path, *policies: dict[str, Any]) -> str:
    """Write a file of policies and return its path."""
    file = folder / "policies.yaml"
    file.write_text(json.dumps({"policies": policies}))
    return str(file)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def more_pods(fleet: Path) -> None:
    edit(fleet / "app.yaml", "replicas: 8", "replicas: 40")


def expensive_types(fleet: Path) -> None:
    edit(fleet / "pool.yaml", "values: [m7g]", "values: [x2]")
    (fleet / "batch.yaml").write_text(POOL.replace("general", "batch").replace("m7g", "x2"))


def large_pods(fleet: Path) -> None:
    edit(fleet / "app.yaml", "cpu: 1500m", "cpu: 64")


def without_batch(fleet: Path) -> None:
    (fleet / "batch.yaml").unlink()


def other_family(fleet: Path) -> None:
    edit(fleet / "pool.yaml", "values: [m7g]", "values: [t3]")
    edit(fleet / "batch.yaml", "values: [m7g]", "values: [t3]")


def old_image(fleet: Path) -> None:
    edit(fleet / "class.yaml", "v20260115", "v20250115")


def on_demand(fleet: Path) -> None:
    edit(fleet / "pool.yaml", "values: [spot]", "values: [on-demand]")
    edit(fleet / "batch.yaml", "values: [spot]", "values: [on-demand]")


VIOLATIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "cost-increase": (expensive_types, "more a month; at most $500.00 are allowed"),
    "cost-increase-percent": (more_pods, "makes the fleet 400.0% more expensive"),
    "nodes-replaced": (other_family, "replaces 8 of 8 nodes; at most a quarter is allowed"),
    "unschedulable-pods": (large_pods, "8 pods cannot be scheduled"),
    "nodepool-removal": (without_batch, "removes NodePool batch"),
    "instance-families": (other_family, "instance families other than"),
    "image-age": (old_image, "older than 90 days"),
    "spot-share": (on_demand, "0 of 8 launched nodes are spot nodes"),
}


def shipped(*names: str) -> list[str]:
    return [w for name in names for w in ("--policy", str(ROOT / f"examples/policies/{name}.yaml"))]


def test_every_shipped_policy_has_a_violation() -> None:
    assert sorted(VIOLATIONS) == SHIPPED


@pytest.mark.parametrize("base", [True, False], ids=["with a base", "without a base"])
def test_a_harmless_change_complies_with_every_shipped_policy(
    base: bool, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    edit(fleet / "app.yaml", "name: api, image: api", "name: api, image: api2")
    words = shipped(*(SHIPPED if base else set(SHIPPED) - {"cost-increase"}))

    assert plan(*words, "--fail-on", "warnings", "-o", "json", base=base) == 0

    found = json.loads(capsys.readouterr().out)["policies"]
    assert {policy["result"] for policy in found} == {"passed"}
    assert [policy["name"] for policy in found] == sorted(p["name"] for p in found)


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_policy_finds_its_violation(
    name: str, fleet: Path, plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    change, message = VIOLATIONS[name]
    change(fleet)

    assert plan(*shipped(name), "--fail-on", name) == 3

    captured = capsys.readouterr()
    where = f"examples/policies/{name}.yaml:"
    (line,) = captured.err.splitlines()
    assert line.startswith("Error: ")
    assert where in line
    assert f"policy {name} forbids this plan: " in line
    assert message in line
    assert message.split(";")[0].split(" other")[0] in " ".join(captured.out.split())
