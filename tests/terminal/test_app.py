"""The nodes of a fleet on a terminal: what is shown, and what keys do."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from reconciler.assembly.inputs.records import open_recorded
from reconciler.assembly.inputs.request import StateRequest
from reconciler.cli.main import main
from reconciler.model.text.visible import one_line
from reconciler.ports.journal import Verb
from reconciler.terminal.app import FleetApp
from reconciler.terminal.fleet import TerminalFleet
from tests.cli.recorded_fleet import NOW, NOW_ARGUMENT, record

Step = Callable[[Pilot[Any]], Awaitable[None]]
SIZES = [(80, 24), (140, 40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "web"
    folder.mkdir()
    record(folder / ".reconciler")
    return folder


def run(folder: Path, step: Step, size: tuple[int, int] = (140, 40)) -> None:
    """Run the application until the step has ended."""

    async def play() -> None:
        app = FleetApp(TerminalFleet(StateRequest(path=str(folder), now=NOW)))
        async with app.run_test(size=size) as pilot:
            await settle(pilot)
            await step(pilot)

    asyncio.run(play())


async def settle(pilot: Pilot[Any]) -> None:
    """Wait until the state has been read, and is drawn."""
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()


def table(pilot: Pilot[Any], name: str = "#nodes") -> DataTable[Any]:
    found: DataTable[Any] = pilot.app.screen_stack[0].query_one(name, DataTable)
    return found


def column(pilot: Pilot[Any], index: int) -> list[str]:
    shown = table(pilot)
    return [str(shown.get_row_at(number)[index]) for number in range(shown.row_count)]


def text(pilot: Pilot[Any], name: str) -> str:
    return str(pilot.app.screen.query_one(name, Static).content)


def requests(folder: Path) -> list[tuple[Verb, str]]:
    with open_recorded(StateRequest(path=str(folder), now=NOW), needs_lease=False) as recorded:
        return [(e.intent.verb, e.intent.target) for e in recorded.state.journal.in_doubt()]


@pytest.mark.parametrize("size", SIZES)
def test_the_nodes_are_those_of_top(
    folder: Path, size: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", str(folder), NOW_ARGUMENT, "--once"]) == 0
    printed = capsys.readouterr().out.splitlines()

    async def step(pilot: Pilot[Any]) -> None:
        assert str(pilot.app.screen.query_one("#title", Static).content) == printed[0]
        assert column(pilot, 0) == [line.split()[0] for line in printed[5:] if line.strip()]

    run(folder, step, size)


@pytest.mark.parametrize("size", SIZES)
def test_enter_shows_what_explain_says(
    folder: Path, size: tuple[int, int], capsys: pytest.CaptureFixture[str]
) -> None:
    node = "ip-web-new1.internal"
    assert main(["explain", "node", node, str(folder), NOW_ARGUMENT]) == 0
    explained = capsys.readouterr().out

    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press(*["down"] * column(pilot, 0).index(node), "enter")
        await pilot.pause()
        assert text(pilot, "#text") == explained
        await pilot.press("escape")
        await pilot.pause()
        assert len(pilot.app.screen_stack) == 1

    run(folder, step, size)


@pytest.mark.parametrize(
    ("key", "verb", "answer"),
    [
        ("c", Verb.CORDON, "y"),
        ("u", Verb.UNCORDON, "y"),
        ("d", Verb.DRAIN_NODE, "y"),
        ("d", Verb.DRAIN_NODE, "n"),
        ("d", Verb.DRAIN_NODE, "enter"),
        ("d", Verb.DRAIN_NODE, "escape"),
    ],
)
def test_a_key_records_a_request_after_a_yes_and_only_then(
    folder: Path, key: str, verb: Verb, answer: str
) -> None:
    before = requests(folder)
    named: list[str] = []

    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("down")
        named.append(column(pilot, 0)[1])
        await pilot.press(key)
        await pilot.pause()
        assert named[0] in text(pilot, "#text")
        assert requests(folder) == before
        await pilot.press(answer)
        await settle(pilot)

    run(folder, step)
    added = [(verb, named[0])] if answer == "y" else []
    assert sorted(requests(folder)) == sorted([*before, *added])


def test_nodes_are_sorted_and_filtered_and_the_chosen_one_stays_chosen(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        every = column(pilot, 0)
        await pilot.press("down", "down")
        chosen = every[2]
        for order in ("price", "cpu", "memory", "pods", "age", "name"):
            await pilot.press("s")
            assert f"order: {order}" in text(pilot, "#status")
            assert column(pilot, 0)[table(pilot).cursor_row] == chosen
        await pilot.press("slash", *chosen, "enter")
        await pilot.pause()
        assert column(pilot, 0) == [chosen]
        await pilot.press("escape")
        await pilot.pause()
        assert column(pilot, 0) == every

    run(folder, step)


def test_what_blocks_the_chosen_node_is_shown_in_full(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        assert text(pilot, "#blocked") == ""
        await pilot.press("down", "down", "down")
        await pilot.pause()
        assert text(pilot, "#blocked").startswith("Not disrupted: shop/api ")

    run(folder, step, (80, 24))


MARKUP = "[link=file:///etc/passwd]ip-1[/link] [bold red]\x1b]0;x\x07\u202e{x!r}"


def test_no_text_of_a_cluster_is_markup_or_a_control_sequence(folder: Path) -> None:
    with open_recorded(StateRequest(path=str(folder), now=NOW), needs_lease=False) as recorded:
        store = recorded.state.store
        claim = next(c for c in store.node_claims() if c.status.node_name)
        status = msgspec.structs.replace(claim.status, node_name=MARKUP)
        store.put_node_claims([msgspec.structs.replace(claim, status=status)])

    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("s", "s", "slash", *"link", "enter")
        await pilot.pause()
        (shown,) = column(pilot, 0)
        assert shown == one_line(MARKUP)
        assert not set(shown) & {"\x1b", "\x07", "\u202e"}
        for key in ("e", "d"):
            await pilot.press(key)
            await pilot.pause()
            assert "[bold red]" in text(pilot, "#text")
            assert not set(text(pilot, "#text")) & {"\x1b", "\x07", "\u202e"}
            await pilot.press("escape")
            await pilot.pause()

    run(folder, step)


def test_workloads_are_shown_in_place_of_the_nodes(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("w")
        await pilot.pause()
        assert table(pilot, "#workloads").display
        assert not table(pilot).display
        await pilot.press("w")
        await pilot.pause()
        assert table(pilot).display

    run(folder, step)


def test_the_pods_of_the_chosen_node_are_shown_filtered_and_sorted(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        def pods() -> list[str]:
            shown = table(pilot, "#pods")
            return [str(shown.get_row_at(n)[0]) for n in range(shown.row_count)]

        node = "ip-web-old2.internal"
        await pilot.press(*["down"] * column(pilot, 0).index(node), "p")
        await pilot.pause()
        assert table(pilot, "#pods").display
        assert not table(pilot).display
        by_name = ["kube-system/cni-x", "search/index-0", "shop/api-2"]
        assert pods() == by_name
        api = [str(cell) for cell in table(pilot, "#pods").get_row_at(2)]
        assert api[1:3] == ["Deployment shop/api", "100m"]
        assert api[4:] == ["1000", "PodDisruptionBudget shop/api"]
        assert f"3 pods on {node}; order: name" in text(pilot, "#status")
        first = {"owner": "kube-system/cni-x", "cpu": "shop/api-2", "memory": "search/index-0",
                 "priority": "kube-system/cni-x", "blocker": "shop/api-2"}  # fmt: skip
        for order, name in first.items():
            await pilot.press("s")
            assert f"order: {order}" in text(pilot, "#status")
            assert pods()[0] == name
        await pilot.press("slash", *"statefulset", "enter")
        await pilot.pause()
        assert pods() == ["search/index-0"]
        await pilot.press("escape", "s")
        await pilot.pause()
        assert pods() == by_name
        await pilot.press("d")
        await pilot.pause()
        assert "web-old2" in text(pilot, "#text")
        await pilot.press("n", "p")
        await pilot.pause()
        assert table(pilot).display
        assert column(pilot, 0)[table(pilot).cursor_row] == node

    run(folder, step)


def test_a_node_whose_pods_are_not_recorded_says_so(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        node = "ip-web-old1.internal"
        await pilot.press(*["down"] * column(pilot, 0).index(node), "p")
        await pilot.pause()
        assert f"the pods on {node} are not recorded" in text(pilot, "#status")
        await pilot.press("w")
        await pilot.pause()
        assert table(pilot, "#workloads").display
        await pilot.press("slash", "s", "w")
        await pilot.pause()
        assert table(pilot).display

    run(folder, step)


def test_the_nodes_return_once_the_node_of_the_pods_is_gone(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        node = "ip-web-old2.internal"
        await pilot.press(*["down"] * column(pilot, 0).index(node), "p")
        with open_recorded(StateRequest(path=str(folder), now=NOW), needs_lease=False) as recorded:
            recorded.state.store.forget_node_claims({"web-old2": "Gone"}, NOW)
        await pilot.press("r")
        await settle(pilot)
        assert table(pilot).display
        assert node not in column(pilot, 0)

    run(folder, step)


def test_a_change_of_the_state_is_shown_once_it_is_read_again(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        with open_recorded(StateRequest(path=str(folder), now=NOW), needs_lease=False) as recorded:
            store = recorded.state.store
            gone = next(iter(store.node_claims()))
            store.forget_node_claims({gone.name: "Gone"}, NOW)
        before = len(column(pilot, 0))
        await pilot.press("r")
        await settle(pilot)
        assert len(column(pilot, 0)) == before - 1

    run(folder, step)


def test_a_fleet_without_a_state_says_so(tmp_path: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        assert "state" in text(pilot, "#title")
        for key in ("enter", "c", "s", "w", "question_mark"):
            await pilot.press(key)

    run(tmp_path, step)


def test_every_key_is_described(folder: Path) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press("question_mark")
        await pilot.pause()
        keys = {line.split()[0].rstrip(",") for line in text(pilot, "#text").splitlines()}
        assert {"enter", "c", "p", "w", "/", "s", "r", "q"} <= keys

    run(folder, step)


@pytest.mark.parametrize("key", ["p", "w"])
def test_escape_shows_all_rows_and_then_the_nodes(folder: Path, key: str) -> None:
    async def step(pilot: Pilot[Any]) -> None:
        await pilot.press(*["down"] * column(pilot, 0).index("ip-web-old2.internal"), key)
        await pilot.pause()
        assert not table(pilot).display
        if key == "p":
            await pilot.press("slash", "a", "enter", "escape")
            await pilot.pause()
            assert table(pilot, "#pods").display
        await pilot.press("escape")
        await pilot.pause()
        assert table(pilot).display
        await pilot.press("escape")
        await pilot.pause()
        assert table(pilot).display

    run(folder, step)
