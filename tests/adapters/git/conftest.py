"""Real repositories in temporary folders."""

from pathlib import Path

import pytest

from tests.repositories import commit_all, git, init

POOL = "apiVersion: karpenter.sh/v1\nkind: NodePool\nmetadata: {name: general}\n"


class Repository:
    """A git repository with a working tree."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        init(path)

    def git(self, *arguments: str) -> str:
        """Run git as an author who exists only here."""
        return git(self.path, *arguments)

    def write(self, files: dict[str, str]) -> None:
        for name, text in files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, files: dict[str, str], message: str = "change") -> str:
        """Write, add and commit; return the commit's id."""
        self.write(files)
        return commit_all(self.path, message)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "shop")
