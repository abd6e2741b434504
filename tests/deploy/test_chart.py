"""The Helm chart: what it renders, and that its alerts and diagrams use metrics that exist.

Rendering needs ``helm``, and checking the alerts ``promtool``, on the PATH or built by
``python -m tests.live.programs``; the tests that need them are skipped where they are missing.
"""

from __future__ import annotations

import argparse
import json
import re
import runpy
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from reconciler.adapters.kubernetes.kinds import (
    cluster_role,
    overlays_role,
    pod_costs_role,
    snapshot_role,
    watch_role,
)
from reconciler.cli.commands.acting import overlays
from reconciler.cli.commands.environment import snapshot
from reconciler.cli.commands.recorded import watch
from reconciler.ports.progress import EventKind
from tests.engine.faults import three_nodes
from tests.web.test_metrics import Daemon

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm/reconciler"
SNAPSHOT = ("--set", "snapshot.enabled=true", "--set", "snapshot.destination=s3://fleet/prod.json")
REPO = ("--set", "fleet.repo=https://git.example.com/fleet.git")
DATABASE = ("--set", "database.url=postgresql+psycopg://reconciler@db:5432/reconciler")
EVERYTHING = (
    *REPO,
    *DATABASE,
    *("--set", "database.passwordSecret.name=db"),
    *("--set", "git.sshSecret=ssh", "--set", "git.httpsSecret=https"),
    *("--set", "networkPolicy.enabled=true", "--set", "serviceMonitor.enabled=true"),
    *("--set", "prometheusRule.enabled=true", "--set", "grafanaDashboard.enabled=true"),
    *("--set", "config.interruptionQueue=karpenter"),
    *SNAPSHOT,
    *("--set", "snapshot.keySecret.name=anonymize"),
)
needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not installed")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed"
)


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["helm", *words], capture_output=True, text=True, check=False)


