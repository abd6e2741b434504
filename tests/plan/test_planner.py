"""Properties of every plan, tested on ``plan_of`` itself."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.catalog.file import read_catalog
from reconciler.desired.fleet import SourceFile, read_fleet
from reconciler.desired.objects import node_classes
from reconciler.diff.nodeclass import selectors_of, with_observed_status
from reconciler.disruption.decide import decide
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.settings import (
    ConsolidationSearch,
    DecisionRules,
    FeatureGate,
    NodeLimit,
    Packing,
    Settings,
)
from reconciler.model.windows import Suspension
from reconciler.observed.snapshot import read_snapshot
from reconciler.observed.state import cluster_state
from reconciler.plan.graph import ActionGraph
from reconciler.plan.make.actions import Namer
from reconciler.plan.make.decide import disruption_inputs, ignore_phase, make_decisions
from reconciler.plan.make.gather import facts_of
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.planning import plan_of
from reconciler.plan.value.nodes import Reason
from reconciler.plan.value.plan import InputDigests, Plan, to_json
from tests.examples import examples

NOW = datetime(2026, 1, 3, 12, tzinfo=UTC)
SUSPENSION = Suspension("ada")
SIZES = {"small": (2, 0.1), "medium": (4, 0.19), "large": (8, 0.35)}


def a_pool(name: str = "general", **spec: object) -> dict:
    requirements = [{"key": "karpenter.sh/capacity-type", "operator": "Exists"}]
    ref = {"group": "karpenter.k8s.aws", "kind": "EC2NodeClass", "name": "default"}
    template = {"spec": {"nodeClassRef": ref, "requirements": requirements}}
    return {
        "apiVersion": "karpenter.sh/v1",
        "kind": "NodePool",
        "metadata": {"name": name},
        "spec": {"template": template, **spec},
    }


def a_class(**status: object) -> dict:
    return {
        "apiVersion": "karpenter.k8s.aws/v1",
        "kind": "EC2NodeClass",
        "metadata": {"name": "default"},
        "spec": {
            "role": "nodes",
            "amiSelectorTerms": [{"alias": "al2023@latest"}],
            "subnetSelectorTerms": [{"id": "subnet-0123456789abcdef0"}],
            "securityGroupSelectorTerms": [{"id": "sg-0123456789abcdef0"}],
        },
        **({"status": status} if status else {}),
    }


def an_overlay(price: str) -> dict:
    return {
        "apiVersion": "karpenter.sh/v1alpha1",
        "kind": "NodeOverlay",
        "metadata": {"name": "discount"},
        "spec": {
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": ["small"]}
            ],
            "price": price,
        },
    }


def a_catalog():
    types = [
        {
            "name": name,
            "capacity": {"cpu": str(cpu), "memory": f"{4 * cpu}Gi", "pods": "29"},
            "overhead": {"cpu": "100m"},
            "requirements": [
                {"key": "node.kubernetes.io/instance-type", "operator": "In", "values": [name]}
            ],
            "offerings": [
                {"zone": zone, "capacityType": kind, "price": round(price * share, 6)}
                for zone in ("z-a", "z-b")
                for kind, share in (("on-demand", 1), ("spot", 0.5))
            ],
        }
        for name, (cpu, price) in SIZES.items()
    ]
    return read_catalog(json.dumps(types).encode(), "catalog.json")


def a_pod(name: str, cpu: int = 500, node: str = "") -> dict:
    waits = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    status = {"phase": "Running"} if node else {"phase": "Pending", "conditions": [waits]}
    request = {"requests": {"cpu": f"{cpu}m"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "web"},
        "spec": {"nodeName": node, "containers": [{"name": "a", "resources": request}]},
        "status": status,
    }


def a_node(name: str, kind: str = "large", pool: str = "general", **annotations: str) -> list[dict]:
    labels = {
        "karpenter.sh/nodepool": pool,
        "karpenter.sh/registered": "true",
        "karpenter.sh/initialized": "true",
        "karpenter.sh/capacity-type": "on-demand",
        "node.kubernetes.io/instance-type": kind,
        "topology.kubernetes.io/zone": "z-a",
        "kubernetes.io/hostname": name,
    }
    created = "2026-01-01T00:00:00Z"
    ready = [
        {"type": kind, "status": "True", "lastTransitionTime": created}
        for kind in ("Launched", "Registered", "Initialized", "Consolidatable", "Ready")
    ]
    amounts = {"cpu": str(SIZES[kind][0]), "memory": "32Gi", "pods": "29"}
    status = {"capacity": amounts, "allocatable": amounts, "conditions": ready}
    metadata = {"creationTimestamp": created, "labels": labels, "annotations": annotations}
    return [
        {
            "apiVersion": "karpenter.sh/v1",
            "kind": "NodeClaim",
            "metadata": {"name": f"claim-{name}", **metadata},
            "spec": {"nodeClassRef": a_pool()["spec"]["template"]["spec"]["nodeClassRef"]},
            "status": {"providerID": f"aws:///z-a/{name}", "nodeName": name, **status},
        },
        {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": name, **metadata},
            "spec": {"providerID": f"aws:///z-a/{name}"},
            "status": status,
        },
    ]


def inputs(desired: list[dict], observed: list[dict] = (), **fields: object) -> Inputs:
    files = [SourceFile(f"{i}.yaml", json.dumps(item).encode()) for i, item in enumerate(desired)]
    fleet, findings = read_fleet(files, any_class=True, allow_empty=True)
    assert not [f for f in findings if f.severity is Severity.ERROR], findings
    content = json.dumps({"kind": "List", "items": list(observed)}).encode()
    snapshot = read_snapshot(content, "snapshot")
    defaults = {
        "fleet": fleet,
        "cluster": cluster_state(snapshot),
        "catalog": a_catalog(),
        "settings": Settings(),
        "now": NOW,
        "live": snapshot.live,
        "any_class": True,
    }
    return Inputs(**{**defaults, **fields})


kinds = st.sampled_from(sorted(SIZES))
pods = st.lists(st.tuples(st.integers(1, 1900), st.none() | st.integers(0, 3)), max_size=12)
clusters = st.tuples(st.lists(kinds, max_size=4), pods)


def objects_of(cluster: tuple) -> list[dict]:
    nodes, wanted = cluster
    found = [o for i, kind in enumerate(nodes) for o in a_node(f"node-{i}", kind)]
    for number, (cpu, where) in enumerate(wanted):
        on_node = where is not None and where < len(nodes)
        found.append(a_pod(f"p-{number}", cpu, f"node-{where}" if on_node else ""))
    return found


@given(clusters, st.data())
@settings(max_examples=examples(100), deadline=None)
def test_a_plan_is_consistent(cluster: tuple, data: st.DataObject) -> None:
    observed = objects_of(cluster)
    desired = [a_pool(disruption={"budgets": [{"nodes": "100%"}]}), a_class()]
    plan = plan_of(inputs(desired, observed))
    assert_hangs_together(plan)
    shuffled = data.draw(st.permutations(observed))
    assert to_json(plan_of(inputs(desired[::-1], shuffled))) == to_json(plan)


def assert_hangs_together(plan: Plan) -> None:
    names = [claim.name for claim in plan.node_claims]
    assert len(set(names)) == len(names)
    placed = [p.pod for p in plan.placements]
    assert len(set(placed)) == len(placed)
    assert not set(placed) & {u.pod for u in plan.unschedulable}
    for claim in plan.node_claims:
        there = sorted(p.pod for p in plan.placements if p.node_claim == claim.name)
        assert list(claim.pods) == there
        assert claim.launch.instance_type == claim.instance_types[0]
        assert len(claim.instance_types) <= min(60, claim.instance_types_total)
    for command in plan.commands:
        assert set(command.replacements) <= set(names)
    assert not {block.node for block in plan.blocked} & {n for c in plan.commands for n in c.nodes}
    ActionGraph.from_actions(plan.actions)
    terminated = {a.node_claim for a in plan.actions if a.kind == "terminate"}
    assert terminated == {name for c in plan.commands for name in c.node_claims}
    delta = sum(a.cost_delta or 0 for a in plan.actions)
    assert plan.cost.after == pytest.approx(plan.cost.before + delta)


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=8))
@settings(max_examples=examples(100), deadline=None)
def test_without_nodes_the_shortcut_decides_the_same(cpus: list[int]) -> None:
    waiting = [a_pod(f"p-{i}", cpu) for i, cpu in enumerate(cpus)]
    question = inputs([a_pool(), a_class()], waiting)
    facts = facts_of(question)
    short = make_decisions(facts, "salt", ignore_phase)
    whole = decide(disruption_inputs(facts, "salt"))
    assert short.placement == whole.placement
    assert (whole.commands, whole.blocked, whole.deferred) == ((), (), ())


def test_a_replacement_is_launched_before_the_old_node_is_terminated() -> None:
    observed = [*a_node("node-0"), a_pod("p-0", 500, "node-0")]
    plan = plan_of(inputs([a_pool(), a_class()], observed))
    assert [a.kind for a in plan.actions] == ["provision", "replace", "terminate"]
    assert [a.wave for a in plan.actions] == [0, 1, 2]
    assert plan.commands[0].savings == pytest.approx(0.35 - 0.05)
    assert plan.placements[0].node_claim == plan.node_claims[0].name
    assert plan.node_claims[0].reason == "Underutilized"


def test_new_claims_have_other_names_in_another_state() -> None:
    question = inputs([a_pool(), a_class()], [a_pod("p")])
    first, second = (plan_of(replace(question, serial=serial)) for serial in (1, 2))
    assert first.node_claims[0].name != second.node_claims[0].name
    assert plan_of(question) == plan_of(question)


def test_an_existing_claim_name_is_not_used_again() -> None:
    namer = Namer(["general-1"])
    assert [namer.name("general-1"), namer.name("general-1"), namer.name("general-2")] == [
        "general-1-2",
        "general-1-3",
        "general-2",
    ]
    assert len(Namer(["x" * 63]).name("x" * 63)) == 63


NOT_READY = [{"type": "Ready", "status": "False", "reason": "SubnetsNotFound"}]


@pytest.mark.parametrize(
    ("desired", "any_class", "code"),
    [
        ([a_pool()], False, "missing-nodeclass"),
        ([a_pool()], True, None),
        ([a_pool(), a_class(conditions=NOT_READY)], True, "nodeclass-not-ready"),
        ([a_pool(), a_class(conditions=NOT_READY)], False, "nodeclass-not-ready"),
        ([a_pool(), a_class()], False, None),
    ],
)
def test_a_pool_launches_only_with_a_ready_class(
    desired: list[dict], any_class: bool, code: str | None
) -> None:
    plan = plan_of(inputs(desired, [a_pod("p")], any_class=any_class))
    assert bool(plan.node_claims) is (code is None)
    assert (code is None) or code in {d.code for d in plan.diagnostics}


@pytest.mark.parametrize(
    ("node_class", "why"),
    [
        ([], "EC2NodeClass default not found in the fleet folder"),
        ([a_class(conditions=NOT_READY)], "EC2NodeClass default is not ready"),
    ],
)
def test_a_pod_that_waits_names_the_class_that_its_pool_lacks(
    node_class: list[dict], why: str
) -> None:
    """Alone and beside a pool that is ready, but does not suit the pod."""
    plan = plan_of(inputs([a_pool(), *node_class], [a_pod("p")], any_class=False))
    reason = Reason(
        node_pool="general",
        code="NodePoolNotReady",
        message=f"NodePool general cannot launch nodes: {why}",
    )
    assert [pod.reasons for pod in plan.unschedulable] == [(reason,)]
    other = a_pool("other")
    other["spec"]["template"]["spec"]["nodeClassRef"]["name"] = "b"
    other["spec"]["template"]["spec"]["taints"] = [{"key": "x", "effect": "NoSchedule"}]
    ready = {**a_class(), "metadata": {"name": "b"}}
    plan = plan_of(inputs([a_pool(), other, *node_class, ready], [a_pod("p")], any_class=False))
    ((first, second),) = (pod.reasons for pod in plan.unschedulable)
    assert (first.code, second) == ("TaintNotTolerated", reason)


@pytest.mark.parametrize(
    ("is_on", "words"),
    [
        (True, "it keeps its 1 node, whatever pods wait: raise spec.replicas, or add a NodePool"),
        (False, "featureGates.StaticCapacity is false, so it launches no nodes: turn it on"),
    ],
)
def test_a_pod_beside_a_static_pool_is_not_told_that_no_pool_is_ready(
    is_on: bool, words: str
) -> None:
    gates = Settings(feature_gates={FeatureGate.STATIC_CAPACITY: is_on})
    pods = [a_pod(f"p{n}", cpu=1500) for n in range(3)]
    plan = plan_of(
        replace(
            inputs([a_pool(replicas=1), a_class()], pods, settings=gates), finds_steady_state=True
        )
    )
    for pod in plan.unschedulable:
        (reason,) = pod.reasons
        assert reason.code == "StaticNodePool"
        assert f"NodePool general is static: {words}" in reason.message
    assert len(plan.unschedulable) == 3
    if is_on:
        assert plan.steady_state is not None
        assert len(plan.steady_state.placed_later) == 1


def test_the_status_of_a_class_can_come_from_the_cluster() -> None:
    observed = [a_pod("p"), a_class(conditions=NOT_READY)]
    plan = plan_of(inputs([a_pool(), a_class()], observed))
    assert plan.node_claims == ()


def test_what_was_looked_up_for_other_selectors_says_nothing_of_the_new_ones() -> None:
    """An image of the old alias must not stand for the new one: nodes would seem to stay."""
    found = {
        "amis": [{"id": "ami-1", "name": "old"}],
        "subnets": [{"id": "subnet-0123456789abcdef0", "zone": "z-a"}],
        "securityGroups": [{"id": "sg-0123456789abcdef0"}],
    }
    observed, desired = a_class(**found), a_class()
    terms = {"amiSelectorTerms": [{"alias": "al2023@v20250920"}]}
    pinned = {**desired, "spec": {**desired["spec"], **terms}}
    (same,), (other,) = (node_classes(inputs([a_pool(), item]).fleet) for item in (desired, pinned))
    without_spec = {key: value for key, value in observed.items() if key != "spec"}
    captured = {**without_spec, "spec": selectors_of(same)}
    for wanted, seen, images in (
        (same, observed, ["ami-1"]),
        (other, observed, []),
        (same, captured, ["ami-1"]),
        (other, captured, []),
        (other, without_spec, ["ami-1"]),
    ):
        status = with_observed_status([wanted], [seen])["default"].status
        assert [image.id for image in status.amis] == images
        assert [subnet.zone for subnet in status.subnets] == ["z-a"]


def test_overlays_need_their_gate_and_show_the_original_price() -> None:
    desired = [a_pool(), a_class(), an_overlay("0.01")]
    off = plan_of(inputs(desired, [a_pod("p")]))
    assert off.node_claims[0].launch.price == 0.05
    assert "overlay-gate-off" in {d.code for d in off.diagnostics}
    gates = Settings(feature_gates={FeatureGate.NODE_OVERLAY: True})
    on = plan_of(inputs(desired, [a_pod("p")], settings=gates))
    assert (on.node_claims[0].launch.price, on.node_claims[0].launch.base_price) == (0.01, 0.1)


def test_an_unavailable_offering_is_not_requested_again() -> None:
    unavailable = [("small", zone, "spot", "") for zone in ("z-a", "z-b")]
    plan = plan_of(inputs([a_pool(), a_class()], [a_pod("p")], unavailable=unavailable))
    assert plan.node_claims[0].launch.price > 0.05


SPOT_ONLY, ON_DEMAND_ONLY = (
    {"key": "karpenter.sh/capacity-type", "operator": "In", "values": [value]}
    for value in ("spot", "on-demand")
)


def without_types(**facts: Any) -> list[str]:
    """Return what a plan says about the types of two NodePools, one of which allows none."""
    never = a_pool("never")
    never["spec"]["template"]["spec"]["requirements"] = [SPOT_ONLY, ON_DEMAND_ONLY]
    plan = plan_of(inputs([a_pool(), never, a_class()], **facts))
    return [d.message for d in plan.diagnostics if d.code == "no-instance-types"]


def test_a_pool_that_no_instance_type_satisfies_is_named() -> None:
    (message,) = without_types()
    assert message == (
        "NodePool never cannot launch nodes: its requirements on karpenter.sh/capacity-type "
        "exclude each other: In [spot], In [on-demand]"
    )


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"cpu": "1000m"}, "limits.cpu is 1000m, and the smallest of its instance types has 2"),
        ({"memory": "64"}, "limits.memory is 64, and the smallest of its instance types has 8Gi"),
        ({"cpu": "2", "memory": "8Gi"}, None),
        ({"cpu": "0"}, None),  # how one closes a NodePool
        ({"nodes": "1"}, None),
    ],
)  # fmt: skip
def test_a_pool_whose_limits_are_below_every_type_is_named(
    limits: dict[str, str], message: str | None
) -> None:
    plan = plan_of(inputs([a_pool(limits=limits), a_class()]))
    found = [d for d in plan.diagnostics if d.code == "limit-below-node"]
    expected = [f"NodePool general cannot launch nodes: its {message}"] if message else []
    assert [d.message for d in found] == expected
    if "memory" in limits and found:
        assert found[0].hint == "a number without a unit is bytes: did you mean 64Gi?"


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"suspensions": (SUSPENSION,)}, ("disruption.suspend holds", "it")),
        (
            {"suspensions": (SUSPENSION,), "fleet_maximum_per_day": NodeLimit(3)},
            ("disruption.maximumPerDay, disruption.suspend hold", "them"),
        ),
        ({}, None),
    ],
)
def test_limits_that_karpenter_does_not_have_are_named_where_it_decides(
    limits: dict[str, object], words: tuple[str, str] | None
) -> None:
    def found(rules: DecisionRules) -> list[str]:
        settings = Settings(decide=rules, **limits)
        plan = plan_of(inputs([a_pool(), a_class()], settings=settings))
        return [d.message for d in plan.diagnostics if d.code == "unlike-karpenter"]

    expected = [f"{words[0]} in this plan, but Karpenter does not know {words[1]}"] if words else []
    assert found(DecisionRules.KARPENTER) == expected
    assert found(DecisionRules.OWN) == []


def test_offerings_that_are_unavailable_now_are_no_error_of_a_pool() -> None:
    everything = [
        (kind, zone, capacity_type, "")
        for kind in SIZES
        for zone in ("z-a", "z-b")
        for capacity_type in ("spot", "on-demand")
    ]
    plan = plan_of(inputs([a_pool(), a_class()], [a_pod("p")], unavailable=everything))
    assert plan.node_claims == ()
    assert without_types(unavailable=everything) == without_types()


def test_missing_replicas_of_static_pools_are_launched() -> None:
    static = a_pool("fixed", replicas=2)
    gates = Settings(feature_gates={FeatureGate.STATIC_CAPACITY: True})
    plan = plan_of(inputs([static, a_class()], settings=gates))
    assert [c.reason for c in plan.node_claims] == ["Static", "Static"]
    assert plan.cost.by_node_pool["fixed"].nodes_after == 2


def test_nodes_without_a_price_are_counted() -> None:
    observed = a_node("node-0", **{"karpenter.sh/do-not-disrupt": "true"})
    for item in observed:
        item["metadata"]["labels"]["node.kubernetes.io/instance-type"] = "gone"
    plan = plan_of(inputs([a_pool(), a_class()], observed))
    assert (plan.cost.unpriced, plan.cost.before) == (1, 0.0)


def test_findings_about_files_are_in_the_plan() -> None:
    finding = Diagnostic(Severity.WARNING, "odd", "looks odd", Place("a.yaml", 3, 5), "spec.x", "h")
    plan = plan_of(inputs([a_pool(), a_class()], diagnostics=(finding, finding)))
    found = [d for d in plan.diagnostics if d.code == "odd"]
    assert [(d.file, d.line, d.column, d.path, d.hint) for d in found] == [
        ("a.yaml", 3, 5, "spec.x", "h")
    ]


def test_dropped_preferences_are_listed_with_their_savings() -> None:
    term = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}
    liked = [{"weight": 1, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": liked}}
    pods = [a_pod(f"web-{i}") for i in range(3)]
    for pod in pods:
        pod["spec"]["affinity"] = affinity
    plan = plan_of(inputs([a_class(), a_pool()], pods, settings=Settings(packing=Packing.CHEAPEST)))
    (finding,) = (f for f in plan.diagnostics if f.code == "preferences-given-up")
    assert finding.severity == "warning"  # so that a pull request shows it unfolded
    assert finding.message == (
        "soft preferences of 3 pods (web/web-*\xa0(3)) are dropped, which saves $0.1000/hour"
    )
    assert [p.given_up for p in plan.placements] == [p.relaxed for p in plan.placements]
    usual = plan_of(inputs([a_class(), a_pool()], pods))
    assert not any(f.code == "preferences-given-up" for f in usual.diagnostics)


def test_the_digest_of_the_inputs_follows_each_of_them() -> None:
    question = inputs([a_pool(), a_class()])
    digests = {
        plan_of(replace(question, digests=InputDigests(**{name: "moved"}))).inputs_digest
        for name in InputDigests.__struct_fields__
    }
    assert len(digests) == len(InputDigests.__struct_fields__)


def test_phases_are_reported() -> None:
    phases: list[str] = []

    def phase(name: str):
        phases.append(name)
        return ignore_phase(name)

    plan_of(inputs([a_pool(), a_class()], [*a_node("n"), a_pod("p")]), phase)
    assert {"catalog", "placement", "disruption"} <= set(phases)


def test_a_node_that_one_method_rejects_and_another_removes_is_not_blocked() -> None:
    """Karpenter's search finds no cheaper node for these pods; two smaller nodes cost less."""
    pool = a_pool(disruption={"budgets": [{"nodes": "100%"}]})
    on_demand = {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["on-demand"]}
    pool["spec"]["template"]["spec"]["requirements"] = [on_demand]
    observed = [*a_node("n1", "large"), *(a_pod(f"p{i}", 900, "n1") for i in range(5))]
    karpenter = Settings(consolidation_search=ConsolidationSearch.KARPENTER)
    rejected = plan_of(inputs([pool, a_class()], observed, settings=karpenter))
    assert {block.node for block in rejected.blocked} == {"n1"}
    plan = plan_of(inputs([pool, a_class()], observed))
    assert [command.nodes for command in plan.commands] == [("n1",)]
    assert plan.blocked == ()


def test_an_invalid_budget_of_a_deleted_pool_is_reported_once() -> None:
    """A pool that only its nodes name has the default budget, which is valid."""
    deleted = a_pool("old", disruption={"budgets": [{"nodes": "10%"}, {"nodes": "many"}]})
    plan = plan_of(
        inputs(
            [a_pool(), a_class()],
            [*a_node("n1", pool="old"), *a_node("n2", pool="unknown")],
            base=[deleted],
            compared_with="records",
            allow_removal=frozenset({"old", "unknown"}),
        )
    )
    found = [(f.message, f.path) for f in plan.diagnostics if f.code == "budget-unreadable"]
    why = 'not a count or a share of nodes: "many" (examples: 5, 10%)'
    message = f"invalid budget of NodePool old, so its nodes cannot be disrupted: {why}"
    assert found == [(message, "spec.disruption.budgets[1]")]
