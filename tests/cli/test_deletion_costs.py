"""The gate of Karpenter 1.15 for pod deletion costs that Karpenter itself writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.disruption.builders import a_node, a_pod
from tests.placement.builders import a_type

CLASS = {"group": "kwok.x-k8s.io", "kind": "TestNodeClass", "name": "default"}
DELETION_COST = "controller.kubernetes.io/pod-deletion-cost"
OWN_COST = "karpenter.sh/disruption-cost"
NOTHING = str(-(2**27))
"""The annotation of a pod that costs nothing to evict, so that its node counts as empty."""


@pytest.mark.parametrize(
    ("karpenter", "gate", "annotation", "removed"),
    [
        ("1.15", False, DELETION_COST, ["n0"]),
        ("1.15", True, DELETION_COST, []),
        ("1.15", True, OWN_COST, ["n0"]),
        ("1.14", True, DELETION_COST, ["n0"]),
    ],
)
def test_a_deletion_cost_counts_unless_karpenter_writes_it(
    karpenter: str,
    gate: bool,
    annotation: str,
    removed: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "fleet"
    folder.mkdir()
    gates = {"PodDeletionCostManagement": gate}
    settings = {"karpenter": karpenter, "featureGates": gates}
    (folder / "reconciler.yaml").write_text(json.dumps(settings))
    template = {"nodeClassRef": CLASS, "expireAfter": "Never", "requirements": []}
    disruption = {"consolidationPolicy": "WhenEmpty", "consolidateAfter": "0s"}
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {"template": {"spec": template}, "disruption": disruption},
    }
    (folder / "pool.json").write_text(json.dumps(pool))
    node, claim = a_node("n0", claim={"nodeClassRef": CLASS})
    pod = a_pod("p0", "n0", "1", metadata={"annotations": {annotation: NOTHING}})
    items: list[dict[str, Any]] = [
        node | {"apiVersion": "v1"},
        claim | {"apiVersion": "karpenter.sh/v1"},
        pod | {"apiVersion": "v1"},
    ]
    snapshot = {"apiVersion": "v1", "kind": "List", "items": items}
    (tmp_path / "snapshot.json").write_text(json.dumps(snapshot))
    (tmp_path / "types.json").write_text(json.dumps([a_type("medium", 4, 0.2)]))
    files = ["--snapshot", str(tmp_path / "snapshot.json"), "--now", "2026-01-05T12:00:00Z"]
    files += ["--catalog", str(tmp_path / "types.json")]

    assert main(["plan", str(folder), *files, "-o", "json"]) in (0, 2)

    plan = json.loads(capsys.readouterr().out)
    assert [node for command in plan["commands"] for node in command["nodes"]] == removed
