"""Real repositories in temporary folders."""

import os
import subprocess
from pathlib import Path

import pytest

POOL = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: general}\n"


class Repository:
    """A git repository with a working tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str) -> str:
        """Run git as an author who exists nowhere else."""
        identity = {f"GIT_{who}_{what}": "a@example.com" for who in ("AUTHOR", "COMMITTER")
                    for what in ("NAME", "EMAIL")}  # fmt: skip
        done = subprocess.run(
            ["git", "-c", "protocol.file.allow=always", *arguments],
            cwd=self.path,
            env={**os.environ, **identity, "GIT_CONFIG_GLOBAL": os.devnull},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Write, add and commit; return the commit's id."""
        self.write(files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", message)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "shop")
