"""Declared permissions match the calls, the documents, and the requests of ``check``."""

from __future__ import annotations

import importlib.util
from datetime import timedelta
from pathlib import Path

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.api import cluster_checks
from reconciler.adapters.kubernetes.arrivals import PendingPods
from reconciler.adapters.kubernetes.cluster import ReadOnlyCluster
from reconciler.adapters.kubernetes.kinds import PERMISSIONS, cluster_role, permissions_of
from reconciler.model.diagnostics import Verdict
from reconciler.model.settings import Settings
from reconciler.ports.cluster import Announcement
from tests.adapters.kubernetes.apiserver import Call, RefusedError
from tests.adapters.kubernetes.sandbox import NOW, Sandbox, a_claim, a_pod

DOCS = Path(__file__).resolve().parents[3] / "docs" / "kubernetes"


def test_the_documents_match_the_declaration() -> None:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for path, content in module.files().items():
        assert path.read_text(encoding="utf-8") == content, "run docs/kubernetes/generate.py"


@pytest.mark.parametrize("sandbox", ["cached"], indirect=True)
def test_every_declared_call_is_made_and_no_other(sandbox: Sandbox) -> None:
    sandbox.kube.add(a_pod("a"))
    sandbox.kube.add(a_pod("b", terminationGracePeriodSeconds=600))
    sandbox.observe()
    sandbox.cluster.register("n0", a_claim())
    sandbox.cluster.drain("n0", None, NOW)
    sandbox.kube.add(a_pod("c"))
    sandbox.cluster.drain("n0", NOW, NOW)
    sandbox.observe()
    sandbox.cluster.drain("n0", None, NOW)
    sandbox.cluster.delete_node("n0")
    PendingPods(sandbox.api, SystemClock(), idle=timedelta(), max_wait=timedelta()).watch_once()
    sandbox.kube.absent = frozenset()
    sandbox.observe()
    mirror = sandbox.cluster.mirror("shop")
    mirror.update([a_claim()], {})
    mirror.update([], {})
    mirror.node_pools()
    about = Announcement("Node", "n0", "DisruptionBlocked", "Disrupting", "why")
    sandbox.cluster.events(SystemClock(), "host").announce([about])
    used = {call.permission for call in sandbox.kube.calls}
    assert used == {(p.verb, p.group, p.resource) for p in PERMISSIONS}


@pytest.mark.parametrize("writes", [False, True])
def test_the_roles_contain_every_required_permission(sandbox: Sandbox, writes: bool) -> None:
    sandbox.kube.rules = cluster_role("any", writes=writes)["rules"]
    rows = list(cluster_checks(sandbox.api, Settings(), writes=writes))
    assert {row.verdict for row in rows} == {Verdict.PASSED}
    assert rows[0].message == "v1.33.2, with credentials of context shop"
    assert len(rows) == 1 + len(permissions_of(writes=writes))


def test_a_missing_permission_is_named(sandbox: Sandbox) -> None:
    sandbox.kube.rules = cluster_role("any", writes=False)["rules"]
    rows = list(cluster_checks(sandbox.api, Settings(), writes=True))
    missing = [row.name for row in rows if row.verdict is Verdict.FAILED]
    granted = {p.name for p in permissions_of(writes=False)}
    assert missing == [p.name for p in PERMISSIONS if p.name not in granted]
    assert "create pods/eviction" in missing
    assert all("ClusterRole" in row.remedy for row in rows if row.verdict is Verdict.FAILED)
    assert not [c for c in sandbox.kube.calls if c.method in ("PATCH", "DELETE")]


def test_an_unreachable_api_is_one_row(sandbox: Sandbox) -> None:
    def fail(call: Call) -> None:
        raise RefusedError(503, "ServiceUnavailable", "later")

    sandbox.kube.fault = fail
    (row,) = cluster_checks(sandbox.api, Settings(), writes=True)
    assert row.verdict is Verdict.FAILED
    assert "GET /version: HTTP 503 ServiceUnavailable: later" in row.message


def test_a_read_only_cluster_shows_everything_and_changes_nothing(sandbox: Sandbox) -> None:
    sandbox.kube.add(a_pod("a"))
    onlooker = ReadOnlyCluster(sandbox.cluster)
    assert onlooker.observe([a_claim()], []) == sandbox.observe()
    onlooker.register("n0", a_claim())
    onlooker.initialize("n0")
    onlooker.taint("n0")
    onlooker.untaint("n0")
    assert onlooker.drain("n0", None, NOW).is_done
    onlooker.delete_node("n0")
    assert {call.method for call in sandbox.kube.calls} == {"GET"}
