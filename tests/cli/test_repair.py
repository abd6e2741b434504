"""Node repair of Karpenter 1.15 as the commands show it: planned, explained and simulated."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.desired.migration.controller import settings_of_deployment
from tests.disruption.builders import NOW, a_node, a_pod, unhealthy
from tests.placement.builders import a_type

CLASS = {"group": "kwok.x-k8s.io", "kind": "TestNodeClass", "name": "default"}


@pytest.fixture
def fleet(tmp_path: Path) -> list[str]:
    """Return the arguments for six nodes: two are due for repair, and a budget allows one."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    settings = 'karpenter: "1.15"\nfeatureGates: {NodeRepair: true}\n'
    (folder / "reconciler.yaml").write_text(settings)
    template = {"nodeClassRef": CLASS, "expireAfter": "Never", "requirements": []}
    budgets = [{"nodes": "1", "reasons": ["Unhealthy"]}]
    pool = {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": "default"},
        "spec": {
            "template": {"spec": template},
            "disruption": {"consolidateAfter": "Never", "budgets": budgets},
        },
    }
    (folder / "pool.json").write_text(json.dumps(pool))
    items: list[dict[str, Any]] = []
    for number in range(6):
        node, claim = a_node(f"n{number}", claim={"nodeClassRef": CLASS})
        items += [node | {"apiVersion": "v1"}, claim | {"apiVersion": "karpenter.sh/v1"}]
        items.append(a_pod(f"p{number}", f"n{number}", "3") | {"apiVersion": "v1"})
    items[0]["status"]["conditions"] += unhealthy(NOW - timedelta(hours=1))
    gpu = unhealthy(NOW - timedelta(minutes=20), "AcceleratedHardwareReady", reason="NvidiaXID79")
    items[3]["status"]["conditions"] += gpu
    snapshot = {"apiVersion": "v1", "kind": "List", "items": items}
    (tmp_path / "snapshot.json").write_text(json.dumps(snapshot))
    (tmp_path / "types.json").write_text(json.dumps([a_type("medium", 4, 0.2)]))
    files = ["--snapshot", str(tmp_path / "snapshot.json")]
    files += ["--catalog", str(tmp_path / "types.json"), "--now", "2026-01-05T12:00:00Z"]
    return [str(folder), *files]


def test_a_plan_shows_the_condition_the_deadline_and_the_node_that_waits(
    fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *fleet, "-o", "json"]) in (0, 2)

    plan = json.loads(capsys.readouterr().out)
    (command,) = plan["commands"]
    assert (command["reason"], command["decision"], command["nodes"]) == (
        "Unhealthy", "replace", ["n0"],
    )  # fmt: skip
    assert command["message"] == "StorageReady is False"
    assert command["terminationGracePeriod"] == "10m"
    waiting = [d["node"] for d in plan["deferred"] if d["reason"] == "Unhealthy"]
    assert waiting == ["n1"]

    assert main(["plan", *fleet]) in (0, 2)
    text = capsys.readouterr().out
    assert "Unhealthy: StorageReady is False" in text
    assert "the drain takes at most 10m" in text


def test_explain_names_the_condition_and_the_budget(
    fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", "node", "n0", *fleet]) == 0
    text = capsys.readouterr().out
    assert "(StorageReady is False), the drain takes at most 10m" in text
    assert "1 of 6 nodes may be disrupted for repair now" in text
    assert "6 of 6 nodes may be disrupted for drift, emptiness and underutilization now" in text

    assert main(["explain", "nodepool", "default", *fleet]) == 0
    out = capsys.readouterr().out
    assert "rules: at most 1 node for repair" in out
    assert "repair 1" in out


@pytest.fixture
def rebooting_fleet(fleet: list[str]) -> list[str]:
    """Return the same nodes with the gate: n4 has a GPU error that a reboot clears."""
    settings = Path(fleet[0]) / "reconciler.yaml"
    gates = "NodeRepair: true, RebootForRepair: true"
    settings.write_text(settings.read_text().replace("NodeRepair: true", gates))
    path = Path(fleet[fleet.index("--snapshot") + 1])
    snapshot = json.loads(path.read_text())
    nodes = [item for item in snapshot["items"] if item.get("kind") == "Node"]
    for node in nodes:
        kept = [c for c in node["status"]["conditions"] if c["type"] == "Ready"]
        node["status"]["conditions"] = kept
    gpu = unhealthy(NOW - timedelta(minutes=20), "AcceleratedHardwareReady", reason="NvidiaXID48")
    nodes[4]["status"]["conditions"] += gpu
    path.write_text(json.dumps(snapshot))
    return fleet


def test_a_plan_shows_a_reboot_as_an_action_of_its_own(
    rebooting_fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *rebooting_fleet, "-o", "json"]) in (0, 2)
    plan = json.loads(capsys.readouterr().out)
    (command,) = plan["commands"]
    assert (command["decision"], command["nodes"], command["savings"]) == ("reboot", ["n4"], 0.0)
    (action,) = plan["actions"]
    assert (action["kind"], action["node"], action["costDelta"]) == ("reboot", "n4", 0.0)
    assert plan["cost"]["before"] == plan["cost"]["after"]

    assert main(["plan", *rebooting_fleet]) in (0, 2)
    text = capsys.readouterr().out
    assert "First pass: reboot 1 node (6 → 6)" in text
    assert "~ reboot" in text
    assert "Unhealthy: AcceleratedHardwareReady is False (NvidiaXID48)" in text
    for form in ("html", "markdown"):
        assert main(["plan", *rebooting_fleet, "-o", form]) in (0, 2)
        assert "reboot" in capsys.readouterr().out

    assert main(["explain", "node", "n4", *rebooting_fleet]) == 0
    text = capsys.readouterr().out
    assert ": reboot n4 (AcceleratedHardwareReady is False (NvidiaXID48)), the drain" in text


