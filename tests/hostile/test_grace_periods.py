"""Grace periods of pods that no time can be added to: an API server accepts any number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.adapters.kubernetes.conftest import sandbox
from tests.adapters.kubernetes.sandbox import Sandbox, a_pod
from tests.cli.test_plan import CLASS, POOL
from tests.hostile.test_daemon import NOW, a_node
from tests.hostile.test_daemon import a_pod as running
from tests.hostile.threats import Threat, attack

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
    fleet = tmp_path / "fleet"
    fleet.mkdir()
    (fleet / "pool.yaml").write_text(POOL)
    (fleet / "class.yaml").write_text(CLASS)
    pod = running("slow", node="n1")
    pod["spec"]["terminationGracePeriodSeconds"] = seconds
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": [a_node("n1"), pod]}))
    words = ["--snapshot", str(snapshot), "--now", NOW, "--seeds", "1", "--until", "1h"]
    assert main(["simulate", str(fleet), *words]) == 0, capsys.readouterr().err
