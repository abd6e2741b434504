from datetime import timedelta

import pytest

from reconciler.disruption.command import BlockCode
from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, MinValuesPolicy, Settings
from tests.disruption.builders import (
    NOW,
    a_catalog,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    refusal_of,
)

SPOT_TO_SPOT = Settings(
    feature_gates={**DEFAULT_FEATURE_GATES, FeatureGate.SPOT_TO_SPOT_CONSOLIDATION: True}
)


def _pool(*capacity_types: str, **disruption: object) -> object:
    wanted = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": list(capacity_types)}
    ]
    template = {"spec": {"requirements": wanted, "expireAfter": "Never"}}
    return a_pool(spec={"template": template}, **disruption)


def test_a_node_is_deleted_if_its_pods_fit_elsewhere() -> None:
    decisions = decided(
        a_node("n1", "small"), a_pod("p", "n1"), a_node("n2", "small"), a_pod("q", "n2")
    )

    assert brief(decisions) == [("Underutilized", "delete", ("n1",))]
    (command,) = decisions.commands
    assert command.placement is not None
    assert command.placement.on_nodes == {"default/p": "n2"}


def test_a_node_is_replaced_by_a_cheaper_one_only() -> None:
    decisions = decided(a_node("n1", "large"), a_pod("p", "n1", "3"))

    assert brief(decisions) == [("Underutilized", "replace", ("n1",))]
    (claim,) = decisions.commands[0].replacements
    assert [kind.name for kind in claim.types] == ["medium"]
    assert decisions.commands[0].savings == pytest.approx(0.2)


def test_a_node_without_a_cheaper_replacement_stays() -> None:
    decisions = decided(a_node("n1", "medium"), a_pod("p", "n1", "3"))

    assert brief(decisions) == []
    assert refusal_of(decisions, "n1") == "Can't replace with a cheaper node"


def test_a_node_is_not_replaced_by_two() -> None:
    decisions = decided(a_node("n1", "huge"), a_pod("p", "n1", "15"), a_pod("q", "n1", "15"))

    assert refusal_of(decisions, "n1") == "Can't remove without creating 2 candidates"


def test_the_most_expensive_zone_counts_because_the_launch_may_use_it() -> None:
    offerings = [
        {"zone": zone, "capacityType": "on-demand", "price": price}
        for zone, price in (("zone-a", 0.1), ("zone-b", 0.5))
    ]
    base = {"capacity": {"cpu": "4", "pods": "10"}}
    types = [
        {"name": "medium", **base, "offerings": [{**offerings[0], "price": 0.4}]},
        {"name": "uneven", **base, "offerings": offerings},
    ]

    decisions = decided(a_node("n1", "medium"), a_pod("p", "n1", "3"), catalog=a_catalog(types))

    assert refusal_of(decisions, "n1") == "Can't replace with a cheaper node"


def test_a_replacement_that_allows_spot_is_restricted_to_spot() -> None:
    pool = _pool("spot", "on-demand")

    (command,) = decided(a_node("n1", "large"), a_pod("p", "n1", "3"), pools=[pool]).commands

    (claim,) = command.replacements
    assert claim.requirements["karpenter.sh/capacity-type"].values == {"spot"}


def test_spot_is_not_replaced_by_spot_without_the_gate_but_may_be_deleted() -> None:
    pool = _pool("spot")
    alone = decided(a_node("n1", "large", capacity_type="spot"), a_pod("p", "n1"), pools=[pool])
    beside = decided(
        a_node("n1", "large", capacity_type="spot"),
        a_pod("p", "n1"),
        a_node("n2", "small", capacity_type="spot"),
        a_pod("q", "n2"),
        pools=[pool],
    )

    assert "SpotToSpotConsolidation is disabled" in refusal_of(alone, "n1")
    assert brief(beside) == [("Underutilized", "delete", ("n1",))]


def _many_spot_types(count: int) -> list[dict[str, object]]:
    return [
        {
            "name": f"t{i:02}",
            "capacity": {"cpu": "8", "pods": "10"},
            "offerings": [{"zone": "zone-a", "capacityType": "spot", "price": 0.01 * (i + 1)}],
        }
        for i in range(count)
    ]