def test_a_simulation_reboots_the_node_and_keeps_it(
    rebooting_fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *rebooting_fleet]) == 0

    text = capsys.readouterr().out
    steps = ["pods evicted", "drained", "rebooting", "rebooted"]
    found = [text.index(f"  {step} ") for step in steps]
    assert found == sorted(found)
    assert "0 nodes launched, 0 terminated, 1 pod evicted, 6 nodes at the end" in text


def test_a_simulation_repairs_one_node_after_the_other(
    fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *fleet, "-o", "json"]) == 0

    events = json.loads(capsys.readouterr().out)["events"]
    started = [e["message"] for e in events if e["kind"] == "CommandStarted"]
    assert started == [
        "Repair: replace n0 (StorageReady is False)",
        "Repair: replace n1 (AcceleratedHardwareReady is False (NvidiaXID79))",
    ]


def test_init_takes_legacy_repair_and_the_gates_from_the_deployment() -> None:
    environment = [
        {"name": "FEATURE_GATES", "value": "NodeRepair=true,TerminateFirstRepair=true"},
        {"name": "LEGACY_NODE_REPAIR", "value": "true"},
        {"name": "AWS_FEATURE_GATES", "value": "DRAEFA=true,RebootForRepair=true"},
    ]
    container = {"image": "karpenter/controller:1.15.1", "env": environment}
    spec = {"template": {"spec": {"containers": [container]}}}

    found = settings_of_deployment({"kind": "Deployment", "spec": spec})

    assert found.values == {
        "karpenter": "1.15",
        "featureGates.NodeRepair": True,
        "featureGates.TerminateFirstRepair": True,
        "featureGates.DRAEFA": True,
        "featureGates.RebootForRepair": True,
        "legacyNodeRepair": True,
    }
    assert found.left_out == {}


@pytest.mark.parametrize(("minutes", "is_reported"), [(14, False), (16, True)])
def test_a_plan_lists_the_nodes_that_never_become_ready_for_pods(
    minutes: int, is_reported: bool, fleet: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    obstacle = {
        "type": "Initialized",
        "status": "Unknown",
        "reason": "StartupTaintsExist",
        "message": "startup taint cilium:NoExecute is still present",
    }
    quiet = timedelta(minutes=minutes)
    node, claim = a_node(
        "n9", quiet=quiet, initialized=False, claim={"nodeClassRef": CLASS}, conditions=[obstacle]
    )
    path = Path(fleet[fleet.index("--snapshot") + 1])
    snapshot = json.loads(path.read_text())
    snapshot["items"] += [
        node | {"apiVersion": "v1"}, claim | {"apiVersion": "karpenter.sh/v1"},
    ]  # fmt: skip
    path.write_text(json.dumps(snapshot))
    assert main(["plan", *fleet, "-o", "json"]) in (0, 2)
    found = [
        d for d in json.loads(capsys.readouterr().out)["diagnostics"]
        if d["code"] == "never-initialized"
    ]  # fmt: skip
    assert len(found) == is_reported
    for finding in found:
        assert "n9 (startup taint cilium:NoExecute is still present)" in finding["message"]
        assert "it costs $146/month" in finding["message"]
