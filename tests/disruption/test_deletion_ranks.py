"""The order in which ReplicaSets give up pods: those of the nodes that go next come first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from reconciler.disruption.candidates import CandidateSet
from reconciler.disruption.deletioncosts import LEAVING, node_ranks
from reconciler.disruption.gates.limits import FleetLimits
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.settings import Settings
from reconciler.placement.question import LaunchPool
from tests.disruption.builders import (
    NOW,
    a_catalog,
    a_cluster,
    a_node,
    a_pod,
    a_pool,
    drifted,
    stamp,
)


def controlled(kind: str = "ReplicaSet", group: str = "apps/v1") -> dict[str, Any]:
    """Return the metadata of a pod with a controller."""
    owner = {"apiVersion": group, "kind": kind, "name": "app", "controller": True}
    return {"ownerReferences": [owner]}


def pods(name: str, node: str, count: int = 1, **metadata: Any) -> list[dict[str, Any]]:
    """Return pods of a ReplicaSet on a node."""
    found = {**controlled(), **metadata}
    return [a_pod(f"{name}-{i}", node, metadata=found) for i in range(count)]


def ranks(
    *objects: Any,
    pools: Sequence[NodePool] = (),
    drift: Iterable[str] = (),
    leaving: Iterable[str] = (),
) -> dict[str, int | None]:
    cluster, pools = a_cluster(*objects), pools or [a_pool()]
    known = {pool.name: LaunchPool(pool, a_catalog()) for pool in pools}
    budgets = PodDisruptionBudgets(cluster.pod_disruption_budgets)
    candidates = CandidateSet(
        cluster.nodes, known, budgets, {d.node_claim: d for d in drifted(*drift)}, NOW
    )
    limits = FleetLimits.from_nodes(pools, Settings(), cluster.nodes).now(NOW)
    return node_ranks(candidates, cluster.nodes, limits.ledger(), frozenset(leaving))


def test_nodes_that_save_most_for_each_disruption_come_first_and_drifted_ones_before_them() -> None:
    nodes = [*a_node("n-1"), *a_node("n-2"), *a_node("n-3", "huge"), *a_node("n-4")]
    full = [p for n, c in (("n-1", 3), ("n-2", 1), ("n-3", 1), ("n-4", 9)) for p in pods(n, n, c)]

    assert ranks(*nodes, *full, drift=["n-4"]) == {"n-4": -4, "n-3": -3, "n-2": -2, "n-1": -1}


def test_nodes_that_leave_have_the_least_cost_and_use_no_rank() -> None:
    gone = {"deletionTimestamp": stamp(NOW - timedelta(minutes=1))}
    tainted = a_node("n-2")
    tainted[0]["spec"]["taints"] = [{"key": "karpenter.sh/disrupted", "effect": "NoSchedule"}]
    nodes = [*a_node("n-1", claim_metadata=gone), *tainted, *a_node("n-3"), *a_node("n-4")]

    found = ranks(*nodes, leaving=["n-3"])

    assert found == {"n-1": LEAVING, "n-2": LEAVING, "n-3": LEAVING, "n-4": -1}


def test_only_nodes_that_budgets_allow_to_go_have_a_rank() -> None:
    pool = a_pool(budgets=[{"nodes": "2"}])
    nodes = [item for i in range(4) for item in a_node(f"n-{i}")]

    assert ranks(*nodes, pools=[pool]) == {"n-0": -2, "n-1": -1, "n-2": None, "n-3": None}


def test_nodes_that_cannot_be_emptied_have_none() -> None:
    kept = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}, **controlled()}
    nodes = [item for i in range(5) for item in a_node(f"n-{i}")]
    job, daemon = controlled("Job", "batch/v1"), controlled("DaemonSet")
    found = ranks(
        *nodes,
        a_pod("kept", "n-0", metadata=kept),
        a_pod("stateful", "n-1", metadata=controlled("StatefulSet")),
        a_pod("lone", "n-2", metadata={"ownerReferences": []}),
        a_pod("job", "n-3", metadata=job),
        a_pod("daemon", "n-4", metadata=daemon),
        a_pod("system", "n-4", metadata={"namespace": "kube-system", "ownerReferences": []}),
    )

    assert [name for name, rank in found.items() if rank is None] == ["n-0", "n-1", "n-2"]


def test_a_nodepool_without_consolidation_ranks_only_what_drifted() -> None:
    pool = a_pool(consolidateAfter="Never")
    nodes = [*a_node("n-1"), *a_node("n-2")]

    assert ranks(*nodes, pools=[pool], drift=["n-2"]) == {"n-2": -1, "n-1": None}


def test_nodes_of_a_static_nodepool_do_not_rank_by_drift() -> None:
    static = a_pool(spec={"replicas": 2})
    nodes = [*a_node("n-1"), *a_node("n-2", "huge")]

    assert ranks(*nodes, pools=[static], drift=["n-1"]) == {"n-2": -2, "n-1": -1}
