from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.daemon.daemon import with_heartbeat
from reconciler.model.errors import StateError


def test_a_recent_heartbeat_is_healthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "heartbeat"
    with_heartbeat(str(file), lambda: False)()
    assert main(["health", "--heartbeat", str(file)]) == 0
    assert capsys.readouterr().out.startswith("healthy: last heartbeat ")


def test_an_old_heartbeat_is_unhealthy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "heartbeat"
    with_heartbeat(str(file), lambda: False)()
    an_hour_ago = time.time() - 3600
    os.utime(file, (an_hour_ago, an_hour_ago))
    assert main(["health", "--heartbeat", str(file), "--max-age", "59m"]) == 1
    assert capsys.readouterr().out.startswith("unhealthy: last heartbeat 36")
    assert main(["health", "--heartbeat", str(file), "--max-age", "2h"]) == 0


def test_a_daemon_that_never_ran_is_unhealthy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "heartbeat"
    assert main(["health", "--heartbeat", str(missing)]) == 1
    assert str(missing) in capsys.readouterr().out


def test_the_environment_names_the_heartbeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "heartbeat"
    monkeypatch.setenv("RECONCILER_HEARTBEAT", str(file))
    with_heartbeat(str(file), lambda: False)()
    assert main(["health"]) == 0
    assert main(["config"]) == 0, "the variable is no setting, and no mistake"


@pytest.mark.parametrize("wrong", [["--max-age", "soon"], []])
def test_invalid_arguments_are_an_error(wrong: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RECONCILER_HEARTBEAT", raising=False)
    assert main(["health", *(["--heartbeat", "x", *wrong] if wrong else [])]) not in (0, 3, 4)


def test_a_stop_request_is_passed_on(tmp_path: Path) -> None:
    requested = with_heartbeat(str(tmp_path / "heartbeat"), lambda: True)
    assert requested() is True
    assert with_heartbeat(None, lambda: True)() is True


def test_a_symbolic_link_as_heartbeat_file_is_rejected(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    (tmp_path / "heartbeat").symlink_to(target)
    with pytest.raises(StateError, match="symbolic link"):
        with_heartbeat(str(tmp_path / "heartbeat"), lambda: False)()
    assert target.read_text() == "content"