@pytest.mark.parametrize(("types", "kept"), [(16, 15), (30, 15), (15, 0)])
def test_spot_needs_fifteen_cheaper_types_and_keeps_the_cheapest(types: int, kept: int) -> None:
    """The node has the most expensive of n types: n - 1 are cheaper."""
    decisions = decided(
        a_node("n1", f"t{types - 1:02}", capacity_type="spot"),
        a_pod("p", "n1"),
        pools=[_pool("spot")],
        catalog=a_catalog(_many_spot_types(types)),
        settings=SPOT_TO_SPOT,
    )

    if kept:
        (claim,) = decisions.commands[0].replacements
        assert [kind.name for kind in claim.types] == [f"t{i:02}" for i in range(kept)]
    else:
        assert "requires 15 cheaper instance type options" in refusal_of(decisions, "n1")
        assert refusal_of(decisions, "n1").endswith("got 14")


def test_several_nodes_are_replaced_by_one() -> None:
    nodes = [a_node(f"n{i}", "medium") for i in range(3)]
    pods = [a_pod(f"p{i}", f"n{i}", "0.6") for i in range(3)]

    decisions = decided(*nodes, *pods)

    assert brief(decisions) == [("Underutilized", "replace", ("n0", "n1", "n2"))]
    (claim,) = decisions.commands[0].replacements
    assert [kind.name for kind in claim.types] == ["small"]
    assert decisions.commands[0].savings_per_eviction == pytest.approx(0.5 / 3)


def test_a_replacement_does_not_have_the_type_of_a_removed_node() -> None:
    """Deleting the other node instead moves fewer pods."""
    decisions = decided(
        a_node("n1", "medium"),
        a_pod("p", "n1", "0.5"),
        a_node("n2", "medium"),
        a_pod("q", "n2", "3"),
    )

    assert brief(decisions) == [("Underutilized", "delete", ("n1",))]


def test_pods_are_not_moved_to_a_recently_changed_node() -> None:
    restless = a_pool("restless", consolidateAfter="10m")
    node = a_node("n2", "small", pool="restless", quiet=timedelta(minutes=1))

    decisions = decided(
        a_node("n1", "small"), a_pod("p", "n1"), node, a_pod("q", "n2"), pools=[a_pool(), restless]
    )

    assert brief(decisions) == []


def test_pods_are_not_moved_to_a_node_that_may_never_start() -> None:
    decisions = decided(
        a_node("n1", "small"), a_pod("p", "n1"), a_node("n2", "large", initialized=False)
    )

    assert brief(decisions) == []
    assert "would schedule against uninitialized nodeclaim/claim-n2, node/n2" in refusal_of(
        decisions, "n1"
    )


def test_an_unschedulable_pod_does_not_block_consolidation() -> None:
    decisions = decided(
        a_node("n1", "small"),
        a_pod("p", "n1"),
        a_node("n2", "small"),
        a_pod("q", "n2"),
        a_pod("giant", None, "999"),
    )

    assert brief(decisions) == [("Underutilized", "delete", ("n1",))]


def test_the_budget_bounds_how_many_nodes_merge() -> None:
    pool = a_pool(budgets=[{"nodes": "2"}])
    nodes = [a_node(f"n{i}") for i in range(6)]
    pods = [a_pod(f"p{i}", f"n{i}", "0.1") for i in range(6)]

    decisions = decided(*nodes, *pods, pools=[pool])

    assert sum(len(c.nodes) for c in decisions.commands) == 2


@pytest.mark.parametrize(
    ("label", "text"),
    [
        ("karpenter.sh/capacity-type", 'label "karpenter.sh/capacity-type"'),
        ("topology.kubernetes.io/zone", 'label "topology.kubernetes.io/zone"'),
        ("node.kubernetes.io/instance-type", 'instance type "" not found'),
    ],
)
def test_a_node_without_a_price_is_not_consolidated(label: str, text: str) -> None:
    decisions = decided(a_node("n1", labels={label: None}), a_pod("p", "n1"))

    assert brief(decisions) == []
    assert text in refusal_of(decisions, "n1")


def test_the_when_empty_policy_is_the_reported_reason() -> None:
    pool = a_pool(consolidationPolicy="WhenEmpty")

    decisions = decided(a_node("n1", "large"), a_pod("p", "n1"), pools=[pool])

    assert refusal_of(decisions, "n1") == (
        'NodePool "default" has consolidation policy WhenEmpty, but node is not empty'
    )


