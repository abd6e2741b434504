"""Pods that cannot be scheduled: now, after later passes, and if their present nodes go."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Final

from reconciler.plan.value.nodes import UnschedulablePod
from reconciler.plan.value.plan import Plan

_HASHED: Final = re.compile(r"(?<=.)-(?=[a-z0-9]*\d)[bcdfghjklmnpqrstvwxz2456789]{6,10}$")
"""The hash of a ReplicaSet at the end of a name, in the alphabet of Kubernetes."""

LASTING: Final = (
    "RequirementsConflict",
    "LabelUnknown",
    "HostnameRequired",
    "NoInstanceTypes",
    "MinValuesUnmet",
    "TaintNotTolerated",
)
"""The reasons that no later pass removes, the most informative first."""


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
        return _others(change.new_nodes.unschedulable, change.unschedulable)
    if has_nodes(plan):
        return []
    return [pod.pod for pod in plan.unschedulable if pod.pod not in waiting and _is_lasting(pod)]


def _others(pods: Iterable[str], known: Iterable[str]) -> list[str]:
    """Return the pods that are not known, by the number of their workload.

    Which of its replicas has no node is chance, and differs from run to run.
    """
    names = set(known)
    left = Counter(map(workload_of, names))
    others = []
    for pod in sorted(pods, key=lambda pod: pod not in names):
        left[workload_of(pod)] -= 1
        if left[workload_of(pod)] < 0:
            others.append(pod)
    return sorted(others)


def workload_of(pod: str) -> str:
    """Return the name of the workload that the name of a pod suggests, or that of the pod.

    Pods of a file have the name of the Deployment, those that replace them that of the ReplicaSet.
    """
    return _HASHED.sub("", pod.rpartition("-")[0]) or pod


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
    others = set(_others([pod.pod for pod in plan.unschedulable], unschedulable_pods(plan)))
    waiting = [pod for pod in plan.unschedulable if pod.pod in others]
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
