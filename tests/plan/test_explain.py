"""An explanation repeats the decision's own reasons, for every subject of the plan."""

from __future__ import annotations

from hypothesis import given, settings
from msgspec.structs import replace

from reconciler.model.decision.waiting import DeferredClaim, PoolBudget, WaitsFor
from reconciler.model.karpenter.budget import DisruptionReason
from reconciler.model.text.times import format_time
from reconciler.plan.explain.answer import decisions_of
from reconciler.plan.explain.reasons import (
    claim_of_node,
    explain_node,
    explain_pod,
    matching_pods,
    node_names,
    node_of_claim,
    pod_names,
)
from reconciler.plan.value.actions import Action, BlockedNode, PlannedCommand
from reconciler.plan.value.nodes import PlacedPod, Reason, UnschedulablePod
from reconciler.plan.value.plan import Plan
from tests.examples import examples
from tests.plan.builders import NOW, a_claim, a_plan
from tests.plan.strategies import plans


@given(plans)
@settings(max_examples=examples(120), deadline=None)
def test_every_reason_of_a_plan_is_found_by_its_subject(plan: Plan) -> None:
    found = set()
    for name in pod_names(plan):
        answer = explain_pod(plan, name)
        assert answer is not None
        found.update(answer.reasons)
    for name in node_names(plan):
        assert explain_node(plan, name, "").verdict
        found.update(explain_node(plan, name, "").reasons)
    nameless = {d for d in decisions_of(plan) if not d.name}
    assert found | nameless == set(decisions_of(plan))


def test_reasons_contain_pool_method_and_time() -> None:
    plan = a_plan(
        unschedulable=(
            UnschedulablePod(
                pod="ml/a-0",
                reasons=(Reason(message="no pool"), Reason(node_pool="gpu", message="too big")),
            ),
        ),
        blocked=(BlockedNode(node="n1", reason="Empty", message="do-not-disrupt"),),
        deferred=(
            DeferredClaim(
                node_claim="c1", reason="Drifted", waits_for=WaitsFor.BUDGET, not_before=NOW
            ),
        ),
    )
    assert [(d.kind, d.name, d.code, d.message) for d in decisions_of(plan)] == [
        ("Pod", "ml/a-0", "Unschedulable", "no pool"),
        ("Pod", "ml/a-0", "Unschedulable", "gpu: too big"),
        ("Node", "n1", "Blocked", "emptiness: do-not-disrupt"),
        (
            "NodeClaim",
            "c1",
            "WaitsForBudget",
            f"drift is deferred, not before {format_time(NOW)}",
        ),
    ]


def test_a_name_may_omit_the_namespace_or_name_a_workload() -> None:
    pods = ("web/api-0", "web/api-1", "db/api-0", "web/apiary-0")
    plan = a_plan(placements=tuple(PlacedPod(pod=pod, node="n") for pod in pods))
    assert matching_pods(plan, "web/api-0") == ["web/api-0"]
    assert matching_pods(plan, "api-0") == ["web/api-0", "db/api-0"]
    assert matching_pods(plan, "api") == ["web/api-0", "web/api-1", "db/api-0"]
    assert matching_pods(plan, "web/api") == ["web/api-0", "web/api-1"]
    assert matching_pods(plan, "nothing") == []


def test_a_disrupted_node_shows_its_command_and_what_it_waits_for() -> None:
    command = PlannedCommand(
        id="c",
        reason="Expired",
        decision="replace",
        nodes=("n1", "n2"),
        node_claims=("g-1", "g-2"),
        replacements=("g-3",),
        savings=-0.5,
        forceful=True,
    )
    answer = explain_node(a_plan(commands=(command,)), "n1", "g-1")
    assert answer.verdict == "to be disrupted for expiry (older than expireAfter)"
    assert answer.facts == (
        "command c: replace n1, n2 once g-3 is ready, regardless of disruption budgets",
    )


def test_the_only_reason_against_a_disruption_comes_first_and_once() -> None:
    why = "pdb prevents pod evictions (PodDisruptionBudget=[shop/web])"
    one = BlockedNode(
        node="n1", node_pool="web", reason="Underutilized", code="Pdb",
        message=why,
    )  # fmt: skip
    answer = explain_node(a_plan(blocked=(one,)), "n1", "")
    assert (
        answer.verdict == "kept by consolidation: PodDisruptionBudget shop/web allows no eviction"
    )
    assert (len(answer.reasons), answer.other_reasons) == (1, ())
    other = replace(one, code="Budget", message="its budget is used up")
    answer = explain_node(a_plan(blocked=(one, other)), "n1", "")
    assert (answer.verdict, len(answer.other_reasons)) == ("kept by consolidation", 2)


def test_what_budgets_allow_alike_is_one_fact() -> None:
    alike = [
        PoolBudget(node_pool="web", reason=reason, total=3, allowed=1)
        for reason in (DisruptionReason.DRIFTED, DisruptionReason.EMPTY)
    ]
    other = replace(alike[0], reason=DisruptionReason.UNDERUTILIZED, allowed=0)
    blocked = BlockedNode(node="n1", node_pool="web", reason="Empty", code="x", message="no")
    answer = explain_node(a_plan(blocked=(blocked,), budgets=(*alike, other)), "n1", "")
    now = "now (0 in progress or not ready)"
    assert answer.facts == (
        f"budget of web: 1 of 3 nodes may be disrupted for drift and emptiness {now}",
        f"budget of web: 0 of 3 nodes may be disrupted for underutilization {now}",
    )


def test_planned_and_existing_claims_are_described_differently() -> None:
    plan = a_plan(node_claims=(a_claim("g-1"),))
    coming = explain_node(plan, "", "g-1", "NodeClaim")
    assert (coming.kind, coming.name) == ("NodeClaim", "g-1")
    assert coming.verdict.startswith("to be launched")
    came = explain_node(plan, "n1", "g-1")
    assert (came.kind, came.name, came.verdict) == (
        "Node",
        "n1",
        "there is no reason to disrupt it",
    )


def test_a_node_and_its_claim_are_paired_if_the_plan_names_both() -> None:
    plan = a_plan(actions=(Action(id="t", kind="terminate", node_claim="g-1", node="n1"),))
    assert claim_of_node(plan, "n1") == "g-1"
    assert node_of_claim(plan, "g-1") == "n1"
    assert (claim_of_node(plan, "n2"), node_of_claim(plan, "")) == ("", "")
