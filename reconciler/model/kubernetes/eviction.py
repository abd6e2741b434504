"""What a PodDisruptionBudget allows, as the eviction API judges it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Final

from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.metadata import is_true
from reconciler.model.kubernetes.pod import Pod

# In which order a drain asks pods to leave, and from when on it does not ask.
#
# The rules are those of Karpenter's terminator (``pkg/controllers/node/termination/terminator``).


_CRITICAL: Final = 2_000_000_000
_CRITICAL_CLASSES: Final = ("system-cluster-critical", "system-node-critical")
_GRACE_S: Final = 30


def drain_groups(pods: Iterable[Pod]) -> list[list[Pod]]:
    """Return the pods in the groups that leave one after another.

    Ordinary pods first, then daemons, then critical pods, then critical daemons: what others lean
    on goes last.
    """
    groups: list[list[Pod]] = [[], [], [], []]
    for pod in sorted(pods, key=lambda p: p.key):
        spec = pod.spec
        critical = (
            spec.priority or 0
        ) >= _CRITICAL or spec.priority_class_name in _CRITICAL_CLASSES
        groups[2 * critical + pod.is_daemon].append(pod)
    return [group for group in groups if group]


def must_go(pod: Pod, deadline: datetime | None, now: datetime) -> bool:
    """Return whether a pod is deleted now, whatever protects it, to be gone by the deadline.

    One that was asked to leave already is, where it would take longer than that.
    """
    if deadline is None:
        return False
    leaves_by = pod.metadata.deletion_timestamp
    if leaves_by is not None:
        return leaves_by > deadline
    grace = pod.spec.termination_grace_period_seconds
    return now >= deadline - timedelta(seconds=_GRACE_S if grace is None else grace)


def grace_left(deadline: datetime, now: datetime) -> int:
    """Return the seconds that a pod which must go is given: what is left, and at least one.

    None at all would take it off the books before its kubelet has ended it.
    """
    return max(int((deadline - now).total_seconds()), 1)


def disruptions_allowed(budget: PodDisruptionBudget, pods: Iterable[Pod]) -> int:
    """Return how many more pods of a budget may be evicted now.

    ``pods`` are all of the cluster. A share rounds up, for ``minAvailable`` and for
    ``maxUnavailable`` alike, as Kubernetes' disruption controller does.
    """
    covered = [pod for pod in pods if budget.selects(pod) and not pod.is_terminal]
    healthy = sum(1 for pod in covered if is_healthy(pod))
    return max(healthy - desired_healthy(budget, len(covered)), 0)


def desired_healthy(budget: PodDisruptionBudget, expected: int) -> int:
    """Return how many of ``expected`` pods must stay healthy."""
    spec = budget.spec
    if spec.max_unavailable is not None:
        return max(expected - _amount(spec.max_unavailable, expected), 0)
    return _amount(spec.min_available, expected) if spec.min_available is not None else 0


def is_healthy(pod: Pod) -> bool:
    """Return whether a pod runs, is ready, and nobody has asked it to leave."""
    return not pod.is_terminating and is_true(pod.status.conditions, "Ready")


def may_evict(pod: Pod, budgets: Sequence[PodDisruptionBudget], pods: Sequence[Pod]) -> bool:
    """Return whether the eviction API would let a pod go now.

    Several budgets on one pod are refused altogether. An unhealthy pod can be evicted where
    that takes nothing from what the budget protects, or where its policy says so.
    """
    covering = [budget for budget in budgets if budget.selects(pod)]
    if not covering:
        return True
    if len(covering) > 1:
        return False
    budget = covering[0]
    if not is_healthy(pod):
        if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
            return True
        covered = [p for p in pods if budget.selects(p) and not p.is_terminal]
        needed = desired_healthy(budget, len(covered))
        return sum(1 for p in covered if is_healthy(p)) >= needed > 0
    return disruptions_allowed(budget, pods) > 0


def _amount(value: int | str, total: int) -> int:
    if isinstance(value, int):
        return value
    text = value.strip()
    return -(-total * int(text[:-1]) // 100) if text.endswith("%") else int(text)
