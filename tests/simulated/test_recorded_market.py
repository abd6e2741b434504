"""A backtest launches at the prices of the recorded moment, and what EC2 refused is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from reconciler._resources import resource_path
from reconciler.adapters.simulated.conditions import Pool, RecordedMarket
from reconciler.cli.main import main
from tests.engine.world import a_pool
from tests.simulated.simulations import words, write_fleet

HOUR = 3600
HEADER = {"apiVersion": "reconciler/v1", "kind": "Trace", "seconds": 2 * HOUR}
KIND = {
    "class": "web",
    "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "1500m"}}}]},
}
POD = {"pod": "shop/web", "class": "web", "created": 0}
KINDS = ("c7i.large", "m7i.large", "m7i.xlarge")
CHEAP, DEAR = "us-east-1a", "us-east-1b"
Row = dict[str, Any]
Run = Callable[..., dict[str, Any]]


def prices(at: float, cheap: float | None, dear: float | None) -> Row:
    return {"at": at, "spotPrices": {kind: {CHEAP: cheap, DEAR: dear} for kind in KINDS}}


def refusal(since: float, until: float, zone: str = CHEAP) -> list[Row]:
    return [
        {
            "instanceType": kind,
            "zone": zone,
            "capacityType": "spot",
            "refusedFrom": since,
            "until": until,
        }
        for kind in KINDS
    ]


@pytest.fixture
def backtest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    write_fleet(tmp_path, [a_pool("web", capacity_types=("spot",), after="Never")])
    file = tmp_path / "trace.jsonl"

    def run(rows: list[Row], *more: str) -> dict[str, Any]:
        file.write_text("\n".join(json.dumps(row) for row in [HEADER, KIND, *rows, POD]))
        arguments = words(tmp_path, "--trace", str(file), "-o", "json", *more)
        assert main(["simulate", *arguments]) == 0, capsys.readouterr().err
        side: dict[str, Any] = json.loads(capsys.readouterr().out)["backtest"]["sides"]["head"]
        return side

    return run


def test_a_node_costs_the_price_of_the_recorded_moment(backtest: Run) -> None:
    found = backtest([prices(0, 0.02, 0.03), prices(HOUR, 0.05, 0.06)])
    assert found["dollars"] == pytest.approx(0.02 + 0.05, rel=1e-3)
    assert found["dollars"] * 0.98 < found["lowerBound"] <= found["dollars"]


def test_without_the_market_the_catalog_has_the_prices(backtest: Run) -> None:
    rows = [prices(0, 0.02, 0.03), *refusal(0, HOUR)]
    plain = backtest([])
    assert backtest(rows, "--workload-only") == plain
    assert plain["dollars"] == pytest.approx(2 * 0.04, rel=1e-3)


def test_an_offering_is_refused_in_the_recorded_period(backtest: Run) -> None:
    rows = [prices(0, 0.02, 0.03)]
    for refused, price in (
        (refusal(0, HOUR), 0.03),
        (refusal(0, HOUR, DEAR), 0.02),
        (refusal(HOUR, 2 * HOUR), 0.02),
    ):
        found = backtest([*rows, *refused])
        assert found["dollars"] == pytest.approx(2 * price, rel=1e-2)
        assert found["unplaced"] == 0


def test_a_pod_waits_until_an_offering_is_no_longer_refused(backtest: Run) -> None:
    found = backtest([*refusal(0, 1800), *refusal(0, 1800, DEAR)])
    assert 1800 < found["waitingSeconds"]["p50"] < 1800 + 1800
    assert found["unplaced"] == 0


def test_prices_of_spot_do_not_concern_a_fleet_without_it(backtest: Run, tmp_path: Path) -> None:
    write_fleet(tmp_path, [a_pool("web", after="Never")])
    assert backtest([prices(0, 0.01, 0.01)])["dollars"] == backtest([])["dollars"]


def test_the_lines_are_valid_and_survive_a_copy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [HEADER, prices(0, 0.02, 0.03), prices(9, None, 0.0311), *refusal(5, 9), KIND, POD]
    with open(resource_path("schemas", "trace.v1.json"), encoding="utf-8") as file:
        schema = Draft202012Validator(json.load(file))
    for row in rows:
        schema.validate(row)
    given_file = tmp_path / "given.jsonl"
    given_file.write_text("\n".join(map(json.dumps, rows)))
    assert main(["trace", "import", str(given_file), "--anonymize"]) == 0
    copy = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row for row in rows if "at" in row or "until" in row] == [
        row for row in copy if "at" in row or "until" in row
    ], "prices are public: they have no names to replace"
    assert main(["trace", "summary", str(given_file)]) == 0
    shown = capsys.readouterr().out
    assert "spot offerings with a price" in shown
    assert "3 (3 offerings)" in shown


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (prices(0, -1, 0.1), "is not between 0 and 10,000"),
        (prices(-1, 0.1, 0.1), "at: -1"),
        (refusal(9, 5)[0], "not in their order"),
        ({**refusal(0, 9)[0], "more": 1}, "more is not known"),
    ],
)
def test_a_wrong_line_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], row: Row, why: str
) -> None:
    file = tmp_path / "given.jsonl"
    file.write_text("\n".join(map(json.dumps, [HEADER, row])))
    assert main(["trace", "summary", str(file)]) == 1
    complaint = capsys.readouterr().err
    assert why in complaint
    assert f"{file}:2" in complaint


def test_leaving_out_the_market_needs_a_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_fleet(tmp_path, [a_pool("web")])
    assert main(["simulate", *words(tmp_path, "--workload-only")]) == 1
    assert "--workload-only: needs a trace" in capsys.readouterr().err


START = datetime.fromisoformat("2026-03-02T12:00:00+00:00")
_POOLS: list[Pool] = [("m7i.large", zone, "spot") for zone in (CHEAP, DEAR)]
_CHANGES = st.dictionaries(st.sampled_from(_POOLS), st.one_of(st.none(), st.floats(0.01, 1)))


@given(
    st.lists(st.tuples(st.integers(0, 9), _CHANGES), max_size=6),
    st.lists(st.integers(-1, 10), min_size=1, max_size=8),
)
def test_prices_are_those_of_the_last_changes_whenever_they_are_asked(
    changes: list[tuple[int, dict[Pool, float | None]]], requested: list[int]
) -> None:
    ordered = sorted(changes, key=lambda change: change[0])
    market = RecordedMarket([(START + timedelta(hours=at), new) for at, new in ordered])
    for hour in requested:
        known: dict[Pool, float] = {}
        for at, new in ordered:
            if at <= hour:
                known |= {pool: price for pool, price in new.items() if price is not None}
                known = {pool: p for pool, p in known.items() if new.get(pool, p) is not None}
        assert market.prices(START + timedelta(hours=hour)) == known
