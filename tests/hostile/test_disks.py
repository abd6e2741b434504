"""A disk that is full, read-only or loses its files: no half effect, and a message that helps."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
from sqlalchemy import create_engine, make_url, text

from reconciler.adapters.database.location import FILE
from reconciler.adapters.database.state import open_state
from reconciler.model.errors import ReconcilerError
from tests.cli.recorded_fleet import record
from tests.cli.test_lock import endpoint, folder, lock, the_lock
from tests.cli.test_plan import CLASS, DEPLOYMENT, NOW, POOL
from tests.cli.test_snapshot import a_kubectl
from tests.engine.faults import launches
from tests.hostile.test_fights import Daemon, Fight, commits
from tests.hostile.test_limits import a_fleet
from tests.hostile.test_ownership import terminations
from tests.hostile.threats import Threat, attack
from tests.postgres import a_database
from tests.repositories import commit_all, init

__all__ = ["endpoint", "folder"]

PROGRAM: Final = Path(sys.executable).parent / "reconciler"
FULL: Final = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="this system has no /dev/full")


def ran(
    *words: str, bytes_max: int | None = None, out: Path | None = None, err: Path | None = None
) -> tuple[int, str]:
    """Run a command whose files may have a number of bytes; return its code and errors.

    It writes no bytecode: Python would rename a file that was cut at the limit into its place.
    """

    def limit() -> None:
        if bytes_max is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_max, bytes_max))

    streams = {1: out, 2: err}
    opened = {n: path.open("wb") for n, path in streams.items() if path is not None}
    done = subprocess.run(
        [PROGRAM, *words],
        stdout=opened.get(1, subprocess.PIPE),
        stderr=opened.get(2, subprocess.PIPE),
        preexec_fn=limit,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
        timeout=120,
        check=False,
    )
    for stream in opened.values():
        stream.close()
    return done.returncode, (done.stderr or b"").decode()


@pytest.fixture
def planned(tmp_path: Path) -> list[str]:
    """The arguments of a command that plans a fleet."""
    fleet = a_fleet(tmp_path, pool=POOL, **{"class": CLASS}, app=DEPLOYMENT)
    return [fleet, "--now", NOW, "--catalog", str(tmp_path / "catalog.json")]


@attack(Threat.EXHAUSTION, "a full device behind standard output")
@needs_full
@pytest.mark.parametrize(
    "command",
    ["plan", "plan -o json", "plan -o html", "validate", "--help", "--version", "completion bash"],
)
def test_output_that_cannot_be_written_is_an_error_in_one_line(
    command: str, planned: list[str]
) -> None:
    """Guard: ``FilteredStream``, which names the stream."""
    name, *options = command.split()
    more = planned if name == "plan" else planned[:1] if name == "validate" else []
    code, errors = ran(name, *more, *options, out=FULL)
    assert code == 1
    assert errors.startswith("Error: standard output: cannot be written: No space left on device")
    assert errors.count("\n") == 1


@attack(Threat.EXHAUSTION, "a full device behind standard error")
@needs_full
def test_an_error_that_cannot_be_written_keeps_its_code(planned: list[str]) -> None:
    """Guard: a stream without a title loses what it cannot write."""
    code, _ = ran("plan", "nowhere", err=FULL)
    assert code == 1
    assert ran("plan", *planned, err=FULL)[0] == 0


@attack(Threat.EXHAUSTION, "a full disk below the files that a command writes")
@pytest.mark.parametrize("file", ["plan.json", "snapshot.json.gz"])
def test_a_file_is_written_completely_or_not_at_all(
    file: str, planned: list[str], tmp_path: Path
) -> None:
    """Guard: ``write_file``, which renames a complete file into its place."""
    target = tmp_path / file
    target.write_text("before")
    code, errors = ran("plan", *planned, "--out", str(target), bytes_max=500)
    assert code == 1
    assert errors.count("\n") == 1
    assert f"{file}: cannot be written: File too large; free some space" in errors
    assert target.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir() if file[:4] in path.name) == [file]


@attack(Threat.EXHAUSTION, "a full disk below a snapshot")
def test_a_snapshot_is_written_completely_or_not_at_all(tmp_path: Path) -> None:
    """Guard: ``write_file``, which renames a complete file into its place."""
    target = tmp_path / "cluster.json"
    target.write_text("before")
    kubectl = a_kubectl(tmp_path)
    code, errors = ran("snapshot", "--kubectl", kubectl, "--out", str(target), bytes_max=60)
    assert code == 1
    assert errors.count("\n") == 1
    assert "File too large" in errors
    assert "internal error" not in errors
    assert target.read_text() == "before"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Let this process write no larger file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@attack(Threat.EXHAUSTION, "a full disk below the lock file of a fleet")
def test_a_lock_is_written_completely_or_not_at_all(
    folder: Path, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``write_file``, which renames a complete file into its place."""
    assert lock(folder, endpoint) == 0
    before = the_lock(folder)
    pool = folder / "pool.yaml"
    pool.write_text(pool.read_text().replace("m7g", "m7i"))
    capsys.readouterr()
    with files_of_at_most(400):
        assert lock(folder, endpoint, "--update") == 1
    (*_, error) = capsys.readouterr().err.splitlines()
    assert "reconciler.lock: cannot be written: File too large; free some space" in error
    assert the_lock(folder) == before
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]


