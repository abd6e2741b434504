"""A change that migrates a fleet: its base has a former API, and is compared as its migration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.migration.revision import migrate_files
from reconciler.source.plainyaml import load_all
from tests.cli.sourcefolders import CLASS, POOL, WEB, write
from tests.cli.test_sources import init, taken, work
from tests.repositories import commit_all
from tests.repositories import init as init_repository

__all__ = ["work"]

BETA = """\
apiVersion: karpenter.sh/v1beta1
kind: NodePool
metadata: {name: general}
spec:
  disruption: {consolidationPolicy: WhenUnderutilized, expireAfter: 720h}
  template:
    spec:
      kubelet: {maxPods: 20}
      nodeClassRef: {name: default}
      requirements:
        - {key: karpenter.sh/capacity-type, operator: In, values: [on-demand]}
        - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m7i]}
---
apiVersion: karpenter.k8s.aws/v1beta1
kind: EC2NodeClass
metadata: {name: default}
spec:
  amiFamily: AL2023
  role: nodes
  subnetSelectorTerms: [{tags: {a: b}}]
  securityGroupSelectorTerms: [{tags: {a: b}}]
"""
SECOND = (
    BETA.partition("---\n")[0].replace("general", "second").replace("maxPods: 20", "maxPods: 30")
)
ALPHA = """\
apiVersion: karpenter.sh/v1alpha5
kind: Provisioner
metadata: {name: general}
spec:
  requirements:
    - {key: karpenter.k8s.aws/instance-family, operator: In, values: [m7i]}
  limits: {resources: {cpu: 100}}
  ttlSecondsAfterEmpty: 30
  PROVIDER
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other}
"""
TEMPLATE = """\
---
apiVersion: karpenter.k8s.aws/v1alpha1
kind: AWSNodeTemplate
metadata: {name: default}
spec:
  amiFamily: Bottlerocket
  instanceProfile: nodes
  subnetSelector: {a: b}
  securityGroupSelector: {a: b}
"""
INLINE = "provider: {instanceProfile: nodes, subnetSelector: {a: b}, securityGroupSelector: {a: b}}"
FORMER = {
    "v1beta1": BETA,
    "different kubelet settings": f"{BETA}---\n{SECOND}",
    "v1alpha5": ALPHA.replace("PROVIDER", "providerRef: {name: default}") + TEMPLATE,
    "inline provider": ALPHA.replace("PROVIDER", INLINE),
    "former spellings": POOL.replace("1m}", "1m, expireAfter: 720h}") + "---\n" + CLASS,
}


def plan_against(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["plan", ".", "--base", "HEAD", "--set", "cluster=none", "-o", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("name", FORMER)
def test_a_base_is_migrated_as_init_does_it(name: str, work: Path) -> None:
    write(work, {"old.yaml": FORMER[name]})
    assert init(".", "--region", "us-east-1", "--ci", "none") == 0
    migrated = migrate_files([SourceFile("old.yaml", FORMER[name].encode())]).files
    objects = [one for file in migrated for one in load_all(file.content)]
    nodes = {f"{o['kind']} {o['metadata']['name']}": o for o in objects if o["kind"] != "ConfigMap"}  # type: ignore[index,call-overload]
    assert nodes == taken()
    assert not [d for d in read_fleet(migrated)[1] if d.severity == "error"]


@pytest.mark.parametrize("name", ["v1beta1", "v1alpha5"])
def test_a_change_that_migrates_a_fleet_has_a_cost(
    name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init_repository(work)
    write(work, {"nodes.yaml": FORMER[name], "web.yaml": WEB})
    commit_all(work)
    write(work, {"nodes.yaml": f"{POOL.replace('m7i', 'm7a')}---\n{CLASS}"})
    found = plan_against(capsys)
    assert found["atRest"]["before"]["nodes"] == found["atRest"]["after"]["nodes"] == 1
    assert found["atRest"]["perHour"] != 0
    assert {(c["op"], c["kind"]) for c in found["changes"]} == {
        ("update", "NodePool"), ("update", "EC2NodeClass")
    }  # fmt: skip
    (info,) = [d for d in found["diagnostics"] if d["code"] == "base-migrated"]
    assert f"karpenter.sh/{name}" in info["message"]
    assert "base-invalid" not in {d["code"] for d in found["diagnostics"]}


def test_a_migration_that_changes_nothing_costs_nothing(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init_repository(work)
    write(work, {"nodes.yaml": BETA, "web.yaml": WEB})
    commit_all(work)
    migrated = migrate_files([SourceFile("nodes.yaml", BETA.encode())]).files
    write(work, {"nodes.yaml": migrated[0].content.decode()})
    found = plan_against(capsys)
    assert found["changes"] == []
    assert found["atRest"]["perHour"] == 0


def test_a_base_that_no_migration_completes_is_named_with_what_it_lacks(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    init_repository(work)
    write(work, {"nodes.yaml": BETA.replace("amiFamily: AL2023", "amiFamily: Custom")})
    commit_all(work)
    write(work, {"nodes.yaml": f"{POOL}---\n{CLASS}", "web.yaml": WEB})
    found = plan_against(capsys)
    (invalid,) = [d for d in found["diagnostics"] if d["code"] == "base-invalid"]
    assert "required field `amiSelectorTerms` is missing" in invalid["message"]
    assert "atRest" not in found
