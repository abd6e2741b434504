"""The thorough search: sets of nodes by waste, and several replacements for one node."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import Phase, find, given
from hypothesis import settings as tuned
from hypothesis import strategies as st

from reconciler.catalog.catalog import Catalog
from reconciler.disruption.command import Command, Decisions
from reconciler.disruption.consolidation.flapdamping import GAVE_UP
from reconciler.disruption.consolidation.pricing import OfferingChoice
from reconciler.disruption.consolidation.sets import MINIMUM_SAVED
from reconciler.disruption.consolidation.thorough import small_sets, waste_by_node
from reconciler.disruption.decide import decide
from reconciler.disruption.inputs import open_pass
from reconciler.disruption.simulation import cluster_after_removal
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.karpenter.labels import CAPACITY_TYPE
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import ConsolidationSearch, Settings
from reconciler.observed.state import ClusterState
from reconciler.placement.question import Placement, PlannedClaim
from tests.disruption.builders import (
    NOW,
    SIZES,
    a_catalog,
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    a_situation,
    a_type,
    decided,
    stamp,
)
from tests.examples import examples

THOROUGH = Settings(consolidation_search=ConsolidationSearch.THOROUGH)
KARPENTER = Settings(consolidation_search=ConsolidationSearch.KARPENTER)


def a_lonely_pair() -> list[Any]:
    """Return a large node with nine cores of pods, which fit a huge one or, cheaper, two nodes."""
    pods = [a_pod(f"p{i}", "n1", cpu="900m") for i in range(9)]
    return [a_node("n1", "huge"), *pods]


@pytest.mark.parametrize("settings", [Settings(), THOROUGH], ids=["default", "thorough"])
def test_one_node_is_replaced_by_two_cheaper_ones(settings: Settings) -> None:
    assert decided(*a_lonely_pair(), settings=KARPENTER).commands == ()

    (command,) = decided(*a_lonely_pair(), settings=settings).commands

    assert command.nodes == ("n1",)
    assert len(command.replacements) > 1
    assert command.savings is not None
    assert command.savings >= SIZES["huge"][1] * MINIMUM_SAVED


def test_only_the_pods_that_need_an_on_demand_node_stay_on_one() -> None:
    """A rollout put a pod that requires on-demand beside others, which keep a large node busy."""
    pinned = a_pod(
        "api", "n1", cpu="900m", spec={"nodeSelector": {"karpenter.sh/capacity-type": "on-demand"}}
    )
    others = [a_pod(f"web-{i}", "n1", cpu="900m") for i in range(6)]

    either = {
        "key": "karpenter.sh/capacity-type",
        "operator": "In",
        "values": ["on-demand", "spot"],
    }
    pool = a_pool(spec={"template": {"spec": {"requirements": [either], "expireAfter": "Never"}}})

    (command,) = decided(a_node("n1", "large"), pinned, *others, pools=[pool]).commands

    kinds = {pod: spot(claim) for claim in command.replacements for pod in claim.pods}
    assert not kinds.pop("default/api")
    assert all(kinds.values())


def spot(claim: PlannedClaim) -> bool:
    """Return whether a replacement is launched as spot."""
    return claim.requirements.requirement_on("karpenter.sh/capacity-type").has("spot")


def test_any_launch_of_several_replacements_costs_less() -> None:
    (command,) = decided(*a_lonely_pair(), settings=THOROUGH).commands

    assert dearest(command) < SIZES["huge"][1]


def test_a_node_pool_may_be_searched_thoroughly_by_itself() -> None:
    named = Settings(node_pools={"default": {"consolidation_search": ConsolidationSearch.THOROUGH}})
    other = Settings(
        consolidation_search=ConsolidationSearch.KARPENTER,
        node_pools={"other": {"consolidation_search": ConsolidationSearch.THOROUGH}},
    )

    assert len(decided(*a_lonely_pair(), settings=named).commands) == 1
    assert decided(*a_lonely_pair(), settings=other).commands == ()


def test_the_least_savings_of_the_config_hold_for_several_replacements() -> None:
    settings = Settings(
        consolidation_search=ConsolidationSearch.THOROUGH, minimum_savings_percent=90.0
    )

    assert decided(*a_lonely_pair(), settings=settings).commands == ()


def test_spot_is_not_replaced_by_several_spot_nodes_without_the_gate() -> None:
    spot = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]}
    pool = a_pool(spec={"template": {"spec": {"requirements": [spot], "expireAfter": "Never"}}})
    pods = [a_pod(f"p{i}", "n1", cpu="900m") for i in range(9)]
    fleet = [a_node("n1", "huge", capacity_type="spot"), *pods]

    assert decided(*fleet, pools=[pool], settings=THOROUGH).commands == ()


def test_a_node_that_would_be_launched_again_stays() -> None:
    """A huge node and a full small one: the small one has no waste."""
    full = [a_pod("s1", "n2", cpu="900m"), a_pod("s2", "n2", cpu="900m")]

    (command,) = decided(*a_lonely_pair(), a_node("n2", "small"), *full, settings=THOROUGH).commands

    assert command.nodes == ("n1",)


def full(name: str, size: str = "small") -> list[Any]:
    """Return a node of the cheapest type for its pods, which leave no room."""
    half = f"{SIZES[size][0] * 500 - 100}m"
    return [a_node(name, size), a_pod(f"{name}-a", name, half), a_pod(f"{name}-b", name, half)]


def half_empty(name: str, size: str = "huge") -> list[Any]:
    pods = [a_pod(f"{name}-{i}", name, cpu="900m") for i in range(9)]
    return [a_node(name, size), *pods]


def test_a_set_is_removed_without_the_nodes_that_block_it() -> None:
    fleet = [*half_empty("n1"), *half_empty("n2"), *full("f1"), *full("f2")]

    decisions = decided(*fleet, settings=THOROUGH)

    gone = {name for command in decisions.commands for name in command.nodes}
    assert gone
    assert gone <= {"n1", "n2"}


def of_two_ports(name: str, replaced: str = "", minutes: Sequence[int] = ()) -> list[Any]:
    """Return a huge node whose two pods would be cheaper on a large and a medium one.

    Its lineage has ``replaced`` an offering some ``minutes`` ago, once for each of them.
    """
    times = (stamp(NOW - timedelta(minutes=ago)) for ago in minutes)
    memory = {GAVE_UP: " ".join(f"{replaced}@{at}" for at in times)} if replaced else {}

    def pod(port: int, cpu: str) -> Any:
        requests = {"requests": {"cpu": cpu}}
        container = {"name": "c", "resources": requests, "ports": [{"hostPort": port}]}
        return a_pod(f"{name}-{port}", name, spec={"containers": [container]})

    node = a_node(name, "huge", claim_metadata={"annotations": memory})
    return [node, pod(80, "7"), pod(90, "3")]


def test_the_most_wasteful_set_is_removed_without_the_thorough_search_too() -> None:
    """Karpenter replaces several nodes by one only, and host ports keep these pods apart."""
    fleet = [*of_two_ports("n1"), *of_two_ports("n2")]
    (command,) = decided(*fleet).commands

    assert command.nodes == ("n1", "n2")
    assert len(command.replacements) > 1
    assert dearest(command) < 2 * SIZES["huge"][1]


@pytest.mark.parametrize(
    ("pods", "settings", "is_replaced"),
    [
        pytest.param(13, Settings(), True, id="19% by default"),
        pytest.param(14, Settings(), False, id="13% by default"),
        pytest.param(14, THOROUGH, True, id="13% thoroughly"),
    ],
)
def test_the_default_search_leaves_nodes_that_waste_little(
    pods: int, settings: Settings, is_replaced: bool
) -> None:
    """Three smaller nodes are cheaper than a node of sixteen cores in each case."""
    fleet = [a_node("n1", "huge"), *(a_pod(f"p{i}", "n1", cpu="1") for i in range(pods))]
    assert bool(decided(*fleet, settings=settings).commands) is is_replaced


@pytest.mark.parametrize("search", [ConsolidationSearch.DEFAULT, ConsolidationSearch.THOROUGH])
@pytest.mark.parametrize(
    ("replaced", "minutes", "repeats"),
    [
        ("large,zone-a,on-demand", (1, 30, 59), True),
        ("large,zone-a,on-demand", (1, 59), False),
        ("large,zone-a,on-demand", (1, 30, 61), False),
        ("large,zone-z,on-demand", (1, 30, 59), False),
    ],
)
def test_several_replacements_do_not_return_to_one_offering_again_and_again(
    replaced: str, minutes: Sequence[int], repeats: bool, search: ConsolidationSearch
) -> None:
    """The scheduler binds pods otherwise than planned, so such a command could repeat endlessly."""
    fleet = [*of_two_ports("n1", replaced, minutes), *of_two_ports("n2")]

    commands = decided(*fleet, settings=Settings(consolidation_search=search)).commands

    gone = {name for command in commands for name in command.nodes}
    assert ("n1" in gone) is not repeats


@pytest.mark.parametrize(
    "settings",
    [
        Settings(consolidation_search=ConsolidationSearch.KARPENTER),
        Settings(node_pools={"default": {"consolidation_search": ConsolidationSearch.KARPENTER}}),
    ],
    ids=["fleet", "NodePool"],
)
def test_karpenters_search_evaluates_no_set_that_needs_several_nodes(settings: Settings) -> None:
    fleet = [*of_two_ports("n1"), *of_two_ports("n2")]

    assert decided(*fleet, settings=settings).commands == ()


def test_karpenters_search_does_not_go_on_within_each_node_pool() -> None:
    """The best candidate is of another NodePool, and no node takes its pod and those of the next.

    So no prefix of the fleet saves anything, but three nodes of the first NodePool fit on one.
    """
    here, there = ({"nodeSelector": {"karpenter.sh/nodepool": name}} for name in ("a", "b"))
    fleet = [*a_node("b1", "huge", pool="b"), a_pod("pod-b1", "b1", "8500m", spec=there)]
    for name in ("a1", "a2", "a3", "a4"):
        fleet += [*a_node(name, "large", pool="a"), a_pod(f"pod-{name}", name, "4500m", spec=here)]
    pools = [a_pool("a"), a_pool("b")]
    stops = Settings(consolidation_search=ConsolidationSearch.KARPENTER)

    (command,) = decided(*fleet, pools=pools).commands

    assert command.nodes == ("a1", "a2", "a3")
    assert decided(*fleet, pools=pools, settings=stops).commands == ()


def test_a_node_that_is_closed_takes_no_pods_though_it_has_room() -> None:
    cluster = a_cluster(
        a_node("n1", "small"), a_pod("p1", "n1"), a_node("n2", "small"), a_pod("p2", "n2", "500m")
    )
    work = open_pass(a_situation(cluster, [a_pool()], settings=THOROUGH)).work
    going = [candidate for candidate in work.candidate_set.candidates if candidate.name == "n1"]

    free = work.simulation.simulate_removal(going, consolidating=True)
    closed = work.simulation.simulate_removal(going, consolidating=True, closed={"n2"})

    assert set(free.placement.on_nodes.values()) == {"n2"}
    assert not closed.placement.on_nodes
    assert len(closed.placement.claims) == 1


def test_existing_room_goes_to_the_pods_that_are_expensive_on_new_nodes() -> None:
    """Of two pods of the same size one may use spot; there is room for one of them."""
    either = {
        "key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot", "on-demand"]
    }  # fmt: skip
    pool = a_pool(spec={"template": {"spec": {"requirements": [either], "expireAfter": "Never"}}})
    on_demand = {"nodeSelector": {"karpenter.sh/capacity-type": "on-demand"}}
    cluster = a_cluster(
        a_node("n1", "medium"), a_pod("a-cheap", "n1"), a_pod("b-expensive", "n1", spec=on_demand),
        a_node("n2", "small"), a_pod("other", "n2", "900m"),
    )  # fmt: skip
    work = open_pass(a_situation(cluster, [pool], settings=THOROUGH)).work
    going = [candidate for candidate in work.candidate_set.candidates if candidate.name == "n1"]
    pod_values = work.simulation.pod_values(going[0].moving_pods)

    as_queued = work.simulation.simulate_removal(going, consolidating=True)
    expensive_first = work.simulation.simulate_removal(
        going, consolidating=True, pod_values=pod_values
    )

    assert as_queued.placement.on_nodes == {"default/a-cheap": "n2"}
    assert expensive_first.placement.on_nodes == {"default/b-expensive": "n2"}


def test_the_most_wasteful_sets_are_evaluated_first() -> None:
    cluster = a_cluster(
        a_node("idle", "huge"), a_pod("a", "idle", cpu="1"),
        a_node("busy", "small"), a_pod("b", "busy", cpu="1800m"),
    )  # fmt: skip
    work = open_pass(a_situation(cluster, [a_pool()], settings=THOROUGH)).work
    pods = [pod for candidate in work.candidate_set.candidates for pod in candidate.moving_pods]
    waste = waste_by_node(work.candidate_set.candidates, work.simulation.pod_values(pods))

    first = next(iter(small_sets(work.candidate_set.candidates, waste)))

    assert waste["idle"] > waste["busy"]
    assert "idle" in {candidate.name for candidate in first}


def dearest(command: Command) -> float:
    """Return the maximum total cost of the replacements."""
    return sum(
        max(OfferingChoice(claim.requirements).worst_launch_price(kind) for kind in claim.types)
        for claim in command.replacements
    )


@st.composite
def fleets(draw: st.DrawFn) -> list[Any]:
    """Small fleets whose pods fit their nodes; some are protected, some have anti-affinity."""
    objects: list[Any] = []
    for number in range(draw(st.integers(1, 5))):
        size = draw(st.sampled_from(sorted(SIZES)))
        capacity_type = draw(st.sampled_from(["on-demand", "on-demand", "spot"]))
        zone = draw(st.sampled_from(["zone-a", "zone-b"]))
        name = f"n{number}"
        objects.append(a_node(name, size, capacity_type=capacity_type, zone=zone))
        left = SIZES[size][0] * 1000
        for index, milli in enumerate(
            draw(st.lists(st.sampled_from([300, 900, 1700]), max_size=6))
        ):
            if milli > left:
                break
            left -= milli
            labels = {"app": draw(st.sampled_from(["plain", "guarded"]))}
            pod = a_pod(f"{name}-{index}", name, cpu=f"{milli}m", metadata={"labels": labels})
            objects.append(pod)
    return objects


def a_budget(allowed: int) -> dict[str, Any]:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded", "namespace": "default"},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
        "status": {"disruptionsAllowed": allowed},
    }


@pytest.mark.parametrize("decision", ["delete", "replace"])
def test_the_generated_fleets_cover_both_kinds_of_commands(decision: str) -> None:
    pool = a_pool()

    def has_one(fleet: list[Any]) -> bool:
        commands = _decided(a_cluster(*fleet), pool, THOROUGH).commands
        return any(
            c.reason is DisruptionReason.UNDERUTILIZED and c.decision == decision for c in commands
        )

    quick = tuned(deadline=None, derandomize=True, database=None, phases=[Phase.generate])
    assert find(fleets(), has_one, settings=quick)


@given(fleet=fleets(), allowed=st.integers(0, 1), nodes=st.integers(0, 3))
@tuned(deadline=None, max_examples=examples(30))
def test_no_command_raises_the_cost_exceeds_a_budget_or_leaves_a_pod_unschedulable(
    fleet: list[Any], allowed: int, nodes: int
) -> None:
    pool = a_pool(budgets=[{"nodes": str(nodes)}])
    cluster = a_cluster(*fleet, a_budget(allowed))
    decisions = _decided(cluster, pool, THOROUGH)

    moved = [name for command in decisions.commands for name in command.nodes]
    assert len(moved) <= nodes
    for command in decisions.commands:
        _hold(command, cluster, allowed)


def _hold(command: Command, cluster: ClusterState, allowed: int) -> None:
    gone = [cluster.by_name[name] for name in command.nodes]
    price = sum(_price(node.labels) for node in gone)
    if command.replacements:
        assert dearest(command) < price
    pods = [pod for node in gone for pod in node.pods]
    if allowed == 0:
        assert not any(pod.metadata.labels.get("app") == "guarded" for pod in pods)
    placement = command.placement or Placement()
    seats = set(placement.on_nodes) | {pod for claim in placement.claims for pod in claim.pods}
    assert {pod.key for pod in pods} <= seats
    then = cluster_after_removal(cluster, command.nodes, placement)
    for node in then.nodes:
        assert sum(pod.requests()["cpu"] for pod in node.pods) <= node.allocatable["cpu"]


def _price(labels: Any) -> float:
    price = SIZES[labels["node.kubernetes.io/instance-type"]][1]
    return price / 3 if labels["karpenter.sh/capacity-type"] == "spot" else price


@given(fleet=fleets())
@tuned(deadline=None, max_examples=examples(30))
def test_a_pass_saves_at_least_what_it_saves_without_the_search(fleet: list[Any]) -> None:
    cluster, pool = a_cluster(*fleet), a_pool()

    assert (
        _saved(_decided(cluster, pool, THOROUGH))
        >= _saved(_decided(cluster, pool, Settings())) - 1e-9
    )


def _decided(cluster: ClusterState, pool: Any, settings: Settings) -> Decisions:
    return decide(a_situation(cluster, [pool], settings=settings))


def _saved(decisions: Decisions) -> float:
    return sum(command.savings or 0.0 for command in decisions.commands)


def on_spot(name: str, size: str) -> list[Any]:
    """Return a spot node with a pod that needs a small one, and a host port of its own."""
    ports = [{"containerPort": 80, "hostPort": 80}]
    amounts = {"requests": {"cpu": "1500m"}}
    container = {"name": "c", "resources": amounts, "ports": ports}
    node = a_node(name, size, capacity_type="spot")
    return [*node, a_pod(f"of-{name}", name, spec={"containers": [container]})]


def of_capacity_types(*names: str) -> NodePool:
    rows = [{"key": CAPACITY_TYPE, "operator": "In", "values": list(names)}]
    return a_pool(spec={"template": {"spec": {"requirements": rows, "expireAfter": "Never"}}})


BOTH = of_capacity_types("spot", "on-demand")


@pytest.mark.parametrize("settings", [Settings(), THOROUGH], ids=["default", "thorough"])
def test_spot_nodes_that_are_several_times_too_large_become_on_demand(settings: Settings) -> None:
    """The gate keeps them from being spot again, and would hold them for as long as pods run."""
    fleet = [*on_spot("n1", "huge"), *on_spot("n2", "huge")]
    assert decided(*fleet, pools=[BOTH], settings=KARPENTER).commands == ()

    (command,) = decided(*fleet, pools=[BOTH], settings=settings).commands

    assert command.nodes == ("n1", "n2")
    for claim in command.replacements:
        allowed = claim.requirements.requirement_on(CAPACITY_TYPE)
        assert (allowed.has("on-demand"), allowed.has("spot")) == (True, False)
    assert dearest(command) < 2 * SIZES["huge"][1] / 3


@pytest.mark.parametrize(
    ("nodes", "size", "pool"),
    [
        (2, "medium", BOTH),
        (2, "huge", of_capacity_types("spot")),
        (1, "huge", BOTH),
    ],
    ids=["on-demand costs more", "NodePool of spot nodes", "one node, as in Karpenter"],
)
@pytest.mark.parametrize("settings", [Settings(), THOROUGH], ids=["default", "thorough"])
def test_spot_nodes_stay_where_on_demand_is_no_way_out(
    nodes: int, size: str, pool: NodePool, settings: Settings
) -> None:
    fleet = [item for number in range(nodes) for item in on_spot(f"n{number}", size)]
    assert decided(*fleet, pools=[pool], settings=settings).commands == ()


def flexible_catalog(count: int, price: float) -> Catalog:
    """Return huge nodes, and smaller types that cost at least ``price``."""
    small = [a_type(f"flat-{number}", 2, price + number / 10_000) for number in range(count)]
    return a_catalog([a_type("huge", *SIZES["huge"]), *small])


@pytest.mark.parametrize(
    ("settings", "nodes", "may_move"),
    [(THOROUGH, 1, True), (THOROUGH, 2, True), (Settings(), 1, False), (Settings(), 2, False)],
    ids=["thorough", "thorough, two", "default, as in Karpenter", "default, two"],
)
@pytest.mark.parametrize(
    ("types", "price", "is_worth_it"),
    [(15, 0.35, True), (14, 0.35, False), (15, 0.45, False)],
    ids=["half the price", "fewer types than Karpenter requires", "more than half the price"],
)
def test_spot_nodes_that_cost_twice_what_their_pods_need_become_smaller_spot_nodes(
    settings: Settings, nodes: int, may_move: bool, types: int, price: float, is_worth_it: bool
) -> None:
    """No on-demand node is allowed, so the gate would hold them for as long as their pods run."""
    pool, catalog = of_capacity_types("spot"), flexible_catalog(types, price)
    fleet = [item for number in range(nodes) for item in on_spot(f"n{number}", "huge")]
    assert decided(*fleet, pools=[pool], catalog=catalog, settings=KARPENTER).commands == ()

    commands = decided(*fleet, pools=[pool], catalog=catalog, settings=settings).commands

    assert len(commands) == (may_move and is_worth_it)
    for command in commands:
        assert len(command.nodes) == nodes
        assert all(len(claim.types) >= 15 for claim in command.replacements)
        assert dearest(command) <= nodes * 0.4 / 3
