"""Results of backtests that are kept in a folder: forged, odd, and on a disk that is full."""

from __future__ import annotations

import json
import os
import tracemalloc
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.sweep import cache
from tests.cli.test_sweeps import command_line, files_in, shown, write_trace
from tests.engine.world import a_pool
from tests.hostile.test_disks import ran
from tests.hostile.threats import Threat, attack
from tests.repositories import commit_all, git, init
from tests.simulated.simulations import write_fleet

MIB = 2**20


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    """A checkout with a fleet and a trace."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    write_fleet(folder, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])
    write_trace(folder, 4)
    init(folder)
    return folder


@attack(Threat.HIDDEN, "results in a pull request, which a job would take from its cache")
@pytest.mark.parametrize("place", ["cache", "cache/inner", "cache/../cache/", "cache/inner/below"])
def test_no_result_of_a_pull_request_is_read(
    place: str, fleet: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: ``find_tracked_path`` in ``cache_at``."""
    line = command_line(fleet, "--cache", str(fleet / place))
    expected = shown(line, capsys)
    (kept,) = files_in(fleet / "cache")
    content = json.loads(kept.read_text())
    content["result"]["dollars"] = 1e6
    kept.write_text(json.dumps(content))
    assert shown(line, capsys) != expected, "a result of the user counts"
    git(fleet, "add", "--force", str(kept))
    commit_all(fleet)
    assert main(line) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert "git tracks" in error
    assert "a pull request could choose results" in error


@attack(Threat.EXHAUSTION, "a pipe or a device in place of a result that is kept")
@pytest.mark.parametrize("kind", ["a pipe", "a device"])
def test_what_is_not_a_file_is_not_a_result(
    kind: str, fleet: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Guard: only a regular file is read in ``_Folder.read``. The pipe has a result."""
    line = command_line(fleet, "--cache", str(fleet / "cache"))
    shown(line, capsys)
    (kept,) = files_in(fleet / "cache")
    content = kept.read_bytes()
    kept.unlink()
    if kind == "a pipe":
        os.mkfifo(kept)
    else:
        kept.symlink_to("/dev/zero")
        monkeypatch.setattr(cache, "RESULT_BYTES_MAX", 64 * MIB)
    held = os.open(kept, os.O_RDWR | os.O_NONBLOCK)  # a writer, whose pipe has no end yet
    try:
        if kind == "a pipe":
            os.write(held, content)
        tracemalloc.start()
        assert main(line) == 1
        assert tracemalloc.get_traced_memory()[1] < 48 * MIB
    finally:
        tracemalloc.stop()
        os.close(held)
    (error,) = capsys.readouterr().err.splitlines()
    assert "is not a regular file" in error


@attack(Threat.EXHAUSTION, "a full disk below the results that are kept")
def test_no_half_result_is_kept(fleet: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Guard: ``write_file``, which renames a complete file into its place."""
    line = command_line(fleet, "--cache", str(fleet / "cache"))
    code, errors = ran(*line, bytes_max=1_000)
    assert code == 1
    assert errors.count("\n") == 1
    assert "cannot be written: File too large; free some space" in errors
    assert files_in(fleet / "cache") == []
    shown(line, capsys)
