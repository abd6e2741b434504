"""A node class that is not ready in the cluster launches nothing, whatever its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.cli.main import main
from tests.cli.test_end_to_end import NODE_CLASS, NODE_POOL
from tests.engine.world import catalog_file

POD = {
    "kind": "Pod",
    "metadata": {"name": "web"},
    "spec": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "1"}}}]},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}],
    },
}
OTHER = {"group": "karpenter.example.com", "kind": "ExampleNodeClass", "name": "default"}


def a_class(kind: str, name: str, ready: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": ready, "reason": "SubnetsNotFound"}]
    return {"kind": kind, "metadata": {"name": name}, "status": {"conditions": conditions}}


def planned(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    ref: dict[str, str] | None,
    node_class: dict[str, Any],
) -> dict[str, Any]:
    pool = json.loads(json.dumps(NODE_POOL))
    objects = [pool, NODE_CLASS]
    if ref is not None:
        pool["spec"]["template"]["spec"]["nodeClassRef"] = ref
        objects = [pool]
    fleet = folder / "fleet"
    fleet.mkdir()
    (fleet / "fleet.yaml").write_text(yaml.safe_dump_all(objects))
    (folder / "types.json").write_bytes(catalog_file())
    cluster = {"kind": "List", "items": [POD, node_class]}
    (folder / "cluster.json").write_text(json.dumps(cluster))
    words = [command, str(fleet), "--snapshot", str(folder / "cluster.json"), "-o", "json"]
    words += ["--catalog", str(folder / "types.json"), "--now", "2026-03-02T09:00:00Z"]
    assert main(words) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


CLASS = NODE_CLASS["metadata"]["name"]
MISSING = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "elsewhere"}


@pytest.mark.parametrize(
    ("ref", "kind", "name"),
    [
        (None, "EC2NodeClass", CLASS),
        (MISSING, "EC2NodeClass", "elsewhere"),
        (OTHER, "ExampleNodeClass", "default"),
    ],
    ids=["a class in git", "a class that only the cluster has", "a class of another kind"],
)
@pytest.mark.parametrize(("ready", "launched"), [("True", 1), ("False", 0), ("Unknown", 0)])
def test_only_a_ready_class_launches(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    ref: dict[str, str] | None,
    kind: str,
    name: str,
    ready: str,
    launched: int,
) -> None:
    plan = planned(tmp_path, capsys, "plan", ref, a_class(kind, name, ready))
    assert len(plan["nodeClaims"]) == launched
    codes = {d["code"] for d in plan["diagnostics"]}
    assert ("nodeclass-not-ready" in codes) is not bool(launched)


def test_a_simulation_launches_nothing_either(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reported = planned(
        tmp_path, capsys, "simulate", OTHER, a_class("ExampleNodeClass", "default", "False")
    )
    assert reported["fleet"] == []
