"""The dashboard of a simulated fleet, in a browser soon after the installation, without AWS."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from reconciler.cli.main import main
from tests.engine.processes import AT_MOST_S
from tests.web.test_daemon import fetch, free_port, wait_until_ready

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def ends_cleanly(words: list[str], place: Path, signal_number: int) -> str:
    """Return the overview that a command serves; a signal ends the command with code 0."""
    temporary = place / "tmp"
    temporary.mkdir()
    listen = f"127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [sys.executable, "-m", "reconciler", *words, listen],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(temporary), "HOME": str(place)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_until_ready(f"http://{listen}", process)
        page = fetch(f"http://{listen}/")
        process.send_signal(signal_number)
        out, _ = process.communicate(timeout=AT_MOST_S)
    finally:
        process.kill()
    assert process.returncode == 0, out
    assert f"Dashboard: http://{listen}/" in out
    assert "Traceback" not in out
    assert list(temporary.iterdir()) == [], "a simulation leaves temporary files"
    return page


def test_the_fleet_of_the_demo_is_served_until_it_is_stopped(tmp_path: Path) -> None:
    page = ends_cleanly(["demo", "--serve"], tmp_path, signal.SIGTERM)
    assert "<title>shop" in page
    assert "A web shop and its nightly reports (Demo)" in page


@pytest.mark.exhaustive
def test_ctrl_c_ends_the_demo(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    ends_cleanly(["demo", "--dir", str(folder), "--serve"], tmp_path, signal.SIGINT)
    assert (folder / "nodes/web.yaml").exists(), "a named folder is kept"


@pytest.mark.exhaustive
def test_any_fleet_is_simulated_with_its_dashboard(tmp_path: Path) -> None:
    folder = tmp_path / "fleet"
    shutil.copytree(EXAMPLES / "web", folder)
    page = ends_cleanly(["run", str(folder), "--simulated", "--listen"], tmp_path, signal.SIGTERM)
    assert "<title>web" in page
    assert [p.name for p in (folder / ".reconciler").iterdir() if p.suffix == ".db"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("run", "a", "b", "--simulated"), "one fleet can be simulated at a time"),
        (("run", "a", "--simulated", "--state", "s"), "has a state of its own"),
    ],
)
def test_what_cannot_be_simulated_is_refused(
    words: tuple[str, ...],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name in ("a", "b"):
        shutil.copytree(EXAMPLES / "web", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    assert main(list(words)) == 1
    assert message in capsys.readouterr().err
