"""``reconciler check`` with an EC2 on a port: its results, and that it writes nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import botocore.endpoint
import jsonschema
import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.simulated.conditions import Fault
from reconciler.cli.main import main
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes
from reconciler_embedded.ec2 import EmbeddedEC2
from reconciler_embedded.server import serve

REPOSITORY = Path(__file__).resolve().parents[2]
WRITES = ("CreateTags", "TerminateInstances", "DeleteMessageBatch", "CreateInstanceProfile")


CPUS = {"m7i.large": 2, "m7i.xlarge": 4, "m7g.large": 2}


def catalog_file() -> str:
    """Three types in three zones, for fast plans."""

    def is_(key: str, value: str) -> dict[str, Any]:
        return {"key": key, "operator": "In", "values": [value]}

    rows = [
        {
            "name": name,
            "capacity": {"cpu": str(cpus), "memory": f"{cpus * 4}Gi", "pods": "30"},
            "overhead": {"cpu": "100m", "memory": "512Mi"},
            "requirements": [
                is_("kubernetes.io/arch", "arm64" if "g." in name else "amd64"),
                is_("kubernetes.io/os", "linux"),
                is_("node.kubernetes.io/instance-type", name),
                is_("karpenter.k8s.aws/instance-family", name.partition(".")[0]),
                is_("karpenter.k8s.aws/instance-category", "m"),
                is_("karpenter.k8s.aws/instance-generation", "7"),
                is_("karpenter.k8s.aws/instance-cpu", str(cpus)),
            ],
            "offerings": [
                {"zone": f"us-east-1{zone}", "capacityType": kind, "price": 0.05 * cpus * share}
                for zone in "abc"
                for kind, share in (("on-demand", 1.0), ("spot", 0.4))
            ],
        }
        for name, cpus in CPUS.items()
    ]
    return json.dumps(rows)


@dataclass
class Site:
    cloud: EmbeddedEC2
    folder: Path

    def check(self, *words: str) -> int:
        line = ["check", str(self.folder), "--set", "cluster=embedded", *words]
        line += ["--catalog", str(self.folder.parent / "types.json")]
        return main([*line, "--state", str(self.folder.parent / "state")])

    def rows(self, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, dict[str, str]]:
        capsys.readouterr()
        self.check("-o", "json", *words)
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        schema = json.loads((REPOSITORY / "schemas" / "check.v1.json").read_text())
        jsonschema.validate(found, schema)
        assert found["passed"] == all(c["verdict"] != "failed" for c in found["checks"])
        return {f"{c['kind']} {c['name']}".strip(): c for c in found["checks"]}


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedEC2, str, Path]]:
    """An account with the resources of the example's classes; its clients are slow to create."""
    folder = tmp_path_factory.mktemp("check") / "web"
    shutil.copytree(REPOSITORY / "examples" / "web", folder)
    (folder.parent / "types.json").write_text(catalog_file())
    cloud = EmbeddedEC2(SystemClock())
    files = [SourceFile(str(p.relative_to(folder)), p.read_bytes()) for p in folder.rglob("*.yaml")]
    fleet, _ = read_fleet(files)
    for node_class in node_classes(fleet):
        cloud.seed(node_class)
    with serve(cloud) as url:
        yield cloud, url, folder


