"""git repositories in temporary folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

WEB = Path(__file__).resolve().parents[1] / "examples" / "web"

IDENTITY = {
    f"GIT_{role}_{fact}": "a@example.com"
    for role in ("AUTHOR", "COMMITTER")
    for fact in ("NAME", "EMAIL")
}
"""Who commits, for git."""


def git(folder: Path, *words: str) -> str:
    """Run git in a folder, without the settings of the user; return its output."""
    result = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *words],
        cwd=folder,
        env={**os.environ, **IDENTITY, "GIT_CONFIG_GLOBAL": os.devnull},
        capture_output=True,
        text=True,
        check=True,
    )
    return result.stdout.strip()


def init(folder: Path) -> None:
    """Create a repository with the branch ``main`` in a folder."""
    git(folder, "init", "--quiet", "--initial-branch=main")


def commit_all(folder: Path, message: str = "a change") -> str:
    """Commit all files of the folder and return the id of the commit."""
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--allow-empty", "--message", message)
    return git(folder, "rev-parse", "HEAD")


def copy_small_web(folder: Path) -> None:
    """Copy the example ``web`` with three pods instead of 18: a comparison takes a quarter."""
    shutil.copytree(WEB, folder, dirs_exist_ok=True)
    for name, usual, few in (("frontend", 12, 2), ("api", 6, 1)):
        pods = folder / "workloads" / f"{name}.yaml"
        before = pods.read_text(encoding="utf-8")
        assert f"replicas: {usual}" in before
        pods.write_text(before.replace(f"replicas: {usual}", f"replicas: {few}"), encoding="utf-8")
