"""Pods that are tried again whenever a node joins, each of which is a kind of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.plan.rest.gap import PLAN_PODS_MAX
from tests.hostile.threats import Threat, attack
from tests.hostile.turns import soon
from tests.placement.builders import TYPES, Object, a_pod, a_pool


def alone(number: int) -> Object:
    """Return a pod that shares no node with the others, and has a label of its own."""
    return a_pod(f"a-{number}", labels={"app": f"a-{number}"}, ports=[80])


@attack(Threat.EXHAUSTION, "hundreds of pods with one host port, each with another label")
@pytest.mark.parametrize("count", [200, PLAN_PODS_MAX])
def test_pods_that_share_no_node_take_no_time_for_each_node_that_joins(
    count: int, tmp_path: Path
) -> None:
    """Guard: ``_RETRIES_MAX`` in ``bind_pods``. Without it, the time grows with the cube."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    pool = {"apiVersion": "karpenter.sh/v1", **a_pool("default")}
    (folder / "pool.yaml").write_text(json.dumps(pool))
    items = [alone(number) for number in range(count)]
    (tmp_path / "snapshot.json").write_text(json.dumps({"kind": "List", "items": items}))
    (tmp_path / "catalog.json").write_text(json.dumps(TYPES))
    files = [
        "--snapshot", str(tmp_path / "snapshot.json"), "--catalog", str(tmp_path / "catalog.json"),
    ]  # fmt: skip
    with soon(200):
        assert main(["plan", str(folder), *files, "--now", "2026-03-01T12:00:00Z"]) == 0
