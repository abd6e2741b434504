"""A commit read from git's objects."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from reconciler.adapters.git import folder as limits
from reconciler.adapters.git.revision import GitRevision
from reconciler.adapters.git.source import AtRef, SourceContent, WorkingTree, head_of, read
from reconciler.model.errors import UnreadableError, UsageError

from .conftest import POOL, Repository


def codes(found: SourceContent) -> dict[str, str]:
    return {d.place.file: d.code for d in found.diagnostics if d.place}


def test_a_ref_is_read_whatever_the_working_tree_holds(repository: Repository) -> None:
    first = repository.commit({"fleet/a.yaml": POOL, "fleet/sub/b.json": "{}"}, "one\n\nmore")
    repository.git("tag", "v1")
    second = repository.commit({"fleet/a.yaml": "changed"}, "two")
    repository.write({"fleet/a.yaml": "dirty"})
    folder = str(repository.path / "fleet")
    found = read(AtRef(folder, "v1"))
    assert [(f.path, f.content) for f in found.files] == [
        ("a.yaml", POOL.encode()),
        ("sub/b.json", b"{}"),
    ]
    at = datetime.fromtimestamp(int(repository.git("show", "-s", "--format=%ct", "v1")), UTC)
    assert found.revision == GitRevision(
        first, repo="shop", path="fleet", subject="one", author="a@example.com", committed_at=at
    )
    assert [read(AtRef(folder, ref)).revision.head for ref in ("HEAD~1", first[:10])] == [first] * 2
    assert head_of(AtRef(folder, "main")) == second


def test_a_ref_and_a_clean_working_tree_read_the_same(repository: Repository) -> None:
    files = {f"{d}{n}.yaml": f"{d}{n}" for d in ("", "b/", "b/c/", "b.d/") for n in "za1"}
    repository.commit({**files, ".hidden/x.yaml": "x", ".y.yaml": "y", "notes.txt": "n"})
    (repository.path / "link.yaml").symlink_to("b/c/a.yaml")
    (repository.path / "again").symlink_to("b")
    repository.commit({})
    tree, commit = (
        read(WorkingTree(str(repository.path))),
        read(AtRef(str(repository.path), "main")),
    )
    assert commit.files == tree.files
    assert codes(commit) == codes(tree)


def test_links_that_leave_the_folder_are_refused(repository: Repository, tmp_path: Path) -> None:
    (tmp_path / "secret.yaml").write_text("secret")
    fleet = repository.path / "fleet"
    repository.write({"fleet/pool.yaml": POOL, "outside.yaml": "x"})
    (fleet / "absolute.yaml").symlink_to(tmp_path / "secret.yaml")
    (fleet / "up.yaml").symlink_to("../outside.yaml")
    (fleet / "upper").symlink_to("..")
    (fleet / "round.yaml").symlink_to("round.yaml")
    (fleet / "gone.yaml").symlink_to("nowhere.yaml")
    repository.commit({})
    found = read(AtRef(str(fleet), "HEAD"))
    assert [file.path for file in found.files] == ["pool.yaml"]
    assert codes(found) == {
        "absolute.yaml": "outside-link",
        "up.yaml": "outside-link",
        "upper": "outside-link",
        "round.yaml": "broken-link",
        "gone.yaml": "broken-link",
    }


def test_a_submodule_is_reported_and_not_followed(repository: Repository, tmp_path: Path) -> None:
    other = Repository(tmp_path / "other")
    other.commit({"x.yaml": POOL})
    repository.commit({"pool.yaml": POOL})
    repository.git("submodule", "--quiet", "add", str(other.path), "vendor")
    repository.commit({})
    found = read(AtRef(str(repository.path), "HEAD"))
    assert [file.path for file in found.files] == ["pool.yaml"]
    assert codes(found) == {"vendor": "submodule"}


def test_file_sizes_counts_and_depths_are_limited(
    repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = "/".join("d" * (limits.DEPTH_MAX + 2)) + "/x.yaml"
    repository.commit({"a.yaml": POOL, "big.yaml": "x" * (4 * 2**20 + 1), deep: POOL})
    found = read(AtRef(str(repository.path), "HEAD"))
    assert [file.path for file in found.files] == ["a.yaml"]
    assert codes(found)["big.yaml"] == "too-large"
    assert "too-deep" in codes(found).values()
    monkeypatch.setattr(limits, "FILES_MAX", 1)
    repository.commit({"b.yaml": POOL, "c.yaml": POOL})
    assert codes(read(AtRef(str(repository.path), "HEAD")))["b.yaml"] == "too-large"


@pytest.mark.parametrize("ref", ["nope", "-x", "--output=/tmp/x", "", "a\nb", "main:pool.yaml"])
def test_a_ref_that_is_not_a_commit_is_rejected(repository: Repository, ref: str) -> None:
    repository.commit({"pool.yaml": POOL})
    with pytest.raises(UsageError):
        read(AtRef(str(repository.path), ref))


def test_a_folder_missing_in_the_commit_is_rejected(repository: Repository) -> None:
    repository.commit({"pool.yaml": POOL})
    repository.write({"fleet/pool.yaml": POOL})
    with pytest.raises(UnreadableError, match="folder fleet does not exist in that commit"):
        read(AtRef(str(repository.path / "fleet"), "HEAD"))


def test_a_commit_without_fleet_files_is_an_error(repository: Repository) -> None:
    repository.commit({"README.md": "x"})
    with pytest.raises(UnreadableError, match="no YAML or JSON file"):
        read(AtRef(str(repository.path), "HEAD"))


def test_outside_a_repository_there_are_no_refs(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not in a git repository"):
        read(AtRef(str(tmp_path), "HEAD"))


def test_a_damaged_repository_is_unreadable(repository: Repository) -> None:
    repository.commit({"pool.yaml": POOL})
    for path in (repository.path / ".git" / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o644)
            path.write_bytes(b"junk")
    with pytest.raises(UnreadableError):
        read(AtRef(str(repository.path), "HEAD"))
