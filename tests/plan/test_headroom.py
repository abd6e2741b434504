"""CapacityBuffers in a plan: from git and the cluster, together with pods, and in disruption."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.model.settings import DEFAULT_FEATURE_GATES, FeatureGate, Settings
from reconciler.plan.explain.reasons import explain_buffer, explain_pod
from reconciler.plan.planning import plan_of
from reconciler.plan.render.html import render_html
from reconciler.plan.render.markdown import render_markdown
from reconciler.plan.render.text import render_text
from reconciler.plan.value.plan import Plan, from_json, to_json
from tests.examples import examples
from tests.plan.test_planner import (
    a_class,
    a_node,
    a_pod,
    a_pool,
    assert_hangs_together,
    clusters,
    inputs,
    objects_of,
)

Object = dict[str, Any]
SCHEMAS = Path(__file__).parents[2] / "schemas"
ON = Settings(feature_gates={**DEFAULT_FEATURE_GATES, FeatureGate.CAPACITY_BUFFER: True})
EAGER = {"disruption": {"consolidateAfter": "0s", "budgets": [{"nodes": "100%"}]}}
ON_DEMAND = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}


def a_buffer(name: str = "web", **spec: Any) -> Object:
    return {
        "apiVersion": "autoscaling.x-k8s.io/v1beta1",
        "kind": "CapacityBuffer",
        "metadata": {"name": name, "namespace": "web"},
        "spec": spec,
    }


def a_template(cpu: str = "1", name: str = "web", **spec: Any) -> Object:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {
        "apiVersion": "v1",
        "kind": "PodTemplate",
        "metadata": {"name": name, "namespace": "web"},
        "template": {"spec": {"containers": [container], **spec}},
    }


def a_deployment(replicas: int, cpu: str = "1") -> Object:
    template = a_template(cpu)["template"] | {"metadata": {"labels": {"app": "web"}}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template,
        },
    }


THREE = a_buffer(podTemplateRef={"name": "web"}, replicas=3)
HALF = a_buffer(scalableRef={"kind": "Deployment", "name": "web"}, percentage=50)


def a_plan(*desired: Object, observed: list[Object] | None = None, **fields: Any) -> Plan:
    """Return the plan of a pool that launches on demand and disrupts at once."""
    pool = a_pool(**EAGER)
    pool["spec"]["template"]["spec"]["requirements"] = [ON_DEMAND]
    return plan_of(inputs([pool, a_class(), *desired], observed or [], settings=ON, **fields))


def test_headroom_is_launched_for_virtual_pods() -> None:
    plan = a_plan(THREE, a_template())

    (claim,) = plan.node_claims
    assert (claim.reason, claim.pods, claim.requests["cpu"]) == ("Headroom", (), "3")
    assert [(a.kind, a.reason) for a in plan.actions] == [("provision", "Headroom")]
    assert (plan.placements, plan.unschedulable) == ((), ())
    (room,) = plan.headroom
    assert (room.buffer, room.replicas, room.code) == ("web/web", 3, "RequiresNewCapacity")
    assert room.node_claims == {claim.name: 3}


def test_a_launch_for_headroom_names_the_buffers_that_it_is_for() -> None:
    one, two = (
        a_plan(THREE, a_template()),
        a_plan(
            THREE,
            HALF | {"metadata": {"name": "half", "namespace": "web"}},
            a_template(),
            a_deployment(4),
        ),
    )

    assert "Headroom for CapacityBuffer web/web\n" in render_text(one)
    assert "Headroom for CapacityBuffers web/half, web/web\n" in render_text(two)


def test_headroom_on_existing_nodes_launches_nothing() -> None:
    plan = a_plan(THREE, a_template(), observed=a_node("n-1", "medium"))

    assert plan.node_claims == ()
    (room,) = plan.headroom
    assert (room.code, room.nodes) == ("FitsExistingCapacity", {"n-1": 3})
    assert room.message == "capacity for 3 pods on existing nodes"


def test_real_pods_use_the_headroom_and_it_is_restored() -> None:
    observed = [*a_node("n-1", "medium"), *(a_pod(f"p-{i}", 1000) for i in range(3))]

    plan = a_plan(THREE, a_template(), observed=observed)

    assert {p.node for p in plan.placements} == {"n-1"}
    (room,) = plan.headroom
    assert sum(room.nodes.values()) + sum(room.node_claims.values()) == 3
    assert [claim.reason for claim in plan.node_claims] == ["Headroom"]


def test_a_claim_can_serve_pending_pods_and_headroom() -> None:
    plan = a_plan(THREE, a_template(), observed=[a_pod("p-1", 1000)])

    (claim,) = plan.node_claims
    assert (claim.reason, claim.pods) == ("Unschedulable", ("web/p-1",))
    assert claim.requests == {"cpu": "4", "pods": "4"}


def test_a_percentage_applies_to_running_replicas_or_those_in_git() -> None:
    in_git = a_plan(HALF, a_deployment(4))
    scaled = a_plan(HALF, a_deployment(4), observed=[a_deployment(10)])

    assert [in_git.headroom[0].replicas, scaled.headroom[0].replicas] == [2, 5]


def test_a_buffer_in_git_takes_precedence_over_one_in_the_cluster() -> None:
    observed = [a_buffer(podTemplateRef={"name": "web"}, replicas=1), a_template()]

    assert a_plan(observed=observed).headroom[0].replicas == 1
    assert a_plan(THREE, observed=observed).headroom[0].replicas == 3


def test_with_the_gate_disabled_nothing_happens_and_it_is_reported() -> None:
    plan = plan_of(inputs([a_pool(), a_class(), THREE, a_template()]))

    assert (plan.node_claims, plan.headroom) == ((), ())
    (finding,) = (d for d in plan.diagnostics if d.code == "capacitybuffer-gate-off")
    assert "web/web" in finding.message
    assert "featureGates.CapacityBuffer=true" in (finding.hint or "")


def test_a_buffer_without_its_template_has_no_headroom_and_is_reported() -> None:
    plan = a_plan(THREE)

    (room,) = plan.headroom
    assert (room.replicas, room.code) == (0, "PodTemplateNotFound")
    (finding,) = (d for d in plan.diagnostics if d.code == "capacitybuffer-unresolved")
    assert "web/web" in finding.message


def test_impossible_headroom_is_reported_and_blocks_no_pod() -> None:
    plan = a_plan(THREE, a_template("9"), observed=[a_pod("p-1", 500)])

    (room,) = plan.headroom
    assert room.unschedulable == 3
    assert [(r.node_pool, r.code) for r in room.reasons] == [("general", "TooLarge")]
    assert [p.pod for p in plan.placements] == ["web/p-1"]
    assert plan.unschedulable == ()


# disruption


def _moves(plan: Plan) -> list[tuple[str, tuple[str, ...]]]:
    return [(c.reason, c.nodes) for c in plan.commands]


def test_an_empty_node_with_headroom_stays_and_names_the_buffer() -> None:
    plan = a_plan(a_template(), THREE, observed=a_node("n-1", "medium"))

    assert plan.commands == ()
    blocked = {(b.node, b.code) for b in plan.blocked}
    assert ("n-1", "BufferPods") in blocked
    assert any("has buffer pods" in b.message and "web/web" in b.message for b in plan.blocked)


def test_an_empty_node_without_headroom_is_removed() -> None:
    observed = [*a_node("n-1", "medium"), *a_node("n-2", "medium")]

    plan = a_plan(a_template(), THREE, observed=observed)

    assert _moves(plan) == [("Empty", ("n-2",))]


def test_headroom_does_not_keep_a_node_that_is_too_expensive() -> None:
    """Consolidation finds another place for the room, as it does for pods."""
    small = a_buffer(podTemplateRef={"name": "web"}, replicas=1)

    plan = a_plan(a_template(), small, observed=a_node("n-1", "large"))

    assert _moves(plan) == [("Underutilized", ("n-1",))]
    (claim,) = plan.node_claims
    assert (claim.launch.instance_type, claim.reason) == ("small", "Underutilized")


def test_a_node_is_not_drained_into_headroom() -> None:
    """n-1 has room for three, and a pod of n-2 would take a part of it."""
    observed = [
        *a_node("n-1", "medium"),
        *a_node("n-2", "small"),
        a_pod("p-1", 500, "n-1"),
        a_pod("p-2", 1900, "n-2"),
    ]

    with_room = a_plan(a_template(), THREE, observed=observed)
    without = a_plan(observed=observed)

    assert [nodes for _, nodes in _moves(without)] != []
    assert _moves(with_room) == []


def test_free_room_beyond_the_headroom_is_used() -> None:
    """The pod of n-2 fits on n-1 beside the pod and the room that are there."""
    room = a_buffer(podTemplateRef={"name": "web"}, replicas=1)
    observed = [
        *a_node("n-1", "large"),
        *a_node("n-2", "small"),
        a_pod("p-1", 5000, "n-1"),
        a_pod("p-2", 1000, "n-2"),
    ]

    plan = a_plan(a_template(), room, observed=observed)

    assert _moves(plan) == [("Underutilized", ("n-2",))]
    assert [(p.pod, p.node) for p in plan.placements] == [("web/p-2", "n-1")]
    assert plan.headroom[0].nodes == {"n-1": 1}


def test_pod_disruption_budgets_ignore_virtual_pods() -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "all", "namespace": "web"},
        "spec": {"maxUnavailable": 0, "selector": {}},
    }
    small = a_buffer(podTemplateRef={"name": "web"}, replicas=1)

    plan = a_plan(a_template(), small, observed=[*a_node("n-1", "large"), budget])

    assert _moves(plan) == [("Underutilized", ("n-1",))]
    assert plan.commands[0].pods_evicted == 0


def test_moved_headroom_is_counted_only_at_its_new_node() -> None:
    """Each of two nodes could give its room to the other; only one of them may."""
    room = a_buffer(podTemplateRef={"name": "web"}, replicas=2)
    observed = [
        *a_node("n-1", "medium"),
        *a_node("n-2", "medium"),
        a_pod("p-1", 500, "n-1"),
        a_pod("p-2", 500, "n-2"),
    ]

    plan = a_plan(a_template("1500m"), room, observed=observed)

    gone = {node for _, nodes in _moves(plan) for node in nodes}
    left = {"n-1", "n-2"} - gone
    cpu = 4000 * len(left) + sum(
        {"small": 1900, "medium": 3900, "large": 7900}[c.launch.instance_type]
        for c in plan.node_claims
    )
    assert cpu >= 2 * 1500 + 2 * 500


@given(clusters, st.integers(0, 4), st.integers(100, 2500))
@settings(max_examples=examples(60), deadline=None)
def test_a_plan_with_headroom_is_consistent(cluster: tuple, count: int, cpu: int) -> None:
    buffer = a_buffer(podTemplateRef={"name": "web"}, replicas=count)
    desired = [a_pool(disruption={"budgets": [{"nodes": "100%"}]}), a_class(), buffer]
    observed = [*objects_of(cluster), a_template(f"{cpu}m")]

    plan = plan_of(inputs(desired, observed, settings=ON))

    assert_hangs_together(plan)
    assert not any("capacity-buffer" in p.pod for p in plan.placements)
    assert not any("capacity-buffer" in p for c in plan.node_claims for p in c.pods)
    (room,) = plan.headroom
    found = sum(room.nodes.values()) + sum(room.node_claims.values()) + room.unschedulable
    assert found == room.replicas == count
    assert to_json(plan_of(inputs(desired, observed[::-1], settings=ON))) == to_json(plan)


# what people and programs see


@pytest.fixture(scope="module")
def plan() -> Plan:
    none = a_buffer("lost", podTemplateRef={"name": "lost"}, replicas=1)
    huge = a_buffer("huge", podTemplateRef={"name": "huge"}, replicas=2)
    return a_plan(
        THREE, none, huge, a_template(), a_template("9", "huge"), observed=a_node("n-1", "small")
    )


def test_the_plan_is_valid_and_reads_back(plan: Plan) -> None:
    text = to_json(plan)
    schema = json.loads((SCHEMAS / "plan.v1.json").read_text(encoding="utf-8"))

    jsonschema.validate(json.loads(text), schema)
    assert from_json(text) == plan


def test_every_rendering_shows_the_buffers_and_their_nodes(plan: Plan) -> None:
    text, markdown, html = render_text(plan), render_markdown(plan), render_html(plan)

    for rendering in (text, markdown, html):
        assert "Headroom" in rendering
        assert "web/huge" in rendering
        assert "PodTemplate lost not found" in rendering
    assert "capacity for 3 pods: 2 on existing nodes, 1 on nodes to be launched" in text
    assert "capacity for 2 pods: 2 unschedulable" in text


def test_a_plan_without_buffers_does_not_mention_them() -> None:
    plan = a_plan(observed=[a_pod("p-1")])

    assert b"headroom" not in to_json(plan)
    assert "Headroom" not in render_text(plan)


def test_explain_finds_a_buffer_by_name(plan: Plan) -> None:
    full, short = explain_buffer(plan, "web/web"), explain_buffer(plan, "web")
    huge = explain_buffer(plan, "huge")

    assert full == short is not None
    assert "2 pods on node n-1" in full.facts
    assert huge is not None
    assert [r.code for r in huge.reasons] == ["TooLarge"]
    assert "reserves no capacity (PodTemplateNotFound)" in explain_buffer(plan, "lost").verdict
    assert explain_buffer(plan, "nobody") is None
    assert explain_pod(plan, "web/capacity-buffer-web-1") is None
