"""What the release workflow checks before it publishes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHANGELOG = (
    "# Changelog\n\n## Unreleased\n\n- later\n\n## 1.2.3 - 2026-01-01\n\n- new\n\n## 1.2.2\n"
)


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_tag_that_matches_the_version_and_the_changelog_is_released(release: ModuleType) -> None:
    assert release.find_problems("v1.2.3", "appVersion: 1.2.3\n", CHANGELOG) == []
    assert release.release_notes("v1.2.3", CHANGELOG) == "- new"


@pytest.mark.parametrize(
    ("tag", "version", "problem"),
    [
        ("v1.2.3", "1.2.4", "the Helm chart has 1.2.4"),
        ("v1.2.2", "1.2.2", 'no text under "## 1.2.2"'),
        ("v1.2", "1.2", "is not of the form"),
    ],
)
def test_a_tag_that_does_not_match_is_not_released(
    tag: str, version: str, problem: str, release: ModuleType
) -> None:
    (found,) = release.find_problems(tag, f"appVersion: {version}\n", CHANGELOG)
    assert problem in found


def test_the_version_of_the_chart_is_found_in_its_file(release: ModuleType) -> None:
    assert release._VERSION.search(release.CHART.read_text()) is not None


def test_hashes_equal_those_of_sha256sum(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"a")
    assert release.checksums(tmp_path) == f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n"


def _git(folder: Path, *words: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def _version(folder: Path, **reported: str) -> str:
    """Return the version that a build in a folder gets."""
    names = ("SOURCE_VERSION", "SOURCE_COMMIT", "SOURCE_DATE_EPOCH")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    shown = subprocess.run(
        [sys.executable, "-c", "import hatch_build; print(hatch_build.version())"],
        env=kept | reported,
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
    )
    return shown.stdout.strip() or shown.stderr.splitlines()[-1]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in ("hatch_build.py", ".gitattributes", ".git_archival.txt"):
        shutil.copy(ROOT / name, folder)
    _git(folder, "init", "--quiet", "--initial-branch", "main")
    _git(folder, "add", ".")
    _git(folder, "commit", "--quiet", "--message", "first")
    return folder


def test_the_version_is_that_of_the_tag(clone: Path) -> None:
    assert _version(clone) == "0.1.0.dev1"
    _git(clone, "tag", "v1.2.3")
    _git(clone, "tag", "vienna")
    assert _version(clone) == "1.2.3"
    _git(clone, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert _version(clone) == "1.2.4.dev1"
    assert _version(clone, SOURCE_VERSION="v2.0.0") == "2.0.0"
    assert "SOURCE_VERSION is not of the form 1.2.3" in _version(clone, SOURCE_VERSION="2; exit")


def test_an_archive_of_a_tag_has_its_version(clone: Path, tmp_path: Path) -> None:
    _git(clone, "tag", "v1.2.3")
    for name in ("archive", "copy"):
        (tmp_path / name).mkdir()
    _git(clone, "archive", "--output", "../archive.zip", "v1.2.3")
    zipfile.ZipFile(tmp_path / "archive.zip").extractall(tmp_path / "archive")
    assert _version(tmp_path / "archive") == "1.2.3"
    for name in ("hatch_build.py", ".git_archival.txt"):
        shutil.copy(clone / name, tmp_path / "copy")
    assert _version(tmp_path / "copy") == "0.1.0.dev0"


def test_a_wheel_knows_its_commit_and_date(tmp_path: Path) -> None:
    facts = {
        "SOURCE_VERSION": "v1.2.3",
        "SOURCE_COMMIT": "0123456789abcdef0123456789abcdef01234567",
        "SOURCE_DATE_EPOCH": "0",
    }
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, env=os.environ | facts, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    shown = subprocess.run(
        [sys.executable, "-S", "-m", "reconciler", "--version"],
        env=os.environ | {"PYTHONPATH": str(tmp_path / "site")},
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert shown.stdout == "reconciler 1.2.3 (commit 0123456789ab, 1970-01-01)\n"
