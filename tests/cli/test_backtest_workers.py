"""``simulate --trace --workers N``: the same bytes and errors, and no process that stays behind."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.errors import (
    ClockSetBackError,
    InvalidFleetError,
    LeaseLostError,
    ReconcilerError,
    StalePlanError,
    UsageError,
)
from reconciler.simulate.driver import EndlessError
from tests.engine.processes import wait_for
from tests.engine.world import a_pool
from tests.repositories import commit_all, init
from tests.simulated.simulations import words, write_fleet

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A folder with a fleet that differs from its commit, and a trace."""
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])
    init(tmp_path / "fleet")
    commit_all(tmp_path / "fleet")
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmpty", after="10m")])
    rows = [f"p{n},1500,1024,0,0,{n * 300},{n * 300 + 1800}," for n in range(4)]
    (tmp_path / "trace.csv").write_text("\n".join([COLUMNS, *rows, ""]))
    return tmp_path


def command_line(folder: Path, *more: str) -> list[str]:
    return ["simulate", *words(folder, "--trace", str(folder / "trace.csv"), *more)]


@pytest.mark.parametrize("form", ["json", "html"])
def test_two_processes_give_the_same_bytes_as_one(
    fleet: Path, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    for workers in ("1", "2"):
        more = ("--base", "HEAD", "--seeds", "2", "-o", form, "--workers", workers)
        assert main(command_line(fleet, *more)) == 0
        shown.append(capsys.readouterr().out)
    assert len(shown[0]) > 1000
    assert shown[0] == shown[1]


def test_an_error_in_a_worker_process_equals_the_error_without_workers(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = []
    for workers in ("1", "2"):
        assert main(command_line(fleet, "--base", "nowhere", "--workers", workers)) == 1
        output.append(capsys.readouterr().err)
    assert output[0].startswith("Error: ")
    assert output[0].count("\n") == 1
    assert output[0] == output[1]


FINDING = Diagnostic(Severity.ERROR, "bad-name", "it is wrong", Place("a.yaml", 3, 1))


@pytest.mark.parametrize(
    "error",
    [
        ReconcilerError("failed", where="a:1", remedy="repair it"),
        UsageError("wrong", where="--x"),
        EndlessError(datetime(2026, 1, 1, tzinfo=UTC), 20),
        StalePlanError(["git"], plan="p.json"),
        LeaseLostError("no", why="it lapsed"),
        ClockSetBackError(3.0),
        InvalidFleetError([FINDING]),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_crosses_processes_unchanged(error: ReconcilerError) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert vars(found) == vars(error)


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--workers", "0", "--trace", "t"], "--workers: 0 is not allowed; use 1 to 64"),
        (["--workers", "65", "--trace", "t"], "--workers: 65 is not allowed; use 1 to 64"),
        (["--workers", "2"], "--workers: needs a trace; add --trace FILE"),
    ],
)
def test_an_implausible_number_of_processes_is_rejected(
    fleet: Path, flags: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *words(fleet, *flags)]) == 1
    assert problem in capsys.readouterr().err


def threads(process: int) -> list[Path]:
    """Return the folders of a process's threads, none if it has ended."""
    try:
        return list(Path(f"/proc/{process}/task").iterdir())
    except OSError:
        return []


def descendants(process: int) -> list[int]:
    """Return the processes that a process has started, directly or not."""
    own = []
    for thread in threads(process):
        with suppress(OSError):  # it has ended
            own += [int(word) for word in (thread / "children").read_text().split()]
    return [*own, *(child for one in own for child in descendants(one))]


def plays(process: int) -> bool:
    """Return whether a process is one that replays."""
    try:
        return b"sweep.processes" in Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return False


def playing(process: int) -> list[int]:
    """Return the processes that replay and have their second thread: they are at work."""
    found = [child for child in descendants(process) if plays(child)]
    return [child for child in found if len(threads(child)) > 1]


@pytest.fixture
def running(fleet: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that replays thousands of pods in two processes, both of them at work."""
    if not Path("/proc/self/task").is_dir():
        pytest.skip("processes are found in /proc")
    rows = [f"p{n},1500,1024,0,0,{n * 300},{n * 300 + 9000}," for n in range(3000)]
    (fleet / "trace.csv").write_text("\n".join([COLUMNS, *rows, ""]))
    command = [
        sys.executable,
        "-m",
        "reconciler",
        *command_line(fleet, "--seeds", "2", "--workers", "2"),
    ]
    with subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509 - as in a terminal
    ) as process:
        wait_for(lambda: process.poll() is not None or len(playing(process.pid)) == 2)
        yield process
        process.kill()


@pytest.mark.exhaustive
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGKILL])
def test_the_processes_end_with_the_command(
    running: subprocess.Popen[str], end: signal.Signals
) -> None:
    found = playing(running.pid)
    running.send_signal(end)
    output = running.communicate(timeout=30)[1]
    assert len(found) == 2, output
    assert running.returncode in (130, -end)
    assert "Traceback" not in output
    wait_for(lambda: not any(plays(child) for child in found))


@pytest.mark.exhaustive
def test_a_repeatedly_killed_process_is_an_error_with_advice(
    running: subprocess.Popen[str],
) -> None:
    killed: set[int] = set()
    while running.poll() is None:
        for process in set(playing(running.pid)) - killed:
            os.kill(process, signal.SIGKILL)
            killed.add(process)
    output = running.communicate(timeout=30)[1]
    assert running.returncode == 1
    assert output == (
        "Error: --workers: the evaluation process was killed; "
        "use fewer processes if memory is short\n"
    )
    wait_for(lambda: not any(plays(child) for child in killed))


@pytest.mark.exhaustive
def test_a_process_killed_once_loses_only_its_evaluation(
    fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not Path("/proc/self/task").is_dir():
        pytest.skip("processes are found in /proc")
    rows = [f"p{n},1500,1024,0,0,{n * 300},{n * 300 + 9000}," for n in range(100)]
    (fleet / "trace.csv").write_text("\n".join([COLUMNS, *rows, ""]))
    line = command_line(fleet, "--seeds", "3", "-o", "json")
    assert main(line) == 0
    expected = capsys.readouterr().out
    command = [sys.executable, "-m", "reconciler", *line, "--workers", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_for(lambda: process.poll() is not None or len(playing(process.pid)) == 2)
        os.kill(playing(process.pid)[0], signal.SIGKILL)
        shown = process.communicate(timeout=60)[0]
    assert process.returncode == 0
    assert shown == expected
