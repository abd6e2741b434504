"""Numbers that an API server accepts, and with which no calculation is possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from reconciler.placement.binding.scheduler import NodeBinder, NodeInfo, daemon_pod
from tests.adapters.kubernetes.conftest import sandbox
from tests.adapters.kubernetes.sandbox import Sandbox, a_pod
from tests.cli.test_plan import CLASS, POOL
from tests.hostile.test_daemon import NOW, snapshot_of
from tests.hostile.test_daemon import a_pod as running
from tests.hostile.threats import Threat, attack
from tests.placement.builders import a_node

__all__ = ["sandbox"]

LONG = [10**11, 10**18, -1]


@attack(Threat.PODS, "a pod whose grace period is longer than time, so that its node never drains")
@pytest.mark.parametrize("seconds", LONG)
@pytest.mark.parametrize("sandbox", ["listed", "cached"], indirect=True)
def test_a_drain_ends_at_its_deadline_whatever_a_pod_may_take(
    sandbox: Sandbox, seconds: int
) -> None:
    """Guard: the limit in ``grace_period``."""
    sandbox.observe()
    sandbox.cluster.taint("n0")
    sandbox.kube.leaving = True
    sandbox.kube.add(a_pod("slow", terminationGracePeriodSeconds=seconds))
    sandbox.kube.add(a_pod("other"))
    assert sandbox.drain(deadline_s=600) == 2
    deleted = {c.name: c.body for c in sandbox.kube.calls if c.method == "DELETE"}
    assert [body["gracePeriodSeconds"] for body in deleted.values()] == [600] * (seconds > 600)


@attack(Threat.EXHAUSTION, "a pod whose grace period is longer than time, in a simulation")
@pytest.mark.parametrize("seconds", LONG)
def test_a_simulation_ends_whatever_a_pod_may_take(
    seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: the same."""
    pod = running("slow", node="n1")
    pod["spec"]["terminationGracePeriodSeconds"] = seconds
    simulate(tmp_path, pod)
    assert capsys.readouterr().err == ""


NO_AFFINITY = {"key": "a", "operator": "Is", "values": ["b"]}
TEMPLATES = {
    "requests": {"containers": [{"name": "a", "resources": {"requests": {"cpu": "9" * 50}}}]},
    "requests of the pod": {"resources": {"requests": {"cpu": "9" * 50}}},
    "overhead": {"overhead": {"cpu": "9" * 50}},
    "affinity": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [NO_AFFINITY]}]
                }
            }
        }
    },
}


@attack(Threat.EXHAUSTION, "a DaemonSet that cannot be read, in a simulation")
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_simulation_counts_a_daemon_that_cannot_be_read_on_every_node(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_readable_pod``."""
    item = {
        "kind": "DaemonSet",
        "metadata": {"name": "odd", "namespace": "shop"},
        "spec": {"template": {"spec": TEMPLATES[name]}},
    }
    simulate(tmp_path, item)
    assert capsys.readouterr().err == ""
    seen = snapshot_of(*ready_node(), item)
    [daemon], [node] = seen.daemon_sets, seen.nodes
    assert NodeBinder([NodeInfo(node)]).place(daemon_pod(daemon, node), "n1")


@attack(Threat.EXHAUSTION, "a deletion cost that is not a number, with which nothing is compared")
@pytest.mark.parametrize("text", ["nan", "-nan", "NaN", "inf", "-inf", "1e400", "x"])
def test_the_cost_of_an_eviction_is_a_number(text: str) -> None:
    """Guards: the comparisons in ``Pod.eviction_cost``."""
    pod = running("web-0")
    pod["metadata"]["annotations"] = {"controller.kubernetes.io/pod-deletion-cost": text}
    [made] = snapshot_of(pod).pods
    assert -10 <= made.eviction_cost() <= 10


def ready_node() -> list[dict[str, Any]]:
    node, claim = a_node("n1")
    node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    return [node, claim]


def simulate(folder: Path, item: object) -> None:
    fleet = folder / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    snapshot = folder / "snapshot.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": [*ready_node(), item]}))
    words = ["--snapshot", str(snapshot), "--now", NOW, "--seeds", "1", "--until", "1h"]
    assert main(["simulate", str(fleet), *words]) == 0
