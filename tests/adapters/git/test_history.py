"""What changed between two commits, from verified objects: the same answers as git's own."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from reconciler.adapters.git.revision import changed_files
from reconciler.adapters.git.source import AtRef, read
from reconciler.model.errors import UnreadableError, UsageError

from .conftest import POOL, Repository


def changed(repository: Repository, base: str, *folders: str) -> tuple[str, ...]:
    return changed_files(str(repository.path), base, folders).paths


@pytest.mark.parametrize("seed", range(4))
def test_changed_files_are_those_of_git(seed: int, repository: Repository) -> None:
    chance = random.Random(seed)
    repository.commit({"pool.yaml": POOL})
    commits = [repository.git("rev-parse", "HEAD")]
    for number in range(14):
        parents = chance.sample(commits, min(len(commits), chance.choice([1, 1, 1, 2])))
        repository.git("read-tree", parents[0])
        for _ in range(2):
            name = f"{chance.choice(['a', 'b/c', 'b-c', 'pool'])}.yaml"
            blob = repository.git("hash-object", "-w", "pool.yaml")
            mode = chance.choice(["100644", "100755"])
            if chance.random() < 0.3:
                repository.git("update-index", "--force-remove", name)
            else:
                repository.write({"pool.yaml": f"{POOL}# {chance.random()}\n"})
                blob = repository.git("hash-object", "-w", "pool.yaml")
                repository.git("update-index", "--add", "--cacheinfo", f"{mode},{blob},{name}")
        words = [word for parent in parents for word in ("-p", parent)]
        tree = repository.git("write-tree")
        made = repository.git("commit-tree", tree, *words, "-m", str(number))
        commits.append(made)
    for _ in range(6):
        base, head = chance.sample(commits, 2)
        repository.git("update-ref", "refs/heads/main", head)
        bases = repository.git("merge-base", "--all", base, head).split()
        possible = [
            repository.git("diff", "--name-only", "--no-renames", one, head).splitlines()
            for one in bases
        ]
        assert list(changed(repository, base)) in possible


def test_known_folders_are_those_of_the_base(repository: Repository) -> None:
    base = repository.commit({"one/pool.yaml": POOL})
    repository.commit({"two/pool.yaml": POOL})
    found = changed_files(str(repository.path), base, (".", "one", "two", "one/deeper"))
    assert found.known == {".", "one"}
    assert found.paths == ("two/pool.yaml",)


def test_commits_without_a_common_ancestor_are_refused(
    repository: Repository, tmp_path: Path
) -> None:
    repository.commit({"pool.yaml": POOL})
    repository.git("checkout", "--quiet", "--orphan", "other")
    repository.commit({"pool.yaml": POOL}, "unrelated")
    with pytest.raises(UsageError, match="no common ancestor"):
        changed(repository, "main")
    repository.git("checkout", "--quiet", "main")
    repository.commit({"a.yaml": "{}"})
    repository.git("branch", "tip")
    repository.git("checkout", "--quiet", "-b", "side", "main~1")
    repository.commit({"b.yaml": "{}"})
    shallow = tmp_path / "shallow"
    url = f"file://{repository.path}"
    repository.git("clone", "--quiet", "--depth=1", "--no-single-branch", url, str(shallow))
    with pytest.raises(UsageError, match="fetch the complete history"):
        changed_files(str(shallow), "origin/tip", ())


def test_an_object_whose_content_does_not_match_its_name_is_not_read(
    repository: Repository,
) -> None:
    repository.commit({"pool.yaml": POOL, "other.yaml": POOL + "# other\n"})
    names = [repository.git("rev-parse", f"HEAD:{name}.yaml") for name in ("pool", "other")]
    paths = [repository.path / ".git/objects" / name[:2] / name[2:] for name in names]
    paths[0].unlink()
    shutil.copy(paths[1], paths[0])
    with pytest.raises(UnreadableError, match=f"{names[0]} does not match its name"):
        read(AtRef(str(repository.path), "HEAD"))
