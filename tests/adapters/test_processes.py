"""The start of processes: an empty folder, a list of variables, an import path of our own."""

from __future__ import annotations

import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from reconciler.adapters import processes
from reconciler.adapters.processes import private_folder
from reconciler.sweep.processes import Processes
from tests.hostile.traps import Traps


@dataclass(frozen=True)
class Surroundings:
    """Evaluates to what a process of a sweep sees."""

    result = tuple

    def evaluate(self, key: str) -> tuple[str, bool, list[str]]:
        """Return the current folder, whether the interpreter is isolated, and the import path."""
        import pip  # noqa: F401 - the real one, whatever the current folder has

        return os.getcwd(), bool(sys.flags.isolated), sys.path

    def address(self, key: str) -> None:
        """Return None: it is not cached."""


def test_a_process_has_only_listed_variables_and_an_empty_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "LD_PRELOAD", "BASH_ENV", "NODE_OPTIONS", "GIT_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("PATH", f".::{tmp_path}")
    monkeypatch.setenv("LD_LIBRARY_PATH", ":lib")
    monkeypatch.setenv("AWS_PROFILE", "plan")
    found = processes.environment()
    assert found["AWS_PROFILE"] == "plan"
    assert found["PATH"] == str(tmp_path)
    assert found["PYTHONSAFEPATH"] == "1"
    assert {n for n in found if n.startswith(("PYTHON", "LD_", "BASH", "NODE", "GIT"))} == {
        "PYTHONSAFEPATH"
    }
    with private_folder() as folder:
        assert os.listdir(folder) == []
        assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    assert not os.path.exists(folder)


def test_a_program_is_never_chosen_by_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kubectl").write_text("#!/bin/sh\n")
    (tmp_path / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", ":.")
    assert processes.find_program("kubectl") is None
    assert processes.find_program("./kubectl") == str(tmp_path / "kubectl")
    with pytest.raises(AssertionError):
        processes.start(["kubectl"], cwd=str(tmp_path), variables={})
    with pytest.raises(AssertionError):
        processes.start(["/bin/true"], cwd=".", variables={})


def test_several_processes_import_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkout").mkdir()
    traps = Traps(tmp_path / "checkout", tmp_path / "sprung")
    monkeypatch.chdir(traps.folder)
    monkeypatch.setenv("PYTHONPATH", str(traps.folder))
    monkeypatch.syspath_prepend(str(traps.folder))
    monkeypatch.syspath_prepend("")
    outcomes = dict(Processes(2).outcomes(Surroundings(), ["a", "b"]))
    for position in (0, 1):
        folder, isolated, path = outcomes[position].result()
        assert folder == str(traps.folder), "relative paths of the command keep their meaning"
        assert isolated
        assert "" not in path
        assert str(traps.folder) not in path
    assert traps.sprung == []
