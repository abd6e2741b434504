"""Files in which commands write names of a cluster or a repository: only their owner reads them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.adapters.kubernetes.access import access_of
from reconciler.adapters.nofollow import warn_of_other_writers
from reconciler.cli.main import main
from reconciler.model.settings import Settings
from tests.adapters.kubernetes.apiserver import write_kubeconfig
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


READING = (["status"], ["history"], ["plan", "--set", "cluster=embedded"], ["state", "check"])


@attack(Threat.OWNERSHIP, "another user of the machine who changes the recorded state")
@pytest.mark.parametrize("name", ["state.db", "state.db-wal", "state.db-shm", "state.db-journal"])
@pytest.mark.parametrize("words", READING, ids=lambda words: words[0])
def test_a_state_that_every_user_can_change_is_not_used(
    words: list[str], name: str, work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``may_be_written_by_all`` in ``refuse_special_file``."""
    file = work / "kept" / name
    file.touch()
    usual = file.stat().st_mode
    file.chmod(0o666)
    assert main([*words, "fleet", "--state", str(work / "kept")]) == 1
    (output,) = capsys.readouterr().err.splitlines()
    assert "every user of this machine can change" in output
    assert f"chmod o-w {file}" in output
    file.chmod(usual & 0o600)
    main([*words, "fleet", "--state", str(work / "kept")])
    assert "chmod" not in capsys.readouterr().err


@attack(Threat.OWNERSHIP, "a recorded state that another user put into a folder for all users")
@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs root to chown")
def test_a_state_of_another_user_in_a_folder_for_all_is_not_used(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``_refuse_file_of_another_user``. Volumes of containers are such folders."""
    kept = work / "kept"
    kept.chmod(0o1777)
    assert main(["status", "fleet", "--state", str(kept)]) == 0
    os.chown(kept / "state.db", 12345, -1)
    assert main(["status", "fleet", "--state", str(kept)]) == 1
    assert f"chmod o-w {kept}" in capsys.readouterr().err
    kept.chmod(0o755)
    assert main(["status", "fleet", "--state", str(kept)]) == 0


@pytest.fixture
def open_path(work: Path) -> Iterator[None]:
    """Let every user enter the folders above the folder for commands."""
    closed: list[tuple[Path, int]] = []
    for folder in (work, *work.parents):
        mode = stat.S_IMODE(folder.stat().st_mode)
        if folder.stat().st_uid == os.geteuid() and not mode & stat.S_IXOTH:
            closed.append((folder, mode))
            folder.chmod(mode | stat.S_IXOTH)
    if not all(folder.stat().st_mode & stat.S_IXOTH for folder in work.parents):
        pytest.skip("a folder above that of the tests is closed to other users")
    yield
    for folder, mode in closed:
        folder.chmod(mode)


def changeable(folder: Path, name: str, content: str) -> Path:
    """Return a new file that every user can change, in a folder that every user can enter."""
    folder.chmod(0o755)
    file = folder / name
    file.write_text(content)
    file.chmod(0o666)
    return file


@attack(Threat.OWNERSHIP, "another user of the machine who changes a file of the operator")
@pytest.mark.parametrize("kind", ["--config", "--policy", "a kubeconfig", "a saved plan"])
def test_a_file_of_the_operator_that_every_user_can_change_is_named(
    kind: str, work: Path, open_path: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: ``warn_of_other_writers``. Some CI runners write such files, so none is refused."""
    if kind == "a kubeconfig":
        file = changeable(work, "kubeconfig", "")
        write_kubeconfig(file, "https://192.0.2.1")
        access_of(Settings(kubeconfig=str(file))).client.close()
    elif kind == "a saved plan":
        file = work / "plan.json"
        assert main(["plan", "fleet", "--out", str(file)]) == 0
        file.chmod(0o666)
        work.chmod(0o755)
        main(["apply", str(file), "fleet", "--auto-approve"])
    else:
        content = "policies: []\n" if kind == "--policy" else "packing: default\n"
        file = changeable(work, "operator.yaml", content)
        assert main(["plan", "fleet", kind, str(file)]) == 0
    (message,) = {record.getMessage() for record in caplog.records}
    assert message.startswith(f"{file}: every user of this machine can change it (`chmod o-w ")


@attack(Threat.OWNERSHIP, "a file of the operator in a folder where others can replace it")
def test_a_file_that_every_user_can_replace_is_named(
    work: Path, open_path: None, caplog: pytest.LogCaptureFixture
) -> None:
    """Guard: the folder in ``_other_writers``."""
    file = changeable(work, "operator.yaml", "")
    file.chmod(0o600)
    work.chmod(0o777)
    warn_of_other_writers(file, "something")
    assert "every user of this machine can replace it" in caplog.text


def test_a_file_that_no_other_user_can_reach_is_not_named(
    work: Path, open_path: None, caplog: pytest.LogCaptureFixture
) -> None:
    (work / "private").mkdir()
    file = changeable(work / "private", "operator.yaml", "")
    (work / "private").chmod(0o700)
    warn_of_other_writers(file, "something")
    (work / "private").chmod(0o755)
    file.chmod(0o644)
    warn_of_other_writers(file, "something")
    work.chmod(0o1777)  # such as a mounted volume; the file is ours
    warn_of_other_writers(file, "something")
    warn_of_other_writers(work / "missing", "something")
    assert caplog.text == ""
