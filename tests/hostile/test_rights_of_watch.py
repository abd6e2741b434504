"""Credentials for ``watch`` that could write: each right is refused, wherever it comes from."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.kubernetes.kinds import cluster_role, overlays_role, watch_role
from reconciler.adapters.kubernetes.rights import expect_read_only
from reconciler.assembly.cluster import api_of
from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from reconciler.model.settings import ClusterKind, Settings
from tests.adapters.kubernetes.apiserver import Call, Kube, RefusedError
from tests.hostile.test_cluster_permissions import ROLES, rules_of
from tests.hostile.threats import Threat, attack
from tests.watch.test_live import a_watched_kube, stop_after

kube = pytest.fixture(a_watched_kube, name="kube")
WATCH = ["watch", "--context", "shop", "--set", "aws.region=us-east-1"]
REVIEWS = {"selfsubjectaccessreviews", "selfsubjectrulesreviews"}
Right = tuple[str, str, str]

VERBS = ("create", "update", "patch", "delete", "deletecollection")
RBAC = "rbac.authorization.k8s.io"
NODES_AND_PODS: list[Right] = [
    *(
        (verb, group, resource)
        for group, resource in (
            ("karpenter.sh", "nodeclaims"), ("karpenter.sh", "nodepools"),
            ("karpenter.sh", "nodeoverlays"), ("karpenter.k8s.aws", "ec2nodeclasses"),
            ("", "nodes"), ("", "pods"),
        )
        for verb in VERBS
    ),
    ("create", "", "pods/eviction"), ("create", "", "pods/exec"), ("create", "", "pods/binding"),
    ("create", "", "pods/attach"), ("patch", "", "pods/status"), ("patch", "", "pods/resize"),
    ("patch", "", "pods/ephemeralcontainers"), ("patch", "", "nodes/status"),
    ("create", "", "nodes/proxy"), ("create", "", "serviceaccounts/token"),
    ("impersonate", "", "users"), ("impersonate", "", "groups"),
    ("impersonate", "", "serviceaccounts"),
]  # fmt: skip
"""What acts on nodes and pods, or in another name."""
THROUGH_OTHERS: list[Right] = [
    *(
        (verb, group, resource)
        for group, resource in (
            ("apps", "deployments"), ("apps", "statefulsets"), ("apps", "daemonsets"),
            ("apps", "replicasets"), ("batch", "jobs"), ("batch", "cronjobs"),
            ("", "replicationcontrollers"), ("", "configmaps"), ("", "secrets"),
            ("", "namespaces"), ("", "serviceaccounts"), ("", "persistentvolumeclaims"),
            (RBAC, "roles"), (RBAC, "rolebindings"), (RBAC, "clusterrolebindings"),
            ("policy", "poddisruptionbudgets"), ("scheduling.k8s.io", "priorityclasses"),
            ("admissionregistration.k8s.io", "mutatingwebhookconfigurations"),
            ("apiextensions.k8s.io", "customresourcedefinitions"),
            ("coordination.k8s.io", "leases"), ("events.k8s.io", "events"),
        )
        for verb in VERBS
    ),
    ("patch", "apps", "deployments/scale"), ("update", "apps", "statefulsets/scale"),
    ("bind", RBAC, "clusterroles"), ("escalate", RBAC, "clusterroles"),
    ("approve", "certificates.k8s.io", "signers"),
    ("update", "certificates.k8s.io", "certificatesigningrequests/approval"),
    ("get", "", "pods/exec"), ("get", "", "nodes/proxy"), ("create", "", "pods/portforward"),
    ("create", "", "services/proxy"),
]  # fmt: skip
"""What changes nodes and pods through other objects, or gets more rights."""
UNKNOWN_KINDS: list[Right] = [
    ("patch", "example.com", "widgets"), ("update", "example.com", "widgets/status"),
    ("use", "security.openshift.io", "securitycontextconstraints"),
    ("get", "example.com", "widgets/proxy"), ("frobnicate", "", "pods"),
    ("*", "", "pods"), ("patch", "*", "nodes"), ("delete", "apps", "*"), ("*", "*", "*"),
    ("create", "authentication.k8s.io", "tokenreviews"),
]  # fmt: skip
"""What no list names."""


def rule(right: Right) -> dict[str, Any]:
    verb, group, resource = right
    return {"apiGroups": [group], "resources": [resource], "verbs": [verb]}


def assert_refused(
    kube: Kube, capsys: pytest.CaptureFixture[str], named: str, also: frozenset[str] = frozenset()
) -> None:
    """Start ``watch``: it ends with what it could write, and only asked about itself."""
    stop_after(kube, 2)  # a watch that starts would not end
    assert main(WATCH) == 1
    error = capsys.readouterr().err
    assert f"could write: {named}" in error
    assert "--allow-write-access" in error
    assert not [call for call in kube.calls if call.resource not in REVIEWS | also]


@attack(Threat.CLUSTER, "credentials for watch that could change something")
@pytest.mark.parametrize("right", [*NODES_AND_PODS, *THROUGH_OTHERS, *UNKNOWN_KINDS], ids=" ".join)
def test_no_right_to_write_is_accepted(
    right: Right, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    rules: Any = watch_role("any")["rules"]
    kube.rules = [*rules, rule(right)]
    verb, group, resource = right
    assert_refused(kube, capsys, f"{verb} {resource}{f'.{group}' if group else ''}")


@attack(Threat.CLUSTER, "a right of watch to change one named object")
def test_no_right_to_write_one_object_is_accepted(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    one = rule(("update", "apps", "deployments")) | {"resourceNames": ["web"]}
    kube.rules = [*(kube.rules or ()), one]
    assert_refused(kube, capsys, "update deployments.apps")


@attack(Threat.CLUSTER, "a right of watch to write to a URL of the API server")
def test_no_right_to_write_to_a_url_is_accepted(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.rules = [*(kube.rules or ()), {"nonResourceURLs": ["/webhook/*"], "verbs": ["post"]}]
    assert_refused(kube, capsys, "post /webhook/*")


@attack(Threat.CLUSTER, "a RoleBinding of one namespace that lets watch write there")
def test_no_right_to_write_in_one_namespace_is_accepted(
    kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("default", "kube-system", "tenant"):
        kube.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    kube.namespaced["tenant"] = [rule(("delete", "", "pods"))]
    named = "delete pods in the namespace tenant"
    assert_refused(kube, capsys, named, also=frozenset({"namespaces"}))
    stop_after(kube, 2)
    assert main([*WATCH, "--allow-write-access"]) == 0


@attack(Threat.CLUSTER, "a right of watch that the API server does not list")
@pytest.mark.parametrize("right", [NODES_AND_PODS[0], THROUGH_OTHERS[0], ("*", "*", "*")], ids=str)
def test_rights_that_are_not_listed_are_asked_for(
    right: Right, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    rules: Any = watch_role("any")["rules"]
    kube.rules, kube.lists_rules = [*rules, rule(right)], False
    verb, group, resource = right
    assert_refused(kube, capsys, f"{verb} {resource}{f'.{group}' if group else ''}")
    asked = {
        (of["verb"], of["group"], f"{of['resource']}/{of.get('subresource', '')}".rstrip("/"))
        for call in kube.calls
        if call.resource == "selfsubjectaccessreviews"
        for of in [call.body["spec"]["resourceAttributes"]]
    }
    assert asked >= {*NODES_AND_PODS, *THROUGH_OTHERS}


@attack(Threat.CLUSTER, "an API server that does not list rights to hide that of watch to write")
@pytest.mark.parametrize("status", [403, 404])
def test_rights_are_asked_for_if_none_are_listed(
    status: int, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.rules = [*(kube.rules or ()), rule(("delete", "apps", "deployments"))]
    stop_after(kube, 2)
    stop = kube.fault

    def refuse(call: Call) -> None:
        stop(call)
        if call.resource == "selfsubjectrulesreviews":
            raise RefusedError(status, "Forbidden", "no such review")

    kube.fault = refuse
    assert main(WATCH) == 1
    assert "could write: delete deployments.apps" in capsys.readouterr().err
    kube.rules = list(watch_role("any")["rules"])  # type: ignore[call-overload]
    stop_after(kube, 2)
    stop = kube.fault
    kube.fault = refuse
    assert main(WATCH) == 0, capsys.readouterr().err


@attack(Threat.EXHAUSTION, "a Role of millions of rights that a tenant grants to watch")
def test_a_role_of_millions_of_rights_is_refused_at_once(
    kube: Kube,
) -> None:
    kube.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tenant"}})
    many = [f"a{number}" for number in range(120)]
    kube.namespaced["tenant"] = [{"apiGroups": many, "resources": many, "verbs": many}]
    api = api_of(Settings(cluster=ClusterKind.KUBECONFIG), SystemClock())
    with pytest.raises(UsageError) as first:
        expect_read_only(api, may_write=False)
    tracemalloc.start()
    try:
        with pytest.raises(UsageError, match="and others"):
            expect_read_only(api, may_write=False)
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()
    assert "a0 a0.a0 in the namespace tenant" in first.value.message
    assert len(first.value.message) < 10_000


def test_rights_that_only_read_are_accepted(kube: Kube, capsys: pytest.CaptureFixture[str]) -> None:
    """The standard role ``view``, metrics, URLs, and what every account of EKS once had."""
    kube.rules = [
        *(kube.rules or ()),
        {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": ["metrics.k8s.io"], "resources": ["nodes", "pods"], "verbs": ["get", "list"]},
        {"nonResourceURLs": ["/metrics", "/metrics/cadvisor"], "verbs": ["get", "head"]},
        {"apiGroups": ["policy"], "resources": ["podsecuritypolicies"], "verbs": ["use"],
         "resourceNames": ["eks.privileged"]},
    ]  # fmt: skip
    kube.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}})
    stop_after(kube, 2)
    assert main(WATCH) == 0, capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name in ROLES if "watch" in name])
@pytest.mark.parametrize("lists_rules", [True, False])
def test_the_roles_for_watch_are_accepted(
    name: str, lists_rules: bool, kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.rules = list(rules_of(ROLES[name]))
    kube.lists_rules = lists_rules
    stop_after(kube, 2)
    assert main(WATCH) == 0, capsys.readouterr().err


@pytest.mark.parametrize("role", [overlays_role("any"), cluster_role("any", writes=True)])
def test_the_roles_of_commands_that_act_are_refused(
    role: dict[str, Any], kube: Kube, capsys: pytest.CaptureFixture[str]
) -> None:
    kube.rules = [*(kube.rules or ()), *role["rules"]]
    assert_refused(kube, capsys, "create ")
