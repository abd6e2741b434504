"""Submodules that a pull request adds: hostile URLs and paths, and links to objects of a tree."""

from __future__ import annotations

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
    assert main(["plan", place, "--base", "HEAD~1", "-o", "json"]) in (0, 1)
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
