"""What an attacker could do with our roles in Kubernetes, and that none has a right too many."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.api import cluster_checks
from reconciler.adapters.kubernetes.arrivals import PendingPods
from reconciler.adapters.kubernetes.kinds import (
    PERMISSIONS,
    POD_COSTS,
    Permission,
    cluster_role,
    pod_costs_role,
)
from reconciler.model.diagnostics import Verdict
from reconciler.model.errors import ReconcilerError
from reconciler.model.karpenter.labels import POD_DELETION_COST
from reconciler.model.settings import Settings
from reconciler.ports.cluster import Announcement, PodCost
from tests.adapters.kubernetes.sandbox import NOW, Sandbox, a_claim, a_node, a_pod, a_sandbox
from tests.hostile.threats import Threat, attack
from tests.yamltext import load

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "reconciler"
Rules = list[dict[str, list[str]]]
READING = {"list"}
NEVER_READ = {"secrets", "configmaps", "serviceaccounts", "serviceaccounts/token", "pods/log"}
NEVER_USED = re.compile(
    r"\*|.*/(exec|attach|portforward|proxy|ephemeralcontainers|token)|(cluster)?role(binding)?s"
    r"|certificatesigningrequests.*|(validating|mutating)webhookconfigurations"
)
VERBS = {"get", "list", "watch", "create", "patch", "delete"}


def rules_of(path: Path) -> Rules:
    """Return the rules of a role, also of one in a template of the chart."""
    text = path.read_text(encoding="utf-8")
    if "{{" in text:
        found = re.search(r"^rules:\n((?:  .*\n)+)---", text, re.MULTILINE)
        assert found is not None
        text = f"rules:\n{found[1]}"
    rules: Rules = load(text)["rules"]
    return rules


ROLES = {
    path.relative_to(ROOT).as_posix(): path
    for path in (
        *sorted((ROOT / "docs" / "kubernetes").glob("clusterrole-*.yaml")),
        *sorted((CHART / "files").glob("clusterrole-*.yaml")),
        CHART / "templates" / "uninstall.yaml",
    )
}


def test_every_role_is_examined() -> None:
    """A new role in the documents, the chart or Kustomize has to be in the list above."""
    rendered = [path for path in CHART.rglob("*.yaml") if "kind: ClusterRole\n" in path.read_text()]
    assert {path.name for path in rendered} == {
        *("rbac.yaml", "snapshot.yaml", "uninstall.yaml"),
        *(path.name for path in (CHART / "files").glob("clusterrole-*.yaml")),
    }
    for name in ("rbac.yaml", "snapshot.yaml"):
        text = (CHART / "templates" / name).read_text(encoding="utf-8")
        assert len(re.findall(r"^rules:$", text, re.MULTILINE)) == 1
        assert "files/clusterrole-" in text


@attack(Threat.CLUSTER, "a role with a wildcard, a secret, or a way to get more rights")
@pytest.mark.parametrize("name", ROLES)
def test_no_role_reads_secrets_or_gets_more_rights(name: str) -> None:
    rules = rules_of(ROLES[name])
    assert rules
    for rule in rules:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        assert set(rule["verbs"]) <= VERBS
        assert "*" not in rule["apiGroups"]
        assert not NEVER_READ & set(rule["resources"])
        assert not [r for r in rule["resources"] if NEVER_USED.fullmatch(r)]


@attack(Threat.CLUSTER, "a role for plans and snapshots that could change something")
@pytest.mark.parametrize("name", [name for name in ROLES if re.search("plan|snapshot", name)])
def test_the_roles_of_plans_and_snapshots_only_read(name: str) -> None:
    assert {verb for rule in rules_of(ROLES[name]) for verb in rule["verbs"]} == READING


Step = tuple[str, Callable[[], Any]]


def steps(sandbox: Sandbox) -> Iterator[Step]:
    """Yield everything that the daemon does in a cluster."""
    kube, cluster = sandbox.kube, sandbox.cluster

    def drain() -> None:
        cluster.drain("n0", None, NOW)
        kube.add(a_pod("late"))
        cluster.drain("n0", NOW, NOW)
        sandbox.observe()
        cluster.drain("n0", None, NOW)

    def show_claims() -> None:
        kube.absent = frozenset()
        sandbox.observe()
        mirror = cluster.mirror("shop")
        mirror.update([a_claim()], {})
        mirror.update([], {})
        mirror.node_pools()

    def announce() -> None:
        about = Announcement("Node", "n0", "DisruptionBlocked", "Disrupting", "why")
        cluster.events(SystemClock(), "host").announce([about])

    waiting = PendingPods(sandbox.api, SystemClock(), idle=timedelta(), max_wait=timedelta())
    yield "observe", sandbox.observe
    yield "register", lambda: cluster.register("n0", a_claim())
    yield "drain", drain
    yield "delete the Node", lambda: cluster.delete_node("n0")
    yield "notice pods", waiting.watch_once
    yield "show NodeClaims", show_claims
    yield "announce", announce


def failing_steps(tmp_path: Path, permissions: tuple[Permission, ...]) -> tuple[set[str], set[Any]]:
    """Return the steps that fail with these permissions only, and the permissions used."""
    with a_sandbox(tmp_path, a_node(), has_cache=True) as sandbox:
        sandbox.kube.rules = [
            {"apiGroups": [p.group], "resources": [p.resource], "verbs": [p.verb]}
            for p in permissions
        ]
        sandbox.kube.add(a_pod("web"))
        sandbox.kube.add(a_pod("slow", terminationGracePeriodSeconds=600))
        failed = set()
        for name, step in steps(sandbox):
            try:
                step()
            except ReconcilerError:
                failed.add(name)
        return failed, {call.permission for call in sandbox.kube.calls}


def test_with_the_role_of_the_daemon_everything_works(tmp_path: Path) -> None:
    failed, used = failing_steps(tmp_path, PERMISSIONS)
    assert failed == set()
    assert used == {(p.verb, p.group, p.resource) for p in PERMISSIONS}


def first_effect(lost: Permission) -> str:
    """Return the step that fails first without a permission, empty if one only takes longer."""
    if lost.verb == "watch" or lost.resource == "events":
        return ""
    if lost.resource.startswith(("nodeclaims", "nodepools")):
        return "show NodeClaims"
    if lost.verb == "list" and lost.resource != "volumeattachments":
        return "observe"
    return {
        "get nodes": "register",
        "patch nodes": "register",
        "delete nodes": "delete the Node",
        "create pods/eviction": "drain",
        "delete pods": "drain",
        "list volumeattachments.storage.k8s.io": "drain",
    }[lost.name]


@attack(Threat.CLUSTER, "a right of the daemon that it does not need, each taken away")
@pytest.mark.parametrize("lost", PERMISSIONS, ids=lambda p: p.name)
def test_each_right_of_the_daemon_is_missed(
    lost: Permission, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        failed, used = failing_steps(tmp_path, tuple(p for p in PERMISSIONS if p != lost))
    assert (lost.verb, lost.group, lost.resource) in used, "it was asked for, and refused"
    effect = first_effect(lost)
    assert effect in failed if effect else failed == set()
    if lost.verb == "watch":
        assert f"cannot watch {lost.resource}; each pass lists them" in caplog.text


@attack(Threat.CLUSTER, "the right to change pods, with which more than one annotation is changed")
def test_the_right_to_change_pods_is_optional_and_changes_one_annotation(tmp_path: Path) -> None:
    costs = pod_costs_role("costs")
    assert costs["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    assert POD_COSTS not in PERMISSIONS
    with a_sandbox(tmp_path, a_node()) as sandbox:
        sandbox.kube.add(a_pod("web"))
        before = copy.deepcopy(sandbox.kube.of("pods")["web"])
        cost = PodCost("default", "web", before["metadata"]["uid"], "n0", "shop", None, "-1")
        refused: Any = cluster_role("run", writes=True)["rules"]
        sandbox.kube.rules = refused
        assert sandbox.cluster.pod_costs().write([cost]).error is not None
        assert sandbox.kube.of("pods")["web"] == before
        sandbox.kube.rules = costs["rules"]  # type: ignore[assignment]
        assert sandbox.cluster.pod_costs().write([cost]).error is None
        after = sandbox.kube.of("pods")["web"]
    assert after["metadata"].pop("annotations") == {POD_DELETION_COST: "-1"}
    for item in (before, after):
        del item["metadata"]["resourceVersion"]
    assert after == before


@attack(Threat.CLUSTER, "a right that is missing without anybody noticing")
@pytest.mark.parametrize("lost", PERMISSIONS, ids=lambda p: p.name)
def test_a_missing_right_is_named(lost: Permission, tmp_path: Path) -> None:
    with a_sandbox(tmp_path, a_node()) as sandbox:
        rules: Any = cluster_role("any", writes=True)["rules"]
        sandbox.kube.rules = [
            {**rule, "resources": [resource], "verbs": [verb]}
            for rule in rules
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if (verb, rule["apiGroups"][0], resource) != (lost.verb, lost.group, lost.resource)
        ]
        rows = list(cluster_checks(sandbox.api, Settings(), writes=True))
    assert [row.name for row in rows if row.verdict is Verdict.FAILED] == [lost.name]
