"""Ranges over several seeds: what they contain, and how they are stated."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.plan.render.spans import difference_phrase, range_phrase
from reconciler.plan.value.costs import AtRest, PoolAtRest, PoolChange, combine_seeds
from reconciler.plan.value.ranges import (
    SEEDS_MAX,
    SEEDS_MIN,
    FleetAtRest,
    cost_difference,
    fleet_range,
    seed_count,
)
from reconciler.simulate.seeds import affordable_count
from tests.examples import examples

amounts = st.integers(-10_000, 10_000).map(lambda milli: milli / 1000)
fleets = st.builds(
    FleetAtRest, nodes=st.integers(0, 50), per_hour=st.integers(0, 10_000).map(lambda m: m / 1000)
)


def a_change(before: FleetAtRest, after: FleetAtRest) -> AtRest:
    amount = after.per_hour - before.per_hour
    return AtRest(before=before, after=after, per_hour=amount, per_month=amount * 730)


@given(st.lists(st.tuples(fleets, fleets), min_size=1, max_size=8))
@settings(max_examples=examples(60))
def test_every_run_is_in_the_range_and_the_mean_between(
    pairs: list[tuple[FleetAtRest, FleetAtRest]],
) -> None:
    found = combine_seeds([a_change(*pair) for pair in pairs])
    assert found.range is not None
    assert found.difference is not None
    assert found.range.seeds == len(pairs)
    for before, after in pairs:
        assert found.range.nodes.low <= after.nodes <= found.range.nodes.high
        assert found.range.per_hour.low <= after.per_hour <= found.range.per_hour.high
        assert found.difference.low <= after.per_hour - before.per_hour <= found.difference.high
    assert found.difference.low <= found.per_hour <= found.difference.high
    assert found.per_hour == found.difference.mean
    assert found.after.per_hour - found.before.per_hour == pytest.approx(found.per_hour)


@given(st.lists(amounts, min_size=1, max_size=8))
@settings(max_examples=examples(60))
def test_a_difference_beyond_chance_has_one_sign_in_all_runs(values: list[float]) -> None:
    agree = all(value > 0 for value in values) or all(value < 0 for value in values)
    found = cost_difference(values)
    assert found.beyond_chance == (found.low > 0 or found.high < 0)
    assert agree or not found.beyond_chance
    if len(values) < 5:
        assert found.beyond_chance == agree


@pytest.mark.parametrize("runs", [5, 7, 20])
def test_the_interval_of_a_difference_contains_the_mean_of_many_runs(runs: int) -> None:
    chance = Random(1)
    intervals = [cost_difference([chance.gauss(0.1, 1) for _ in range(runs)]) for _ in range(2_000)]
    assert sum(found.low <= 0.1 <= found.high for found in intervals) >= 0.97 * len(intervals)


@given(st.lists(fleets, min_size=1, max_size=8))
@settings(max_examples=examples(40))
def test_a_change_without_an_effect_is_exactly_zero(sides: list[FleetAtRest]) -> None:
    found = combine_seeds([a_change(side, side) for side in sides])
    assert found.difference is not None
    assert (found.per_hour, found.per_month) == (0, 0)
    assert (found.difference.low, found.difference.mean, found.difference.high) == (0, 0, 0)
    assert not found.difference.beyond_chance


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=8))
@settings(max_examples=examples(40))
def test_nodes_and_types_of_both_sides_are_those_of_one_run(
    runs: list[tuple[int, int]],
) -> None:
    def side(nodes: int, run: int) -> PoolAtRest:
        return PoolAtRest(nodes=nodes, per_hour=nodes / 10, types={f"m5.large {run}": nodes})

    changes = [
        AtRest(
            before=FleetAtRest(nodes=before, per_hour=before / 10),
            after=FleetAtRest(nodes=after, per_hour=after / 10),
            per_hour=(after - before) / 10,
            per_month=(after - before) * 73.0,
            by_node_pool={"web": PoolChange(before=side(before, run), after=side(after, run))},
        )
        for run, (before, after) in enumerate(runs)
    ]
    found = combine_seeds(changes)
    pool = found.by_node_pool["web"]
    assert pool.before.types.keys() == pool.after.types.keys()
    for fleet, side in ((found.before, pool.before), (found.after, pool.after)):
        assert fleet.nodes == side.nodes == sum(side.types.values())
        assert fleet.per_hour == side.per_hour


def test_there_are_as_many_seeds_as_the_work_allows() -> None:
    assert [seed_count(work, 100) for work in (0, 1, 10, 50, 1000)] == [
        SEEDS_MAX, SEEDS_MAX, 10, SEEDS_MIN, SEEDS_MIN,
    ]  # fmt: skip


def test_fewer_runs_are_simulated_the_more_work_one_takes() -> None:
    counts = [affordable_count(work) for work in (0, 500, 501, 1_001, 1_429, 1_000_000)]
    assert counts == [SEEDS_MAX, SEEDS_MAX, 14, 7, SEEDS_MIN, SEEDS_MIN]


def test_a_range_is_one_phrase() -> None:
    several = [FleetAtRest(nodes=n, per_hour=p) for n, p in ((5, 0.43), (7, 0.53), (6, 0.48))]
    assert range_phrase(fleet_range(several)) == (
        "5 to 7 nodes, $0.43 to $0.53/hour (mean $0.48, 3 runs)"
    )
    assert range_phrase(fleet_range(several[:1] * 5)) == "5 nodes, $0.43/hour (5 runs)"


@pytest.mark.parametrize(
    ("runs", "phrase"),
    [
        ([-0.1, 0.3], "−$73 to +$219/month, mean +$73: no difference beyond chance"),
        ([0.1, 0.3], "+$73 to +$219/month, mean +$146"),
        ([0.1, 0.1], "+$73/month"),
        ([0.0], "no difference in cost"),
    ],
)
def test_a_difference_is_one_phrase(runs: list[float], phrase: str) -> None:
    assert difference_phrase(cost_difference(runs), 1.0) == phrase


def test_the_mean_is_the_difference_of_the_costs_that_a_plan_shows() -> None:
    """$1.30 → $67.50/month is shown as $1 → $68, and so is +$67; exactly it is +$66.20."""
    before, after = 1.3 / 730, 67.5 / 730
    found = cost_difference([after - before - 0.01, after - before + 0.01])
    assert difference_phrase(found, after).endswith("mean +$67")