@attack(Threat.EXHAUSTION, "a full disk below the folder for temporary files")
@pytest.mark.parametrize("command", ["plan", "plan --base HEAD", "simulate", "status"])
def test_a_full_disk_for_temporary_files_is_named(command: str, tmp_path: Path) -> None:
    """Guard: ``private_folder``, which says where there is no space."""
    folder = Path(a_fleet(tmp_path, pool=POOL, **{"class": CLASS}, app=DEPLOYMENT))
    init(folder)
    commit_all(folder)
    name, *options = command.split()
    code, errors = ran(name, str(folder), *options, bytes_max=20)
    assert code == 1
    assert errors.startswith("Error: ")
    assert "no temporary files can be written: File too large; free some space" in errors
    assert errors.count("\n") == 1


@attack(Threat.EXHAUSTION, "a full disk below the recorded state")
@pytest.mark.parametrize("command", ["resume", "state prune --keep 24h", "state import x.jsonl"])
def test_a_state_that_cannot_grow_stays_as_it_was(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: one transaction for each change, and the remedies of ``translate_errors``."""
    folder = tmp_path / "web"
    folder.mkdir()
    monkeypatch.chdir(folder)
    record(folder / ".reconciler")
    assert ran("state", "export", "x.jsonl")[0] == 0
    before = (folder / "x.jsonl").read_text()
    words = command.split()
    if "import" in words:
        words += ["--state", str(tmp_path / "other")]
    code, errors = ran(*words, bytes_max=2_000)
    assert "Traceback" not in errors
    assert "internal error" not in errors
    assert errors.count("\n") == 1
    assert code == 1
    assert "space" in errors or "disk" in errors
    assert ran("state", "export", "y.jsonl")[0] == 0
    assert (folder / "y.jsonl").read_text() == before
    assert ran("state", "check")[0] == 0


def stopped_midway(location: str) -> tuple[Fight, Daemon]:
    """Return a daemon that has replaced some of its nodes."""
    fight = Fight("disks", location)
    fight.calm = True
    first, second, *_ = commits(fight)
    daemon = fight.daemons[0]
    for commit, passes in ((first, 40), (second, 6)):
        commit()
        for _ in range(passes):
            fight.world.clock.advance(5)
            fight.act(daemon)
    fight.log.clear()
    return fight, daemon


def effects(fight: Fight) -> tuple[set[str], int, int]:
    """Return the instances, and the numbers of launches and of terminations."""
    world = fight.world
    return set(world.instances()), launches(world), terminations(world)


def act_again(fight: Fight, daemon: Daemon) -> None:
    """Let the daemon run for some minutes, with what it has opened."""
    for _ in range(20):
        fight.world.clock.advance(20)
        try:
            fight.act(daemon)
        except ReconcilerError as error:
            fight.log.append(f"failed: {error}")


def removed(state: Path, backup: Path) -> None:
    shutil.rmtree(state)


def removed_file(state: Path, backup: Path) -> None:
    (state / "state.db").unlink()


def restored(state: Path, backup: Path) -> None:
    shutil.rmtree(state)
    shutil.copytree(backup, state)


def of_another_fleet(state: Path, backup: Path) -> None:
    shutil.rmtree(state)
    open_state(str(state), "another").close()


@attack(Threat.OWNERSHIP, "a database file that is removed or replaced while a daemon uses it")
@pytest.mark.parametrize("replace", [removed, removed_file, restored, of_another_fleet])
def test_a_daemon_does_nothing_without_the_file_of_its_database(
    replace: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    """Guard: ``FileLease.confirm``. The open file would take records until the process ends."""
    state = tmp_path / "state"
    fight, daemon = stopped_midway(str(state))
    shutil.copytree(state, tmp_path / "backup")
    before = effects(fight)
    replace(state, tmp_path / "backup")
    act_again(fight, daemon)
    assert effects(fight) == before
    assert any("was removed or replaced while it was in use" in line for line in fight.log)
    fight.restart(daemon)
    act_again(fight, daemon)
    assert set(fight.world.instances()) >= before[0] or replace is restored
    fight.close_all()


def shortened(state: Path, size: int) -> None:
    with (state / FILE).open("r+b") as file:
        file.truncate(size)


def halved(state: Path) -> None:
    shortened(state, (state / FILE).stat().st_size // 2)


def without_header(state: Path) -> None:
    with (state / FILE).open("r+b") as file:
        file.write(bytes(200))


def overwritten(state: Path) -> None:
    other = state.with_name("another")
    open_state(str(other), "another").close()
    (state / FILE).write_bytes((other / FILE).read_bytes())


@attack(Threat.OWNERSHIP, "a database file that is cut or overwritten while a daemon uses it")
@pytest.mark.parametrize(
    "damage", [lambda state: shortened(state, 0), halved, without_header, overwritten]
)
def test_a_daemon_does_nothing_with_a_damaged_file(
    damage: Callable[[Path], None], tmp_path: Path
) -> None:
    """Guard: ``_begin_transaction``, which forgets the pages in memory before a write."""
    state = tmp_path / "state"
    fight, daemon = stopped_midway(str(state))
    flushed(state)
    before = effects(fight)
    damage(state)
    _, _, more, _ = commits(fight)
    more()
    act_again(fight, daemon)
    assert effects(fight) == before
    assert any("cannot use the recorded state" in line or "lost" in line for line in fight.log)
    assert not any("internal error" in line for line in fight.log)


@attack(Threat.OWNERSHIP, "an older copy of a database, put over the file that a daemon uses")
@pytest.mark.parametrize("passes", [1, 2, 3, 5])
def test_a_daemon_does_nothing_with_an_older_copy_of_its_file(passes: int, tmp_path: Path) -> None:
    """Guard: the serial in ``Fence``. The epoch of the copy is that of the daemon."""
    state = tmp_path / "state"
    fight = Fight("disks", str(state))
    fight.calm = True
    first, second, *_ = commits(fight)
    daemon = fight.daemons[0]
    first()
    run_passes(fight, daemon, 40)
    backup = flushed(state).read_bytes()
    second()
    run_passes(fight, daemon, passes)
    flushed(state).write_bytes(backup)
    before = effects(fight)
    fight.log.clear()
    fight.world.clock.advance(20)
    fight.act(daemon)
    assert effects(fight) == before
    (line,) = [line for line in fight.log if "lost the lease" in line]
    assert "a copy of it was restored while it was in use" in line
    fight.close_all()


def run_passes(fight: Fight, daemon: Daemon, count: int) -> None:
    for _ in range(count):
        fight.world.clock.advance(5)
        fight.act(daemon)


def flushed(state: Path) -> Path:
    """Return the file of a database, after all of it is there."""
    with closing(sqlite3.connect(state / FILE)) as raw:
        ((busy, *_),) = raw.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()
    assert not busy
    return state / FILE


@attack(Threat.OWNERSHIP, "a database of a server that is dropped, or made again, under a daemon")
@pytest.mark.parametrize("again", [False, True], ids=["dropped", "made again"])
def test_a_daemon_does_nothing_without_its_database(again: bool) -> None:
    """Guard: the epoch of every write, and the record before each effect."""
    location = a_database()
    fight, daemon = stopped_midway(location)
    before = effects(fight)
    url = make_url(location)
    name = url.database
    admin = create_engine(url.set(database="postgres"), isolation_level="AUTOCOMMIT")
    with admin.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        if again:
            connection.execute(text(f"CREATE DATABASE {name} TEMPLATE template0"))
    act_again(fight, daemon)
    admin.dispose()
    fight.close_all()
    assert effects(fight) == before
    failures = [line for line in fight.log if "failed" in line or "lost" in line]
    assert failures
    assert not any("internal error" in line or "Traceback" in line for line in failures)


@attack(Threat.EXHAUSTION, "a read-only disk below the recorded state")
def test_a_state_that_cannot_be_written_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guard: readers open the database without writing; they need no lock."""
    folder, target = tmp_path / "web", tmp_path / "mounted"
    folder.mkdir()
    target.mkdir()
    record(folder / ".reconciler")
    mount = ["mount", "--bind", str(folder), str(target)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this user cannot mount")
    try:
        read_only = ["mount", "-o", "remount,ro,bind", str(target)]
        if subprocess.run(read_only, check=False, capture_output=True).returncode:
            pytest.skip("this user cannot mount read-only")
        monkeypatch.chdir(target)
        for command in ("status", "get nodes", "history", "state check", "report"):
            assert ran(*command.split()) == (0, ""), command
        code, errors = ran("resume")
        assert code == 1
        assert "give this user write permission" in errors
        assert errors.count("\n") == 1
        code, errors = ran("state", "export", "x.jsonl")
        assert code == 1
        assert "x.jsonl: cannot be written: Read-only file system" in errors
    finally:
        monkeypatch.chdir(tmp_path)
        subprocess.run(["umount", str(target)], check=True)
