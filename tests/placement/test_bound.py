"""The bound: no placement costs less, an independent solver agrees, and it explains the gap."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import settings as how_often
from hypothesis import strategies as st

from reconciler.model.kubernetes.pod import Pod
from reconciler.placement.packing import covering
from reconciler.placement.packing.bound import Bound, GapReason
from reconciler.placement.packing.simplex import Program, maximize
from reconciler.placement.pods.pending import pods_to_place
from reconciler.placement.question import Placement, Question
from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    NOW,
    Object,
    a_node,
    a_pool,
    a_scheduler,
    pods,
    spread,
    wanted,
)
from tests.placement.test_laws import thorough
from tests.placement.test_packing import UNEVEN, cost
from tests.placement.worlds import worlds


def bounded(world: Iterable[Object], packing: str = "default") -> tuple[Placement, Bound]:
    """Return the placement of a cluster's pods, and the bound for those that were placed."""
    scheduler, cluster = a_scheduler(world, types=UNEVEN, packing=packing)
    waiting = pods_to_place(cluster, NOW)
    placement = scheduler.place(Question(pods=waiting))
    seats = {key for claim in placement.claims for key in claim.pods} | placement.on_nodes.keys()
    placed: list[Pod] = [pod for pod in waiting if pod.key in seats]
    return placement, scheduler.lower_bound(placed)


@given(worlds(), st.sampled_from(["default", "cheapest"]))
@how_often(thorough, max_examples=examples(150))
def test_no_placement_costs_less(world: list[Object], packing: str) -> None:
    placement, bound = bounded(world, packing)
    assert bound.cost <= cost(placement) * (1 + 1e-9)


def test_the_bound_is_exact_if_pods_fill_nodes_exactly() -> None:
    world = [a_pool("default", wanted(CAPACITY_TYPE, "In", "spot")), *pods(4, cpu="7900m")]
    placement, bound = bounded(world, "cheapest")
    assert bound.cost == pytest.approx(cost(placement))
    assert bound.gap_reason(cost(placement)) is None


def test_free_room_counts_as_free() -> None:
    world = [a_pool(), *pods(4, cpu="900m")]
    _, bound = bounded(world)
    _, with_node = bounded([*world, *a_node("old", "2")])
    _, with_room_for_all = bounded([*world, *a_node("old", "8")])
    assert 0 < with_node.cost < bound.cost
    assert with_room_for_all.cost == 0


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 30)), min_size=1, max_size=12))
@how_often(max_examples=examples(60), deadline=None)
def test_pods_that_share_no_type_cost_together_what_they_cost_apart(
    sizes: list[tuple[str, int]],
) -> None:
    pools = [a_pool(t, taints=[{"key": t, "effect": "NoSchedule"}]) for t in "ab"]
    teams = {
        team: [
            pod
            for i, (whose, tenths) in enumerate(sizes)
            if whose == team
            for pod in pods(
                2,
                f"{team}{i}",
                cpu=f"{tenths}00m",
                tolerations=[{"key": team, "operator": "Exists"}],
            )
        ]
        for team in "ab"
    }
    together = bounded([*pools, *teams["a"], *teams["b"]])[1].cost
    apart = sum(bounded([*pools, *waiting])[1].cost for waiting in teams.values())
    assert together == pytest.approx(apart, rel=1e-9)


def test_merging_many_shapes_gives_a_valid_bound() -> None:
    sizes = [(100 + 37 * i, 200 + 91 * (i * 7 % 40)) for i in range(40)]
    world = [a_pool()]
    for i, (cpu, memory) in enumerate(sizes):
        world += pods(2, f"app{i}", cpu=f"{cpu}m", memory=f"{memory}Mi")
    placement, bound = bounded(world, "cheapest")
    assert len(sizes) > covering.LOADS_MAX
    assert cost(placement) / 2 < bound.cost <= cost(placement)


def test_the_bound_names_why_a_placement_costs_more() -> None:
    on_demand = a_pool("on-demand", wanted(CAPACITY_TYPE, "In", "on-demand"), weight=10)
    placement, bound = bounded([on_demand, a_pool("cheap"), *pods(8, cpu="900m")], "cheapest")
    assert bound.gap_reason(cost(placement)) is GapReason.WEIGHTS
    placement, bound = bounded([a_pool(), *pods(8, cpu="900m")])
    assert bound.gap_reason(cost(placement)) is GapReason.PACKING
    rules = [spread("topology.kubernetes.io/zone")]
    even = pods(4, cpu="2500m", memory="5Gi", topologySpreadConstraints=rules)
    placement, bound = bounded([a_pool(), *even], "cheapest")
    assert bound.gap_reason(cost(placement)) is GapReason.POD_RULES
    placement, bound = bounded([a_pool(), *pods(4, cpu="2500m", memory="5Gi")], "cheapest")
    assert bound.gap_reason(cost(placement)) is GapReason.WHOLE_NODES


amounts = st.integers(0, 9).map(float)


Rows = list[tuple[list[float], float]]
programs = st.integers(1, 5).flatmap(
    lambda n: st.tuples(
        st.lists(amounts, min_size=n, max_size=n),
        st.lists(
            st.tuples(st.lists(amounts, min_size=n, max_size=n), amounts), min_size=1, max_size=6
        ),
    )
)


def limited(count: int) -> Rows:
    return [([1.0 if j == i else 0.0 for j in range(count)], 10.0) for i in range(count)]


@given(programs)
@how_often(thorough, max_examples=examples(200))
def test_rows_added_between_solutions_lead_to_the_same_optimum(
    program: tuple[list[float], Rows],
) -> None:
    objective, rows = program
    every = [*limited(len(objective)), *rows]
    growing = Program(objective)
    for row, limit in every:
        growing.add(row, limit)
        found = growing.solve()
    at_once = maximize(objective, [row for row, _ in every], [limit for _, limit in every])
    assert found.value == pytest.approx(at_once.value, abs=1e-6)
    assert sum(p * limit for p, (_, limit) in zip(found.prices, every, strict=True)) == (
        pytest.approx(found.value, abs=1e-6)
    )


@given(programs)
@how_often(thorough, max_examples=examples(200))
def test_another_solver_finds_the_same_optimum(
    program: tuple[list[float], Rows],
) -> None:
    highspy = pytest.importorskip("highspy", reason="highspy has no wheel for this Python")
    objective, rows = program
    every = [*rows, *limited(len(objective))]
    found = maximize(objective, [row for row, _ in every], [limit for _, limit in every])
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)
    columns = [solver.addVariable(0, highspy.kHighsInf) for _ in objective]
    for row, limit in every:
        if any(row):
            solver.addConstr(sum(a * x for a, x in zip(row, columns, strict=True)) <= limit)
    solver.maximize(sum(c * x for c, x in zip(objective, columns, strict=True)) + 0 * columns[0])
    assert found.value == pytest.approx(solver.getObjectiveValue(), abs=1e-6)
