"""``reconciler top``: filters, sort orders, and the size of the terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.cli.main import main
from reconciler.model.errors import UsageError
from reconciler.ports.cluster import USAGE_RECORD
from tests.cli.commandlines import request_of
from tests.cli.recorded_fleet import NOW_ARGUMENT, record
from tests.states import open_state

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


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("namespace", [("shop", 0.1017), ("search", 0.0617)]),
        (
            "workload",
            [
                ("Deployment shop/api", 0.072),
                ("StatefulSet search/index", 0.0617),
                ("Deployment shop/web", 0.0297),
            ],
        ),
        (
            "label=team",
            [("checkout", 0.072), ("(no label team)", 0.0617), ("=storefront", 0.0297)],
        ),
    ],
)
def test_the_cost_is_divided_by_what_is_named(
    top: Top, by: str, expected: list[tuple[str, float]]
) -> None:
    shown = json.loads(top("--by", by, "-o", "json"))
    assert [(group["name"], group["pricePerHour"]) for group in shown["groups"]] == expected
    assert shown["total"] == {"pods": 15, "pricePerHour": 0.1634, "idlePerHour": 0.051209}


def test_a_spreadsheet_evaluates_no_name_of_a_cluster(top: Top) -> None:
    lines = top("--by", "label=team", "-o", "csv").splitlines()
    assert lines[0] == "team,pods,usd_per_hour,idle_usd_per_hour"
    assert lines[1] == "checkout,8,0.072000000,0.000009000"
    assert lines[3] == "'=storefront,4,0.029700000,0.000000000"


def test_nodes_are_listed_as_csv_too(top: Top) -> None:
    rows = list(csv.DictReader(io.StringIO(top("--node-pool", "web", "-o", "csv"))))
    assert [row["nodeClaim"] for row in rows] == ["web-new1", "web-old1", "web-old2"]
    assert rows[1]["pricePerHour"] == "0.0817"
    assert rows[1]["requestedShare.cpu"] == "0.75"


def test_before_a_pass_has_observed_pods_the_cost_is_not_known(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record(tmp_path / ".reconciler")
    with open_state(str(tmp_path / ".reconciler"), fleet="web") as state:
        state.shelf.write(USAGE_RECORD, b"{}")
    assert main(["top", str(tmp_path), NOW_ARGUMENT, "--by", "namespace"]) == 0
    assert "No pods were observed yet." in capsys.readouterr().out


@pytest.mark.parametrize("words", [("--node-pool", "web"), ("-l", "a=b")])
def test_the_cost_is_that_of_the_whole_fleet(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="--by divides the cost of the whole fleet"):
        request_of(["top", "--by", "namespace", *words])


def test_an_unknown_grouping_is_refused() -> None:
    with pytest.raises(UsageError, match='"team" is not a grouping'):
        request_of(["top", "--by", "team"])


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
