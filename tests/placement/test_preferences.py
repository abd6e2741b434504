"""Preferences have a cost: pods packed for cost drop those that are too expensive."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.settings import Packing
from reconciler.placement.question import Placement, Question
from tests.placement.builders import (
    ARCH,
    CAPACITY_TYPE,
    HOST,
    PREFERRED,
    ZONE,
    Object,
    a_node,
    a_pool,
    a_scheduler,
    a_type,
    on,
    placed,
    pods,
    rule,
    spread,
    wanted,
)

# four pods of a core share one `medium`, or each has a `small` at twice the total price
TYPES = (a_type("small", 2, 0.1), a_type("medium", 6, 0.2))
DEAR = "on-demand"
LIKED = "preferred pod anti-affinity on kubernetes.io/hostname"


def apart(app: str = "app") -> Object:
    term = {"weight": 1, "podAffinityTerm": rule(HOST, app=app)}
    return {"podAntiAffinity": {PREFERRED: [term]}}


def cheapest(world: list[Object], **how: Any) -> Placement:
    return placed(world, **{"types": TYPES, "packing": Packing.CHEAPEST, **how})


def cost(placement: Placement) -> float:
    return sum(claim.launch[1].price for claim in placement.claims)


def given_up(placement: Placement) -> set[str]:
    """Return the workloads whose pods dropped their preferences."""
    keys = placement.given_up.preferences if placement.given_up is not None else ()
    return {key.removeprefix("default/").rpartition("-")[0] for key in keys}


def test_an_expensive_preference_is_dropped_and_the_saving_reported() -> None:
    world = [a_pool(), *pods(4, affinity=apart())]
    usual, packed = placed(world, types=TYPES), cheapest(world)
    assert (len(usual.claims), len(packed.claims)) == (4, 1)
    assert packed.given_up is not None
    assert packed.given_up.saving == pytest.approx(cost(usual) - cost(packed))
    expected = {f"default/app-{i:02d}": (LIKED,) for i in range(4)}
    assert packed.given_up.preferences == packed.relaxed == expected


def test_the_default_packing_keeps_preferences_whatever_they_cost() -> None:
    placement = placed([a_pool(), *pods(4, affinity=apart())], types=TYPES)
    assert placement.given_up is None
    assert placement.relaxed == {}


@pytest.mark.parametrize(("percent", "nodes"), [(0, 1), (49, 1), (50, 4), (100, 4)])
def test_the_maximum_cost_of_preferences_is_a_share_of_the_node_cost(
    percent: float, nodes: int
) -> None:
    world = [a_pool(), *pods(4, affinity=apart())]
    placement = cheapest(world, maximum_preference_cost_percent=percent)
    assert len(placement.claims) == nodes
    assert (placement.given_up is None) == (nodes == 4)


def test_free_preferences_remain_when_others_are_dropped() -> None:
    # even zones cost nothing for `wide`: each of its pods fills a node
    wide = pods(3, "wide", cpu="5", topologySpreadConstraints=[spread(ZONE, "wide", soft=True)])
    placement = cheapest([a_pool(), *wide, *pods(4, "lone", affinity=apart("lone"))])
    assert given_up(placement) == {"lone"}
    zones = [
        claim.requirements.fixed_labels()[ZONE]
        for claim in placement.claims
        if any("wide" in pod for pod in claim.pods)
    ]
    assert sorted(zones) == ["zone-a", "zone-b", "zone-c"]


def test_preferences_that_cost_little_are_kept() -> None:
    many = pods(12, "many", cpu="5")
    pair = pods(2, "pair", affinity=apart("pair"))
    placement = cheapest([a_pool(), *many, *pair])
    assert placement.given_up is None
    assert len({c.name for c in placement.claims for p in c.pods if "pair" in p}) == 2


def test_the_most_expensive_preferences_are_dropped_first_and_no_more_than_necessary() -> None:
    term = {"weight": 1, "preference": {"matchExpressions": [wanted(CAPACITY_TYPE, "In", DEAR)]}}
    picky = pods(1, "picky", affinity={"nodeAffinity": {PREFERRED: [term]}})
    lone = pods(12, "lone", affinity=apart("lone"))
    world = [a_pool(), *pods(12, "many", cpu="5"), *picky, *lone]
    some, every = cheapest(world), cheapest(world, maximum_preference_cost_percent=0)
    assert given_up(some) == {"lone"}
    assert given_up(every) == {"lone", "picky"}
    assert cost(every) < cost(some) <= cost(every) / 0.9


def test_a_required_alternative_stays_required() -> None:
    either = on([wanted(ZONE, "In", "zone-b")], [wanted(ZONE, "In", "zone-c")])
    placement = cheapest([a_pool(), *pods(4, affinity={**either, **apart()})])
    assert given_up(placement) == {"app"}
    assert {c.requirements.fixed_labels()[ZONE] for c in placement.claims} <= {"zone-b", "zone-c"}


def test_pods_without_preferences_share_an_existing_node() -> None:
    world = [a_pool(), *a_node("there", cpu="8"), *pods(4, affinity=apart())]
    assert len(placed(world, types=TYPES).claims) == 3
    placement = cheapest(world)
    assert placement.claims == ()
    assert set(placement.on_nodes.values()) == {"there"}
    assert given_up(placement) == {"app"}


def test_a_nodepool_with_the_default_packing_keeps_preferences() -> None:
    world = [a_pool(), *pods(4, affinity=apart())]
    placement = cheapest(world, node_pools={"default": {"packing": Packing.DEFAULT}})
    assert placement.given_up is None
    other = a_pool("other", wanted(ZONE, "In", "zone-b"))
    first = a_pool("default", weight=10)
    mixed = [first, other, *pods(4, affinity=apart())]
    placement = cheapest(mixed, node_pools={"default": {"packing": Packing.DEFAULT}})
    assert placement.given_up is None
    assert len(placement.claims) == 4


def test_the_bound_holds_for_pods_without_their_preferences() -> None:
    either = [wanted(CAPACITY_TYPE, "In", "spot")], [wanted(CAPACITY_TYPE, "In", "on-demand")]
    liked = {"weight": 1, "preference": {"matchExpressions": [wanted(ARCH, "In", "arm64")]}}
    affinity = on(*either)
    affinity["nodeAffinity"][PREFERRED] = [liked]
    types = (*TYPES, a_type("arm", 2, 0.9, arch="arm64"))
    world = [a_pool(), *pods(4, affinity=affinity)]
    scheduler, cluster = a_scheduler(world, types=types, packing=Packing.CHEAPEST)
    placement = scheduler.place(Question(pods=cluster.pods))
    assert given_up(placement) == {"app"}
    assert scheduler.lower_bound(cluster.pods).cost <= cost(placement) + 1e-9
