"""Submodules that a pull request adds: hostile URLs and paths, and links to objects of a tree."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from reconciler.adapters.git.source import AtRef, Remote, read
from reconciler.cli.main import main
from tests.adapters.git.conftest import Repository
from tests.cli.test_plan import CLASS, POOL
from tests.hostile.threats import Threat, attack

OTHER = POOL.replace("general", "smuggled")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_ALLOW_PROTOCOL", "ext:file")
    made = Repository(tmp_path / "shop")
    made.commit({"fleet/pool.yaml": POOL, "fleet/class.yaml": CLASS})
    return made


def linked(repository: Repository, oid: str, path: str, modules: str) -> None:
    """Commit a submodule: its entry in the tree, and the file that describes it."""
    repository.write({".gitmodules": modules})
    repository.git("add", ".gitmodules")
    repository.git("update-index", "--add", "--cacheinfo", f"160000,{oid},{path}")
    repository.git("commit", "--quiet", "--message", "a submodule")


MODULES = {
    "a program as its URL": ("vendor", "ext::sh -c touch% RAN", ""),
    "an option as its URL": ("vendor", "--upload-pack=touch RAN", ""),
    "a program as its update": ("vendor", "x", "\tupdate = !touch RAN\n"),
    "a folder above as its path": ("../../home", "file:///", ""),
    "the folder of git as its path": (".git/hooks", "file:///", ""),
}


@attack(Threat.GIT, "a submodule with a hostile URL, path or update, in a fleet")
@pytest.mark.parametrize("how", MODULES)
def test_a_submodule_is_neither_fetched_nor_read(
    how: str, repository: Repository, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: the kind ``submodule`` in ``_TreeReader``, and the settings of each git process."""
    path, url, more = MODULES[how]
    ran = tmp_path / "ran"
    text = f'[submodule "vendor"]\n\tpath = {path}\n\turl = {url}\n{more}'.replace("RAN", str(ran))
    linked(repository, "a" * 40, "fleet/vendor", text)
    place = str(repository.path / "fleet")
    remote = Remote(f"file://{repository.path}", str(tmp_path / "clones"), path="fleet")
    for source in (AtRef(place, "HEAD"), remote):
        found = read(source)
        assert {file.path for file in found.files} == {"pool.yaml", "class.yaml"}
        assert [(f.code, f.place and f.place.file) for f in found.diagnostics] == [
            ("submodule", "vendor")
        ]
    assert main(["plan", place, "--ref", "HEAD", "-o", "json"]) == 0
    assert "internal error" not in capsys.readouterr().err
    assert not ran.exists()


@attack(Threat.HIDDEN, "a submodule whose commit is a tree of the repository itself")
@pytest.mark.parametrize("name", ["vendor", "more.yaml"])
def test_no_file_comes_through_a_submodule(name: str, repository: Repository) -> None:
    """Guard: the kind ``submodule`` in ``_TreeReader``: what it names is not of this commit."""
    repository.commit({"elsewhere/smuggled.yaml": OTHER})
    oids = [repository.git("rev-parse", f"HEAD{it}") for it in ("", ":elsewhere")]
    oids.append(repository.git("rev-parse", "HEAD:elsewhere/smuggled.yaml"))
    for oid in oids:
        linked(repository, oid, f"fleet/{name}", f'[submodule "x"]\n\tpath = {oid}\n\turl = x\n')
        found = read(AtRef(str(repository.path / "fleet"), "HEAD"))
        assert {file.path for file in found.files} == {"pool.yaml", "class.yaml"}
        assert [finding.code for finding in found.diagnostics] == ["submodule"]


BATCH = POOL.replace("general", "batch")
REPLACED = {
    "a file": ("pools/pool.yaml", "fleet/pools/pool.yaml"),
    "a folder": ("pools", "fleet/pools"),
}


def checked_out(repository: Repository, path: str, *, has_content: bool) -> None:
    """Leave the folder of a submodule as a checkout does, without or with its content."""
    place = repository.path / path
    if place.is_file():
        place.unlink()
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    if has_content:
        other = Repository(place)
        other.commit({"batch.yaml": BATCH})


@attack(Threat.HIDDEN, "a submodule in the place of NodePools, which then look removed")
@pytest.mark.parametrize("has_content", [False, True], ids=["empty", "checked out"])
@pytest.mark.parametrize("what", REPLACED)
def test_no_nodepool_is_replaced_by_a_submodule(
    what: str, has_content: bool, repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guards: ``_replacing_submodules``, and the submodules of ``working_state``."""
    shown, path = REPLACED[what]
    repository.git("rm", "--quiet", "fleet/pool.yaml")
    repository.commit({"fleet/pools/pool.yaml": BATCH, "fleet/other/pool.yaml": POOL})
    repository.git("rm", "-r", "--quiet", "--cached", path)
    linked(repository, "a" * 40, path, f'[submodule "x"]\n\tpath = {path}\n\turl = x\n')
    checked_out(repository, path, has_content=has_content)
    place = str(repository.path / "fleet")
    assert main(["plan", place, "--base", "HEAD~1", "--set", "cluster=none"]) == 1
    printed = "".join(capsys.readouterr())
    assert f"{shown}:1:1: error: is a git submodule" in printed
    assert "NodePool batch" not in printed
    assert main(["validate", place]) == 0
    assert f"{shown}:1:1: warning: is a git submodule" in capsys.readouterr().out
    assert main(["plan", place, "--base", "HEAD", "--set", "cluster=none"]) == 0, "it is no change"


@attack(Threat.HIDDEN, "a submodule in the place of NodePools, in a job of CI")
def test_a_job_fails_for_a_submodule_in_the_place_of_nodepools(
    repository: Repository, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    repository.commit({"fleet/pools/pool.yaml": BATCH, "fleet/reconciler.yaml": "fleet: web\n"})
    repository.git("rm", "-r", "--quiet", "--cached", "fleet/pools")
    linked(repository, "a" * 40, "fleet/pools", '[submodule "x"]\n\tpath = x\n\turl = x\n')
    checked_out(repository, "fleet/pools", has_content=False)
    monkeypatch.chdir(repository.path)
    assert main(["ci", "--base", "HEAD~1", "--set", "cluster=none"]) == 3
    printed = capsys.readouterr().out
    assert "is a git submodule" in printed
    assert "is a git submodule" in Path("reconciler-plans/fleet.md").read_text()


def test_a_submodule_that_files_replace_or_that_is_hidden_is_no_error(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its author can plan the files that are to be committed in its place."""
    for path in ("fleet/pools", "fleet/.tools", "other"):
        linked(repository, "a" * 40, path, '[submodule "x"]\n\tpath = x\n\turl = x\n')
        checked_out(repository, path, has_content=False)
    repository.write({"fleet/pools/batch.yaml": BATCH})
    assert main(["validate", str(repository.path / "fleet")]) == 0, capsys.readouterr().out
    assert "2 NodePools" in capsys.readouterr().out
