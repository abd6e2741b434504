"""Commands of one pass take each other into account: room, limits, spread, anti-affinity."""

from typing import Any

from reconciler.disruption.command import Decisions
from reconciler.disruption.simulation import cluster_after_removal
from reconciler.model.decision.waiting import WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.placement.question import Placement
from tests.disruption.builders import (
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    drifted,
    refusal_of,
)

NEVER = {"consolidateAfter": "Never"}
APP = {"app": "web"}


def _spread(key: str) -> dict[str, Any]:
    return {
        "topologySpreadConstraints": [
            {
                "topologyKey": key,
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": APP},
            }
        ]
    }


def _apart() -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": APP},
    }
    return {
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    }


def test_room_used_by_one_command_is_not_available_to_the_next() -> None:
    decisions = decided(
        a_node("n1"),
        a_pod("p1", "n1", "3"),
        a_node("n2"),
        a_pod("p2", "n2", "3"),
        a_node("n3"),
        a_pod("p3", "n3", "1"),
        pools=[a_pool(**NEVER)],
        drifted=drifted("n1", "n2"),
    )

    assert brief(decisions) == [("Drifted", "delete", ("n1",)), ("Drifted", "replace", ("n2",))]


def test_a_limit_used_up_by_one_command_blocks_the_next() -> None:
    pool = a_pool(spec={"limits": {"cpu": "12"}}, **NEVER)

    decisions = decided(
        a_node("n1", "medium"),
        a_pod("p1", "n1", "3.5"),
        a_node("n2", "medium"),
        a_pod("p2", "n2", "3.5"),
        pools=[pool],
        drifted=drifted("n1", "n2"),
    )

    assert brief(decisions) == [("Drifted", "replace", ("n1",)), ("Drifted", "replace", ("n2",))]
    launched = [t.types[0].name for c in decisions.commands for t in c.replacements]
    assert launched == ["medium", "medium"]
    most = sum(
        max(int(kind.capacity["cpu"]) for kind in claim.types) // 1000
        for command in decisions.commands
        for claim in command.replacements
    )
    assert most <= 12


def test_a_limit_with_room_for_one_allows_one() -> None:
    pool = a_pool(spec={"limits": {"cpu": "7"}}, **NEVER)

    decisions = decided(
        a_node("n1", "small"),
        a_pod("p1", "n1", "1.5"),
        a_node("n2", "small"),
        a_pod("p2", "n2", "3.9"),
        pools=[pool],
        drifted=drifted("n1", "n2"),
    )

    assert brief(decisions) == [("Drifted", "replace", ("n1",))]


def test_pods_moved_by_one_command_count_for_the_spread_of_the_next() -> None:
    """One pod in each zone, and both nodes in zone-a: the two replacements use both zones."""
    nodes = [a_node(f"n{i}") for i in range(2)]
    pods = [
        a_pod(f"p{i}", f"n{i}", "3", metadata={"labels": APP}, spec=_spread(ZONE)) for i in range(2)
    ]

    decisions = decided(*nodes, *pods, pools=[a_pool(**NEVER)], drifted=drifted("n0", "n1"))

    zones = [
        sorted(claim.requirements[ZONE].values)
        for command in decisions.commands
        for claim in command.replacements
    ]
    assert zones == [["zone-b"], ["zone-a"]]


def test_two_commands_do_not_join_pods_with_anti_affinity() -> None:
    nodes = [a_node(f"n{i}", "small") for i in range(2)]
    pods = [
        a_pod(f"p{i}", f"n{i}", "0.5", metadata={"labels": APP}, spec=_apart()) for i in range(2)
    ]
    room = a_node("n9", "huge")

    decisions = decided(*nodes, *pods, room, pools=[a_pool(**NEVER)], drifted=drifted("n0", "n1"))

    assert brief(decisions) == [("Drifted", "delete", ("n0",)), ("Drifted", "replace", ("n1",))]
    on_nodes = [c.placement.on_nodes for c in decisions.commands if c.placement is not None]
    assert on_nodes == [{"default/p0": "n9"}, {}], "p1 may not join p0, although n9 has room"
    launched = [claim.pods for c in decisions.commands for claim in c.replacements]
    assert launched == [("default/p1",)]


def test_anti_affinity_applies_at_the_new_node_of_a_pod() -> None:
    """p0 moves to zone-b and repels web pods from it; p1 can only move there."""
    term = {"topologyKey": ZONE, "labelSelector": {"matchLabels": APP}}
    repelling = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    in_b = {"nodeSelector": {ZONE: "zone-b"}}

    decisions = decided(
        a_node("n0"),
        a_pod("p0", "n0", "3", spec={**in_b, "affinity": repelling}),
        a_node("n1", zone="zone-x"),
        a_pod("p1", "n1", "3", metadata={"labels": APP}, spec=in_b),
        pools=[a_pool(**NEVER)],
        drifted=drifted("n0", "n1"),
    )

    assert brief(decisions) == [("Drifted", "replace", ("n0",))]
    assert "not all pods would schedule" in refusal_of(decisions, "n1")


def test_an_empty_node_does_not_bypass_its_budget_as_underutilized() -> None:
    def with_budget(nodes: str) -> Decisions:
        pool = a_pool(budgets=[{"nodes": nodes, "reasons": ["Empty"]}])
        return decided(a_node("n1"), a_node("n2"), pools=[pool])

    closed, open_ = with_budget("0"), with_budget("2")

    assert brief(closed) == []
    assert [(d.node, d.reason, d.waits_for) for d in closed.deferred] == [
        ("n1", DisruptionReason.EMPTY, WaitsFor.BUDGET),
        ("n2", DisruptionReason.EMPTY, WaitsFor.BUDGET),
    ]
    assert refusal_of(closed, "n1") == ""
    assert brief(open_) == [("Empty", "delete", ("n1", "n2"))]


ZONE = "topology.kubernetes.io/zone"


def test_a_pod_that_moves_twice_is_on_one_node_only() -> None:
    cluster = a_cluster(a_node("n1"), a_node("n2"), a_pod("p", None))

    first = cluster_after_removal(cluster, [], Placement(on_nodes={"default/p": "n1"}))
    second = cluster_after_removal(first, ["n1"], Placement(on_nodes={"default/p": "n2"}))

    assert [pod.metadata.name for node in second.nodes for pod in node.pods] == ["p"]
    assert [pod.spec.node_name for pod in first.pods] == ["n1"]
    assert second.pending == ()
