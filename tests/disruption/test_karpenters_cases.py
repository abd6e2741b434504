"""Rules that Karpenter tests with a single case each and that no other file here covers."""

from typing import Any

import pytest

from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, Settings
from tests.disruption.builders import (
    a_catalog,
    a_node,
    a_pod,
    a_pool,
    brief,
    decided,
    drifted,
    refusal_of,
)

LABELS = {"labels": {"app": "web"}}
APART = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {
                "labelSelector": {"matchLabels": {"app": "web"}},
                "topologyKey": "kubernetes.io/hostname",
            }
        ]
    }
}


def _apart(name: str, node: str) -> dict[str, Any]:
    return a_pod(name, node, metadata=LABELS, spec={"affinity": APART})


def test_pods_with_anti_affinity_retain_their_nodes() -> None:
    fleet = [a_node(n, "small") for n in ("n1", "n2", "n3")]
    pods = [_apart(f"p-{n}", n) for n in ("n1", "n2", "n3")]

    decisions = decided(*fleet, *pods)

    assert brief(decisions) == []
    assert refusal_of(decisions, "n1") == "Can't replace with a cheaper node"


def test_a_node_launched_for_displaced_pods_is_not_consolidated() -> None:
    leaving = {"deletionTimestamp": "2026-01-05T12:00:00Z", "finalizers": ["karpenter.sh/x"]}

    decisions = decided(
        a_node("old", "medium", claim_metadata=leaving),
        a_pod("p", "old", "3"),
        a_node("new", "medium"),
    )

    assert brief(decisions) == []


def test_a_balanced_pool_does_not_block_another_pool() -> None:
    pools = [a_pool("weighs", consolidationPolicy="Balanced"), a_pool("plain")]
    home = {name: {"nodeSelector": {"karpenter.sh/nodepool": name}} for name in ("weighs", "plain")}

    decisions = decided(
        a_node("n1", "large", pool="weighs"),
        *(a_pod(f"a{i}", "n1", "400m", spec=home["weighs"]) for i in range(9)),
        a_node("n2", "large", pool="weighs"),
        a_pod("b", "n2", "7900m", spec=home["weighs"]),
        a_node("n3", "large", pool="plain"),
        *(a_pod(f"c{i}", "n3", "400m", spec=home["plain"]) for i in range(9)),
        pools=pools,
    )

    assert ("Underutilized", "replace", ("n3",)) in brief(decisions)
    assert "n1" not in {n for c in decisions.commands for n in c.nodes}
    assert "score" in refusal_of(decisions, "n1")


@pytest.mark.parametrize("capacity_type", ["on-demand", "spot"])
def test_a_node_is_replaced_by_a_reserved_one_of_the_same_type(capacity_type: str) -> None:
    types = [
        {
            "name": "medium",
            "capacity": {"cpu": "4", "memory": "16Gi", "pods": "110"},
            "offerings": [
                {"zone": "zone-a", "capacityType": "on-demand", "price": 0.2},
                {"zone": "zone-a", "capacityType": "spot", "price": 0.07},
                {
                    "zone": "zone-a",
                    "capacityType": "reserved",
                    "price": 0.0000002,
                    "reservationId": "r-1",
                    "reservationCapacity": 1,
                },
            ],
        }
    ]
    any_type = a_pool(spec={"template": {"spec": {"requirements": [], "expireAfter": "Never"}}})

    decisions = decided(
        a_node("n1", "medium", capacity_type=capacity_type),
        a_pod("p", "n1", "3"),
        pools=[any_type],
        catalog=a_catalog(types),
        settings=Settings(
            feature_gates={**DEFAULT_FEATURE_GATES, FeatureGate.RESERVED_CAPACITY: True}
        ),
    )

    assert brief(decisions) == [("Underutilized", "replace", ("n1",))]
    assert decisions.commands[0].replacements[0].launch[1].capacity_type == "reserved"


