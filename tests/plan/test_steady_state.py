"""A plan is read as its result: pods of later passes, and nodes whose drain never ends."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.disruption.gates.draining import describe_endless_drain
from reconciler.disruption.gates.pdb import PodDisruptionBudgets, list_budgets
from reconciler.model.karpenter.labels import DO_NOT_DISRUPT, TERMINATION_TIMESTAMP
from reconciler.model.kubernetes.cluster import PodDisruptionBudget, PodDisruptionBudgetSpec
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate, Settings
from reconciler.model.text.money import format_monthly
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import ClusterState, cluster_state
from reconciler.plan.planning import plan_of
from reconciler.plan.render.sections.pods import unschedulable_pods as unschedulable_section
from reconciler.plan.render.summary import pods_placed_later, summary_lines, unschedulable_pods
from reconciler.plan.rest.difference import named_alike
from reconciler.plan.value.costs import Cost, PoolCost, SteadyState, StuckNode
from reconciler.plan.value.nodes import Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan, from_json, to_json
from tests.engine.world import a_deployment, a_pool
from tests.plan.builders import a_plan
from tests.plan.test_planner import NOW as PLANNED_AT
from tests.plan.test_planner import a_class, a_node, a_pod, inputs
from tests.plan.test_planner import a_pool as a_node_pool
from tests.plan.test_rest import FREE, inputs_of

ZONE = "topology.kubernetes.io/zone"


def apart(replicas: int, **spec: Any) -> dict[str, Any]:
    """Return a Deployment whose pods need a zone each."""
    rule = {"topologyKey": ZONE, "labelSelector": {"matchLabels": {"app": "web"}}}
    workload = a_deployment("web", "web", replicas)
    pod = workload["spec"]["template"]["spec"]
    pod["affinity"] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}
    }
    pod.update(spec)
    return workload


def planned(*objects: dict[str, Any]) -> Plan:
    return plan_of(
        replace(inputs_of([a_pool("web", budgets=FREE), *objects]), finds_steady_state=True)
    )


def test_pods_that_a_later_pass_places_are_not_unschedulable() -> None:
    plan = planned(apart(2))
    assert len(plan.unschedulable) == 1
    assert plan.steady_state is not None
    assert plan.steady_state.nodes == 2
    assert unschedulable_pods(plan) == []
    assert pods_placed_later(plan) == [plan.unschedulable[0].pod]
    lines = summary_lines(plan)
    assert lines[0].startswith("First pass: launch 1 node (0 → 1); ")
    assert lines[1] == f"1 pod placed in a later pass: {plan.unschedulable[0].pod}."
    assert lines[2].startswith("Steady state: 0 → 2 nodes, +$")


def test_pods_without_a_domain_stay_unschedulable() -> None:
    plan = planned(apart(4))
    assert plan.steady_state is not None
    assert plan.steady_state.nodes + len(plan.steady_state.unschedulable) == 4
    assert plan.steady_state.unschedulable
    assert unschedulable_pods(plan) == list(plan.steady_state.unschedulable)


@pytest.mark.parametrize("replicas", [4, 5, 6])
def test_a_pod_that_waits_now_and_at_the_end_is_not_placed_later(replicas: int) -> None:
    """Whichever replica kube-scheduler binds first: their number is what changes."""
    plan = planned(apart(replicas))
    assert plan.steady_state is not None
    now = {pod.pod for pod in plan.unschedulable}
    final, later = unschedulable_pods(plan), pods_placed_later(plan)
    assert set(final) <= now
    assert sorted([*final, *later]) == sorted(now)


def test_replicas_are_named_alike_but_pods_with_an_identity_are_not() -> None:
    def cluster_of(kind: str) -> ClusterState:
        owner = {"apiVersion": "apps/v1", "kind": kind, "name": "web", "controller": True}
        pods = [a_pod(f"web-{n}") for n in range(4)]
        for pod in pods:
            pod["metadata"]["ownerReferences"] = [owner]
        text = json.dumps({"kind": "List", "items": pods}).encode()
        return cluster_state(read_snapshot(text, ""))

    replicas = cluster_of("ReplicaSet")
    assert named_alike(["web/web-1", "gone"], ["web/web-3"], [replicas]) == ("gone", "web/web-3")
    assert named_alike(["web/web-1", "web/web-2"], ["web/web-3"], [replicas]) == (
        "web/web-1",
        "web/web-3",
    )
    identified = cluster_of("StatefulSet")
    assert named_alike(["web/web-1"], ["web/web-3"], [identified]) == ("web/web-1",)


def test_a_plan_that_is_the_result_has_no_steady_state() -> None:
    assert planned(a_deployment("web", "web", 2)).steady_state is None
    assert planned(apart(1)).steady_state is None
    wants_more = a_deployment("web", "web", 1)
    wants_more["spec"]["template"]["spec"]["nodeSelector"] = {"example.com/absent": "yes"}
    assert planned(wants_more).steady_state is None


def separated(replicas: int) -> dict[str, Any]:
    """Return a Deployment whose pods prefer a node each."""
    rule = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    workload = a_deployment("web", "web", replicas)
    pod = workload["spec"]["template"]["spec"]
    pod["containers"][0]["resources"] = {"requests": {"cpu": "100m", "memory": "100Mi"}}
    pod["affinity"] = {
        "podAntiAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 100, "podAffinityTerm": rule}
            ]
        }
    }
    return workload


def test_new_nodes_that_consolidation_makes_cheaper_have_an_estimated_end() -> None:
    plan = planned(separated(6))
    state, bound = plan.steady_state, plan.cost.lower_bound
    assert state is not None
    assert bound is not None
    assert state.is_estimate
    assert bound <= state.per_hour < plan.cost.after
    lines = summary_lines(plan)
    if state.range is not None:
        assert state.range.per_hour.low <= state.per_hour <= state.range.per_hour.high
    assert lines[1] == (
        f"Steady state: about {format_monthly(state.per_hour)}/month, once later passes have "
        "consolidated these nodes (a fast estimate; `reconciler simulate` is more exact)."
    )
    assert ", the steady state: " in lines[2]


def test_new_nodes_close_to_the_lower_bound_have_no_estimate() -> None:
    plan = planned(a_deployment("web", "web", 8))
    assert plan.cost.bound_gap is not None
    assert plan.cost.bound_gap < 0.25
    assert plan.steady_state is None


def test_the_steady_state_survives_the_json() -> None:
    plan = planned(apart(2))
    assert from_json(to_json(plan)).steady_state == plan.steady_state


def _unplaced(*names: str) -> tuple[UnschedulablePod, ...]:
    reason = Reason(node_pool="web", code="TopologySpread", message="no zone")
    return tuple(UnschedulablePod(pod=f"shop/{name}", reasons=(reason,)) for name in names)


def test_the_headline_separates_the_pods_of_later_passes_and_names_drains_without_end() -> None:
    node = StuckNode(node_claim="c1", node="n1", reason="Draining", message="its drain never ends")
    steady_state = SteadyState(
        nodes=2,
        per_hour=0.2,
        placed_later=("shop/b",),
        unschedulable=("shop/a",),
        stuck=(node,),
    )
    pool = PoolCost(nodes_before=1, nodes_after=1, before=0.1, after=0.1)
    plan = a_plan(
        cost=Cost(before=0.1, after=0.1, by_node_pool={"web": pool}),
        unschedulable=_unplaced("a", "b"),
        steady_state=steady_state,
    )
    lines = summary_lines(plan)
    assert lines[0] == (
        "Nothing to do now: 1 node, 1 cannot be drained; $73/month ($0.10/hour); "
        "1 pod cannot be scheduled."
    )
    assert lines[0].endswith("; 1 pod cannot be scheduled.")
    assert lines[1] == "Unschedulable: shop/a.", "the number is not repeated"
    assert lines[2] == "1 pod placed in a later pass: shop/b."
    assert lines[3] == "Steady state: 1 → 2 nodes, +$73/month ($0.10 → $0.20/hour)."
    assert lines[4] == "1 node cannot be drained: n1 (its drain never ends)."
    section = unschedulable_section(plan)
    assert section is not None
    assert section.note == "1 pod cannot be scheduled, 1 more not yet: a later pass places it"


def _drained_pod(**annotations: str) -> Pod:
    labels = {"app": "web"}
    return Pod(Metadata(name="a", namespace="shop", labels=labels, annotations=annotations))


def _a_budget(name: str, allowed: int) -> PodDisruptionBudget:
    selector = LabelSelector(match_labels={"app": "web"})
    spec = PodDisruptionBudgetSpec(selector=selector, max_unavailable=allowed)
    return PodDisruptionBudget(Metadata(name=name, namespace="shop"), spec)


@pytest.mark.parametrize(
    ("pod", "budgets", "why"),
    [
        (
            _drained_pod(),
            [_a_budget("p", 0)],
            "PodDisruptionBudget shop/p never allows the eviction of pod shop/a",
        ),
        (
            _drained_pod(),
            [_a_budget("p", 1), _a_budget("q", 1)],
            "PodDisruptionBudgets shop/p and shop/q select pod shop/a, so it is never evicted",
        ),
        (
            _drained_pod(**{DO_NOT_DISRUPT: "true"}),
            [_a_budget("p", 1)],
            "karpenter.sh/do-not-disrupt protects pod shop/a",
        ),
    ],
)
def test_a_drain_without_end_names_what_blocks_it(
    pod: Pod, budgets: list[PodDisruptionBudget], why: str
) -> None:
    text = describe_endless_drain([pod], PodDisruptionBudgets(budgets), PLANNED_AT)
    assert text == f"its drain never ends: {why}, and it has no terminationGracePeriod"


DELETED = "2026-01-01T01:00:00Z"


def draining_fleet(*ends: str, removal: str = DELETED) -> Plan:
    """Return the plan of a node whose pod a budget of 0 protects, with what ends its drain."""
    claim, node = a_node("n1")
    if removal:
        claim["metadata"] = {**claim["metadata"], "deletionTimestamp": removal}
    if "expiry" in ends:
        claim["spec"]["expireAfter"] = "1h"
    if "grace" in ends:
        claim["spec"]["terminationGracePeriod"] = "1h"
    if "timestamp" in ends:
        claim["metadata"]["annotations"] = {TERMINATION_TIMESTAMP: "2026-01-01T02:00:00Z"}
    if "terminating" in ends:
        ended = {"type": "InstanceTerminating", "status": "True", "lastTransitionTime": DELETED}
        claim["status"] = {
            **claim["status"], "conditions": [*claim["status"]["conditions"], ended]
        }  # fmt: skip
    if "repair" in ends:
        broken = {"type": "Ready", "status": "False", "lastTransitionTime": DELETED}
        others = [c for c in node["status"]["conditions"] if c["type"] != "Ready"]
        node["status"] = {**node["status"], "conditions": [*others, broken]}
    pod = a_pod("p", 500, "n1")
    pod["metadata"]["labels"] = {"app": "web"}
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "b", "namespace": "web"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0},
        "status": {"disruptionsAllowed": 0},
    }
    rules = {"consolidateAfter": "Never", "budgets": [{"nodes": "100%"}]}
    question = inputs(
        [a_node_pool(disruption=rules), a_class()],
        [claim, node, pod, budget],
        settings=Settings(feature_gates={FeatureGate.NODE_REPAIR: True}),
    )
    return plan_of(replace(question, finds_steady_state=True))


def test_a_node_whose_drain_never_ends_costs_what_it_costs() -> None:
    plan = draining_fleet()
    assert plan.cost.after == plan.cost.before > 0
    assert [(p.nodes_before, p.nodes_after) for p in plan.cost.by_node_pool.values()] == [(1, 1)]
    assert plan.steady_state is not None
    assert [node.reason for node in plan.steady_state.stuck] == ["Draining"]
    assert summary_lines(plan)[0].startswith("Nothing to do now: 1 node, 1 cannot be drained; ")


@pytest.mark.parametrize("end", ["grace", "timestamp", "terminating"])
def test_a_drain_with_an_end_leaves_no_node(end: str) -> None:
    """By the NodeClaim's grace period, the time in its annotation, or because it is over."""
    plan = draining_fleet(end)
    assert (plan.cost.before > 0, plan.cost.after) == (True, 0)
    assert plan.steady_state is None or plan.steady_state.stuck == ()


