"""Pods that cannot be scheduled: now, after later passes, and if their present nodes go."""

from __future__ import annotations

from typing import Final

from reconciler.plan.value.nodes import UnschedulablePod
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
    if change is None:
        return []
    waiting = set(change.unschedulable)
    if change.new_nodes is not None:
        return [pod for pod in change.new_nodes.unschedulable if pod not in waiting]
    if has_nodes(plan):
        return []
    return [pod.pod for pod in plan.unschedulable if pod.pod not in waiting and _is_lasting(pod)]


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
    """Return the pods for which a plan fails: with a base, only those that the change breaks.

    A pod that only runs until its node is gone is one of them, also if what keeps it from new nodes
    is a limit. The order of launches may decide how many pods fit below a limit, but these are
    those of the run that loses the fewest.
    """
    change = plan.at_rest
    if change is None or change.bounds is not None:
        return unschedulable_pods(plan)
    return sorted({*change.newly_unschedulable, *stranded_pods(plan)})


def pods_placed_later(plan: Plan) -> list[str]:
    """Return the pods that this plan does not place, and a later one does.

    Pods that only lose their place with their nodes may have other names than those of this plan:
    they are counted.
    """
    known = set(unschedulable_pods(plan))
    waiting = [pod for pod in plan.unschedulable if pod.pod not in known]
    stranded = len(stranded_pods(plan))
    if stranded:
        waiting.sort(key=_is_lasting)  # stable: the order of names is kept
        waiting = waiting[: max(0, len(waiting) - stranded)]
    return [pod.pod for pod in waiting]


def _is_lasting(pod: UnschedulablePod) -> bool:
    return bool(pod.reasons) and all(reason.code in LASTING for reason in pod.reasons)


def has_nodes(plan: Plan) -> bool:
    """Return whether nodes were observed, so that the first pass starts from a present fleet."""
    return any(pool.nodes_before for pool in plan.cost.by_node_pool.values())
