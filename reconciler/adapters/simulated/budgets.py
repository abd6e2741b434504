"""The PodDisruptionBudgets of a simulated cluster, and the pods that each of them selects."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from reconciler.model.kubernetes.cluster import PodDisruptionBudget, PodDisruptionBudgetStatus
from reconciler.model.kubernetes.eviction import disruptions_allowed
from reconciler.model.kubernetes.pod import Pod


class CoveringBudgets:
    """Finds the budgets of pods; pods that share labels are evaluated once."""

    def __init__(self) -> None:
        self._budgets: tuple[PodDisruptionBudget, ...] = ()
        self._numbers: dict[tuple[int, str], tuple[object, tuple[int, ...]]] = {}

    def with_allowed_evictions(
        self, budgets: tuple[PodDisruptionBudget, ...], pods: Iterable[Pod]
    ) -> tuple[PodDisruptionBudget, ...]:
        """Return the budgets with their allowed evictions; ``pods`` are all pods of the cluster."""
        covered: list[list[Pod]] = [[] for _ in budgets]
        for pod in pods:
            for number in self._selecting_budgets(budgets, pod):
                covered[number].append(pod)
        return tuple(
            replace(b, status=PodDisruptionBudgetStatus(disruptions_allowed(b, own)))
            for b, own in zip(budgets, covered, strict=True)
        )

    def protecting_budgets(
        self,
        budgets: tuple[PodDisruptionBudget, ...],
        evicted: Sequence[Pod],
        pods: Callable[[], Iterable[Pod]],
    ) -> tuple[list[PodDisruptionBudget], list[Pod]]:
        """Return the budgets that protect ``evicted`` pods, and the ``pods`` that they select."""
        numbers = {number for pod in evicted for number in self._selecting_budgets(budgets, pod)}
        if not numbers:
            return [], []
        selected = [
            pod
            for pod in pods()
            for own in (self._selecting_budgets(budgets, pod),)
            if own and not numbers.isdisjoint(own)
        ]
        return [budgets[number] for number in sorted(numbers)], selected

    def _selecting_budgets(
        self, budgets: tuple[PodDisruptionBudget, ...], pod: Pod
    ) -> tuple[int, ...]:
        """Return which of the budgets select a pod.

        This depends on its namespace and labels, and is computed once.
        """
        if budgets is not self._budgets:
            self._budgets, self._numbers = budgets, {}
        labels = pod.metadata.labels
        known = self._numbers.get((id(labels), pod.namespace))
        if known is None:  # the labels are kept, so that no others get their id
            selecting = tuple(n for n, budget in enumerate(budgets) if budget.selects(pod))
            known = self._numbers[id(labels), pod.namespace] = (labels, selecting)
        return known[1]
