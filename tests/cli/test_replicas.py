"""One cluster has one fleet and one engine, however its repository is checked out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from moto import mock_aws

from reconciler.adapters.database.state import open_state
from reconciler.cli.main import main
from reconciler.daemon import daemon
from reconciler.engine.world import World
from reconciler.model.errors import StateError
from reconciler.model.ownership import ClusterId
from reconciler.ports.progress import Progress
from tests.cli.commandlines import request_of
from tests.contracts.records import a_claim
from tests.engine.world import a_node_class, a_pool, catalog_file
from tests.postgres import a_database

ACCOUNT = "123456789012"
"""That of every caller of moto."""


@pytest.fixture
def checkouts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Path]]:
    """Yield a repository that is checked out twice, with an EC2 that counts as real."""
    for name in ("AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_DEFAULT_REGION", "RECONCILER_STATE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    (tmp_path / "catalog.json").write_bytes(catalog_file())
    config = {"apiVersion": "reconciler/v1", "kind": "Configuration", "cluster": "embedded"}
    folders = tmp_path / "web", tmp_path / "web-copy"
    for folder in folders:
        folder.mkdir()
        (folder / "reconciler.yaml").write_text(yaml.safe_dump(config | {"clusterName": "shop"}))
        (folder / "fleet.yaml").write_text(yaml.safe_dump_all([a_node_class(), a_pool("web")]))
    with mock_aws():
        yield folders


def command(name: str, folder: Path, *words: str) -> list[str]:
    return [*name.split(), str(folder), "--catalog", str(folder.parent / "catalog.json"), *words]


@pytest.mark.parametrize("name", ["apply --auto-approve", "run --no-wait", "state adopt --yes"])
def test_two_checkouts_with_separate_states_share_one_engine_per_cluster(
    checkouts: tuple[Path, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = checkouts
    locks = first.parent / "home" / "reconciler" / "locks"
    with open_state(str(first / ".reconciler"), "web", locks=locks) as state:
        state.lease.acquire(ClusterId(ACCOUNT, "us-east-1", "shop"))
        assert main(command(name, second)) == 1
    output = capsys.readouterr().err
    assert "for fleet web is using cluster shop in us-east-1 of account 123456789012" in output
    assert len(output.splitlines()) == 1


@pytest.mark.parametrize("name", ["apply --auto-approve", "run", "state adopt --yes"])
def test_two_checkouts_with_one_database_are_one_fleet_or_rejected(
    checkouts: tuple[Path, Path], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url = a_database()
    with open_state(url, "web") as state:
        state.lease.acquire(ClusterId(ACCOUNT, "us-east-1", "shop"))
        state.store.put_node_claims([a_claim("a")])
    assert main(command(name, checkouts[1], "--state", url)) == 1
    output = capsys.readouterr().err
    assert "fleet web has 1 NodeClaim in cluster shop" in output
    assert "--set fleet=web" in output


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "name", ["apply --auto-approve", "state import", "state prune", "state adopt --yes"]
)
def test_writing_commands_are_rejected_while_an_engine_runs_on_a_server(
    checkouts: tuple[Path, Path],
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    url, (folder, _) = a_database(), checkouts
    with open_state(url, "web") as state:
        state.lease.acquire()
        state.store.put_node_claims([a_claim("a")])
        assert main(["state", "export", "-", str(folder), "--state", url]) == 0
        (tmp_path / "export.jsonl").write_text(capsys.readouterr().out)
        words = command(name, folder, "--state", url)
        if name in ("state import", "state prune"):
            file = [str(tmp_path / "export.jsonl")] if name == "state import" else []
            words = [*name.split(), *file, str(folder), "--state", url]
        assert main(words) == 1
        output = capsys.readouterr().err
        assert "is running for fleet web" in output
        assert main(["status", str(folder), "--state", url]) == 0
        assert re.search(r"Engine: +process \d+ on ", capsys.readouterr().out)
        state.lease.confirm()


def test_resume_works_while_an_engine_runs(checkouts: tuple[Path, Path]) -> None:
    url, (folder, _) = a_database(), checkouts
    with open_state(url, "web") as state:
        state.lease.acquire()
        state.store.put_node_claims([a_claim("a")])
        assert main(["resume", str(folder), "--state", url]) == 0
        state.store.put_node_claims([a_claim("b")])


class EventRecorder:
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def notify(self, progress: Progress) -> None:
        self.kinds.append(progress.kind)


def test_a_daemon_that_lost_its_lease_restarts(
    checkouts: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server is away for a while, too: that ends a daemon only when it begins."""
    from reconciler.assembly import standby
    from reconciler.engine import loop

    monkeypatch.setattr(daemon, "_RETRY_S", 0.0)
    monkeypatch.setattr(standby, "POLL_S", 0.0)
    recorder = EventRecorder()
    folder, _ = checkouts
    begun: list[str] = []

    def passes(world: World, *_: object, **__: object) -> None:
        begun.append("pass")
        if len(begun) == 1:
            (folder / ".reconciler" / "lock").unlink()
            with open_state(str(folder / ".reconciler"), "web") as other:
                other.lease.acquire()
            world.store.put_node_claims([a_claim("a")])
        if len(begun) == 2:
            raise StateError("the server is away")

    monkeypatch.setattr(loop, "run", passes)
    request = request_of(command("run", folder))
    daemon.FleetDaemon(request, recorder, lambda: len(begun) >= 3).run()
    assert begun == ["pass"] * 3
    assert [k for k in recorder.kinds if k in ("LeaseLost", "Retrying")] == [
        "LeaseLost",
        "Retrying",
    ]
