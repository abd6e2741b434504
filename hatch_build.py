"""Writes the commit and its date into wheels and source distributions, for ``--version``."""

from __future__ import annotations

import os
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FILE = "reconciler/_build.py"


class BuildHook(BuildHookInterface):  # type: ignore[misc]
    """Adds ``reconciler/_build.py`` where the commit is known.

    A build without git, as in a container, names it: ``SOURCE_COMMIT`` and ``SOURCE_DATE_EPOCH``.
    A source distribution has the file already.
    """

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the file; an editable install reads the clone instead."""
        known = None if version == "editable" else commit_of(Path(self.root))
        if known is None:
            return
        folder = tempfile.mkdtemp(prefix="reconciler-build-")
        made = Path(folder, "_build.py")
        made.write_text('COMMIT = "{}"\nDATE = "{}"\n'.format(*known), encoding="utf-8")
        build_data["force_include"][str(made)] = FILE


def commit_of(root: Path) -> tuple[str, str] | None:
    """Return the commit and its date as YYYY-MM-DD, None where nothing tells them."""
    commit, seconds = os.environ.get("SOURCE_COMMIT"), os.environ.get("SOURCE_DATE_EPOCH")
    if commit and seconds:
        day = datetime.fromtimestamp(int(seconds), UTC)
        return _checked(commit[:12]), f"{day:%Y-%m-%d}"
    if not (root / ".git").exists():
        return None
    words = ["git", "-C", str(root), "show", "--no-patch", "--format=%H %cs", "HEAD"]
    try:
        shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()
    except (OSError, subprocess.CalledProcessError):
        return None
    return shown[0][:12], shown[1]


def _checked(commit: str) -> str:
    if not commit.isalnum():
        raise ValueError(f"SOURCE_COMMIT is not a commit: {commit!r}")
    return commit
