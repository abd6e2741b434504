"""The sum of a plan in a few sentences: nodes, dollars, and how few they could be."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from reconciler.plan.plan import Plan, PoolCost
from reconciler.plan.wording import counted, dollars, hourly, monthly

_WORTH_SAYING: Final = 0.1
"""The share above the bound from which on the reason is named."""

_HOLDS: Final[dict[object, str]] = {
    "Packing": ": --set packing=cheapest tries many packings",
    "NodePoolWeights": ": the weights of the NodePools hold them there",
    "Preferences": ": what pods would like holds them there, see maximumPreferenceCostPercent",
    "PodRules": ": spread and affinity between the pods hold them there",
    "WholeNodes": ": nodes are bought whole",
}


def summary_lines(plan: Plan) -> list[str]:
    """Return the sum: what is done, how many nodes, how many dollars."""
    launches = sum(1 for action in plan.actions if action.kind == "provision")
    goes = sum(1 for action in plan.actions if action.kind == "terminate")
    pools = plan.cost.by_node_pool.values()
    before, after = sum(p.nodes_before for p in pools), sum(p.nodes_after for p in pools)
    if plan.is_empty:
        later = len({item.node_claim for item in plan.deferred})
        waiting = f"; {counted(later, 'node')} {'waits' if later == 1 else 'wait'}" if later else ""
        first = f"Nothing to do now: {counted(after, 'node')}{waiting}."
    else:
        nodes = f"{before:,} → {after:,} nodes"
        first = f"{counted(launches, 'node')} to launch, {goes:,} to remove: {nodes}."
    return [first, _cost_line(plan), *_base_line(plan), *_bound_line(plan)]


def _base_line(plan: Plan) -> list[str]:
    """Return what the change itself costs, where there is a base to compare with."""
    cost = plan.cost
    if cost.base is None:
        return []
    pools = cost.by_node_pool.values()
    was, now = sum(p.nodes_base or 0 for p in pools), sum(p.nodes_after for p in pools)
    nodes = counted(now, "node") if was == now else f"{was:,} → {now:,} nodes"
    change = cost.after - cost.base
    if hourly(cost.base) == hourly(cost.after):
        return [f"The change itself: {nodes}, no dollar more or less."]
    hour = f"{dollars(cost.base)} → {dollars(cost.after)} an hour ({dollars(change, signed=True)})"
    return [f"The change itself: {nodes}, {hour}, {monthly(change, signed=True)} a month."]


def _bound_line(plan: Plan) -> list[str]:
    """Return how far the new nodes are above the least that they could cost, and why."""
    bound, gap, held = plan.cost.lower_bound, plan.cost.bound_gap, plan.cost.bound_held_by
    if bound is None or not isinstance(gap, float):
        return []
    least = f"No nodes for these pods cost less than {dollars(bound)} an hour"
    if hourly(bound * (1 + gap)) == hourly(bound):
        return ["No nodes for these pods cost less."]
    why = _HOLDS.get(held, "") if gap >= _WORTH_SAYING else ""
    return [f"{least}; these are {gap:.0%} above it{why}."]


def _cost_line(plan: Plan) -> str:
    cost = plan.cost
    unpriced = (
        f" ({counted(cost.unpriced, 'node')} without a price not counted)" if cost.unpriced else ""
    )
    if hourly(cost.before) == hourly(cost.after):
        return f"{dollars(cost.after)} an hour, {monthly(cost.after)} a month{unpriced}."
    change = cost.after - cost.before
    return (
        f"{dollars(cost.before)} → {dollars(cost.after)} an hour ({dollars(change, signed=True)}), "
        f"{monthly(cost.before)} → {monthly(cost.after)} a month "
        f"({monthly(change, signed=True)}){unpriced}."
    )


def summed(pools: Iterable[PoolCost]) -> PoolCost:
    """Return several NodePools as if they were one."""
    every = list(pools)
    return PoolCost(
        nodes_before=sum(p.nodes_before for p in every),
        nodes_after=sum(p.nodes_after for p in every),
        before=round(sum(p.before for p in every), 9),
        after=round(sum(p.after for p in every), 9),
    )
