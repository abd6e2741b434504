"""Pods that cannot be scheduled: now, after later passes, and if their present nodes go."""

from __future__ import annotations

from typing import Final

from reconciler.plan.value.plan import Plan


def unschedulable_pods(plan: Plan) -> list[str]:
    """Return the pods that cannot be scheduled, by this plan or by those that follow it."""
    now = {pod.pod for pod in plan.unschedulable}
    if plan.at_rest is not None:
        found = plan.at_rest.unschedulable
        return sorted({*found, *now} if plan.at_rest.bounds is not None else found)
    if plan.steady_state is not None:
        return list(plan.steady_state.unschedulable)
    return sorted(now)


def stranded_pods(plan: Plan) -> list[str]:
    """Return the pods that stay where they run, but that no new node can take.

    Without a cluster the first pass is from no node at all, so it shows what new nodes can take.
    """
    change = plan.at_rest
    if change is None or has_nodes(plan):
        return []
    waiting = set(change.unschedulable)
    return [
        pod.pod
        for pod in plan.unschedulable
        if pod.pod not in waiting and pod.reasons and all(r.code in LASTING for r in pod.reasons)
    ]


LASTING: Final = (
    "RequirementsConflict",
    "LabelUnknown",
    "HostnameRequired",
    "NoInstanceTypes",
    "MinValuesUnmet",
    "TaintNotTolerated",
)
"""The reasons that no later pass removes, the most informative first."""


def pods_at_fault(plan: Plan) -> list[str]:
    """Return the pods for which a plan fails: with a base, only those that the change breaks."""
    change = plan.at_rest
    if change is None or change.bounds is not None:
        return unschedulable_pods(plan)
    return sorted({*change.newly_unschedulable, *stranded_pods(plan)})


def pods_placed_later(plan: Plan) -> list[str]:
    """Return the pods that this plan does not place, and a later one does."""
    final = {*unschedulable_pods(plan), *stranded_pods(plan)}
    return [pod.pod for pod in plan.unschedulable if pod.pod not in final]


def has_nodes(plan: Plan) -> bool:
    """Return whether nodes were observed, so that the first pass starts from a present fleet."""
    return any(pool.nodes_before for pool in plan.cost.by_node_pool.values())
