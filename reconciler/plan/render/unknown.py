"""Whether the cost of a plan is known; if it is not, why, and what is known instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.text.counting import format_count
from reconciler.model.text.quoting import without_backticks
from reconciler.plan.value.nodes import OfferedTypes, OffersChange
from reconciler.plan.value.plan import Plan

NO_WORKLOADS: Final = "no workloads and no snapshot"
"""Why a cost is not known."""

AUTO_MODE_COST: Final = "auto-mode-cost"
"""The finding that a cost is unknown because AWS launches the nodes (EKS Auto Mode)."""
AUTO_MODE_PODS: Final = "auto-mode-pods"
"""The finding that pods are left to EKS Auto Mode."""
NOT_KNOWN: Final = "the cost is not known: "
"""How the message of ``AUTO_MODE_COST`` begins, before the reason."""

BUDGET: Final = "PodDisruptionBudget"

WORKLOAD_KINDS: Final = frozenset(
    {"CronJob", "DaemonSet", "Deployment", "Job", "Pod", "PodDisruptionBudget", "ReplicaSet"}
    | {"StatefulSet"}
)
"""Kinds of files that a plan does not read beside a cluster, which has its own."""


def has_invalid_base(plan: Plan) -> bool:
    """Return whether there is a base, and it cannot be planned."""
    return bool(plan.findings_of("base-invalid"))


def is_new_fleet(plan: Plan) -> bool:
    """Return whether there is a base, and it has no NodePool of the fleet."""
    return bool(plan.findings_of("fleet-new"))


def is_cost_unknown(plan: Plan) -> bool:
    """Return whether there are no workloads, not even recorded ones, to tell the cost from.

    Nor is the cost of a change known that is one of workloads, beside a cluster with other ones.
    """
    if plan.backtest is not None:
        return False
    if plan.findings_of("workloads-unknown", AUTO_MODE_COST):
        return True
    if only_budgets_change(plan):
        return False
    return has_unread_workloads(plan) and all(c.kind in WORKLOAD_KINDS for c in plan.changes)


def changes_nothing(plan: Plan) -> bool:
    """Return whether the fleet is that of its base, so that it costs the same, whatever that is."""
    return not (plan.at_rest is None or plan.changes or plan.offers or is_new_fleet(plan))


def only_budgets_change(plan: Plan) -> bool:
    """Return whether PodDisruptionBudgets change and nothing else, beside a cluster with its own.

    No node is launched or removed for them, but they decide when nodes may be replaced.
    """
    return has_unread_workloads(plan) and {c.kind for c in plan.changes} == {BUDGET}


def has_unread_workloads(plan: Plan) -> bool:
    return bool(plan.findings_of("change-not-included"))


def has_unread_files(plan: Plan) -> bool:
    return bool(plan.findings_of("change-not-read"))


def unknown_cost_reason(plan: Plan) -> str:
    """Return why the cost of a plan is not known."""
    auto_mode = plan.findings_of(AUTO_MODE_COST)
    if auto_mode:
        return without_backticks(auto_mode[0].message.removeprefix(NOT_KNOWN))
    if has_unread_workloads(plan):
        return "only workloads change, and the pods are those observed"
    return NO_WORKLOADS


def requests_phrase(plan: Plan) -> str:
    """Return what changed workloads request, which is all that is known of their cost."""
    found = plan.findings_of("change-of-requests")
    return without_backticks(found[0].message) if found else ""


def changed_offers_phrase(plan: Plan) -> str:
    """Return what a change does to the offerings of the NodePool that it narrows most."""
    if not plan.offers:
        return "the instance types of NodePools and their prices do not change"
    return offers_phrase(plan, plan.offers)


def offers_phrase(plan: Plan, offers: Mapping[str, OffersChange]) -> str:
    """Return what a change does to the offerings of the one of some NodePools it narrows most."""
    name, change = min(offers.items(), key=lambda pair: _types_left(pair[1]))
    before, after = change.sides
    op = next((c.op for c in plan.changes if (c.kind, c.name) == ("NodePool", name)), "")
    pool = f"NodePool {without_backticks(name)}"
    if op == "delete":
        return f"{pool} is deleted, with its nodes{_other_pools(offers)}"
    if before.types and not after.types:
        return f"{pool} can launch no node any more{_other_pools(offers)}"
    if op == "create":
        pool = f"new {pool}"
    types = format_count(after.types, "instance type")
    prices = list(dict.fromkeys(map(format_vcpu_price, (before, after))))
    if not before.types:
        prices = prices[1:]  # those of a new NodePool
    elif before.types != after.types:
        types = f"{before.types:,} → {types}"
    has_price = len(prices) > 1 or not before.types
    price = f", cheapest vCPU {' → '.join(prices)}/month" if has_price and prices else ""
    return f"{pool}: {types}{price}{_other_pools(offers)}"


def _other_pools(offers: Mapping[str, OffersChange]) -> str:
    """Return how many other NodePools have other instance types or prices than before."""
    others = len(offers) - 1
    return f" (and {format_count(others, 'other NodePool')})" if others else ""


def _types_left(change: OffersChange) -> float:
    before, after = change.sides
    return after.types / before.types if before.types else 1.0


def format_vcpu_price(offers: OfferedTypes) -> str:
    """Return the cheapest price of a vCPU for a month."""
    return "none" if offers.per_vcpu is None else f"${offers.per_vcpu * HOURS_A_MONTH:,.2f}"
