"""The server of the recorded scenarios runs a command as a process of its own would."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.commandserver import command_server

VALIDATE = ["validate", str(Path(__file__).resolve().parents[1] / "examples" / "web")]


@pytest.fixture(scope="module")
def served() -> Iterator[list[str]]:
    with command_server(VALIDATE) as command:
        yield shlex.split(command)


def results(command: list[str], folder: Path, words: list[str]) -> tuple[int, str, str]:
    settings = {**os.environ, "RECONCILER_PACKING": "wrong"}
    done = subprocess.run(
        [*command, *words], cwd=folder, env=settings, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--version"], 0),
        (["validate", "--help"], 0),
        (["validate", "nowhere"], 1),
        (["plan", VALIDATE[1], "--set", "cluster=none"], 1),
        (["unknown"], 1),
    ],
    ids=["version", "help", "missing folder", "variable", "unknown command"],
)
def test_a_served_command_has_the_output_and_exit_code_of_a_process(
    served: list[str], tmp_path: Path, words: list[str], code: int
) -> None:
    expected = results([sys.executable, "-m", "reconciler"], tmp_path, words)
    assert results(served, tmp_path, words) == expected
    assert expected[0] == code
    assert expected[1] + expected[2]


def test_a_command_that_a_server_cannot_prepare_is_an_error() -> None:
    refused = pytest.raises(RuntimeError, match="validate nowhere fails: Error: ")
    with refused, command_server(["validate", "nowhere"]):
        pass
