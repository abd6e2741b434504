"""What protects a node because a pod on it cannot be read is not called an annotation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.placement.builders import TYPES, Object, a_node, a_pod, a_pool

NOW = "2026-03-01T12:00:00Z"


def planned(items: list[Object], folder: Path, capsys: pytest.CaptureFixture[str]) -> Object:
    """Return the plan of these objects."""
    (folder / "fleet").mkdir()
    disruption = {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}
    pool = {"apiVersion": "karpenter.sh/v1", **a_pool("default", disruption=disruption)}
    (folder / "fleet" / "pool.yaml").write_text(json.dumps(pool))
    (folder / "cluster.json").write_text(json.dumps({"kind": "List", "items": items}))
    (folder / "catalog.json").write_text(json.dumps(TYPES))
    snapshot, catalog = str(folder / "cluster.json"), str(folder / "catalog.json")
    line = ["plan", str(folder / "fleet"), "--snapshot", snapshot, "--catalog", catalog]
    assert main([*line, "--now", NOW, "-o", "json"]) == 0
    found: Object = json.loads(capsys.readouterr().out)
    return found


def test_a_pod_that_cannot_be_read_is_not_called_annotated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = a_pod("bad", node="n0")
    pod["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "x1"
    plan = planned([*a_node("n0"), pod], tmp_path, capsys)
    (blocked,) = plan["blocked"]
    assert blocked["message"] == "pod cannot be read (Pod=default/bad)"
    assert "annotated" not in json.dumps(plan["blockers"])
    assert "the pod cannot be read" in json.dumps(plan["blockers"])


def test_any_number_of_budgets_of_a_pod_is_a_short_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan would otherwise grow with the cube of the budgets and pods of one tenant."""
    pods = [a_pod(f"app-{number}", "10m", node="n0") for number in range(20)]
    budgets: list[Object] = [
        {
            "kind": "PodDisruptionBudget",
            "metadata": {"name": f"b-{number:03}", "namespace": "default"},
            "spec": {"maxUnavailable": 1, "selector": {}},
            "status": {"disruptionsAllowed": 1},
        }
        for number in range(300)
    ]
    plan = planned([*a_node("n0"), *pods, *budgets], tmp_path, capsys)
    (blocked,) = plan["blocked"]
    assert "more than 200 PDBs may select the pod" in blocked["message"]
    assert "b-009])" in blocked["message"]
    assert "b-010" not in json.dumps([plan["blocked"], plan["blockers"]])
