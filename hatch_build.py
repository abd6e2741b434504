"""Takes the version from the tags of git, and the commit and its date into what is built.

A clone asks git. An archive of a commit, as GitHub makes them, has the answers in
``.git_archival.txt``. A build with neither, as in a container, is told by ``SOURCE_VERSION``,
``SOURCE_COMMIT`` and ``SOURCE_DATE_EPOCH``. A source distribution has the files already.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "reconciler/_build.py"
FIRST = (0, 1, 0)
"""What is released first: before it, versions are 0.1.0.devN."""

_RELEASE = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
_DESCRIBED = re.compile(rf"{_RELEASE.pattern}(?:-(\d+)-g[0-9a-f]+)?")


class BuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds ``reconciler/_build.py`` where the commit is known."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file; an editable install reads the clone instead."""
        known = None if version == "editable" else source_of(Path(self.root))
        if known is None or not known.commit:
            return
        folder = tempfile.mkdtemp(prefix="reconciler-build-")
        made = Path(folder, "_build.py")
        made.write_text(f'COMMIT = "{known.commit}"\nDATE = "{known.date}"\n', encoding="utf-8")
        build_data["force_include"][str(made)] = FILE


class Source(NamedTuple):
    """What is built: the commit, its date as YYYY-MM-DD, and the last tag before it.

    ``described`` is as ``git describe`` has it, such as v1.2.3-4-g0123abc, empty without a tag.
    ``commits`` counts those that are known of its history.
    """

    commit: str
    date: str
    described: str
    commits: int


def version() -> str:
    """Return 1.2.3 for the tag v1.2.3, and 1.2.4.devN for the N-th commit after it.

    Raises:
        ValueError: SOURCE_VERSION is not a release.
    """
    told = os.environ.get("SOURCE_VERSION")
    if told:
        release = _RELEASE.fullmatch(told)
        if release is None:
            raise ValueError(f"SOURCE_VERSION is not of the form 1.2.3: {told!r}")
        return ".".join(release.groups())
    source = source_of(Path(__file__).resolve().parent)
    tagged = _DESCRIBED.fullmatch(source.described) if source else None
    if tagged is None:
        return "{}.{}.{}.dev{}".format(*FIRST, source.commits if source else 0)
    major, minor, patch = map(int, tagged.groups()[:3])
    since = int(tagged[4] or 0)
    return f"{major}.{minor}.{patch + 1}.dev{since}" if since else f"{major}.{minor}.{patch}"


def source_of(root: Path) -> Source | None:
    """Return what is built, None where nothing tells it."""
    commit, seconds = os.environ.get("SOURCE_COMMIT"), os.environ.get("SOURCE_DATE_EPOCH")
    if commit and seconds:
        if not commit.isalnum():
            raise ValueError(f"SOURCE_COMMIT is not a commit: {commit!r}")
        return Source(commit, f"{datetime.fromtimestamp(int(seconds), UTC):%Y-%m-%d}", "", 0)
    if (root / ".git").exists():
        return _of_clone(root)
    return _of_archive(root / ".git_archival.txt")


def _of_clone(root: Path) -> Source | None:
    try:
        commit, date = _git(root, "show", "--no-patch", "--format=%H %cs", "HEAD").split()
        commits = int(_git(root, "rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return None
    try:
        described = _git(root, "describe", "--tags", "--match", "v[0-9]*")
    except subprocess.CalledProcessError:
        described = ""
    return Source(commit, date, described, commits)


def _git(root: Path, *words: str) -> str:
    command = ["git", "-C", str(root), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _of_archive(file: Path) -> Source | None:
    try:
        found = file.read_text(encoding="utf-8").split()
    except OSError:
        return None
    if len(found) not in {2, 3} or not found[0].isalnum():
        return None  # a copy of the tree, in which git has filled in nothing
    return Source(found[0], found[1], found[2] if found[2:] else "", 0)