def test_a_repaired_node_is_drained_whatever_budgets_allow() -> None:
    plan = draining_fleet("repair", removal="")
    (action,) = plan.actions
    assert (action.reason, plan.cost.after) == ("Unhealthy", 0)
    assert action.cost_delta == -plan.cost.before
    assert plan.steady_state is None or plan.steady_state.stuck == ()


def test_an_expired_node_whose_drain_never_ends_saves_nothing() -> None:
    plan = draining_fleet("expiry", removal="")
    (action,) = plan.actions
    assert (action.reason, action.cost_delta) == ("Expired", 0.0)
    assert plan.cost.after == plan.cost.before


def waiting_node(name: str, cpu: int, minutes: int) -> list[dict[str, Any]]:
    """Return a node with one pod, whose pods changed some minutes ago."""
    claim, node = a_node(name)
    since = PLANNED_AT - timedelta(minutes=minutes)
    claim["status"]["lastPodEventTime"] = since.isoformat().replace("+00:00", "Z")
    return [claim, node, a_pod(f"p-{name}", cpu, name)]


def prospect(*observed: dict[str, Any], **fields: Any) -> Plan:
    rules = {"consolidateAfter": "10m", "budgets": [{"nodes": "100%"}]}
    question = inputs([a_node_pool(disruption=rules), a_class()], observed, **fields)
    return plan_of(replace(question, finds_steady_state=True))


