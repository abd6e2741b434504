"""``simulate --trace --against frontier``: cost and evictions of a workload by settings."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from msgspec.structs import replace as with_fields

from reconciler._resources import resource_path
from reconciler.backtest.frontier import TRADEOFFS, points_of
from reconciler.backtest.report import render_html, render_text
from reconciler.backtest.sides import SideCurves
from reconciler.cli.main import main
from reconciler.desired.objects import node_pools
from reconciler.model.settings import Packing, Settings
from reconciler.plan.value.costs import Backtest, SideResult, Utilization, WaitingSeconds
from tests.engine.world import a_pool
from tests.examples import examples
from tests.simulated.simulations import words, write_fleet
from tests.simulated.smallworld import a_fleet

COLUMNS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time"
ROWS = ("a,1500,1024,0,0,0,1800,", "b,1500,1024,0,0,300,900,")
EMPTY = SideCurves((), (), (), 0)


@pytest.fixture
def trace(tmp_path: Path) -> tuple[str, ...]:
    write_fleet(tmp_path, [a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s")])
    file = tmp_path / "trace.csv"
    file.write_text("\n".join([COLUMNS, *ROWS, ""]), encoding="utf-8")
    return ("--trace", str(file))


def replayed(capsys: pytest.CaptureFixture[str], line: list[str]) -> bytes:
    """Return the backtest in the report, after a check of its schema."""
    assert main(["simulate", *line, "-o", "json"]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    with open(resource_path("schemas", "simulation.v1.json"), encoding="utf-8") as schema:
        Draft202012Validator(json.load(schema)).validate(report)
    return json.dumps(report["backtest"]).encode()


def test_every_setting_is_a_point_of_the_table_and_of_the_picture(
    trace: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = replayed(capsys, words(tmp_path, *trace, "--against", "frontier"))
    backtest = msgspec.json.decode(content, type=Backtest)
    assert backtest.sides.keys() == {"head", *TRADEOFFS} - {"default"}, "the head is the default"
    points = backtest.frontier
    assert points
    costs = [backtest.sides[point.side].dollars for point in points]
    assert costs == sorted(costs)
    (balanced,) = (point for point in points if point.side == "balanced")
    assert balanced.settings == {
        "packing": "default",
        "consolidation.search": "karpenter",
        "evictionCost": "0",
        "consolidationPolicy": "Balanced",
    }
    text, page = render_text(backtest), render_html(backtest, {"head": EMPTY})
    rows = re.findall(r"^ *(\d+\*?)  (\S+) +(\$\S+) +\S+% +(\d+)", text, re.MULTILINE)
    assert "head  karpenter-defaults\n" in text, "only these have columns"
    assert not re.search(r"(src|href)=|url\(|@import|https?://| style=", page)
    for number, side, cost, evictions in rows:
        assert re.search(rf">{re.escape(number)}</td><td[^>]*>{re.escape(side)}</td>", page)
        assert f"<title>{side}: {cost}, {evictions} eviction" in page
    assert page.count("<circle") == len(rows) == len(points)


def test_settings_of_the_fleet_do_not_reach_the_points(
    trace: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = words(tmp_path, *trace, "--against", "karpenter-defaults")
    more = ("--set", "evictionCost=1000", "--set", "nodePools.web.packing=cheapest")
    plain, costly = (
        msgspec.json.decode(replayed(capsys, [*line, *flags]), type=Backtest)
        for flags in ((), more)
    )
    assert costly.sides["karpenter-defaults"] == plain.sides["karpenter-defaults"]


@pytest.mark.parametrize("name", TRADEOFFS)
def test_a_point_has_its_own_settings_in_every_node_pool(name: str) -> None:
    own = {"packing": Packing.CHEAPEST, "eviction_cost": 7.0}
    content = json.dumps(a_pool("web", policy="WhenEmptyOrUnderutilized", after="30s"))
    fleet = replace(
        a_fleet(content, frozenset(), suspended=False), settings=Settings(node_pools={"web": own})
    )
    point = TRADEOFFS[name]
    assert not point.is_met_by(fleet)
    found = point.apply_to(fleet)
    options = found.settings.pool("web")
    assert (options.packing, options.eviction_cost) == (point.packing, point.eviction_cost)
    assert options.consolidation_search == point.search
    for pools in (found.node_pools, node_pools(found.fleet)):
        (pool,) = pools
        assert (pool.spec.disruption.consolidation_policy == "Balanced") == point.balanced
    assert point.is_met_by(found)


SIDE = SideResult(
    dollars=0.0, dollars_per_month=0.0, lower_bound=0.0, node_hours=0.0,
    utilization=Utilization(), waiting_seconds=WaitingSeconds(), evictions=0,
    evictions_per_pod_day=0.0, interruptions=0, commands=0, pods=3, unplaced=0, passes=1,
)  # fmt: skip
sides = st.lists(
    st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(0, 2)), min_size=1, max_size=8
).map(
    lambda rows: {
        f"side-{number}": with_fields(SIDE, dollars=float(cost), evictions=moved, unplaced=unplaced)
        for number, (cost, moved, unplaced) in enumerate(rows)
    }
)


@given(sides)
@settings(max_examples=examples(300))
def test_a_side_is_efficient_unless_another_one_is_better(found: dict[str, SideResult]) -> None:
    least = min(side.unplaced for side in found.values())
    complete = {name: side for name, side in found.items() if side.unplaced == least}
    for point in points_of(found):
        own = found[point.side]
        better = [
            other
            for other in complete.values()
            if other.dollars <= own.dollars
            and other.evictions <= own.evictions
            and (other.dollars, other.evictions) != (own.dollars, own.evictions)
        ]
        assert point.efficient == (point.side in complete and not better)
