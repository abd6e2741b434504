"""Files in which commands write names of a cluster or a repository: only their owner reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.cli.recorded_fleet import record
from tests.cli.test_plan import CLASS, POOL
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, init

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
TRACE = f"{COLUMNS}\na,1500,1024,0,0,0,120,30\n"
COMMANDS = {
    "an export of the state": ["state", "export", "export.jsonl", "fleet", "--state", "kept"],
    "a trace": ["trace", "import", "a.csv", "--out", "trace.jsonl"],
    "a packed trace": ["trace", "import", "a.csv", "--out", "trace.jsonl.gz"],
    "a plan": ["plan", "fleet", "--out", "plan.json"],
    "a plan of a clone": ["plan", "--repo", "{here}/other", "--out", "plan.json"],
    "a simulated apply": ["apply", "fleet", "--simulated", "--auto-approve"],
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for commands, whose new files everybody could read and write."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("fleet", "other"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "pool.yaml").write_text(POOL)
        (folder / "class.yaml").write_text(CLASS)
        (folder / "reconciler.yaml").write_text("cluster: none\n")
    init(tmp_path / "other")
    commit_all(tmp_path / "other")
    record(tmp_path / "kept")
    (tmp_path / "a.csv").write_text(TRACE)
    usual = os.umask(0)
    yield tmp_path
    os.umask(usual)


def files_of_others(folder: Path) -> Iterator[Path]:
    """Yield the files that somebody else can reach and read."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            continue
        yield from files_of_others(path) if path.is_dir() else [path]


@attack(Threat.SECRETS, "another user who reads what a command has written")
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_what_a_command_writes_is_private(words: list[str], work: Path) -> None:
    """Guards: the modes of files, and of the folder of a state and of a clone."""
    before = set(files_of_others(work))
    assert main([word.format(here=work) for word in words]) == 0
    now = set(files_of_others(work))
    assert {path for path in now - before if path.suffix != ".lock"} == set()


def test_a_clone_of_an_older_release_becomes_private(work: Path) -> None:
    words = [word.format(here=work) for word in COMMANDS["a plan of a clone"]]
    assert main(words) == 0
    (clone,) = work.glob("cache/reconciler/clones/*.git")
    clone.chmod(0o755)
    assert main(words) == 0
    assert stat.S_IMODE(clone.stat().st_mode) == 0o700
