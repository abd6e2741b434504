"""What a PodDisruptionBudget allows, as the eviction API judges it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reconciler.model.cluster import PodDisruptionBudget
from reconciler.model.metadata import is_true
from reconciler.model.pod import Pod


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
