"""Commands that only read say that Karpenter runs in the cluster; what acts refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "web"


def a_snapshot(folder: Path, phase: str = "Running") -> str:
    labels = {"app.kubernetes.io/name": "karpenter"}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "karpenter-6b9f", "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": "ip-10-0-0-1"},
        "status": {"phase": phase},
    }
    path = folder / "snapshot.json"
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    return str(path)


def plan_findings(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict[str, str]]:
    assert main(["plan", str(EXAMPLE), "-o", "json", *words]) in (0, 2)
    plan = json.loads(capsys.readouterr().out)
    return [d for d in plan["diagnostics"] if d["code"] == "karpenter-running"]


def test_a_plan_warns_of_a_running_karpenter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = a_snapshot(tmp_path)
    (found,) = plan_findings(capsys, "--snapshot", snapshot)
    assert "pod kube-system/karpenter-6b9f" in found["message"]
    allowed = ("--set", "kubernetes.allowKarpenter=true")
    assert plan_findings(capsys, "--snapshot", snapshot, *allowed) == []
    assert plan_findings(capsys, "--snapshot", a_snapshot(tmp_path, "Succeeded")) == []


def test_a_repository_cannot_allow_a_second_karpenter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "reconciler.yaml").write_text(
        "apiVersion: reconciler/v1\nkind: Configuration\nkubernetes:\n  allowKarpenter: true\n"
    )
    assert main(["validate", str(tmp_path)]) != 0
    printed = "".join(capsys.readouterr())
    assert "kubernetes.allowKarpenter" in printed
    assert "only by the operator" in printed
