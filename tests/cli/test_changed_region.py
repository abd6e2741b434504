"""A fleet whose configuration or credentials lead elsewhere than to its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml
from moto import mock_aws

from reconciler.adapters.database.state import open_state
from reconciler.assembly.assembly import assemble_world
from reconciler.assembly.inputs.watching import NullNotifier
from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from reconciler.model.ownership import ClusterId
from tests.cli.commandlines import request_of
from tests.cli.test_replicas import ACCOUNT, command
from tests.contracts.records import a_claim
from tests.engine.world import a_node_class, a_pool, catalog_file

CONFIG: dict[str, Any] = {
    "apiVersion": "reconciler/v1",
    "kind": "Configuration",
    "cluster": "embedded",
    "clusterName": "shop",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a fleet in us-east-1, with an EC2 that counts as real."""
    for name in (
        "AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "RECONCILER_STATE",
    ):  # fmt: skip
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "catalog.json").write_bytes(catalog_file())
    fleet = tmp_path / "web"
    fleet.mkdir()
    (fleet / "fleet.yaml").write_text(yaml.safe_dump_all([a_node_class(), a_pool("web")]))
    set_region(fleet, "us-east-1")
    with mock_aws():
        yield fleet


def set_region(folder: Path, region: str) -> None:
    text = yaml.safe_dump(CONFIG | {"aws": {"region": region}})
    (folder / "reconciler.yaml").write_text(text)


def record_a_node(folder: Path, account: str = ACCOUNT) -> None:
    """Record one NodeClaim of us-east-1, as an engine that ran there has left it."""
    with open_state(str(folder / ".reconciler"), "web") as state:
        state.lease.acquire(ClusterId(account, "us-east-1", "shop"))
        state.store.put_node_claims([a_claim("web-1")])


def recorded(folder: Path) -> list[str]:
    with open_state(str(folder / ".reconciler"), "web", create=False) as state:
        return [claim.name for claim in state.store.node_claims()]


@pytest.mark.parametrize(
    "name", ["apply --auto-approve", "run", "run --no-wait", "state adopt --yes"]
)
def test_no_command_acts_in_a_region_without_the_nodes_of_the_fleet(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record_a_node(folder)
    set_region(folder, "eu-west-1")
    assert main(command(name, folder)) == 1
    message = capsys.readouterr().err
    assert "fleet web has 1 NodeClaim in us-east-1, and would act in eu-west-1" in message
    assert "set aws.region to us-east-1" in message
    assert recorded(folder) == ["web-1"]


@pytest.mark.parametrize("name", ["plan", "apply --auto-approve", "run --no-wait"])
def test_no_command_decides_with_credentials_of_another_account(
    folder: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would see none of the fleet's instances, and launch all of them again."""
    record_a_node(folder, account="999999999999")
    assert main(command(name, folder)) == 1
    shown = capsys.readouterr()
    assert "1 NodeClaim in account 999999999999, and would act in account 123456" in shown.err
    assert "use credentials of account 999999999999" in shown.err
    assert shown.out == ""
    assert recorded(folder) == ["web-1"]


def test_a_running_process_refuses_a_commit_that_changes_the_region(folder: Path) -> None:
    """A daemon reports that, and the last valid commit stays in effect."""
    request = request_of(command("run", folder)).fleet
    with assemble_world(request, NullNotifier()) as assembly:
        assert assembly.source.read().settings.region == "us-east-1"
        set_region(folder, "eu-west-1")
        with pytest.raises(UsageError) as refused:
            assembly.source.read()
        set_region(folder, "us-east-1")
        assert assembly.source.read().settings.region == "us-east-1"
    assert str(refused.value).startswith(
        "reconciler.yaml: aws.region is now eu-west-1, but this process acts for us-east-1;"
    )


def test_instances_of_the_old_region_keep_running(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A plan of the running fleet names its nodes, and does nothing."""
    record_a_node(folder)
    set_region(folder, "eu-west-1")
    ec2 = boto3.client("ec2", region_name="eu-west-1")
    main(command("plan", folder, "-o", "json"))
    found = yaml.safe_load(capsys.readouterr().out)
    (warning,) = [d for d in found["diagnostics"] if d["code"] == "region-changed"]
    assert "us-east-1" in warning["message"]
    assert found["actions"] == []
    assert ec2.describe_instances()["Reservations"] == []
