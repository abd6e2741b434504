"""Remote repositories: cached bare clones, refused protocols, and secrets that are never stored."""

import logging
import shutil
import threading
from pathlib import Path

import pytest

from reconciler.adapters.git.clone import split_address
from reconciler.adapters.git.fetching import FetchProgress
from reconciler.adapters.git.fetchmessages import FetchReport
from reconciler.adapters.git.source import Remote, head_of, read
from reconciler.model.errors import ReconcilerError, UnreadableError, UsageError

from .conftest import POOL, Repository


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "state" / "clones"


def remote(repository: Repository, cache: Path, ref: str = "HEAD", path: str = ".") -> Remote:
    return Remote(str(repository.path), str(cache), ref, path)


def clones(cache: Path) -> list[Path]:
    return sorted(path for path in cache.iterdir() if path.is_dir())


def test_a_remote_is_cloned_once_and_then_fetched(repository: Repository, cache: Path) -> None:
    first = repository.commit({"fleet/pool.yaml": POOL}, "one")
    found = read(remote(repository, cache, path="fleet"))
    assert (found.revision.head, found.revision.subject) == (first, "one")
    assert (found.revision.path, found.revision.dirty) == ("fleet", False)
    (clone,) = clones(cache)
    (clone / "kept").touch()
    second = repository.commit({"fleet/more.yaml": POOL}, "two")
    found = read(remote(repository, cache, path="fleet/"))
    assert found.revision.head == second
    assert [file.path for file in found.files] == ["more.yaml", "pool.yaml"]
    assert (clone / "kept").exists()
    assert not list(clone.glob("**/*.yaml"))


def test_branches_tags_commits_and_forced_pushes_are_followed(
    repository: Repository, cache: Path
) -> None:
    first = repository.commit({"a.yaml": "1"})
    repository.git("tag", "--annotate", "v1", "--message", "release")
    repository.git("branch", "feature/x")
    second = repository.commit({"a.yaml": "2"})
    heads = dict.fromkeys(("v1", "feature/x", "HEAD~1", first, "refs/heads/feature/x"), first)
    for ref, head in {**heads, "main": second, "HEAD": second}.items():
        assert read(remote(repository, cache, ref)).revision.head == head, ref
    repository.git("reset", "--quiet", "--hard", "v1")
    third = repository.commit({"a.yaml": "3"})
    repository.git("branch", "--delete", "--force", "feature/x")
    assert read(remote(repository, cache, "main")).revision.head == third
    with pytest.raises(UsageError, match="commit feature/x not found"):
        read(remote(repository, cache, "feature/x"))


def test_a_remote_with_a_detached_head_still_has_branches(
    repository: Repository, cache: Path
) -> None:
    head = repository.commit({"a.yaml": "1"})
    repository.git("symbolic-ref", "HEAD", "refs/heads/never-born")
    assert read(remote(repository, cache, "main")).revision.head == head
    with pytest.raises(UnreadableError, match="HEAD"):
        read(remote(repository, cache))


def test_an_unreachable_commit_is_read_if_the_remote_serves_it(
    repository: Repository, cache: Path
) -> None:
    repository.commit({"a.yaml": "1"})
    orphan = repository.commit({"a.yaml": "2"})
    repository.git("reset", "--quiet", "--hard", "HEAD~1")
    repository.git("config", "uploadpack.allowAnySHA1InWant", "true")
    (file,) = read(remote(repository, cache, orphan)).files
    assert file.content == b"2"


def test_the_head_is_polled_without_a_clone(repository: Repository, cache: Path) -> None:
    head = repository.commit({"a.yaml": "1"})
    repository.git("tag", "--annotate", "v1", "--message", "release")
    for ref in ("HEAD", "main", "v1", "refs/heads/main", head):
        assert head_of(remote(repository, cache, ref)) == head
    assert head_of(remote(repository, cache, "gone")) is None
    assert not cache.exists()


def test_the_log_names_the_commits_that_a_fetch_brings(
    repository: Repository, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "reconciler")
    repository.commit({"a.yaml": "1"}, "one")
    read(remote(repository, cache))
    assert caplog.messages == [], "a first clone brings no news"
    repository.commit({"a.yaml": "2"}, "two")
    head = repository.commit({"a.yaml": "3"}, "three\n\nbecause")
    read(remote(repository, cache))
    (message,) = caplog.messages
    assert message.startswith(f"{repository.path}: 2 new: {head[:8]} ")
    assert message.index(": three") < message.index(": two")
    read(remote(repository, cache))
    assert len(caplog.messages) == 1


def test_a_repository_with_sha256_is_fetched(repository: Repository, tmp_path: Path) -> None:
    path, cache = tmp_path / "long", tmp_path / "state"
    repository.git("init", "--quiet", "--object-format=sha256", str(path))
    long = Repository(path)
    for text in ("1", "2"):
        head = long.commit({"a.yaml": text})
        assert read(remote(long, cache)).revision.head == head
        assert len(head) == 64


