"""The cluster without a constraint of one workload: nothing else differs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from reconciler.advise.constraints import (
    Loosening,
    WorkloadConstraint,
    constrained_workloads,
)
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, HOSTNAME, ZONE
from reconciler.model.kubernetes.cluster import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
)
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata, OwnerReference
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
)
from reconciler.observed.allocation import workload_of
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, cluster_state

HERE = NodeSelector((NodeSelectorTerm((NodeSelectorExpression(ZONE, "In", ("a",)),)),))
APART = PodAffinity((PodAffinityTerm(HOSTNAME),))
HARD = TopologySpreadConstraint(ZONE)
SOFT = TopologySpreadConstraint(HOSTNAME, when_unsatisfiable="ScheduleAnyway")
SPEC = PodSpec(
    node_selector={"team": "shop"},
    affinity=Affinity(NodeAffinity(HERE), APART, APART),
    topology_spread_constraints=(HARD, SOFT),
)
GONE: dict[Loosening, Callable[[Pod], object]] = {
    Loosening.NODE_SELECTOR: lambda pod: pod.spec.node_selector == {},
    Loosening.NODE_AFFINITY: lambda pod: "requiredDuring" not in repr(pod) and _nodes(pod) is None,
    Loosening.POD_AFFINITY: lambda pod: _affinity(pod).pod_affinity == PodAffinity(),
    Loosening.ANTI_AFFINITY: lambda pod: _affinity(pod).pod_anti_affinity == PodAffinity(),
    Loosening.TOPOLOGY_SPREAD: lambda pod: pod.spec.topology_spread_constraints == (SOFT,),
    Loosening.DO_NOT_DISRUPT: lambda pod: pod.metadata.annotations == {"a": "b"},
}


def _affinity(pod: Pod) -> Affinity:
    assert pod.spec.affinity is not None
    return pod.spec.affinity


def _nodes(pod: Pod) -> NodeSelector | None:
    nodes = _affinity(pod).node_affinity
    assert nodes is not None
    return nodes.required


def a_pod(name: str, app: str, spec: PodSpec, node: str = "") -> Pod:
    owner = OwnerReference("ReplicaSet", f"{app}-5d8f", "apps/v1", controller=True)
    meta = Metadata(
        name=name,
        namespace="shop",
        labels={"app": app, "pod-template-hash": "5d8f"},
        annotations={DO_NOT_DISRUPT: "true", "a": "b"},
        owner_references=(owner,),
    )
    return Pod(meta, replace(spec, node_name=node) if node else spec)


def a_budget(name: str, **spec: int | str) -> PodDisruptionBudget:
    selector = LabelSelector(match_labels={"app": "api"})
    return PodDisruptionBudget(
        Metadata(name=name, namespace="shop"),
        PodDisruptionBudgetSpec(selector=selector, **spec),  # type: ignore[arg-type]
    )


def a_cluster(*budgets: PodDisruptionBudget) -> ClusterState:
    return cluster_state(
        Snapshot(
            nodes=(Node(Metadata(name="n")),),
            pods=(
                a_pod("api-1", "api", SPEC),
                a_pod("api-2", "api", SPEC),
                a_pod("api-3", "api", SPEC, "n"),
                a_pod("web-1", "web", SPEC, "n"),
            ),
            pod_disruption_budgets=budgets,
        )
    )


def test_a_replica_set_belongs_to_its_deployment() -> None:
    pod = a_pod("api-1", "api", SPEC)
    assert workload_of(pod) == "Deployment shop/api"
    bare = replace(pod, metadata=replace(pod.metadata, labels={}))
    assert workload_of(bare) == "ReplicaSet shop/api-5d8f"
    alone = replace(pod, metadata=replace(pod.metadata, owner_references=()))
    assert workload_of(alone) == "Pod shop/api-1"


@pytest.mark.parametrize("kind", GONE)
def test_a_constraint_is_removed_from_the_pods_of_its_owner_alone(kind: Loosening) -> None:
    before = a_cluster()
    after = WorkloadConstraint("Deployment shop/api", kind).remove_from(before)
    ours = [pod for pod in after.pods if workload_of(pod) == "Deployment shop/api"]
    assert len(ours) == 3
    assert all(GONE[kind](pod) for pod in ours)
    others = [named for named in GONE if named is not kind]
    assert not any(GONE[other](pod) for other in others for pod in ours)
    assert after.pods[3] is before.pods[3]
    on_node = after.nodes[0].pods
    assert [pod.key for pod in on_node] == ["shop/api-3", "shop/web-1"]
    assert on_node[0] is after.pods[2], "the cluster and its node show the same pod"
    assert after.pods[0].spec is after.pods[1].spec, "pods that are alike stay alike"


def test_every_constraint_of_a_workload_is_found() -> None:
    found = {
        (w.constraint.owner, w.constraint.constraint) for w in constrained_workloads(a_cluster())
    }
    assert found == {(f"Deployment shop/{app}", kind) for app in ("api", "web") for kind in GONE}


@pytest.mark.parametrize(
    ("budget", "is_closed"),
    [
        (a_budget("b", max_unavailable=0), True),
        (a_budget("b", min_available="100%"), True),
        (a_budget("b", min_available=3), True),
        (a_budget("b", min_available=2), False),
        (a_budget("b", max_unavailable="10%"), False),
    ],
)
def test_a_budget_that_never_allows_an_eviction_is_found(
    budget: PodDisruptionBudget, is_closed: bool
) -> None:
    cluster = a_cluster(budget)
    found = [
        w.constraint
        for w in constrained_workloads(cluster)
        if w.constraint.constraint is Loosening.DISRUPTION_BUDGET
    ]
    named = WorkloadConstraint("PodDisruptionBudget shop/b", Loosening.DISRUPTION_BUDGET)
    assert found == ([named] if is_closed else [])
    assert named.remove_from(cluster).pod_disruption_budgets == ()