@pytest.fixture
def site(account: tuple[EmbeddedEC2, str, Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    cloud, url, folder = account
    monkeypatch.setattr(botocore.endpoint, "time", SimpleNamespace(sleep=lambda _: None))
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    cloud.calls.clear()
    yield Site(cloud, folder)
    cloud.faults.clear()


def test_a_successful_check_exits_with_0(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    assert site.check() == 0
    output = capsys.readouterr().out
    assert "✓ credentials" in output
    assert "✓ permission ec2:CreateFleet" in output
    assert "✗" not in output
    assert output.splitlines()[-1].endswith("unknown.")


def test_it_writes_nothing(site: Site) -> None:
    site.check()
    made = {call.operation for call in site.cloud.calls if call.status == 200}
    assert not made & {*WRITES, "CreateFleet", "RunInstances", "CreateLaunchTemplate"}
    assert site.cloud.running_instances() == {}
    assert not (site.folder.parent / "state").exists()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "call", ["CreateFleet", "RunInstances", "CreateLaunchTemplate", "DescribeImages"]
)
def test_a_missing_permission_is_reported_with_advice(
    site: Site, capsys: pytest.CaptureFixture[str], call: str
) -> None:
    site.cloud.faults.add(call, Fault.DENIED, times=None)
    row = site.rows(capsys)[f"permission ec2:{call}"]
    assert row["verdict"] == "failed"
    assert "UnauthorizedOperation" in row["message"]
    assert "(request " in row["message"]
    assert f"allow ec2:{call}" in row["remedy"]
    assert site.check() == 1


def test_without_credentials_one_row_fails_and_the_others_are_skipped(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.cloud.faults.add("GetCallerIdentity", Fault.DENIED, times=None)
    rows = site.rows(capsys)
    assert [kind for kind, row in rows.items() if row["verdict"] == "failed"] == ["credentials"]
    for skipped in ("region us-east-1", "clock"):
        assert rows[skipped]["message"] == "skipped: the credentials are not verified"
    assert {call.operation for call in site.cloud.calls} == {"GetCallerIdentity"}


def test_planning_needs_fewer_permissions(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.cloud.faults.add("CreateFleet", Fault.DENIED, times=None)
    rows = site.rows(capsys, "--for", "plan")
    assert "permission ec2:CreateFleet" not in rows
    assert rows["permission ec2:DescribeInstances"]["verdict"] == "passed"
    assert site.check("--for", "plan") == 0


def test_addresses_and_quotas_are_compared_with_the_plan(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = site.rows(capsys)
    zones = {name: row for name, row in rows.items() if name.startswith("addresses ")}
    assert zones
    assert all(row["verdict"] == "passed" for row in zones.values())
    wanted = [int(row["message"].split(", ")[1].split()[0]) for row in zones.values()]
    launched = int(rows["plan"]["message"].split()[0])
    assert sum(wanted) == launched > 0
    assert any(name.startswith("quota ") for name in rows)


def test_full_subnets_are_found(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for by_id in site.cloud._account.backend.subnets.values():
        for subnet in by_id.values():
            monkeypatch.setattr(
                type(subnet), "available_ip_addresses", property(lambda _: "0"), raising=False
            )
            monkeypatch.setattr(subnet, "_available_ip_addresses", 0)
    site.cloud._account.forget_answers()
    rows = site.rows(capsys)
    full = [row for name, row in rows.items() if name.startswith("addresses ")]
    assert {row["verdict"] for row in full} == {"failed"}
    assert "add a subnet" in full[0]["remedy"]


def test_missing_resources_of_a_class_are_found(
    site: Site, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "web"
    shutil.copytree(site.folder, folder)
    shutil.copy(site.folder.parent / "types.json", tmp_path)
    changed = 0
    for path in folder.rglob("*.yaml"):
        text = path.read_text()
        changed += "karpenter.sh/discovery" in text
        path.write_text(text.replace("karpenter.sh/discovery: ", "karpenter.sh/discovery: no-"))
    assert changed
    rows = Site(site.cloud, folder).rows(capsys)
    failed = {name: row["message"] for name, row in rows.items() if row["verdict"] == "failed"}
    assert any("SubnetsNotFound" in message for message in failed.values())
    assert any("SecurityGroupsNotFound" in message for message in failed.values())


def test_a_missing_queue_is_found(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    row = site.rows(capsys, "--set", "interruptionQueue=nowhere")["queue nowhere"]
    assert row["verdict"] == "failed"
    assert "sqs:GetQueueUrl" in row["message"]
    sqs = site.cloud.connect("sqs", 1)
    sqs.create_queue(QueueName="words")
    rows = site.rows(capsys, "--set", "interruptionQueue=words")
    assert rows["queue words"]["verdict"] == "passed"
    assert rows["permission sqs:ReceiveMessage"]["verdict"] == "passed"


def test_a_wrong_clock_is_found(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    row = site.rows(capsys, "--now", "2031-01-01T00:00:00Z")["clock"]
    assert row["verdict"] in ("failed", "unknown")


def test_placeholders_of_the_policy_are_filled_in(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    assert site.check("--policy", "--set", "clusterName=prod") == 0
    policy = json.loads(capsys.readouterr().out)
    assert "kubernetes.io/cluster/prod" in json.dumps(policy)
    assert site.cloud.calls == []


@pytest.mark.parametrize("form", ["html", "markdown"])
def test_the_policy_is_shown_on_a_page(
    site: Site, capsys: pytest.CaptureFixture[str], form: str
) -> None:
    assert site.check("--policy", "-o", form) == 0
    page = capsys.readouterr().out
    assert page.startswith("<!doctype html>" if form == "html" else "### IAM policy\n\n```\n{")
    assert "ec2:CreateFleet" in page


def test_without_a_cluster_every_other_check_is_made(
    site: Site, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    rows = site.rows(capsys, "--set", "cluster=kubeconfig")
    assert rows["cluster"]["verdict"] == "failed"
    assert "cluster: no cluster" not in rows["cluster"]["message"]
    assert rows["karpenter"]["message"] == "skipped: the cluster is not reachable"
    assert rows["permission"]["remedy"] == "set clusterCIDR"
    assert rows["endpoint"]["verdict"] == "unknown"
    assert rows["desired"]["message"] == "found 1 EC2NodeClass"