def test_progress_is_reported_every_ten_seconds() -> None:
    seconds = [0.0]
    reports: list[FetchReport] = []
    progress = FetchProgress(reports.append, lambda: seconds[0])
    say = progress.new_message_handler()
    for at, line in [
        (1.0, "Receiving objects:  10% (10/100), 1.00 MiB | 1.00 MiB/s"),
        (11.0, "Receiving objects:  50% (50/100), 5.00 MiB | 1.00 MiB/s"),
        (12.0, "Receiving objects:  60% (60/100), 6.00 MiB | 1.00 MiB/s"),
        (22.0, "Resolving deltas:  25% (1/4)"),
    ]:
        seconds[0] = at
        say(line)
    assert reports == [
        FetchReport("receiving objects", 50, 100),
        FetchReport("resolving deltas", 1, 4),
    ]


@pytest.mark.parametrize("damage", ["objects", "HEAD", "everything"])
def test_a_damaged_clone_is_replaced(repository: Repository, cache: Path, damage: str) -> None:
    head = repository.commit({"a.yaml": "1"})
    read(remote(repository, cache))
    (clone,) = clones(cache)
    if damage == "objects":
        shutil.rmtree(clone / "objects")
        (clone / "objects").mkdir()
    elif damage == "HEAD":
        (clone / "HEAD").write_bytes(b"\0\1")
    else:
        shutil.rmtree(clone)
        clone.mkdir()
    found = read(remote(repository, cache))
    assert (found.revision.head, len(found.files)) == (head, 1)
    assert clones(cache) == [clone]


def test_an_unreachable_remote_is_unreadable_and_leaves_no_clone(
    repository: Repository, cache: Path
) -> None:
    repository.commit({"a.yaml": "1"})
    missing = Remote(str(repository.path.with_name("missing")), str(cache))
    with pytest.raises(UnreadableError):
        read(missing)
    assert clones(cache) == []
    read(remote(repository, cache))
    kept = clones(cache)
    repository.path.rename(repository.path.with_name("away"))
    with pytest.raises(UnreadableError):
        read(remote(repository, cache))
    assert clones(cache) == kept


def test_concurrent_readers_share_one_clone(repository: Repository, cache: Path) -> None:
    head = repository.commit({"a.yaml": "1"})
    heads: list[str | None] = []
    threads = [
        threading.Thread(target=lambda: heads.append(read(remote(repository, cache)).revision.head))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert heads == [head] * 4
    assert len(clones(cache)) == 1


def test_no_template_hook_is_installed_in_a_clone(
    repository: Repository, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"a.yaml": "1"})
    hook = tmp_path / "template" / "hooks" / "reference-transaction"
    hook.parent.mkdir(parents=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    hook.chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hook.parent.parent))
    read(remote(repository, cache))
    read(remote(repository, cache))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("https://example.com/fleet.git", "https"),
        ("ssh://git@example.com/fleet.git", "ssh"),
        ("git@example.com:org/fleet.git", "ssh"),
        ("git://127.0.0.1/fleet.git", "git"),
        ("http://localhost:8000/fleet.git", "http"),
        ("file:///srv/fleet.git", "file"),
        ("/srv/fleet.git", "file"),
    ],
)
def test_supported_addresses_are_accepted(url: str, protocol: str) -> None:
    assert split_address(url) == (url, protocol)


@pytest.mark.parametrize(
    "url",
    [
        "ext::sh -c touch% /tmp/x",
        "http://example.com/fleet.git",
        "git://example.com/fleet.git",
        "https://example.com:port/fleet.git",
        "https://example.com/fleet.git?token=x",
        "https://[::1/fleet.git",
        "user:password@example.com:fleet.git",
        "ftp://example.com/fleet.git",
        "fd::17",
        "--upload-pack=touch /tmp/x",
        "",
        "a\nb",
        "no/such/folder",
    ],
)
def test_other_addresses_are_rejected(url: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        read(Remote(url, str(tmp_path / "cache")))


@pytest.mark.parametrize("path", ["/etc", "../x", "a/../../x"])
def test_a_folder_outside_the_repository_is_refused(
    repository: Repository, cache: Path, path: str
) -> None:
    with pytest.raises(UsageError, match="leads out of the repository"):
        read(remote(repository, cache, path=path))


@pytest.mark.parametrize("url", ["ssh://me:s3cret@127.0.0.1:1/x.git", "git://s3cret@127.0.0.1:1/x"])
def test_credentials_are_neither_printed_nor_written(url: str, tmp_path: Path) -> None:
    with pytest.raises(ReconcilerError) as caught:
        read(Remote(url, str(tmp_path)))
    chain: BaseException | None = caught.value
    while chain is not None:
        assert "s3cret" not in str(chain)
        chain = chain.__cause__
    assert not [path for path in tmp_path.rglob("*") if "s3cret" in str(path)]
