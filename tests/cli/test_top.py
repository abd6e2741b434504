"""``reconciler top``: filters, sort orders, and the size of the terminal."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from tests.cli.commandlines import request_of
from tests.cli.recorded_fleet import NOW_ARGUMENT, record

Top = Callable[..., str]


@pytest.fixture
def top(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Top:
    folder = tmp_path / "web"
    folder.mkdir()
    record(folder / ".reconciler")

    def run(*words: str) -> str:
        assert main(["top", str(folder), NOW_ARGUMENT, *words]) == 0
        return capsys.readouterr().out

    return run


def names(text: str) -> list[str]:
    return [node["nodeClaim"] for node in json.loads(text)["nodes"]]


@pytest.mark.parametrize(
    ("order", "first"),
    [("cpu", "web-old1"), ("memory", "web-old1"), ("pods", "web-old1"), ("price", "web-old1")],
)
def test_nodes_are_sorted_by_usage_descending(top: Top, order: str, first: str) -> None:
    assert names(top("--sort", order, "-o", "json"))[0] == first


def test_nodes_are_sorted_by_age_descending(top: Top) -> None:
    created = [n["createdAt"] for n in json.loads(top("--sort", "age", "-o", "json"))["nodes"]]
    assert created == sorted(created)
    assert len(set(created)) > 1


def test_filters_must_all_match(top: Top) -> None:
    everything = names(top("-o", "json"))
    web = names(top("--node-pool", "web", "-o", "json"))
    assert web == [name for name in everything if name.startswith("web-")]
    assert 0 < len(web) < len(everything)
    spot = "karpenter.sh/capacity-type=spot"
    assert names(top("--node-pool", "web", "-l", spot, "-o", "json")) == web
    assert names(top("-l", spot, "-l", "topology.kubernetes.io/zone=nowhere", "-o", "json")) == []
    assert "No nodes are recorded that match." in top("--node-pool", "nothing")


def test_the_sums_are_those_of_the_nodes_shown(top: Top) -> None:
    shown = json.loads(top("--node-pool", "web", "-o", "json"))
    prices = [node["pricePerHour"] for node in shown["nodes"]]
    total = shown["total"]
    assert total["pricePerHour"] == pytest.approx(sum(price or 0 for price in prices))
    assert total["unpriced"] == prices.count(None) > 0
    assert total["pods"] == sum(node["pods"] for node in shown["nodes"])
    assert total["requestedShare"]["cpu"] == pytest.approx(1700 / 6000, abs=1e-4)


def test_a_label_without_a_value_is_refused() -> None:
    with pytest.raises(UsageError, match='"spot" is not LABEL=VALUE'):
        request_of(["top", "-l", "spot"])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_followed_until_stopped_and_never_scrolls(
    top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    import signal

    from reconciler.adapters.clock import SystemClock

    def wait(clock: SystemClock, seconds: float, until: Callable[[], bool]) -> None:
        del clock, seconds, until
        os.kill(os.getpid(), signal.SIGTERM)

    screen = Terminal()
    monkeypatch.setattr(SystemClock, "wait", wait)
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("LINES", "10")
    monkeypatch.setenv("COLUMNS", "80")
    top()
    lines = screen.getvalue().splitlines()
    assert len(lines) <= 9
    assert "more node; --node-pool, --selector and --sort choose which are shown" in lines[-1]


def test_a_single_view_on_a_terminal_shows_every_node(
    top: Top, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdout", screen)
    monkeypatch.setenv("LINES", "8")
    everything = len(names(_captured(top, screen)))
    screen.truncate(0)
    top("--once")
    assert screen.getvalue().count("\n") >= everything + 4


def _captured(top: Top, screen: io.StringIO) -> str:
    top("-o", "json", "--once")
    return screen.getvalue()
