"""The cost packing: never worse, subject to the same rules, and based on actual node costs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as how_often
from hypothesis import strategies as st

from reconciler.model.settings import Packing
from reconciler.placement.question import Placement
from tests.examples import examples
from tests.placement.builders import (
    CAPACITY_TYPE,
    HOST,
    TYPES,
    ZONE,
    Object,
    a_node,
    a_pool,
    a_type,
    near,
    on,
    placed,
    plan_of,
    pods,
    rule,
    spread,
    wanted,
)
from tests.placement.test_laws import CHECK, thorough
from tests.placement.worlds import worlds

# large nodes are expensive here, as on EC2: a complete one is rarely needed
UNEVEN = (
    *TYPES,
    a_type("tiny", 1, 0.04, memory="1Gi"),
    a_type("lean", 8, 0.25, memory="8Gi"),
    a_type("fat", 4, 0.22, memory="64Gi"),
    a_type("giant", 48, 4.0),
)
often = how_often(thorough, max_examples=examples(120))


def cost(placement: Placement, node_cost: float = 0.0) -> float:
    return sum(claim.launch[1].price + node_cost for claim in placement.claims)


def without_place(placement: Placement) -> int:
    return len(placement.unschedulable) + len(placement.deferred)


def cheapest(objects: list[Object], **how: Any) -> Placement:
    return placed(objects, **{"types": UNEVEN, "packing": Packing.CHEAPEST, **how})


@given(worlds(), st.sampled_from([0.0, 0.3]))
@often
def test_the_cost_packing_is_never_worse_than_the_default(
    world: list[Object], node_cost: float
) -> None:
    usual = placed(world, types=UNEVEN)
    packed = cheapest(world, per_node_cost=node_cost)
    reached = (without_place(packed), round(cost(packed, node_cost), 6))
    assert reached <= (without_place(usual), round(cost(usual, node_cost), 6))


@pytest.mark.skipif(CHECK is None, reason="the independent check is not beside this checkout")
@given(worlds())
@often
def test_an_independent_check_accepts_the_cost_packing(world: list[Object]) -> None:
    assert CHECK is not None
    assert CHECK.check(world, list(UNEVEN), plan_of(cheapest(world))) == []


@given(worlds(), st.randoms(use_true_random=False))
@how_often(thorough, max_examples=examples(60))
def test_the_result_does_not_depend_on_the_input_order(world: list[Object], random: Any) -> None:
    shuffled = list(world)
    random.shuffle(shuffled)
    assert plan_of(cheapest(world)) == plan_of(cheapest(shuffled))


def test_the_total_cost_of_nodes_is_minimized() -> None:
    world = [a_pool(), *pods(12, cpu="3500m", memory="1Gi")]
    usual = placed(world, types=UNEVEN)
    packed = cheapest(world)
    # one large node fits all of them; two pods fit a lean one at a third of its price
    assert [c.launch[0].name for c in usual.claims] == ["giant"]
    assert {c.launch[0].name for c in packed.claims} == {"lean"}
    assert cost(packed) < cost(usual) / 2


def test_a_node_cost_reduces_the_number_of_nodes() -> None:
    world = [a_pool(), *pods(12, cpu="900m", memory="512Mi")]
    free, expensive = cheapest(world), cheapest(world, per_node_cost=1.0)
    assert len(expensive.claims) < len(free.claims)
    assert cost(free) < cost(expensive)


def test_a_node_cost_can_be_set_for_one_nodepool() -> None:
    world = [a_pool("licensed"), a_pool("plain"), *pods(6, cpu="900m")]
    packed = cheapest(world, node_pools={"licensed": {"per_node_cost": 5.0}})
    assert {c.node_pool.name for c in packed.claims} == {"plain"}


def test_a_nodepool_may_keep_the_default_packing() -> None:
    world = [a_pool(), *pods(12, cpu="3500m")]
    kept = cheapest(world, node_pools={"default": {"packing": Packing.DEFAULT}})
    assert plan_of(kept) == plan_of(placed(world, types=UNEVEN))


def test_the_nodepool_of_greatest_weight_comes_first_even_if_it_costs_more() -> None:
    expensive = a_pool("expensive", wanted(CAPACITY_TYPE, "In", "on-demand"), weight=10)
    packed = cheapest([expensive, a_pool("cheap"), *pods(4)])
    assert {c.node_pool.name for c in packed.claims} == {"expensive"}


def test_pods_beyond_the_limits_use_the_next_nodepool() -> None:
    first = a_pool("first", weight=10, limits={"cpu": "8"})
    packed = cheapest([first, a_pool("second"), *pods(10, cpu="1500m")])
    capacity = sum(
        int(c.launch[0].capacity["cpu"]) for c in packed.claims if c.node_pool.name == "first"
    )
    assert 0 < capacity <= 8000
    assert not packed.unschedulable
    assert {c.node_pool.name for c in packed.claims} == {"first", "second"}


def test_a_cheaper_required_alternative_is_used() -> None:
    either = on([wanted(CAPACITY_TYPE, "In", "on-demand")], [wanted(CAPACITY_TYPE, "In", "spot")])
    packed = cheapest([a_pool(), *pods(4, affinity=either)])
    assert {c.launch[1].capacity_type for c in packed.claims} == {"spot"}


def test_zones_stay_even_and_hosts_apart() -> None:
    rules = [spread(ZONE), spread(HOST, skew=2)]
    packed = cheapest([a_pool(), *pods(9, cpu="900m", topologySpreadConstraints=rules)])
    by_zone: dict[str, int] = {}
    for claim in packed.claims:
        assert len(claim.pods) <= 2
        zone = claim.requirements.fixed_labels()[ZONE]
        by_zone[zone] = by_zone.get(zone, 0) + len(claim.pods)
    assert sorted(by_zone.values()) == [3, 3, 3]


@pytest.mark.parametrize("zone", ["zone-a", "zone-b", "zone-c"])
def test_spread_pods_use_room_on_other_nodes(zone: str) -> None:
    kinds = [a_type("lean", 4, 0.2), a_type("broad", 16, 0.9), a_type("giant", 48, 9.0)]
    pinned = pods(2, "big", cpu="11", memory="4Gi", affinity=on([wanted(ZONE, "In", zone)]))
    spreading = pods(2, cpu="3500m", memory="1Gi", topologySpreadConstraints=[spread(ZONE)])
    packed = cheapest([a_pool(), *pinned, *spreading], types=kinds)
    # one of the two beside a big pod, the other on its own node in another zone
    assert sorted(c.launch[0].name for c in packed.claims) == ["broad", "broad", "lean"]


def test_pods_with_host_affinity_share_a_host() -> None:
    world = [a_pool(), *pods(5, cpu="900m", affinity=near(rule(HOST))), *pods(9, "other")]
    packed = cheapest(world)
    together = [c for c in packed.claims if any("/app-" in key for key in c.pods)]
    assert len(together) == 1


def test_room_on_existing_nodes_is_used_first() -> None:
    packed = cheapest([a_pool(), *a_node("old", "8"), *pods(8, cpu="900m")])
    assert len(packed.on_nodes) == 8
    assert packed.claims == ()


def test_min_values_of_a_nodepool_are_met() -> None:
    choice = wanted("node.kubernetes.io/instance-type", "Exists", min_values=4)
    packed = cheapest([a_pool("default", choice), *pods(8, cpu="900m")])
    assert packed.claims
    assert all(len(claim.types) >= 4 for claim in packed.claims)
