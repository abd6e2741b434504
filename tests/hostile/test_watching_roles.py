"""Each right of the roles for watch and for the removal of the chart is taken away."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.adapters.kubernetes.kinds import EVENT, Permission, watch_role
from reconciler.cli.main import main
from reconciler.model.errors import ClusterError
from reconciler.watch.causes import read_events
from tests.adapters.kubernetes.apiserver import Call, Kube, serving, write_kubeconfig
from tests.adapters.kubernetes.sandbox import a_node, a_sandbox
from tests.hostile.test_cluster_permissions import CHART, a_claim, rules_of
from tests.hostile.test_reading_roles import of_role, rules
from tests.hostile.test_rights_of_watch import WATCH
from tests.hostile.threats import Threat, attack
from tests.watch.test_live import a_watched_kube, stop_after

kube = pytest.fixture(a_watched_kube, name="kube")
OF_WATCH = [p for p in of_role(watch_role("any")) if p.resource != EVENT.resource]


@attack(Threat.CLUSTER, "a right of watch that it does not need, each taken away")
@pytest.mark.parametrize("lost", OF_WATCH, ids=lambda p: p.name)
def test_each_right_of_watch_is_missed_and_named(
    lost: Permission,
    kube: Kube,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without the right to list it does not start; without that to watch it lists in each pass."""
    kube.absent = frozenset()
    kube.rules = rules([p for p in OF_WATCH if p != lost])
    stop_after(kube, 4)
    with caplog.at_level(logging.INFO):
        status = main(WATCH)
    printed = capsys.readouterr().err + caplog.text
    assert status == (lost.verb == "list")
    if lost.verb == "list":
        assert f"cannot list {lost.resource}" in printed
    else:
        assert f"cannot watch {lost.resource}; each pass lists them" in printed


@attack(Threat.CLUSTER, "a right of watch to read Events that it does not need")
def test_the_right_to_list_events_is_missed_and_named(tmp_path: Path) -> None:
    """They are read only after a wrong prediction."""
    with a_sandbox(tmp_path) as sandbox:
        sandbox.kube.rules = rules(of_role(watch_role("any")))
        assert read_events(sandbox.api) == []
        sandbox.kube.rules = rules(OF_WATCH)
        with pytest.raises(ClusterError, match="cannot list events"):
            read_events(sandbox.api)


UNINSTALL = of_role({"rules": rules_of(CHART / "templates" / "uninstall.yaml")})


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Kube]:
    """Return a cluster with what the daemon leaves: a finalizer, and a copy of a NodeClaim."""
    node = a_node("n0", "aws:///us-east-1a/i-0")
    node["metadata"]["finalizers"] = ["reconciler/termination"]
    with a_sandbox(tmp_path, node) as sandbox:
        sandbox.kube.absent = frozenset()
        sandbox.cluster.mirror("shop").update([a_claim()], {})
        sandbox.kube.calls.clear()
        with serving(sandbox.kube) as url:
            monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "kubeconfig", url)))
            monkeypatch.chdir(tmp_path)
            _conflict_once(sandbox.kube)
            yield sandbox.kube


def _conflict_once(kube: Kube) -> None:
    """Change the Node before it is patched first, as the kubelet may."""
    changed: list[str] = []

    def change(call: Call) -> None:
        if call.method == "PATCH" and call.resource == "nodes" and not changed:
            changed.append(call.name)
            kube.change("nodes", call.name, lambda n: n["metadata"].update(annotations={"a": "b"}))

    kube.fault = change


def uninstall() -> int:
    return main(["uninstall", "--auto-approve", "--settle", "0s"])


def test_the_role_of_the_removal_is_enough(left: Kube) -> None:
    left.rules = rules(UNINSTALL)
    assert uninstall() == 0
    assert not left.of("nodes")["n0"]["metadata"].get("finalizers")
    assert not left.of("nodeclaims")
    assert {c.permission for c in left.calls} == {(p.verb, p.group, p.resource) for p in UNINSTALL}


@attack(Threat.CLUSTER, "a right of the chart's removal that it does not need, each taken away")
@pytest.mark.parametrize("lost", UNINSTALL, ids=lambda p: p.name)
def test_each_right_of_the_removal_is_missed_and_named(
    lost: Permission, left: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    left.rules = rules([p for p in UNINSTALL if p != lost])
    assert uninstall() == 1
    assert lost.resource in capsys.readouterr().err
