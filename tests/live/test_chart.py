"""What the chart and the Kustomize base render is accepted by a real API server."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from reconciler.adapters.kubernetes.api import ApiError
from reconciler.source.plainyaml import load_all
from tests.deploy.test_chart import EVERYTHING, REPO, rendered
from tests.live.plane import ControlPlane

pytestmark = pytest.mark.live

ROOT = Path(__file__).parents[2]
NAMESPACE = "reconciler"
PLACES = {
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ConfigMap": f"/api/v1/namespaces/{NAMESPACE}/configmaps",
    "CronJob": f"/apis/batch/v1/namespaces/{NAMESPACE}/cronjobs",
    "Deployment": f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments",
    "Job": f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs",
    "Namespace": "/api/v1/namespaces",
    "NetworkPolicy": f"/apis/networking.k8s.io/v1/namespaces/{NAMESPACE}/networkpolicies",
    "PersistentVolumeClaim": f"/api/v1/namespaces/{NAMESPACE}/persistentvolumeclaims",
    "PodDisruptionBudget": f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets",
    "Role": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles",
    "RoleBinding": f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/rolebindings",
    "Service": f"/api/v1/namespaces/{NAMESPACE}/services",
    "ServiceAccount": f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts",
    "StatefulSet": f"/apis/apps/v1/namespaces/{NAMESPACE}/statefulsets",
}
OF_THE_PROMETHEUS_OPERATOR = {"PrometheusRule", "ServiceMonitor"}


@pytest.fixture
def namespace(plane: ControlPlane) -> str:
    plane.provide("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    return NAMESPACE


def accepted(plane: ControlPlane, body: dict[str, Any]) -> None:
    """Let the server validate an object strictly, without keeping it."""
    query = "?dryRun=All&fieldValidation=Strict"
    plane.create(f"{PLACES[body['kind']]}{query}", body)


@pytest.mark.usefixtures("namespace")
def test_the_kustomize_base_is_accepted(plane: ControlPlane) -> None:
    objects: list[Any] = load_all((ROOT / "deploy/kustomize/base/reconciler.yaml").read_bytes())
    assert {"ClusterRole", "Deployment", "PodDisruptionBudget"} <= {o["kind"] for o in objects}
    for body in objects:
        accepted(plane, body)


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
@pytest.mark.usefixtures("namespace")
@pytest.mark.parametrize("values", [REPO, EVERYTHING], ids=["volume", "everything"])
def test_the_rendered_chart_is_accepted(plane: ControlPlane, values: tuple[str, ...]) -> None:
    objects = rendered(*values).values()
    assert any(body["kind"] in {"Deployment", "StatefulSet"} for body in objects)
    for body in objects:
        if body["kind"] not in OF_THE_PROMETHEUS_OPERATOR:
            accepted(plane, body)


@pytest.mark.usefixtures("namespace")
def test_an_unknown_field_is_rejected(plane: ControlPlane) -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "datas": {}}
    with pytest.raises(ApiError, match="datas"):
        accepted(plane, body)
