"""What the release workflow checks before it publishes."""

from __future__ import annotations

import hashlib
import importlib.util
import os
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
    assert release.check("v1.2.3", '__version__ = "1.2.3"\n', CHANGELOG) == []
    assert release.notes("v1.2.3", CHANGELOG) == "- new"


@pytest.mark.parametrize(
    ("tag", "version", "problem"),
    [
        ("v1.2.3", "1.2.4", "reconciler/__init__.py has 1.2.4"),
        ("v1.2.2", "1.2.2", 'no text under "## 1.2.2"'),
        ("v1.2", "1.2", "is not of the form"),
    ],
)
def test_a_tag_that_does_not_match_is_not_released(
    tag: str, version: str, problem: str, release: ModuleType
) -> None:
    (found,) = release.check(tag, f'__version__ = "{version}"\n', CHANGELOG)
    assert problem in found


def test_the_version_of_the_package_is_found_where_it_is(release: ModuleType) -> None:
    package = (ROOT / "reconciler" / "__init__.py").read_text()
    assert release._VERSION.search(package) is not None


def test_hashes_are_those_of_sha256sum(release: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.whl").write_bytes(b"a")
    assert release.hashes(tmp_path) == f"{hashlib.sha256(b'a').hexdigest()}  a.whl\n"


def test_a_wheel_knows_its_commit_and_date(tmp_path: Path) -> None:
    facts = {"SOURCE_COMMIT": "0123456789abcdef0123456789abcdef01234567", "SOURCE_DATE_EPOCH": "0"}
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
    assert shown.stdout.endswith(" (commit 0123456789ab, 1970-01-01)\n")
