"""``--watch`` prints recorded facts again only when they change."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.adapters.clock import SystemClock
from reconciler.adapters.database.state import open_state
from reconciler.assembly.inputs.watching import View, watch
from reconciler.cli.main import main
from tests.contracts.records import a_claim

NOW = "2026-03-02T12:00:00Z"


class Screen(io.StringIO):
    """A terminal, or a file."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self) -> bool:
        return self.is_terminal


def watched(views: list[View], *, is_terminal: bool) -> str:
    screen = Screen(is_terminal=is_terminal)
    rest = iter(views)
    left = [len(views)]

    def stop() -> bool:
        left[0] -= 1
        return not left[0]

    watch(lambda: next(rest), screen, stop, lambda _s, _stop: None)
    return screen.getvalue()


def test_a_view_is_shown_again_only_when_its_facts_change() -> None:
    views = [View("a 1s\n", 1), View("a 2s\n", 1), View("b 3s\n", 2), View("b 4s\n", 2)]
    assert watched(views, is_terminal=False) == "a 1s\n\nb 3s\n"
    assert watched(views, is_terminal=True) == "a 1s\n\x1b[H\x1b[2Jb 3s\n"


INTERRUPTED_HANDLER = """
import signal, sys
from reconciler.assembly.inputs.watching import stop_on_signal

left = 50

def interrupt(frame, event, argument):
    global left
    if left:
        left -= 1
        signal.raise_signal(signal.SIGTERM)

with stop_on_signal() as stop:
    sys.setprofile(interrupt)
    signal.raise_signal(signal.SIGTERM)
    sys.setprofile(None)
    print(stop())
"""
"""A signal arrives at each call and return of the handler of the first one."""


def test_a_signal_may_arrive_while_another_is_noted() -> None:
    command = [sys.executable, "-c", INTERRUPTED_HANDLER]
    assert subprocess.run(command, capture_output=True, timeout=30, check=True).stdout == b"True\n"


@pytest.mark.parametrize("words", [["get", "nodeclaims"], ["status"]], ids=["get", "status"])
def test_recorded_changes_are_shown_until_the_watch_is_stopped(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    location = str(tmp_path / ".reconciler")

    def put(*names: str) -> None:
        with open_state(location, tmp_path.name) as state:
            state.lease.acquire()
            state.store.put_node_claims([a_claim(name) for name in names])

    put("first")
    waits: list[float] = []

    def wait(clock: SystemClock, seconds: float, until: Callable[[], bool]) -> None:
        del clock
        waits.append(seconds)
        if len(waits) == 2:
            put("second")
        if len(waits) == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        assert len(waits) < 5
        assert until() is (len(waits) == 4)

    monkeypatch.setattr(SystemClock, "wait", wait)
    assert main([*words, str(tmp_path), "--now", NOW, "--watch"]) == 0
    out = capsys.readouterr().out
    if words[0] == "get":
        before, after = out.split("\n\n")
        assert ("first" in before, "second" in before) == (True, False)
        assert ("first" in after, "second" in after) == (True, True)
    else:
        assert out.count("Fleet: ") == 2
    assert waits == [2.0] * 4