def rendered(*more: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what the chart renders, by kind and name."""
    done = helm(
        "template",
        "shop",
        str(CHART),
        "--kube-version",
        "1.34.0",
        "--namespace",
        "reconciler",
        *more,
    )
    assert done.returncode == 0, done.stderr
    objects = [o for o in yaml.safe_load_all(done.stdout) if o]
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


def alerts() -> list[dict[str, Any]]:
    """Return the alerts, with Helm's expressions left as text."""
    text = (CHART / "files/alerts.yaml").read_text(encoding="utf-8")
    rules: list[dict[str, Any]] = yaml.safe_load(text)["groups"][0]["rules"]
    return rules


def queries() -> Iterator[str]:
    """Yield every PromQL expression of the alerts and the dashboard."""
    for alert in alerts():
        yield alert["expr"]
    dashboard = json.loads((CHART / "files/dashboard.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def test_the_generated_files_are_up_to_date() -> None:
    files: Mapping[Path, str] = runpy.run_path(str(ROOT / "deploy/generate.py"))["files"]()
    assert len(files) == 6
    for path, content in files.items():
        assert path.read_text(encoding="utf-8") == content, path


def test_alerts_and_diagrams_use_metrics_and_labels_that_exist() -> None:
    daemon = Daemon(three_nodes())
    daemon.passes(1)
    known = set(re.findall(r"^# TYPE (\S+)", daemon.metrics.text().decode(), re.MULTILINE))
    series = known | {f"{name}_bucket" for name in known}
    used = {
        name for query in queries() for name in re.findall(r"(?:reconciler|karpenter)_\w+", query)
    }
    assert len(used) > 15
    assert used <= series
    kinds = {kind for query in queries() for kind in re.findall(r'kind="(\w+)"', query)}
    assert kinds <= set(EventKind)


def test_every_alert_has_a_page_in_the_docs() -> None:
    headings = re.findall(
        r"^#+ (Reconciler\w+)$",
        (ROOT / "docs/alerts.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    names = [alert["alert"] for alert in alerts()]
    assert len(names) > 10
    assert sorted(headings) == sorted(names)
    for alert in alerts():
        assert alert["annotations"]["runbook_url"].endswith(f"#{alert['alert'].lower()}")


def test_the_default_values_fit_their_schema() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    Draft7Validator.check_schema(schema)
    Draft7Validator(schema).validate(values)
    assert set(schema["properties"]) == {*values, "global"}


@needs_helm
def test_the_chart_passes_lint() -> None:
    done = helm("lint", "--strict", str(CHART), *EVERYTHING)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_helm
def test_two_replicas_share_a_database() -> None:
    objects = rendered(*EVERYTHING)
    deployment = objects["Deployment", "shop-reconciler"]["spec"]
    assert deployment["replicas"] == 2
    assert deployment["strategy"]["rollingUpdate"] == {"maxUnavailable": 1, "maxSurge": 0}
    assert ("PodDisruptionBudget", "shop-reconciler") in objects
    assert ("PersistentVolumeClaim", "shop-reconciler") not in objects
    pod = deployment["template"]["spec"]
    (container,) = pod["containers"]
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["RECONCILER_STATE"]["value"].startswith("postgresql+psycopg://")
    assert env["PGPASSWORD"]["valueFrom"]["secretKeyRef"] == {"name": "db", "key": "password"}
    assert "identity" in env["GIT_SSH_COMMAND"]["value"]
    assert container["args"][0] == "run"
    assert "--listen=*:8080" in container["args"]
    config = objects["ConfigMap", "shop-reconciler"]["data"]
    assert yaml.safe_load(config["reconciler.yaml"]) == {"interruptionQueue": "karpenter"}


@needs_helm
def test_without_a_database_one_replica_has_a_persistent_volume() -> None:
    objects = rendered(*REPO)
    deployment = objects["Deployment", "shop-reconciler"]["spec"]
    assert deployment["replicas"] == 1
    assert deployment["strategy"] == {"type": "Recreate"}
    claim = objects["PersistentVolumeClaim", "shop-reconciler"]
    assert claim["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert not [kind for kind, _ in objects if kind == "PodDisruptionBudget"]


@needs_helm
def test_the_pod_is_locked_down_and_probed() -> None:
    pod = rendered(*EVERYTHING)["Deployment", "shop-reconciler"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for probe in ("livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == "probes"
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {"http": 8080, "probes": 8081}
    assert "--listen-probes=*:8081" in container["args"]
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert container["resources"]["requests"]


@needs_helm
def test_the_role_has_exactly_the_permissions_that_the_code_needs() -> None:
    objects = rendered(*REPO)
    role = objects["ClusterRole", "shop-reconciler"]
    assert role["rules"] == cluster_role("x", writes=True)["rules"]
    more = rendered(*REPO, "--set", "rbac.podDeletionCosts=true")["ClusterRole", "shop-reconciler"]
    assert more["rules"] == [*role["rules"], *pod_costs_role("x")["rules"]]
    (subject,) = objects["ClusterRoleBinding", "shop-reconciler"]["subjects"]
    account = objects["ServiceAccount", "shop-reconciler"]["metadata"]
    assert (subject["name"], subject["namespace"]) == (account["name"], account["namespace"])


@needs_helm
def test_a_read_only_account_captures_a_snapshot_on_a_schedule() -> None:
    assert not [kind for kind, _ in rendered(*REPO) if kind == "CronJob"]
    objects = rendered(*EVERYTHING)
    role = objects["ClusterRole", "shop-reconciler-snapshot"]
    assert role["rules"] == snapshot_role("x")["rules"]
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == {"list"}
    (subject,) = objects["ClusterRoleBinding", "shop-reconciler-snapshot"]["subjects"]
    job = objects["CronJob", "shop-reconciler-snapshot"]["spec"]
    assert (job["schedule"], job["concurrencyPolicy"]) == ("*/30 * * * *", "Forbid")
    pod = job["jobTemplate"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == subject["name"]
    assert ("ServiceAccount", subject["name"]) in objects
    (container,) = pod["containers"]
    env = {entry["name"]: entry for entry in container["env"]}
    assert env["RECONCILER_ANONYMIZE_KEY"]["valueFrom"]["secretKeyRef"]["name"] == "anonymize"
    assert env["RECONCILER_STATE"]["value"].startswith("postgresql+psycopg://")
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}


@needs_helm
@pytest.mark.parametrize(
    ("more", "records", "anonymous"),
    [
        (DATABASE, True, True),
        ((), False, True),
        (("--set", "snapshot.anonymize=false"), False, False),
    ],
)
def test_the_command_line_of_the_snapshot_is_valid(
    more: tuple[str, ...], *, records: bool, anonymous: bool
) -> None:
    objects = rendered(*REPO, *SNAPSHOT, *more, "--set", "fleet.path=prod")
    job = objects["CronJob", "shop-reconciler-snapshot"]["spec"]["jobTemplate"]["spec"]
    (container,) = job["template"]["spec"]["containers"]
    parser = argparse.ArgumentParser()
    snapshot.add_arguments(parser)
    request = snapshot.request_of(parser.parse_args(container["args"][1:]))
    assert container["args"][0] == "snapshot"
    assert (request.no_records, request.anonymize) == (not records, anonymous)
    assert request.out == "s3://fleet/prod.json"
    assert (request.fleet.repo, request.fleet.below) == (REPO[1].partition("=")[2], "prod")


@needs_helm
def test_next_to_karpenter_only_overlays_are_written() -> None:
    objects = rendered(*EVERYTHING, "--set", "mode=overlays,snapshot.enabled=false,interval=5m")
    kinds = ["ClusterRole", "ClusterRoleBinding", "ConfigMap", "Deployment", "NetworkPolicy"]
    assert sorted(objects) == [(k, "shop-reconciler") for k in (*kinds, "ServiceAccount")]
    assert objects["ClusterRole", "shop-reconciler"]["rules"] == overlays_role("x")["rules"]
    assert "ingress" not in objects["NetworkPolicy", "shop-reconciler"]["spec"]
    deployment = objects["Deployment", "shop-reconciler"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    (container,) = deployment["template"]["spec"]["containers"]
    assert "livenessProbe" not in container
    assert "RECONCILER_STATE" not in {entry["name"] for entry in container["env"]}
    parser = argparse.ArgumentParser()
    overlays.add_arguments(parser)
    assert container["args"][0] == "overlays"
    request = overlays.request_of(parser.parse_args(container["args"][1:]))
    assert (request.applies, request.interval) == (True, timedelta(minutes=5))
    assert request.fleet.repo == REPO[1].partition("=")[2]


@needs_helm
@pytest.mark.parametrize("has_files", [True, False])
def test_beside_karpenter_watch_only_reads_and_keeps_its_record(has_files: bool) -> None:
    files = EVERYTHING if has_files else ()
    objects = rendered(*files, "--set", "mode=watch,snapshot.enabled=false,database.url=")
    role = objects["ClusterRole", "shop-reconciler"]["rules"]
    assert role == watch_role("x")["rules"]
    assert {verb for rule in role for verb in rule["verbs"]} == {"list", "watch"}
    deployment = objects["Deployment", "shop-reconciler"]["spec"]
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    pod = deployment["template"]["spec"]
    assert any("persistentVolumeClaim" in volume for volume in pod["volumes"])
    (container,) = pod["containers"]
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "probes"}
    assert [port["name"] for port in container["ports"]] == ["http", "probes"]
    parser = argparse.ArgumentParser()
    watch.add_subcommand(parser, "start")
    assert container["args"][:2] == ["watch", "start"]
    words = parser.parse_args(container["args"][2:], argparse.Namespace(subcommand="start"))
    request = watch.request_of(words)
    assert (request.serving.listen, request.serving.probes) == ("*:8080", "*:8081")
    assert not request.may_write
    assert ("Service", "shop-reconciler") in objects


@needs_helm
def test_iam_roles_for_service_accounts_are_an_annotation() -> None:
    role = "arn:aws:iam::1:role/reconciler"
    name = r"serviceAccount.annotations.eks\.amazonaws\.com/role-arn"
    account = rendered(*REPO, "--set", f"{name}={role}")["ServiceAccount", "shop-reconciler"]
    assert account["metadata"]["annotations"] == {"eks.amazonaws.com/role-arn": role}


@needs_helm
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "fleet.repo is required"),
        ((*REPO, "--set", "replicas=0"), "replicas"),
        ((*REPO, "--set", "databse.url=x"), "databse"),
        ((*REPO, "--set", "database.url=postgresql://u:secret@db/x"), "database"),
        ((*REPO, "--set", "logFormat=xml"), "logFormat"),
        ((*REPO, "--set", "mode=plan"), "mode"),
        ((*REPO, "--set", "image.digest=sha256:1"), "digest"),
        ((*REPO, "--set", "snapshot.enabled=true"), "snapshot.destination is required"),
        ((*REPO, *SNAPSHOT, "--set", "snapshot.destination=https://x.example/a"), "destination"),
        ((*REPO, *SNAPSHOT, "--set", "snapshot.destination=git:-f:a"), "destination"),
        ((*REPO, *SNAPSHOT, "--set", "snapshot.schedule=hourly"), "schedule"),
    ],
)
def test_invalid_values_are_rejected_by_name(words: tuple[str, ...], message: str) -> None:
    done = helm("template", "shop", str(CHART), "--kube-version", "1.34.0", *words)
    assert done.returncode != 0
    assert message in done.stderr


@needs_helm
@needs_promtool
def test_prometheus_accepts_the_alerts(tmp_path: Path) -> None:
    rule = rendered(*EVERYTHING)["PrometheusRule", "shop-reconciler"]
    path = tmp_path / "alerts.yaml"
    path.write_text(yaml.safe_dump(rule["spec"]), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint=all", "--lint-fatal", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {
        row["alert"]: row["annotations"]["summary"] for row in rule["spec"]["groups"][0]["rules"]
    }
    assert shown["ReconcilerNearLimit"].startswith("NodePool {{ $labels.nodepool }} uses")


@needs_helm
def test_the_kustomize_base_is_what_the_chart_renders() -> None:
    base = runpy.run_path(str(ROOT / "deploy/generate.py"))["kustomize_base"]()
    for path, content in base.items():
        assert path.read_text(encoding="utf-8") == content, "run python deploy/generate.py"


@pytest.mark.skipif(shutil.which("kustomize") is None, reason="kustomize is not installed")
def test_kustomize_builds_the_overlay() -> None:
    command = ["kustomize", "build", str(ROOT / "deploy/kustomize/example")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--repo=https://git.shop.example/platform.git" in done.stdout
    assert "git.example.com" not in done.stdout
    assert "PGPASSWORD" in done.stdout, "what the overlay does not name stays"


def test_the_kustomize_overlay_replaces_the_placeholders_of_the_base() -> None:
    """Kustomize is not needed: the patch names an object and a list of the base."""
    folder = ROOT / "deploy/kustomize"
    base = list(yaml.safe_load_all((folder / "base/reconciler.yaml").read_text("utf-8")))
    (deployment,) = [o for o in base if o["kind"] == "Deployment"]
    overlay = yaml.safe_load((folder / "example/kustomization.yaml").read_text("utf-8"))
    (target,) = [p for p in overlay["patches"] if "Deployment" in p["patch"]]
    patch = yaml.safe_load(target["patch"])
    assert patch["metadata"]["name"] == deployment["metadata"]["name"]
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    (known,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["name"] == known["name"]
    flags = [arg.split("=")[0] for arg in container["args"]]
    assert flags == [arg.split("=")[0] for arg in known["args"]]
    variables = {entry["name"] for entry in known["env"]}
    assert {entry["name"] for entry in container["env"]} <= variables
    assert "git.example.com" not in str(patch)
