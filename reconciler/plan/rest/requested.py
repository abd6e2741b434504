"""What changed workloads request whose nodes are not planned, so that their cost is not known.

A plan has the pods of a cluster instead of those of the files, or AWS launches the nodes (EKS Auto
Mode). What such workloads request is then the only measure of the change. Beside a cluster its cost
is estimated by the rule of ``docs/cost-allocation.md``: a pod pays for the largest share of the
cluster that it requests, at the price that the pods of the cluster pay together.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from reconciler.desired.objects import node_pools
from reconciler.desired.workloads.pods import workloads_of
from reconciler.model.billing import HOURS_A_MONTH
from reconciler.model.decision.changes import Change
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.grouping import Grouping
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import MILLI, PODS, Resources, add_resources
from reconciler.model.text.counting import format_count, format_list
from reconciler.model.text.money import format_monthly
from reconciler.observed.allocation import weight, workload_of
from reconciler.observed.state import ClusterState
from reconciler.placement.explain.reasons import format_amount
from reconciler.plan.automode import (
    NOT_FORECAST,
    is_auto_mode,
    left_to_auto_mode,
    may_take,
    unknown_cost,
)
from reconciler.plan.make.inputs import Inputs, RevisionPair
from reconciler.plan.render.unknown import WORKLOAD_KINDS
from reconciler.plan.render.unplaced import workload_of as stem_of
from reconciler.plan.value.costs import AtRest

OBSERVED: Final = ("snapshot", "cluster")
"""Where a plan has its pods from, if not from the files."""
_NAMED: Final = 3
_PAYERS_NAMED: Final = 4
_POOLS_NAMED: Final = 3
_DOLLAR_A_MONTH: Final = 1 / HOURS_A_MONTH


def unread_workloads(
    pair: RevisionPair, changes: Iterable[Change], change: AtRest
) -> Iterator[PlanFinding]:
    """Yield that workloads of the files change, while the pods are those of a cluster."""
    names = [f"{row.kind} {row.name}" for row in changes if row.kind in WORKLOAD_KINDS]
    observation = pair.head.observation
    if not names or observation not in OBSERVED:
        return
    source = "snapshot" if observation == "snapshot" else "cluster"
    yield PlanFinding(
        severity="warning",
        code="change-not-included",
        message=f"{format_list(names, _NAMED)} {'changes' if len(names) == 1 else 'change'}, which "
        f"is not included: pods and budgets are those of the {source}",
        hint="plan without a cluster to compare the workloads of the files",
    )
    before, after = _pods_of(pair.base), _pods_of(pair.head)
    message = _requests_change(_requests_of(before), _requests_of(after))
    groups = estimated_costs(
        pair.head.cluster, change.before.per_hour, pair.head.cost_by, before, after
    )
    amount = sum(groups.values())
    if abs(amount) >= _DOLLAR_A_MONTH:
        cost = format_monthly(amount, signed=True)
        message += f": about {cost}/month at what requests cost in the {source} now"
    yield PlanFinding(severity="info", code="change-of-requests", message=message)
    paying = sorted(
        (pair for pair in groups.items() if abs(pair[1]) >= _DOLLAR_A_MONTH),
        key=lambda pair: (-abs(pair[1]), pair[0]),
    )
    if len(paying) > 1:
        yield _payers(paying, pair.head.cost_by)


def requests_finding(before: Iterable[Pod], after: Iterable[Pod]) -> Iterator[PlanFinding]:
    """Yield by how much the requests of pods change, if they do."""
    old, new = _requests_of(before), _requests_of(after)
    if old != new:
        message = _requests_change(old, new)
        yield PlanFinding(severity="info", code="change-of-requests", message=message)


def _payers(paying: Sequence[tuple[str, float]], by: Grouping) -> PlanFinding:
    shown = [f"{name} {format_monthly(cost, signed=True)}" for name, cost in paying[:_PAYERS_NAMED]]
    more = len(paying) - len(shown)
    tail = f" and {more} more" if more else ""
    return PlanFinding(
        severity="info",
        code="cost-of-requests",
        message=f"By {str(by).replace('label=', 'label ')}, estimated from requests ($/month): "
        f"{', '.join(shown)}{tail}",
    )


def estimated_costs(
    cluster: ClusterState,
    per_hour: float,
    by: Grouping,
    before: Sequence[Pod],
    after: Sequence[Pod],
) -> dict[str, float]:
    """Return by how much the cost of each group of pods changes, in USD an hour.

    ``per_hour`` is what the nodes of the cluster cost; nothing is returned if no pod pays for them.
    """
    room = add_resources(*(node.allocatable for node in cluster.nodes))
    paid = sum(weight(pod, room) for node in cluster.nodes for pod in node.reschedulable)
    if not paid or per_hour <= 0:
        return {}
    weights: dict[str, int] = defaultdict(int)
    for pods, sign in ((before, -1), (after, 1)):
        for pod in pods:
            group = by.group_of(pod.namespace, workload_of(pod), pod.metadata.labels)
            weights[group] += sign * weight(pod, room)
    return {name: per_hour * found / paid for name, found in weights.items() if found}


def _pods_of(inputs: Inputs) -> Sequence[Pod]:
    return workloads_of(inputs.fleet)[0].pods


def _requests_of(pods: Iterable[Pod]) -> Resources:
    """Return the requests of all pods, with their number."""
    return add_resources(*(pod.requests() for pod in pods))


def _requests_change(before: Resources, after: Resources) -> str:
    """Return by how much requests change: ``+18 cpu, +27Gi memory (+18 pods)``."""
    changed = {
        name: f"{_sign(more)}{format_amount(name, abs(more))} {name}"
        for name in sorted(before.keys() | after.keys())
        if (more := after.get(name, 0) - before.get(name, 0))
    }
    more = (after.get(PODS, 0) - before.get(PODS, 0)) // MILLI
    pods = f" ({_sign(more)}{format_count(abs(more), 'pod')})" if changed.pop(PODS, "") else ""
    if not changed:
        return f"the requests of the workloads in the files do not change{pods}"
    return f"the workloads in the files request {', '.join(changed.values())}{pods}"


def _sign(more: int) -> str:
    return "+" if more > 0 else "−"


def _launched_by_auto_mode(
    pair: RevisionPair, changes: Iterable[Change], auto: Iterable[NodePool], *, is_all: bool
) -> str:
    """Return what the nodes of a change are, if AWS launches them: all, or those of ``auto``."""
    names = {pool.name for pool in auto}
    changed = [row.name for row in changes if row.kind == "NodePool" and row.name in names]
    if changed:
        shown = format_list((f"NodePool {name}" for name in sorted(changed)), _POOLS_NAMED)
        return f"the nodes of {shown} are those"
    before, after = _dependents(pair.base), _dependents(pair.head)
    if before != after:
        old, new = before.total(), after.total()
        pods = format_count(new, "pod") if old == new else f"{old:,} → {format_count(new, 'pod')}"
        return f"{pods} run on nodes"
    return "all nodes are those" if is_all else ""


def auto_mode_change(pair: RevisionPair, changes: Iterable[Change]) -> Iterator[PlanFinding]:
    """Yield that the cost of a change is unknown because EKS Auto Mode launches nodes for it.

    That is so if it changes these NodePools, or the pods that only they may take, and if a fleet
    has no other NodePools.
    """
    pools = (*node_pools(pair.base.fleet), *node_pools(pair.head.fleet))
    auto = list(filter(is_auto_mode, pools))
    if not auto:
        return
    classes = _changed_classes(pair)
    if classes:
        verb = "changes" if len(classes) == 1 else "change"
        yield PlanFinding(
            severity="warning",
            code="change-not-read",
            message=f"{format_list(classes, _NAMED)} of EKS Auto Mode {verb}: which nodes AWS "
            "replaces for that is not known",
        )
    what = _launched_by_auto_mode(pair, changes, auto, is_all=len(auto) == len(pools))
    if not what:
        return
    yield unknown_cost(f"{what} of EKS Auto Mode, {NOT_FORECAST}")
    if pair.head.observation not in OBSERVED and pair.base.cluster.pods:
        yield from requests_finding(pair.base.cluster.pods, pair.head.cluster.pods)


def _changed_classes(pair: RevisionPair) -> list[str]:
    """Return the classes of EKS Auto Mode that a change adds, changes or removes."""
    before, after = pair.base.fleet.auto_mode, pair.head.fleet.auto_mode
    names = sorted(before.keys() | after.keys())
    return [name for name in names if before.get(name) != after.get(name)]


def _dependents(inputs: Inputs) -> Counter[tuple[object, ...]]:
    """Return the pods that only EKS Auto Mode may take, by what decides about their nodes."""
    pools = node_pools(inputs.fleet)
    others = [pool for pool in pools if not is_auto_mode(pool)]
    pods = [pod for pod in inputs.cluster.pods if pod.is_reschedulable]
    left = left_to_auto_mode(pods, pools)
    return Counter(
        (stem_of(pod.key), tuple(sorted(pod.requests().items())))
        for pod in pods
        if pod.key in left and not any(may_take(pool, pod) for pool in others)
    )
