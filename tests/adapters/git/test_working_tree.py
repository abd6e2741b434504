"""The revision of a working tree, read without trusting the repository."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.adapters.git.revision import GitRevision, working_revision
from reconciler.adapters.git.source import AtRef, WorkingTree, head_of, read
from reconciler.model.errors import UnreadableError

from .conftest import POOL, Repository


def test_a_clean_tree_is_at_its_commit(repository: Repository) -> None:
    head = repository.commit({"fleet/pool.yaml": POOL})
    found = read(WorkingTree(str(repository.path / "fleet")))
    assert found.revision == GitRevision(head, dirty=False, repo="shop", path="fleet")
    assert [file.path for file in found.files] == ["pool.yaml"]
    assert head_of(WorkingTree(str(repository.path))) == head
    assert working_revision(str(repository.path)).path == "."


@pytest.mark.parametrize(
    ("change", "dirty"),
    [
        ({"fleet/pool.yaml": POOL + "spec: {}\n"}, True),
        ({"fleet/new folder/é.yml": POOL}, True),
        ({"fleet/new.txt": "x"}, False),
        ({"other/pool.yaml": POOL + "spec: {}\n"}, False),
        ({"fleet/.reconciler/plan.json": "{}"}, False),
        ({"fleet/ignored.yaml": POOL}, False),
        ({}, False),
    ],
)
def test_only_fleet_files_in_the_folder_make_it_dirty(
    repository: Repository, change: dict[str, str], dirty: bool
) -> None:
    files = {"fleet/pool.yaml": POOL, "other/pool.yaml": POOL, ".gitignore": "ignored.yaml\n"}
    head = repository.commit(files)
    repository.write(change)
    assert working_revision(str(repository.path / "fleet")) == GitRevision(
        head, dirty=dirty, repo="shop", path="fleet"
    )


def test_staged_removed_and_renamed_files_make_it_dirty(repository: Repository) -> None:
    repository.commit({"a.yaml": POOL})
    repository.git("mv", "a.yaml", "b.yaml")
    assert working_revision(str(repository.path)).dirty
    repository.commit({})
    assert not working_revision(str(repository.path)).dirty
    (repository.path / "b.yaml").unlink()
    assert working_revision(str(repository.path)).dirty


def test_outside_a_repository_the_revision_is_unknown(tmp_path: Path) -> None:
    (tmp_path / "pool.yaml").write_text(POOL)
    assert read(WorkingTree(str(tmp_path))).revision == GitRevision()
    (tmp_path / ".git").mkdir()
    assert working_revision(str(tmp_path)) == GitRevision()


def test_before_the_first_commit_there_is_no_head(repository: Repository) -> None:
    repository.write({"pool.yaml": POOL})
    assert working_revision(str(repository.path)) == GitRevision(
        None, dirty=True, repo="shop", path="."
    )


def test_without_git_the_folder_is_still_read(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    repository.commit({"pool.yaml": POOL})
    monkeypatch.setenv("PATH", str(tmp_path))
    found = read(WorkingTree(str(repository.path)))
    assert (found.revision.head, len(found.files)) == (None, 1)


def test_a_linked_working_tree_has_its_own_state(repository: Repository, tmp_path: Path) -> None:
    head = repository.commit({"pool.yaml": POOL})
    repository.git("worktree", "add", "--quiet", "--detach", str(tmp_path / "second"))
    assert working_revision(str(tmp_path / "second")) == GitRevision(head, repo="second", path=".")


def test_the_repositorys_own_programs_do_not_run(repository: Repository, tmp_path: Path) -> None:
    repository.commit({"pool.yaml": POOL})
    script = repository.path / ".git" / "run-me"
    script.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    script.chmod(0o755)
    repository.git("config", "core.fsmonitor", str(script))
    repository.git("config", "core.hooksPath", str(script.parent))
    working_revision(str(repository.path))
    assert not (tmp_path / "ran").exists()


@pytest.fixture
def another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as a user to whom the repositories of the test do not belong."""
    stranger = os.geteuid() + 4711
    monkeypatch.setattr(os, "geteuid", lambda: stranger)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()


@pytest.mark.usefixtures("another_user")
def test_a_repository_of_another_user_is_rejected_with_advice(
    repository: Repository,
) -> None:
    repository.commit({"fleet/pool.yaml": POOL})
    for source in (
        WorkingTree(str(repository.path / "fleet")),
        AtRef(str(repository.path), "HEAD"),
    ):
        with pytest.raises(UnreadableError, match="belongs to another user") as caught:
            read(source)
        assert f"git config --global --add safe.directory {repository.path}" in str(caught.value)


@pytest.mark.usefixtures("another_user")
@pytest.mark.parametrize("safe", ["{top}", "*", "{parent}/*"])
def test_a_repository_of_another_user_is_read_if_configured(
    repository: Repository, tmp_path: Path, safe: str
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    safe = safe.format(top=repository.path, parent=repository.path.parent)
    (tmp_path / "home" / ".gitconfig").write_text(f"[safe]\n\tdirectory = {safe}\n")
    assert working_revision(str(repository.path)).head == head


def test_the_environment_of_a_surrounding_git_command_is_ignored(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = repository.commit({"pool.yaml": POOL})
    other = Repository(tmp_path / "other")
    other.commit({"x.yaml": POOL}, "another")
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other.path / ".git/index"))
    assert working_revision(str(repository.path)) == GitRevision(head, repo="shop", path=".")


def test_an_unreadable_repository_is_an_error(
    repository: Repository,
) -> None:
    repository.commit({"pool.yaml": POOL})
    (repository.path / ".git" / "config").write_text("[core\n")
    with pytest.raises(UnreadableError, match=r"git: .*config"):
        read(WorkingTree(str(repository.path)))


def test_an_empty_folder_is_an_error(repository: Repository) -> None:
    repository.commit({"README.md": "nothing here"})
    with pytest.raises(UnreadableError, match="no YAML or JSON file"):
        read(WorkingTree(str(repository.path)))


def test_the_state_of_a_tree_is_found_without_gitpython() -> None:
    code = "import sys, reconciler.adapters.git.source as s; s.working_revision('.');"
    code += "sys.exit('git' in sys.modules or 'watchdog' in sys.modules)"
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    assert (
        subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0
    )
