"""Destinations of a snapshot that would run a program, or overwrite the work of others."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from reconciler.adapters.git import publishing
from reconciler.adapters.git.publishing import Publication, publish
from reconciler.cli.main import main
from tests.cli.test_plan import CLASS, POOL
from tests.cli.test_snapshot import a_kubectl
from tests.cli.test_snapshot_destinations import names, publication, remote  # noqa: F401
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, git, init


@attack(Threat.SECRETS, "a destination of a snapshot with an unexpected scheme")
@pytest.mark.parametrize(
    "place",
    [
        *("https://evil.example/a", "http://evil.example/a", "ftp://evil.example/a", "S3://b/k"),
        *("file:///tmp/a", "ext::sh -c touch% ran", "ssh://evil.example/a", "git://evil.example/a"),
    ],
)
def test_an_unsupported_scheme_is_rejected_before_the_cluster_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    monkeypatch.chdir(tmp_path)
    kubectl = a_kubectl(tmp_path, "touch asked")
    assert main(["snapshot", "--kubectl", kubectl, "--out", place]) == 1
    assert "snapshots are not written to" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["kubectl"]


@attack(Threat.SETTINGS, "an address of S3 that names another host, or drives the terminal")
@pytest.mark.parametrize(
    "place",
    [
        *("s3://user@evil.example/k", "s3://evil.example:8080/k", "s3://b?x/k", "s3://b#x/k"),
        *("s3://b/k\x1b[2J", "s3://b\n/k", "s3://b/k\r", "s3:///k", "s3://b/", "s3://"),
    ],
)
@pytest.mark.parametrize("command", ["snapshot", "plan"])
def test_only_a_bucket_and_a_key_are_an_address_of_s3(
    command: str,
    place: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Guard: ``location_of``."""
    monkeypatch.chdir(tmp_path)
    kubectl = a_kubectl(tmp_path, "touch asked")
    (tmp_path / "fleet.yaml").write_text(f"{POOL}---\n{CLASS}")
    words = {
        "snapshot": ["--kubectl", kubectl, "--out", place],
        "plan": [".", "--snapshot", place],
    }
    assert main([command, *words[command]]) == 1
    error = capsys.readouterr().err
    assert "not an S3 object" in error
    assert error.strip().isprintable()
    assert not (tmp_path / "asked").exists()


@attack(Threat.GIT, "a branch, path, remote or author that git would treat as an option")
@pytest.mark.parametrize(
    ("place", "more"),
    [
        ("git:--upload-pack=touch ran:a.json", ()),
        ("git:-f:a.json", ()),
        ("git:refs/heads/main:a.json", ()),
        ("git:+main:a.json", ()),
        ("git:main:refs/heads/main:a.json", ()),
        ("git:main:--receive-pack=x", ()),
        ("git:main:../a.json", ()),
        ("git:main:/etc/passwd", ()),
        ("git:main:.git/hooks/pre-push", ()),
        ("git:main:.GIT/config", ()),
        ("git:HEAD:a.json", ()),
        ("git:a..b:a.json", ()),
        ("git:a\nb:a.json", ()),
        ("git:main:a.json", ("--author", "a\nb <a@example.com>")),
    ],
)
def test_nothing_that_looks_like_an_option_reaches_git(
    tmp_path: Path,
    remote: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    more: tuple[str, ...],
) -> None:
    monkeypatch.chdir(tmp_path)
    before = git(remote, "for-each-ref")
    words = ["--kubectl", a_kubectl(tmp_path, "touch asked"), "--out", place, *more]
    assert main(["snapshot", *words, "--repo", str(remote)]) == 1
    assert git(remote, "for-each-ref") == before
    assert not (tmp_path / "ran").exists()
    assert not (tmp_path / "asked").exists()


@attack(Threat.GIT, "the name of a remote that git would treat as an option or a URL")
@pytest.mark.parametrize("name", ["--upload-pack=touch ran", "ext::sh -c touch% ran", "/tmp/x", ""])
def test_only_a_remote_name_is_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    init(tmp_path)
    words = ["--kubectl", a_kubectl(tmp_path, "touch asked"), "--out", "git:main:a.json"]
    assert main(["snapshot", *words, f"--remote={name}"]) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == [".git", "kubectl"]


@attack(Threat.GIT, "a checkout whose remote is a program")
def test_a_remote_that_is_a_program_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    init(tmp_path)
    git(tmp_path, "config", "remote.origin.url", "ext::sh -c touch% ran")
    git(tmp_path, "config", "protocol.ext.allow", "always")
    words = ["--kubectl", a_kubectl(tmp_path), "--out", "git:main:a.json"]
    assert main(["snapshot", *words]) == 1
    assert "not a repository URL" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


@attack(Threat.GIT, "hooks of a local repository to which a snapshot is pushed")
def test_hooks_of_the_target_do_not_run(tmp_path: Path, remote: Path) -> None:  # noqa: F811
    for hook in ("pre-receive", "update", "post-receive", "post-update", "reference-transaction"):
        script = remote / "hooks" / hook
        script.parent.mkdir(exist_ok=True)
        script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
        script.chmod(0o755)
    assert publish(str(remote), publication()) is not None
    assert not (tmp_path / "ran").exists()


@attack(Threat.HIDDEN, "a branch for snapshots that already exists with another history")
def test_a_branch_with_other_history_is_extended(tmp_path: Path, remote: Path) -> None:  # noqa: F811
    before = git(remote, "rev-parse", "main")
    publish(str(remote), Publication("main", "now.json", b"{}\n", "B <b@example.com>", "Update"))
    assert git(remote, "rev-parse", "main^") == before
    assert names(remote, "main") == ["now.json", "pool.yaml"]


@attack(Threat.HIDDEN, "a branch whose history is replaced while a snapshot is pushed")
def test_a_concurrently_replaced_branch_is_never_force_pushed(
    tmp_path: Path,
    remote: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(str(remote), publication(b"old\n"))
    other = tmp_path / "other"
    other.mkdir()
    init(other)
    (other / "theirs.txt").write_text("theirs\n")
    theirs = commit_all(other)
    real, left = publishing._TemporaryRepository.push, [1]

    def overtaken(workshop: publishing._TemporaryRepository, commit: str, branch: str) -> None:
        if left:
            left.pop()
            git(other, "push", "--quiet", "--force", str(remote), f"main:{branch}")
        real(workshop, commit, branch)

    monkeypatch.setattr(publishing._TemporaryRepository, "push", overtaken)
    publish(str(remote), publication(b"ours\n"))
    assert git(remote, "rev-parse", "snapshots^") == theirs
    assert names(remote, "snapshots") == ["now.json", "theirs.txt"]


@attack(Threat.SECRETS, "another user who reads a snapshot")
@pytest.mark.parametrize("is_new", [True, False])
def test_a_snapshot_is_readable_only_by_its_owner(tmp_path: Path, is_new: bool) -> None:
    out = tmp_path / "snapshot.json"
    usual = os.umask(0)
    try:
        if not is_new:
            out.write_text("{}")
        assert main(["snapshot", "--kubectl", a_kubectl(tmp_path), "--out", str(out)]) == 0
    finally:
        os.umask(usual)
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
