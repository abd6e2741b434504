"""Each blocker is listed once, with every node that it blocks and the forgone savings."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.desired.settings.layers import resolve
from reconciler.model.decision.waiting import Blocker
from reconciler.model.karpenter.nodepool import NodePool
from tests.disruption.builders import a_node, a_pod, a_pool, decided, drifted

PROTECTED = {"annotations": {"karpenter.sh/do-not-disrupt": "true"}}


def blockers(*objects: Any, **facts: Any) -> dict[str, Blocker]:
    found = decided(*objects, lists_blockers=True, **facts).blockers
    return {f"{b.kind} {b.name}": b for b in found}


def a_pdb(name: str, allowed: int = 0) -> dict[str, Any]:
    return {
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0},
        "status": {"disruptionsAllowed": allowed},
    }


def wide(name: str, pod: dict[str, Any], **node: Any) -> list[dict[str, Any]]:
    """Return a node that costs 0.80 an hour, for a pod that fits one of 0.20."""
    return [*a_node(name, "huge", **node), a_pod(f"p-{name}", name, "3", **pod)]


def web(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"labels": {"app": "web"}, **metadata}}


def test_a_pod_disruption_budget_is_one_blocker_with_all_nodes_and_savings() -> None:
    [found] = blockers(*wide("a", web()), *wide("b", web()), a_pdb("web")).values()
    assert (found.kind, found.name, found.nodes) == (
        "PodDisruptionBudget",
        "default/web",
        ("a", "b"),
    )
    # Both pods fit on one node: the other is deleted, and the first stays for the pods of both.
    assert found.forgone == pytest.approx(0.8)
    assert found.unpriced == 0


def test_a_pod_names_its_owner_and_a_node_its_annotation() -> None:
    found = blockers(
        *wide("a", {"metadata": PROTECTED}),
        *wide("b", {}, pool="other", annotations=PROTECTED["annotations"]),
        pools=[a_pool(), a_pool("other")],
    )
    pod = found["Pod default/p-a"]
    assert (pod.owner, pod.nodes, pod.reasons) == (
        "ReplicaSet default/app",
        ("a",),
        ("Underutilized",),
    )
    assert found["Node b"].nodes == ("b",)
    assert found["Node b"].forgone is not None


def test_a_node_with_several_blockers_is_listed_with_each() -> None:
    found = blockers(*wide("a", web(**PROTECTED)), a_pdb("web"))
    assert set(found) == {"Pod default/p-a"}, (
        "a protected pod is not for eviction: its budget rests"
    )
    both = [*wide("a", web()), a_pod("q", "a", "1", metadata=PROTECTED), a_pdb("web")]
    assert {k: b.nodes for k, b in blockers(*both).items()} == {
        "Pod default/q": ("a",),
        "PodDisruptionBudget default/web": ("a",),
    }


@pytest.mark.parametrize(
    ("pool", "code"),
    [
        (a_pool(consolidateAfter="Never"), "ConsolidationDisabled"),
        (a_pool(consolidationPolicy="WhenEmpty"), "WhenEmpty"),
    ],
)
def test_a_pool_without_consolidation_reports_the_forgone_savings(
    pool: NodePool, code: str
) -> None:
    found = blockers(*wide("a", {}), pools=[pool])
    assert found["NodePool default"].code == code
    assert found["NodePool default"].forgone == pytest.approx(0.6)


def test_a_static_pool_reports_the_cost_of_its_pods_in_another_pool() -> None:
    alone = blockers(*wide("a", {}), pools=[a_pool(spec={"replicas": 1})])
    assert (alone["NodePool default"].code, alone["NodePool default"].forgone) == ("Static", 0.0)
    pools = [a_pool(spec={"replicas": 1}), a_pool("other")]
    beside = blockers(*wide("a", {}), pools=pools)
    assert beside["NodePool default"].forgone == pytest.approx(0.6)


def test_only_a_budget_that_allows_no_disruption_is_a_blocker() -> None:
    nodes = [*a_node("a"), *a_node("b")]
    closed = blockers(*nodes, pools=[a_pool(budgets=[{"nodes": "0"}])])
    assert closed["Budget default/Empty"].nodes == ("a", "b")
    assert closed["Budget default/Empty"].forgone == pytest.approx(0.4)
    assert blockers(*nodes, pools=[a_pool(budgets=[{"nodes": "1"}])]) == {}


def test_a_suspension_is_a_blocker() -> None:
    made = resolve({"disruption": {"suspend": [{"owner": "platform-team"}]}}, {}).settings
    [found] = blockers(*a_node("a"), settings=made).values()
    assert (found.kind, found.name) == ("Suspension", "default/Empty")
    assert found.message.startswith(
        "platform-team suspended disruption of NodePool default for emptiness"
    )


def test_nodes_without_a_price_are_counted() -> None:
    [found] = blockers(
        *wide("a", web()), *a_node("x", "unheard-of"), a_pod("p", "x", **web()), a_pdb("web")
    ).values()
    assert found.nodes == ("a", "x")
    assert found.unpriced == 1
    [only] = blockers(*a_node("x", "unheard-of"), a_pod("p", "x", **web()), a_pdb("web")).values()
    assert only.forgone is None


def test_blocked_drift_is_reported_as_drift() -> None:
    [found] = blockers(*wide("a", web()), a_pdb("web"), drifted=drifted("a")).values()
    assert found.reasons == ("Drifted",)


def test_listing_blockers_does_not_change_decisions() -> None:
    objects = [*wide("a", web()), *wide("b", {}), *a_node("c"), a_pdb("web")]
    plain, with_blockers = decided(*objects), decided(*objects, lists_blockers=True)
    assert (with_blockers.commands, with_blockers.blocked, with_blockers.deferred) == (
        plain.commands,
        plain.blocked,
        plain.deferred,
    )
    assert plain.blockers == ()


def test_a_fleet_without_blockers_lists_none() -> None:
    assert blockers(*wide("a", {}), *a_node("b")) == {}


LABELS = {"metadata": {"labels": {"app": "web"}}}
SELECTOR = {"matchLabels": {"app": "web"}}
HARD = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
ZONE = "topology.kubernetes.io/zone"
HOSTNAME = "kubernetes.io/hostname"
APART = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
    {"labelSelector": SELECTOR, "topologyKey": HOSTNAME}
]}}  # fmt: skip
LIKED = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [
    {"weight": 1, "podAffinityTerm": {"labelSelector": SELECTOR, "topologyKey": HOSTNAME}}
]}}  # fmt: skip
PORT = [{"name": "c", "resources": {"requests": {"cpu": "1"}},
         "ports": [{"containerPort": 80, "hostPort": 80}]}]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "kind", "text"),
    [
        (
            {"topologySpreadConstraints": [{**HARD, "topologyKey": ZONE}]},
            f"TopologySpread default/app {ZONE}",
            f"the topology spread over {ZONE} keeps",
        ),
        (
            {"affinity": APART},
            f"PodAntiAffinity default/app {HOSTNAME}",
            f"the pod anti-affinity by {HOSTNAME} keeps",
        ),
        ({"affinity": LIKED}, "Preferences default/app", "the pods' preferences keep"),
        ({"containers": PORT}, "HostPorts default/app", "the pods' host ports keep"),
    ],
    ids=["spread", "anti-affinity", "preferences", "host ports"],
)
def test_rules_that_keep_pods_apart_are_blockers(
    spec: dict[str, Any], kind: str, text: str
) -> None:
    nodes = [
        *a_node("a", "small", zone="zone-a"), a_pod("p", "a", "1", spec=spec, **LABELS),
        *a_node("b", "small", zone="zone-b"), a_pod("q", "b", "1", spec=spec, **LABELS),
    ]  # fmt: skip

    found = blockers(*nodes)

    assert list(found) == [kind]
    assert found[kind].message == f"{text} pods of ReplicaSet default/app off the other nodes"
    assert (found[kind].nodes, found[kind].reasons) == (("a", "b"), ("Underutilized",))
    assert found[kind].forgone == pytest.approx(0.1), "one of the two is enough for both pods"


def test_the_nodes_that_a_pod_selects_are_not_a_blocker() -> None:
    large = {"nodeSelector": {"node.kubernetes.io/instance-type": "large"}}

    assert blockers(*a_node("a", "large"), a_pod("p", "a", "1", spec=large)) == {}


def test_rules_that_keep_a_node_only_together_are_all_blockers() -> None:
    both = {
        "topologySpreadConstraints": [{**HARD, "topologyKey": ZONE}],
        "affinity": APART,
    }
    nodes = [
        *a_node("a", "small", zone="zone-a"), a_pod("p", "a", "1", spec=both, **LABELS),
        *a_node("b", "small", zone="zone-b"), a_pod("q", "b", "1", spec=both, **LABELS),
    ]  # fmt: skip

    assert {b.kind for b in blockers(*nodes).values()} == {"TopologySpread", "PodAntiAffinity"}


def test_a_rule_that_changes_nothing_is_not_a_blocker() -> None:
    spread = {"topologySpreadConstraints": [{**HARD, "topologyKey": ZONE}]}
    nodes = [
        *a_node("a", "small", zone="zone-a"), a_pod("p", "a", "1.5", spec=spread, **LABELS),
        *a_node("b", "small", zone="zone-b"), a_pod("q", "b", "1.5", spec=spread, **LABELS),
    ]  # fmt: skip

    assert blockers(*nodes) == {}, "without the rule, no node has room for both pods"