def test_without_cheaper_types_min_values_are_not_the_reason() -> None:
    spec = {
        "template": {
            "spec": {
                "requirements": [
                    {
                        "key": "node.kubernetes.io/instance-type",
                        "operator": "Exists",
                        "minValues": 2,
                    },
                    {
                        "key": "karpenter.sh/capacity-type",
                        "operator": "In",
                        "values": ["on-demand"],
                    },
                ]
            }
        }
    }
    decisions = decided(a_node("n1", "small"), a_pod("p", "n1"), pools=[a_pool(spec=spec)])

    assert brief(decisions) == []
    assert refusal_of(decisions, "n1") == "Can't replace with a cheaper node"


def test_min_values_must_hold_after_the_price() -> None:
    wanted = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": 3},
    ]
    template = {"spec": {"requirements": wanted, "expireAfter": "Never"}}

    decisions = decided(
        a_node("n1", "large"), a_pod("p", "n1", "1"), pools=[a_pool(spec={"template": template})]
    )

    assert "minValues" in refusal_of(decisions, "n1")


@pytest.mark.parametrize("least", [4, 9])
def test_min_values_are_not_lowered_to_consolidate(least: int) -> None:
    wanted = [
        {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]},
        {"key": "node.kubernetes.io/instance-type", "operator": "Exists", "minValues": least},
    ]
    template = {"spec": {"requirements": wanted, "expireAfter": "Never"}}

    decisions = decided(
        a_node("n1", "huge"),
        a_pod("p", "n1", "1"),
        pools=[a_pool(spec={"template": template})],
        settings=Settings(min_values_policy=MinValuesPolicy.BEST_EFFORT),
    )

    assert "minValues requirement is not met" in refusal_of(decisions, "n1")


def test_a_pool_without_consolidation_reports_it_for_every_node() -> None:
    decisions = decided(a_node("n1"), a_pod("p", "n1"), pools=[a_pool(consolidateAfter="Never")])

    assert refusal_of(decisions, "n1") == 'NodePool "default" has consolidation disabled'


def test_a_balanced_pool_weighs_savings_against_disruption() -> None:
    pool = a_pool(consolidationPolicy="Balanced")
    busy = [a_pod(f"p{i}", "n1", "0.3") for i in range(12)]

    decisions = decided(a_node("n1", "large"), *busy, pools=[pool])

    assert brief(decisions) == [("Underutilized", "replace", ("n1",))]
    assert decisions.commands[0].score == pytest.approx(0.5)


def test_a_rejected_move_reports_its_score() -> None:
    pool = a_pool(consolidationPolicy="Balanced")
    nodes = [a_node("n1", "small"), a_node("n2", "huge")]
    pods = [a_pod(f"p{i}", "n1", "0.1") for i in range(10)] + [a_pod("q", "n2", "15.5")]

    decisions = decided(*nodes, *pods, pools=[pool])

    assert brief(decisions) == []
    blocks = [b for b in decisions.blocked if b.node == "n1"]
    assert [b.code for b in blocks] == [BlockCode.SCORE]
    assert "score 0.13 < threshold 0.50" in blocks[0].message


def test_pools_take_turns() -> None:
    pools = [a_pool(name, budgets=[{"nodes": "1"}]) for name in "ab"]
    nodes = [a_node(f"{p}{i}", "large", pool=p) for p in "ab" for i in range(2)]
    pods = [a_pod(f"p-{p}{i}", f"{p}{i}", "3.5") for p in "ab" for i in range(2)]

    decisions = decided(*nodes, *pods, pools=pools)

    assert {n[0] for c in decisions.commands for n in c.nodes} == {"a", "b"}


def test_each_decision_records_its_time() -> None:
    pool = a_pool(consolidateAfter="2h")
    objects = [a_node("n1", "large"), a_pod("p", "n1", "3")]

    assert brief(decided(*objects, pools=[pool])) == []
    later = decided(*objects, pools=[pool], now=NOW + timedelta(hours=1))
    assert brief(later) == [("Underutilized", "replace", ("n1",))]


def test_while_consolidation_settles_only_other_methods_start_commands() -> None:
    fleet = [
        a_node("n1", "small"),
        a_pod("p", "n1"),
        a_node("n2", "small"),
        a_pod("q", "n2"),
        a_node("n3", "small"),
        a_pod("kept", "n3", metadata={"annotations": {"karpenter.sh/do-not-disrupt": "true"}}),
        a_node("n4", "small"),
    ]
    assert {reason for reason, _, _ in brief(decided(*fleet))} == {"Empty", "Underutilized"}

    waiting = decided(*fleet, unsettled={"claim-n5"})

    assert brief(waiting) == [("Empty", "delete", ("n4",))]
    assert waiting.consolidation_waits
    assert "do-not-disrupt" in refusal_of(waiting, "n3")
