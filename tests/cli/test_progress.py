"""Output on a terminal: a progress line, a running simulation, and colours."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.cli.output import progressline
from reconciler.cli.output.progressline import AFTER_S, ProgressLine, show_progress, terminal_of
from reconciler.notifications.stream import FilteredStream, has_colour
from reconciler.render.listing import Item, Listing, format_table
from tests.cli.test_plan import CATALOG, DEPLOYMENT, NOW, a_fleet


class Terminal(io.StringIO):
    """A stream that is a terminal, and keeps each write."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        self.writes.append(text)
        return super().write(text)


class FixedClock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def test_the_line_appears_after_two_seconds_and_names_the_phase(terminal: Terminal) -> None:
    clock = FixedClock()
    line = ProgressLine(FilteredStream(terminal), "Planning", clock)
    clock.seconds = AFTER_S - 0.1
    line.tick()
    assert terminal.writes == []

    clock.seconds = AFTER_S
    line.tick()
    line.enter("placement")
    clock.seconds = 4.2
    line.tick()

    assert terminal.writes == [
        "\r/ Planning (2 s)\x1b[K",
        "\r- Scheduling pods (4 s)\x1b[K",
    ]


def test_a_pipe_gets_a_line_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progressline, "LINE_EVERY_S", 10.0)
    clock, lines = FixedClock(), list[str]()
    line = ProgressLine(None, "Planning", clock, lines.append)
    for seconds in (3, 9.9, 10, 12, 19, 21, 58, 59, 60):
        clock.seconds = seconds
        line.tick()
        if seconds == 12:
            line.enter("placement")
    assert lines == [
        "Planning (10 s)\n",
        "Scheduling pods (21 s)\n",
        "Scheduling pods (58 s)\n",
        "Scheduling pods (60 s)\n",
    ]


def test_the_line_is_erased_before_other_output(terminal: Terminal) -> None:
    clock = FixedClock()
    line = ProgressLine(FilteredStream(terminal), "Simulating", clock)
    clock.seconds = 3
    line.tick()
    with line.suspend():
        terminal.write("+00:00:00 launched\n")
    with line.suspend():
        pass
    assert terminal.writes[1:] == ["\r\x1b[K", "+00:00:00 launched\n"]


def test_the_line_fits_the_terminal_and_contains_no_control_sequences(terminal: Terminal) -> None:
    line = ProgressLine(FilteredStream(terminal), "x\x1b[2J\n::error::" + "y" * 200, lambda: 0.0)
    line._start = -3.0  # a command that has run for three seconds
    line.tick()
    (text,) = terminal.writes
    shown = text.removeprefix("\r").removesuffix("\x1b[K")
    assert len(shown) < 80
    assert "\x1b" not in shown
    assert "\n" not in shown


@pytest.mark.parametrize(
    ("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")], ids=["NO_COLOR", "TERM=dumb"]
)
def test_a_terminal_that_cannot_be_redrawn_gets_no_line(
    variable: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert terminal_of(FilteredStream(terminal)) is not None
    monkeypatch.setenv(variable, value)
    assert terminal_of(FilteredStream(terminal)) is None


def test_a_file_gets_no_progress_line(terminal: Terminal) -> None:
    assert terminal_of(FilteredStream(io.StringIO())) is None
    assert terminal_of(terminal) is None, "only behind the door"


def test_the_line_is_gone_when_the_work_ends_or_fails(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", FilteredStream(terminal))
    clock = FixedClock()

    def fail() -> None:
        with show_progress("Planning", clock) as line:
            clock.seconds = 5
            line.tick()
            raise ValueError("lost")

    with pytest.raises(ValueError, match="lost"):
        fail()
    assert terminal.writes[-1] == "\r\x1b[K"


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    return a_fleet(tmp_path, DEPLOYMENT, CATALOG)


def test_a_plan_leaves_no_trace_on_a_terminal(
    fleet: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(progressline, "AFTER_S", 0.0)
    catalog = str(fleet.parent / "catalog.json")
    assert main(["plan", str(fleet), "--catalog", catalog, "--now", NOW]) == 0
    assert terminal.writes[-1:] in ([], ["\r\x1b[K"])

    terminal.writes.clear()
    monkeypatch.setenv("TERM", "dumb")
    assert main(["plan", str(fleet), "--catalog", catalog, "--now", NOW]) == 0
    assert terminal.writes == []


def test_a_simulation_prints_each_time_after_it_has_passed(
    fleet: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    catalog = str(fleet.parent / "catalog.json")

    words = ["simulate", str(fleet), "--catalog", catalog, "--now", NOW]
    assert main([*words, "--seeds", "2"]) == 0

    written = [text for text in out.writes if text.strip()]
    assert written[0] == "Simulation from 2026-01-03 12:00 UTC\n\n"
    assert "launched" in written[1]
    assert "ready" not in written[1], "nodes are not ready at the moment of their launch"
    assert any("ready" in text for text in written[2:-1])
    assert "Settled after" in written[-1]
    assert len(written) >= 4


def operations(terminal: Terminal, *rows: tuple[str, str]) -> str:
    """Return a list of operations as it is printed on a terminal."""
    items = [Item(at, (at, verb), (), {}) for at, verb in rows]
    listing = Listing(("AT", "VERB"), items)
    return format_table(listing, wide=False, verb="VERB", colour=has_colour(terminal))


ROWS = (("12:00", "launch"), ("12:01", "terminate"), ("12:02", "tag"))


def test_a_list_of_operations_has_the_colours_of_its_verbs(terminal: Terminal) -> None:
    lines = operations(terminal, *ROWS).splitlines()
    assert lines[0].startswith("AT")
    assert lines[1] == "\x1b[32m12:00  launch\x1b[0m"
    assert lines[2] == "\x1b[31m12:01  terminate\x1b[0m"
    assert lines[3] == "12:02  tag"


@pytest.mark.parametrize(("variable", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_nothing_is_coloured_where_colours_are_turned_off(
    variable: str, value: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    assert not has_colour(terminal)
    assert "\x1b" not in operations(terminal, *ROWS)


def test_an_empty_no_color_does_not_count(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "")
    assert has_colour(terminal)


def test_a_cell_of_a_coloured_list_cannot_set_a_style(terminal: Terminal) -> None:
    text = operations(terminal, ("\x1b[31mevil", "launch"))
    assert "\x1b[32m" in text
    assert "\x1b[31m" not in text
