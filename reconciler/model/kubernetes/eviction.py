"""PodDisruptionBudgets as the eviction API evaluates them, and the order of a drain.

The order in which a drain evicts pods, and when it deletes them instead, are those of Karpenter's
terminator (``pkg/controllers/node/termination/terminator``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import islice
from typing import Final, NamedTuple

from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.controllers import grace_period, is_replaced_at_once
from reconciler.model.kubernetes.metadata import is_true
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.text.quoting import quote_value

_CRITICAL_PRIORITY: Final = 2_000_000_000
_AMOUNT: Final = re.compile(r"[0-9]{1,9}%?", re.ASCII)
_CRITICAL_CLASSES: Final = ("system-cluster-critical", "system-node-critical")


def drain_groups(pods: Iterable[Pod]) -> list[list[Pod]]:
    """Return the pods in groups that are drained one after another.

    Ordinary pods come first, then daemons, then critical pods, then critical daemons, because other
    pods depend on them.
    """
    groups: list[list[Pod]] = [[], [], [], []]
    for pod in sorted(pods, key=lambda p: p.key):
        spec = pod.spec
        critical = (
            spec.priority or 0
        ) >= _CRITICAL_PRIORITY or spec.priority_class_name in _CRITICAL_CLASSES
        groups[2 * critical + pod.is_daemon].append(pod)
    return [group for group in groups if group]


def must_delete_now(pod: Pod, deadline: datetime | None, now: datetime) -> bool:
    """Return whether a pod must be deleted now, even if protected, to be gone by the deadline.

    A pod that is already terminating must be deleted again if it would take longer than that.
    """
    if deadline is None:
        return False
    deletion_time = pod.metadata.deletion_timestamp
    if deletion_time is not None:
        return deletion_time > deadline
    return now >= deadline - grace_period(pod)


def remaining_grace(deadline: datetime, now: datetime) -> int:
    """Return the grace period in seconds for a pod that must be deleted: the rest, at least one.

    Zero would remove the object before its kubelet has terminated the pod.
    """
    return max(int((deadline - now).total_seconds()), 1)


class CoveredPods(NamedTuple):
    """How many pods of a budget are healthy, and how many their controllers want."""

    healthy: int = 0
    expected: int = 0

    def plus(self, other: CoveredPods) -> CoveredPods:
        """Return the sum of both."""
        return CoveredPods(self.healthy + other.healthy, self.expected + other.expected)


def count_covered(pods: Iterable[Pod]) -> CoveredPods:
    """Return what counts of the pods that a budget selects.

    Completed ones do not count, and controllers do not want those that have successors.
    """
    covered = [pod for pod in pods if not pod.is_terminal]
    leaving = sum(1 for pod in covered if pod.is_terminating and is_replaced_at_once(pod))
    return CoveredPods(sum(map(is_healthy, covered)), len(covered) - leaving)


def evictions_left(budget: PodDisruptionBudget, covered: CoveredPods) -> int:
    """Return how many more pods of a budget may be evicted now.

    Percentages are rounded up, for ``minAvailable`` and ``maxUnavailable`` alike, as in Kubernetes'
    disruption controller.
    """
    return max(covered.healthy - desired_healthy(budget, covered.expected), 0)


def disruptions_allowed(budget: PodDisruptionBudget, pods: Iterable[Pod]) -> int:
    """Return the same for all ``pods`` of the cluster."""
    return evictions_left(budget, count_covered(filter(budget.selects, pods)))


def desired_healthy(budget: PodDisruptionBudget, expected: int) -> int:
    """Return how many of ``expected`` pods must stay healthy."""
    spec = budget.spec
    if spec.max_unavailable is not None:
        return max(expected - _resolve_amount(spec.max_unavailable, expected), 0)
    return _resolve_amount(spec.min_available, expected) if spec.min_available is not None else 0


def is_healthy(pod: Pod) -> bool:
    """Return whether a pod is running, ready and not being deleted."""
    return not pod.is_terminating and is_true(pod.status.conditions, "Ready")


def may_evict(pod: Pod, budgets: Sequence[PodDisruptionBudget], pods: Sequence[Pod]) -> bool:
    """Return whether the eviction API would allow evicting a pod now.

    A pod with several budgets is always rejected. An unhealthy pod can be evicted if that does not
    affect the pods that the budget protects, or if its policy allows it.
    """
    covering = list(islice((budget for budget in budgets if budget.selects(pod)), 2))
    if not covering:
        return True
    if len(covering) > 1:
        return False
    budget = covering[0]
    if not is_healthy(pod):
        if budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow":
            return True
        covered = count_covered(filter(budget.selects, pods))
        return covered.healthy >= desired_healthy(budget, covered.expected) > 0
    return disruptions_allowed(budget, pods) > 0


def check_amount(value: int | str | None) -> None:
    """Check what the API server checks of ``minAvailable`` and ``maxUnavailable``.

    Raises:
        ValueError: it is not a number of pods, and not a percentage.
    """
    if value is None or (isinstance(value, int) and value >= 0):
        return
    if isinstance(value, int) or _AMOUNT.fullmatch(value) is None:
        raise ValueError(f"{quote_value(value)} is not a number of pods (examples: 1, 50%)")


def _resolve_amount(value: int | str, total: int) -> int:
    if isinstance(value, int):
        return value
    return -(-total * int(value[:-1]) // 100) if value.endswith("%") else int(value)
