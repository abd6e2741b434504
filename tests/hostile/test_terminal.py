"""Hostile names in a recorded fleet, on the terminal of ``top --interactive``."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.text import Text

from reconciler.assembly.inputs.records import open_recorded
from reconciler.assembly.inputs.request import StateRequest
from reconciler.ports.cluster import USAGE_RECORD, FleetUsage
from tests.cli.recorded_fleet import NOW, USAGE
from tests.hostile.test_output import CONTROL, PAYLOADS
from tests.hostile.threats import Threat, attack

pytest.importorskip("textual")

from textual.app import App
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from tests.terminal import test_app

folder = pytest.fixture(test_app.folder.__wrapped__, name="folder")  # type: ignore[attr-defined]
MARKUP = {
    "a link": "[link=file:///etc/passwd]x[/link]",
    "an action": "[@click=app.quit]x[/]",
    "a colour": "[bold red on white]x[/]",
    "an unbalanced tag": "[/] [",
    "a hyperlink": "\x1b]8;;http://evil.example\x1b\\x\x1b]8;;\x1b\\",
    "the clipboard": "\x1b]52;c;ZXZpbA==\x07",
}
TEXTS = [text for text in (PAYLOADS | MARKUP).values() if "\0" not in text]
"""Texts; no database stores a zero byte."""
STEP = 8


def rename(folder: Path, text: str) -> None:
    """Write a text behind the names of nodes and workloads, and into the labels of nodes."""
    with open_recorded(StateRequest(path=str(folder), now=NOW), needs_lease=False) as recorded:
        store = recorded.state.store
        claims = []
        for claim in store.node_claims():
            labels = {key: f"{value}{text}" for key, value in claim.metadata.labels.items()}
            status = replace(claim.status, node_name=f"{claim.name}{text}", image_id=text)
            metadata = replace(claim.metadata, labels=labels)
            claims.append(replace(claim, metadata=metadata, status=status))
        store.put_node_claims(claims)
        costs = tuple(
            dataclasses.replace(cost, workload=f"{cost.workload}{text}") for cost in USAGE.costs
        )
        usage = FleetUsage(USAGE.at, USAGE.nodes, costs)
        recorded.state.shelf.write(USAGE_RECORD, msgspec.json.encode(usage))


@attack(Threat.OUTPUT, "markup and control sequences in names, on the interactive terminal")
@pytest.mark.parametrize("first", range(0, len(TEXTS), STEP))
def test_no_name_is_markup_on_the_interactive_terminal(folder: Path, first: int) -> None:
    """Guards: ``one_line`` in ``TerminalFleet``, and ``Text`` around what ``FleetApp`` shows."""
    rename(folder, "".join(TEXTS[first : first + STEP]))

    async def step(pilot: Pilot[Any]) -> None:
        for keys in ((), ("w",), ("w",), ("e",), ("escape",), ("d",), ("y",)):
            await pilot.press(*keys)
            await pilot.pause()
            expect_plain_screens(pilot.app)

    test_app.run(folder, step)


def expect_plain_screens(app: App[Any]) -> None:
    """Check all texts, cells and notices that are on the screens."""
    for screen in app.screen_stack:
        for widget in screen.query(Static):
            expect_plain(widget.content)
        for table in screen.query(DataTable):
            for row in range(table.row_count):
                for cell in table.get_row_at(row):
                    expect_plain(cell)
    for notice in app._notifications:
        assert not notice.markup
        assert CONTROL.search(notice.message) is None


def expect_plain(shown: object) -> None:
    """Check that a text is shown as it is: without spans, and without control characters."""
    if isinstance(shown, str) and not shown:
        return
    assert isinstance(shown, Text), repr(shown)
    assert not shown.spans
    assert not shown.style
    assert CONTROL.search(shown.plain) is None, ascii(shown.plain)