def test_a_node_that_waits_is_listed_with_what_is_decided_about_it_afterwards() -> None:
    plan = prospect(*waiting_node("n", 500, 4))
    assert plan.is_empty
    (deferred,) = plan.deferred
    assert (deferred.node, deferred.reason, deferred.waits_for) == (
        "n", "Underutilized", "consolidateAfter",
    )  # fmt: skip
    assert deferred.not_before == PLANNED_AT + timedelta(minutes=6)
    assert deferred.message == "will be replaced by small; saves $219/month"
    assert plan.steady_state is not None
    assert plan.steady_state.nodes == 1
    assert plan.steady_state.per_hour == 0.05
    lines = summary_lines(plan)
    assert lines[0] == "Nothing to do now: 1 node, 1 node waits; $255/month ($0.35/hour)."
    assert lines[1] == "Steady state: 1 → 1 node, −$219/month ($0.3500 → $0.0500/hour)."


def test_what_is_listed_happens_once_the_wait_is_over() -> None:
    nodes = [*waiting_node("a", 500, 4), *waiting_node("b", 500, 3)]
    plan = prospect(*nodes)
    then = prospect(*nodes, now=PLANNED_AT + timedelta(minutes=7))
    removed = {name for command in then.commands for name in command.nodes}
    assert removed
    assert {d.node for d in plan.deferred} >= removed


def test_a_node_that_stays_is_not_listed_while_it_waits() -> None:
    observed = waiting_node("n", 7500, 4)
    for item in observed[:2]:  # spot nodes are not replaced by others
        item["metadata"]["labels"]["karpenter.sh/capacity-type"] = "spot"
    plan = prospect(*observed)
    assert plan.is_empty
    assert plan.deferred == ()
    assert plan.steady_state is None


def test_an_endless_drain_names_ten_budgets() -> None:
    """Somebody may create any number of budgets for each pod."""
    names = [f"shop/b{number:03}" for number in range(400)]
    assert list_budgets(names[:2]) == "shop/b000 and shop/b001"
    assert list_budgets(names).endswith("shop/b009 and 390 more")
