"""The chart's CronJob captures a real cluster with the rights of its ServiceAccount."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from reconciler.cli.main import main
from reconciler.source.plainyaml import dump
from tests.deploy.test_chart import SNAPSHOT, rendered
from tests.live.conftest import Live
from tests.live.plane import ControlPlane, Object, eventually, kubeconfig
from tests.live.test_chart import PLACES

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed"),
]

SPACE = "snapshots"
DESTINATION = "git:snapshots:shop.json"
NAME = "shop-reconciler-snapshot"


def git(folder: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    ).stdout


def place(kind: str) -> str:
    return PLACES[kind].replace("/namespaces/reconciler/", f"/namespaces/{SPACE}/")


@pytest.fixture
def repository(live: Live, tmp_path: Path) -> Path:
    """Return the repository of the fleet, as a server has it."""
    bare = tmp_path / "platform.git"
    folder = live.folder
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    git(folder, "init", "--quiet", "--initial-branch", "main")
    git(folder, "add", ".")
    git(folder, *identity, "commit", "--quiet", "--message", "the fleet")
    git(folder, "clone", "--quiet", "--bare", ".", str(bare))
    return bare


@pytest.fixture
def chart(plane: ControlPlane, repository: Path) -> Iterator[dict[str, Object]]:
    """Install what the chart renders for snapshots where only restricted pods are admitted."""
    objects = rendered(
        *("--set", f"fleet.repo={repository}", "--namespace", SPACE, *SNAPSHOT),
        *("--set", f"snapshot.destination={DESTINATION}"),
    )
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.provide("/api/v1/namespaces", {"metadata": {"name": SPACE, "labels": label}})
    mine = {kind: body for (kind, name), body in objects.items() if name == NAME}
    for kind in ("ServiceAccount", "ClusterRole", "ClusterRoleBinding", "CronJob"):
        plane.create(place(kind), mine[kind])
    yield mine | {"ConfigMap": objects["ConfigMap", "shop-reconciler"]}
    plane.delete(f"{place('Job')}/now", propagationPolicy="Foreground")
    for kind in ("CronJob", "ServiceAccount", "ClusterRole", "ClusterRoleBinding"):
        plane.delete(f"{place(kind)}/{NAME}")


def run_now(plane: ControlPlane) -> Object:
    """Make a Job of the CronJob, as ``kubectl create job --from`` does, and return its Pod."""
    template = plane.get(f"{place('CronJob')}/{NAME}")["spec"]["jobTemplate"]
    plane.create(place("Job"), {"metadata": {"name": "now"}, "spec": template["spec"]})
    pods = f"/api/v1/namespaces/{SPACE}/pods"
    eventually("the Pod of the Job", lambda: plane.list(pods))
    (pod,) = plane.list(pods).values()
    return pod


def token_of(plane: ControlPlane, account: str) -> str:
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer: dict[str, Any] = json.loads(plane.api.call("POST", path, body=body))
    token: str = answer["status"]["token"]
    return token


def test_the_cron_job_pushes_a_snapshot_that_a_plan_reads(
    live: Live,
    repository: Path,
    chart: dict[str, Object],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What a kubelet does is done by hand: the token, the mounted settings, the program."""
    plane = live.plane
    with live.running():
        live.await_("two nodes", lambda: live.settled(2))
    pod = run_now(plane)
    (container,) = pod["spec"]["containers"]
    reached = tmp_path / "snapshot.kubeconfig"
    account = pod["spec"]["serviceAccountName"]
    reached.write_text(kubeconfig(plane.url, plane.authority, token_of(plane, account)))
    settings = YAML(typ="safe").load(chart["ConfigMap"]["data"]["reconciler.yaml"]) or {}
    settings["kubernetes"] = {"kubeconfig": str(reached)}
    mounted = tmp_path / "mounted.yaml"
    mounted.write_text(dump(settings))
    words = [w for w in container["args"] if not w.startswith("--config=")]
    done = subprocess.run(
        [sys.executable, "-m", "reconciler", *words, f"--config={mounted}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pushed = json.loads(git(repository, "show", "snapshots:shop.json"))
    kinds = [item["kind"] for item in pushed["items"]]
    assert (kinds.count("Node"), kinds.count("Deployment")) == (2, 1)
    names = [item["metadata"]["name"] for item in pushed["items"] if item["kind"] == "Pod"]
    assert names, "the pods of the Deployment"
    assert not any(name.startswith("web-") for name in names), "names are hashed"
    git(live.folder, "fetch", "--quiet", str(repository), "snapshots:snapshots")
    read = ["plan", str(live.folder), "--snapshot", DESTINATION, "-o", "json"]
    assert main([*read, "--catalog", str(tmp_path / "types.json")]) in {0, 2}
    plan = json.loads(capsys.readouterr().out)
    assert plan["cost"]["byNodePool"]["web"]["nodesBefore"] == 2, plan["cost"]
    assert [a for a in plan["actions"] if a["kind"] == "provision"] == []


def test_the_job_is_read_only(live: Live, chart: dict[str, Object]) -> None:
    plane = live.plane
    account = chart["ServiceAccount"]["metadata"]["name"]
    user = f"system:serviceaccount:{SPACE}:{account}"
    for verb, resource, expected in [
        ("list", "pods", True),
        ("list", "nodes", True),
        ("delete", "pods", False),
        ("patch", "nodes", False),
        ("get", "secrets", False),
    ]:
        requested = {"verb": verb, "resource": resource, "namespace": "", "version": "v1"}
        review = {"spec": {"user": user, "resourceAttributes": requested}}
        answer = plane.api.call(
            "POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", body=review
        )
        assert json.loads(answer)["status"]["allowed"] is expected, (verb, resource)
