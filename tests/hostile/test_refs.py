"""Attacks by whoever may push a tag or a branch, but not to the one that is applied."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.adapters.git.clone import remote_head, with_clone
from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from tests.cli.sourcefolders import CLASS, POOL
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, git, init

Capture = pytest.CaptureFixture[str]
NAMES = ("refs/tags/origin/main", "refs/heads/origin/main", "refs/tags/refs/remotes/origin/main")


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a pull request that changes a NodePool; its base is ``origin/main``."""
    folder = tmp_path / "fleet"
    folder.mkdir()
    init(folder)
    (folder / "reconciler.yaml").write_text(
        "apiVersion: reconciler/v1\nkind: Configuration\nfleet: shop\n"
    )
    (folder / "pool.yaml").write_text(POOL)
    (folder / "class.yaml").write_text(CLASS)
    commit_all(folder)
    git(folder, "update-ref", "refs/remotes/origin/main", "HEAD")
    (folder / "pool.yaml").write_text(POOL.replace("m7i", "m7a"))
    commit_all(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    return folder


@attack(Threat.HIDDEN, "a tag or a branch with the name of the base, so that nothing has changed")
@pytest.mark.parametrize("name", NAMES)
def test_the_base_of_a_job_is_the_branch_and_no_tag_of_its_name(
    name: str, fleet: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(fleet, "update-ref", name, "HEAD")
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    assert main(["ci", "--out", str(tmp_path / "out")]) == 0
    assert "1 of 1 fleet planned, compared with origin/main\n" in capsys.readouterr().out
    git(fleet, "update-ref", "-d", "refs/remotes/origin/main")
    assert main(["ci", "--out", str(tmp_path / "out")]) == 1
    assert "not found" in capsys.readouterr().err


@attack(Threat.HIDDEN, "a tag with the name of a branch that a command line names")
def test_a_name_of_several_refs_is_refused(fleet: Path, capsys: Capture) -> None:
    (fleet / "snapshot.txt").write_text(json.dumps({"kind": "List", "items": []}))
    commit_all(fleet)
    git(fleet, "update-ref", NAMES[0], "HEAD")
    for words in (
        ["plan", ".", "--base", "origin/main"],
        ["plan", ".", "--base", "origin/main~0"],
        ["plan", ".", "--ref", "origin/main"],
        ["plan", ".", "--snapshot", "git:origin/main:snapshot.txt"],
    ):
        assert main(words) == 1, words
        err = capsys.readouterr().err
        assert '"origin/main" is the name of several refs' in err
        assert "pass refs/remotes/origin/main or refs/tags/origin/main" in err
    git(fleet, "update-ref", "refs/remotes/origin/main", "HEAD")
    assert main(["plan", ".", "--base", "origin/main"]) in (0, 2)


@attack(Threat.HIDDEN, "a tag with the name of the branch that a daemon applies")
@pytest.mark.parametrize("is_annotated", [True, False])
def test_a_tag_does_not_replace_the_branch_of_a_daemon(
    is_annotated: bool, fleet: Path, tmp_path: Path
) -> None:
    branch = git(fleet, "symbolic-ref", "--short", "HEAD").strip()
    words = ["-a", "-m", "x"] if is_annotated else []
    git(fleet, "tag", *words, branch, "HEAD~1")
    url, cache = str(fleet), str(tmp_path / "cache")
    for read in (
        lambda: remote_head(url, branch),
        lambda: with_clone(url, branch, cache, lambda _, commit: commit),
    ):
        with pytest.raises(UsageError, match="is the name of several refs"):
            read()
    head = git(fleet, "rev-parse", "HEAD").strip()
    for ref in (f"refs/heads/{branch}", head):
        assert remote_head(url, ref) == head
        assert with_clone(url, ref, cache, lambda _, commit: commit) == head


@attack(Threat.HIDDEN, "more fleets than a summary of GitHub has room for, which then shows none")
def test_the_summary_of_a_job_has_a_limit(
    fleet: Path, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    for name in ("b", "c"):
        (fleet / name).mkdir()
        for file in ("reconciler.yaml", "pool.yaml", "class.yaml"):
            text = (fleet / file).read_text().replace("shop", name)
            (fleet / name / file).write_text(text)
    commit_all(fleet)
    monkeypatch.setattr("reconciler.cli.commands.environment.ci.SUMMARY_BYTES_MAX", 3_000)
    words = ["ci", "--base", "refs/remotes/origin/main", "--out", str(tmp_path / "out")]
    assert main([*words, "b", "c"]) == 0
    text = summary.read_text()
    assert len(text) < 3_100
    assert "1 more fleet: the folder of the plans has all of them." in text
