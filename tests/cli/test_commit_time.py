"""A change is planned for the time of its commit: its figures do not depend on the clock."""

from __future__ import annotations

import json
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli.main import main
from tests.repositories import commit_all, copy_small_web, git, init

ROOT = Path(__file__).resolve().parents[2]
COMMITTED = "2026-01-05T10:00:00Z"
POLICY = """\
policies:
  - name: nothing-launched
    expression: size(plan.actions) == 0
    message: something is launched
    exemptions:
      - owner: team-search
        expires: 2026-02-01
        reason: migration
"""


def commit_at(folder: Path, time: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("GIT_COMMITTER_DATE", time)
    return commit_all(folder)


@pytest.fixture
def fleet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A repository whose newest commit changes a fleet, made at ``COMMITTED``."""
    folder = tmp_path / "repository"
    copy_small_web(folder)
    init(folder)
    commit_at(folder, "2026-01-01T00:00:00Z", monkeypatch)
    git(folder, "tag", "base")
    change(folder)
    commit_at(folder, COMMITTED, monkeypatch)
    monkeypatch.chdir(folder)
    return folder


def change(folder: Path) -> None:
    pods = folder / "workloads" / "frontend.yaml"
    pods.write_text(pods.read_text().replace("replicas: 2", "replicas: 3"))


def plan(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["plan", ".", *words, "--set", "cluster=none", "-o", "json"]) in {0, 3}
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_time_of_a_change_is_that_of_its_commit(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = plan(capsys, "--base", "base")
    assert first["at"] == COMMITTED
    assert plan(capsys, "--base", "base") == first
    assert plan(capsys, "--base", "base", "--ref", "HEAD")["at"] == COMMITTED


def test_uncommitted_files_are_planned_for_the_time_of_their_commit(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pods = fleet / "workloads" / "frontend.yaml"
    pods.write_text(pods.read_text().replace("replicas: 3", "replicas: 4"))
    assert plan(capsys, "--base", "base")["at"] == COMMITTED


def test_a_time_that_the_user_states_takes_precedence(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = plan(capsys, "--base", "base", "--now", "2026-03-01T00:00:00Z")
    assert found["at"] == "2026-03-01T00:00:00Z"


@pytest.mark.parametrize("time", ["2099-01-01T00:00:00Z", "@0 +0000"])
def test_a_commit_whose_time_cannot_be_is_planned_for_the_present(
    fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], time: str
) -> None:
    (fleet / "note.txt").write_text("more\n")
    commit_at(fleet, time, monkeypatch)
    before = datetime.now(UTC)
    at = datetime.fromisoformat(plan(capsys, "--base", "base")["at"])
    assert before - timedelta(seconds=1) <= at <= datetime.now(UTC)


def test_a_plan_without_a_base_is_for_the_present(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    at = datetime.fromisoformat(plan(capsys)["at"])
    assert datetime.now(UTC) - at < timedelta(minutes=10)


def test_no_object_of_a_snapshot_is_newer_than_the_plan(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    created = "2026-01-07T12:00:00Z"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", "namespace": "b", "creationTimestamp": created},
        "spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "1"}}}]},
    }
    snapshot = tmp_path / "cluster.json"
    snapshot.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod]}))
    words = ("--base", "base", "--snapshot", str(snapshot))
    assert plan(capsys, *words)["at"] == created


def test_a_pull_request_is_planned_for_the_time_of_its_commit(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    digests = []
    for base in (["--base", "base"], []):
        out = tmp_path / f"plans{len(digests)}"
        assert main(["ci", ".", *base, "--out", str(out), "--set", "cluster=none"]) == 0
        (file,) = out.glob("*.json")
        digests.append(json.loads(file.read_text())["at"])
    assert digests == [COMMITTED] * 2


def test_the_author_of_a_commit_cannot_revive_an_expired_exemption(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    found = plan(capsys, "--base", "base", "--policy", str(policy))
    (judged,) = found["policies"]
    assert judged["exemption"]["expired"] is True
    assert found["at"] == COMMITTED
    words = ("--base", "base", "--policy", str(policy), "--now", COMMITTED)
    (judged,) = plan(capsys, *words)["policies"]
    assert judged["exemption"]["expired"] is False


@pytest.mark.parametrize(
    ("is_repository", "note"), [(True, "(no commits yet)"), (False, "(not in a git repository)")]
)
def test_a_folder_without_a_commit_is_named_as_such(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_repository: bool, note: str
) -> None:
    new = tmp_path / "new"
    shutil.copytree(fleet, new, ignore=shutil.ignore_patterns(".git"))
    if is_repository:
        init(new)
    for form in ("text", "markdown", "html"):
        assert main(["plan", str(new), "--set", "cluster=none", "-o", form]) == 0
        assert note in capsys.readouterr().out


def test_changed_workloads_beside_a_snapshot_name_the_plan_that_has_their_cost(
    fleet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot = tmp_path / "snapshot.json"
    snapshot.write_text(json.dumps({"kind": "List", "items": []}))
    capsys.readouterr()
    assert main(["plan", ".", "--base", "base", "--snapshot", str(snapshot)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "the workloads in the files request +0.5 cpu" in text
    words = text.rpartition("Next: reconciler ")[2].split()
    assert words == ["plan", ".", "--set", "cluster=none", "--base", "base"]
    assert main(words) == 0
    assert "Cost unknown" not in capsys.readouterr().out
