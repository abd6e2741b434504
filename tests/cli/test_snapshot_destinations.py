"""Destinations of ``snapshot --out`` other than a file: S3, and a branch of a git remote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.adapters.git import publishing
from reconciler.adapters.git.publishing import ATTEMPTS, Publication, publish
from reconciler.cli.main import main
from reconciler.model.errors import UnreadableError
from tests.cli.test_snapshot import a_kubectl
from tests.cli.test_snapshot_places import bucket  # noqa: F401 - a fixture
from tests.repositories import commit_all, git, init

POOL = "apiVersion: karpenter.sh/v1\nkind: NodePool\n"


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """A bare repository with one commit on main."""
    bare, seed = tmp_path / "fleet.git", tmp_path / "seed"
    bare.mkdir()
    git(bare, "init", "--quiet", "--bare", "--initial-branch=main")
    seed.mkdir()
    init(seed)
    (seed / "pool.yaml").write_text(POOL)
    commit_all(seed)
    git(seed, "push", "--quiet", str(bare), "main")
    return bare


def snapshot(tmp_path: Path, out: str, *more: str) -> int:
    return main(["snapshot", "--kubectl", a_kubectl(tmp_path), "--out", out, *more])


def names(remote: Path, branch: str) -> list[str]:
    return git(remote, "ls-tree", "-r", "--name-only", branch).splitlines()


def pods(text: str) -> list[str]:
    items = json.loads(text)["items"]
    return [item["metadata"]["name"] for item in items if item["kind"] == "Pod"]


def test_a_snapshot_is_written_to_s3(tmp_path: Path, bucket) -> None:  # noqa: F811
    assert snapshot(tmp_path, "s3://fleet-snapshots/prod/now.json") == 0
    body = bucket.get_object(Bucket="fleet-snapshots", Key="prod/now.json")["Body"].read()
    assert pods(body) == ["web"]


@pytest.mark.usefixtures("bucket")
@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("s3://no-such-bucket/now.json", "S3 PutObject failed"),
        ("s3://fleet-snapshots", "use s3://BUCKET/KEY"),
    ],
)
def test_a_rejected_upload_to_s3_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str, says: str
) -> None:
    assert snapshot(tmp_path, place) == 1
    assert says in capsys.readouterr().err


def test_a_new_branch_contains_only_the_snapshot(
    tmp_path: Path, remote: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert snapshot(tmp_path, "git:snapshots:prod/now.json", "--repo", str(remote)) == 0
    assert "git:snapshots:prod/now.json: 1 objects" in capsys.readouterr().err
    assert names(remote, "snapshots") == ["prod/now.json"]
    assert pods(git(remote, "show", "snapshots:prod/now.json")) == ["web"]
    log = git(remote, "log", "-1", "--format=%an <%ae>|%cn|%s", "snapshots")
    author = "reconciler <reconciler@noreply.invalid>"
    assert log == f"{author}|reconciler|Update the snapshot prod/now.json"


def test_a_push_to_the_remote_does_not_change_the_checkout(tmp_path: Path, remote: Path) -> None:
    checkout = tmp_path / "checkout"
    git(tmp_path, "clone", "--quiet", str(remote), str(checkout))
    head = git(checkout, "rev-parse", "HEAD")
    who = "Fleet Bot <fleet@example.com>"
    words = ["--kubectl", a_kubectl(tmp_path), "--out", "git:main:now.json", "--author", who]
    assert main(["snapshot", str(checkout), *words]) == 0
    assert names(remote, "main") == ["now.json", "pool.yaml"]
    assert git(remote, "log", "-1", "--format=%an <%ae>", "main") == who
    assert git(remote, "rev-parse", "main^") == head
    assert git(checkout, "rev-parse", "HEAD") == head
    assert git(checkout, "status", "--porcelain") == ""


def publication(content: bytes = b"{}\n", path: str = "now.json") -> Publication:
    return Publication("snapshots", path, content, "Bot <bot@example.com>", "Update")


def test_an_unchanged_file_makes_no_commit(remote: Path) -> None:
    first = publish(str(remote), publication())
    assert first == git(remote, "rev-parse", "snapshots")
    assert publish(str(remote), publication()) is None
    assert git(remote, "rev-parse", "snapshots") == first


def overtake(remote: Path, monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Push to the branch as another user just before each of our next pushes."""
    real, done = publishing._TemporaryRepository.push, [0]

    def push(workshop: publishing._TemporaryRepository, commit: str, branch: str) -> None:
        if done[0] < times:
            done[0] += 1
            with monkeypatch.context() as theirs:
                theirs.setattr(publishing._TemporaryRepository, "push", real)
                publish(str(remote), publication(b"%d\n" % done[0], "other.json"))
        real(workshop, commit, branch)

    monkeypatch.setattr(publishing._TemporaryRepository, "push", push)


def test_a_rejected_push_is_retried_on_top_of_the_first(
    remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(str(remote), publication(b"old\n"))
    overtake(remote, monkeypatch, 2)
    publish(str(remote), publication(b"ours\n"))
    assert names(remote, "snapshots") == ["now.json", "other.json"]
    assert git(remote, "show", "snapshots:now.json") == "ours"
    assert git(remote, "rev-list", "--count", "snapshots") == "4"


def test_pushes_to_a_constantly_changing_branch_end_with_an_error(
    remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtake(remote, monkeypatch, ATTEMPTS)
    with pytest.raises(UnreadableError, match=f"changed during each of {ATTEMPTS} attempts"):
        publish(str(remote), publication(b"ours\n"))
    assert names(remote, "snapshots") == ["other.json"]


def test_a_file_in_place_of_a_folder_is_not_replaced(remote: Path) -> None:
    publish(str(remote), publication())
    with pytest.raises(UnreadableError, match="a file of the branch is where the path needs"):
        publish(str(remote), publication(path="now.json/prod.json"))
    assert names(remote, "snapshots") == ["now.json"]


def test_a_rejection_by_the_remote_is_reported(remote: Path) -> None:
    git(remote, "branch", "snapshots/other", "main")
    with pytest.raises(UnreadableError, match="the push was refused"):
        publish(str(remote), publication())


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--out", "git:snapshots"), "use git:BRANCH:PATH"),
        (("--out", "git:snapshots:a.json"), "not in a git repository"),
        (("--out", "a.json", "--remote", "origin"), "--remote is only for a branch"),
        (("--author", "Me <me@example.com>"), "--author is only for a branch"),
        (("--out", "git:a:b", "--author", "me"), 'use --author "NAME <EMAIL>"'),
    ],
)
def test_an_invalid_destination_is_rejected_before_the_cluster_is_read(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    more: tuple[str, ...],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["snapshot", "--kubectl", str(tmp_path / "none"), *more]) == 1
    assert says in capsys.readouterr().err
