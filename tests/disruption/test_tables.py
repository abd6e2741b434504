"""Karpenter's recorded results on budgets and scores, case by case."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from reconciler.disruption.candidates import (
    BASE_COST,
    Candidate,
    is_empty,
    known_price,
    lifetime_remaining,
    savings_ratio,
)
from reconciler.disruption.consolidation.balanced import (
    BalanceScore,
    Totals,
    attribute_savings,
    may_pass,
    pool_totals,
    score_by_pool,
    score_move,
)
from reconciler.disruption.consolidation.pricing import estimated_savings
from reconciler.disruption.decide import command_timeout
from reconciler.disruption.gates.budgets import remaining_disruptions
from reconciler.disruption.gates.pdb import PodDisruptionBudgets
from reconciler.disruption.methods.emptiness import savings_ratio_key
from reconciler.model.karpenter.budget import Budget, allowance
from reconciler.model.karpenter.instancetype import InstanceType, Offering
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodepool import BALANCED, Disruption, NodePool, NodePoolSpec
from reconciler.model.karpenter.requirements import Requirements, requirement
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import Pod, PodSpec
from reconciler.observed.state import StateNode
from reconciler.placement.question import PlannedClaim
from tests.tables import cases

NOW = datetime(2026, 1, 5, 12, tzinfo=UTC)
DIVISOR = 2**27


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _budgets(data: list[Any]) -> tuple[Budget, ...]:
    return tuple(msgspec.convert(item, Budget) for item in data)


def _nodepool_allowed(given: Any) -> Any:
    budgets = _budgets(given["budgets"])
    least = allowance(budgets, given["reason"], given["total_nodes"], _moment(given["now"]))
    return {"allowed": least.nodes} | ({"error": least.error} if least.error else {})


def _budget_allowed(given: Any) -> Any:
    try:
        (budget,) = _budgets([given["budget"]])
        return {"allowed": budget.allowed_disruptions(given["total_nodes"], _moment(given["now"]))}
    except ValueError as error:
        return {"allowed": 0, "error": str(error)}


def _is_active(given: Any) -> Any:
    (budget,) = _budgets([given["budget"]])
    try:
        return {"active": budget.is_active(_moment(given["now"]))}
    except ValueError as error:
        return {"error": str(error)}


def _budget_mapping(given: Any) -> Any:
    now, budgets = _moment(given["now"]), _budgets(given["budgets"])
    left = {
        remaining_disruptions(
            allowance(budgets, r, given["counted_total"], now).nodes, given["disrupting"]
        )
        for r in given["reasons"]
    }
    (only,) = left
    return {"remaining": only}


def _queue_retry_seconds(given: Any) -> Any:
    return command_timeout(given["queued_candidates"]).total_seconds()


BUDGET_KINDS = {
    "nodepool_allowed": _nodepool_allowed,
    "budget_allowed": _budget_allowed,
    "is_active": _is_active,
    "budget_mapping": _budget_mapping,
    "queue_retry_seconds": _queue_retry_seconds,
}
ELSEWHERE = {"admission", "admission_field"}  # tests/desired


@pytest.mark.parametrize("case", cases("budgets", without=ELSEWHERE))
def test_budgets_allow_what_karpenter_allows(case: Any) -> None:
    answer, expected = BUDGET_KINDS[case["kind"]](case["input"]), case["expect"]
    if isinstance(expected, dict) and expected.get("error"):
        assert expected.get("error_contains", "") in answer["error"]
        assert answer.get("allowed") == expected.get("allowed")
    else:
        assert answer == expected


def _pods(costs: list[float]) -> tuple[Pod, ...]:
    """Return pods with these eviction costs, by their deletion cost."""
    key = "controller.kubernetes.io/pod-deletion-cost"
    return tuple(
        Pod(Metadata(name=f"p{i}", annotations={key: repr((cost - 1.0) * DIVISOR)}))
        for i, cost in enumerate(costs)
    )


class FixedCandidate(Candidate):
    """A candidate with the price and cost of a case."""

    def __init__(self, name: str, price: float, cost: float, pool: NodePool) -> None:
        super().__init__(
            node=StateNode(None, NodeClaim(Metadata(name=name))),
            claim=NodeClaim(Metadata(name=name)),
            pool=pool,
            kind=None,
            drift=None,
            budgets=PodDisruptionBudgets(()),
            now=NOW,
        )
        self.__dict__.update(price=price, cost=cost)


def _pool(name: str, policy: str) -> NodePool:
    spec = NodePoolSpec(disruption=Disruption(consolidation_policy=policy))
    return NodePool(Metadata(name=name), spec)


def _score_move(given: Any) -> Any:
    totals = Totals(given["total_cost"], given["total_disruption_cost"])
    score = score_move(given["savings"], given["disruption_cost"], totals, given["k"])
    return {
        "approved": score.approved,
        "score": "Infinity" if score.value == math.inf else score.value,
        "threshold": score.threshold,
        "savings_fraction": score.savings,
        "disruption_fraction": score.disruption,
    }


def _pool_totals(given: Any) -> Any:
    pool = _pool("p", BALANCED)
    rows = [
        FixedCandidate(
            f"n{i}",
            known_price(float(n["price"])),
            BASE_COST + sum(max(0.0, cost) for cost in n["pod_eviction_costs"]),
            pool,
        )
        for i, n in enumerate(given["nodes"])
    ]
    label = {"karpenter.sh/nodepool": "p"}
    nodes = [
        StateNode(None, NodeClaim(Metadata(name=row.claim.name, labels=label))) for row in rows
    ]
    totals = pool_totals(nodes, rows, lambda _: 0.0)["p"]
    return {"total_cost": totals.cost, "total_disruption_cost": totals.disruption}


def _sort_candidates(given: Any) -> Any:
    pool = _pool("p", BALANCED)
    rows = [
        FixedCandidate(c["name"], c["price"], c["reschedule_disruption_cost"], pool)
        for c in given["candidates"]
    ]
    return [candidate.name for candidate in sorted(rows, key=savings_ratio_key)]


def _eviction_cost(given: Any) -> Any:
    text = given["deletion_cost_annotation"]
    notes = {} if text is None else {"controller.kubernetes.io/pod-deletion-cost": text}
    return Pod(Metadata(annotations=notes), PodSpec(priority=given["priority"])).eviction_cost()


def _lifetime_remaining(given: Any) -> Any:
    seconds = given["expire_after_seconds"]
    expires = None if seconds is None else timedelta(seconds=seconds)
    return lifetime_remaining(expires, timedelta(seconds=given["age_seconds"]))


def _cost(costs: list[float]) -> float:
    return BASE_COST + sum(max(0.0, pod.eviction_cost()) for pod in _pods(costs))


def _is_empty(given: Any) -> Any:
    return is_empty(_cost(given["pod_eviction_costs"]))


def _savings_ratio(given: Any) -> Any:
    return savings_ratio(given["price"], _cost(given["pod_eviction_costs"]))


def _can_pass_threshold(given: Any) -> Any:
    if not given["balanced"]:
        return True  # only nodes of a Balanced pool are scored
    known = given["totals"]
    totals = Totals(known["total_cost"], known["total_disruption_cost"]) if known else None
    return may_pass(given["price"], given["reschedule_disruption_cost"], totals)


def _offerings(data: list[Any]) -> tuple[Offering, ...]:
    return tuple(Offering(o["zone"], o["capacity_type"], o["price"], o["available"]) for o in data)


def _estimated_savings(given: Any) -> Any:
    claims = []
    for data in given["replacements"]:
        offerings = _offerings(data["first_type_offerings"])
        types = (InstanceType("t", {}, {}, offerings=offerings),) if offerings else ()
        wanted = Requirements(requirement(k, "In", v) for k, v in data["requirements"].items())
        pool = _pool("p", BALANCED)
        claims.append(PlannedClaim("c", pool, (), {}, wanted, types, len(types)))
    prices = given.get("source_prices")
    if prices is None:
        kind = InstanceType("t", {}, {}, offerings=_offerings(given["instance_offerings"]))
        node = given["source_node"]
        prices = [known_price(kind.price_of(node["zone"], node["capacity_type"]))]
    return estimated_savings(prices, claims)


def _attribute_savings(given: Any) -> Any:
    return attribute_savings(given["command_savings"], given["pool_source_cost"])


def _evaluate_command(given: Any) -> Any:
    rows = [
        FixedCandidate(f"n{i}", 1.0, 10.0, _pool(p["name"], p["policy"]))
        for i, p in enumerate(given["pools"])
    ]
    scores = score_by_pool(rows, 0.0, {})
    answer: dict[str, Any] = {"scored_pools": list(scores)}
    if scores:
        answer["k"] = next(iter(scores.values())).k
    else:
        answer["approved"] = bool(rows)
    return answer


def _multi_node_events(given: Any) -> Any:
    score = BalanceScore(given["savings_fraction"], given["disruption_fraction"], given["k"])
    assert score.approved is given["approved"]
    return {"ConsolidationApproved_events": int(score.approved)}


def _score_message(given: Any) -> Any:
    return str(BalanceScore(given["savings_pct"] / 100, given["disruption_pct"] / 100, given["k"]))


def _is_balanced(given: Any) -> Any:
    return bool(
        score_by_pool([FixedCandidate("n", 1.0, 1.0, _pool("p", given["policy"]))], 1.0, {})
    )


BALANCED_KINDS = {
    "score_move": _score_move,
    "pool_totals": _pool_totals,
    "savings_ratio": _savings_ratio,
    "sort_candidates": _sort_candidates,
    "eviction_cost": _eviction_cost,
    "lifetime_remaining": _lifetime_remaining,
    "is_empty": _is_empty,
    "can_pass_threshold": _can_pass_threshold,
    "estimated_savings": _estimated_savings,
    "attribute_savings": _attribute_savings,
    "evaluate_command": _evaluate_command,
    "multi_node_events": _multi_node_events,
    "score_message": _score_message,
    "is_balanced": _is_balanced,
}


@pytest.mark.parametrize("case", cases("balanced"))
def test_moves_score_as_karpenter_scores_them(case: Any) -> None:
    answer, expected = BALANCED_KINDS[case["kind"]](case["input"]), case["expect"]
    if isinstance(expected, dict):
        assert answer.keys() >= expected.keys()
        for key, value in expected.items():
            assert answer[key] == (
                pytest.approx(value, abs=1e-6) if isinstance(value, float) else value
            ), key
    elif isinstance(expected, float):
        assert answer == pytest.approx(expected, abs=1e-12)
    else:
        assert answer == expected