def test_a_blocked_drifted_node_does_not_block_the_next() -> None:
    stuck = a_pod("stuck", "n1", "3", spec={"nodeSelector": {"nowhere": "to-be-found"}})

    decisions = decided(
        a_node("n1", "medium"),
        stuck,
        a_node("n2", "medium"),
        a_pod("p", "n2", "3"),
        a_node("n3", "medium"),
        a_pod("q", "n3", "3"),
        drifted=drifted("n1", "n2"),
    )

    assert ("Drifted", "replace", ("n2",)) in brief(decisions)
    assert "n1" not in {n for c in decisions.commands for n in c.nodes}
    assert "not all pods would schedule" in refusal_of(decisions, "n1")


def test_a_termination_grace_period_allows_drift_but_not_consolidation() -> None:
    held = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}
    fleet = [
        a_node("n1", "large", claim={"terminationGracePeriod": "5m"}),
        a_pod("p", "n1", metadata=held),
    ]

    drift = decided(*fleet, drifted=drifted("n1"))
    quiet = decided(*fleet)

    assert brief(drift) == [("Drifted", "delete", ("n1",))]
    assert brief(quiet) == []
    assert "do-not-disrupt" in refusal_of(quiet, "n1")


def test_a_node_that_receives_a_pending_pod_also_takes_displaced_pods() -> None:
    decisions = decided(
        a_node("n1", "large"),
        a_pod("p1", "n1"),
        a_node("n2", "small"),
        a_pod("p2", "n2"),
        a_pod("waits", None),
    )

    assert decisions.placement is not None
    assert decisions.placement.on_nodes == {"default/waits": "n1"}
    assert brief(decisions) == [("Underutilized", "delete", ("n2",))]


def test_protection_is_reported_for_a_node_that_receives_pods() -> None:
    held = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}

    decisions = decided(
        a_node("n1", "large"), a_pod("p1", "n1", metadata=held), a_node("n2"), a_pod("p2", "n2")
    )

    assert brief(decisions) == [("Underutilized", "delete", ("n2",))]
    assert "do-not-disrupt" in refusal_of(decisions, "n1")

    drift = decided(
        a_node("n1", "large"),
        a_pod("p1", "n1", metadata=held),
        a_node("n2"),
        a_pod("p2", "n2"),
        drifted=drifted("n2"),
    )

    assert brief(drift) == [("Drifted", "delete", ("n2",))]
    assert "do-not-disrupt" in refusal_of(drift, "n1")


def test_protection_is_reported_before_a_method_selects_the_node() -> None:
    decisions = decided(
        a_node("n1", annotations={"karpenter.sh/do-not-disrupt": "true"}),
        a_pod("p", "n1"),
        pools=[a_pool(consolidateAfter="Never")],
    )

    (block,) = decisions.blocked
    assert (block.node, block.reason) == ("n1", "Drifted")
    assert "do-not-disrupt" in block.message


def test_without_spot_capacity_a_cheaper_on_demand_node_is_used() -> None:
    any_capacity = a_pool(spec={"template": {"spec": {"requirements": []}}})
    types = [
        {
            "name": name,
            "capacity": {"cpu": cpu, "memory": "16Gi", "pods": "110"},
            "offerings": [
                {"zone": "zone-a", "capacityType": "on-demand", "price": price},
                {"zone": "zone-a", "capacityType": "spot", "price": price, "available": spot},
            ],
        }
        for name, cpu, price, spot in (
            ("small", "2", 0.1, False),
            ("large", "8", 0.4, False),
            ("huge", "16", 0.8, True),
        )
    ]

    decisions = decided(
        a_node("n1", "large"),
        a_pod("p", "n1"),
        pools=[any_capacity],
        catalog=a_catalog(types),
    )

    assert brief(decisions) == [("Underutilized", "replace", ("n1",))]
    kind, offering = decisions.commands[0].replacements[0].launch
    assert (kind.name, offering.capacity_type) == ("small", "on-demand")
