"""The PodDisruptionBudgets of a simulated cluster, and the pods that each of them selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from reconciler.model.kubernetes.cluster import PodDisruptionBudget, PodDisruptionBudgetStatus
from reconciler.model.kubernetes.eviction import CoveredPods, count_covered, evictions_left
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import NodePods, Pods


class CoveringBudgets:
    """Finds the budgets of pods; pods that share labels are evaluated once."""

    def __init__(self) -> None:
        self._budgets: tuple[PodDisruptionBudget, ...] = ()
        self._numbers: dict[tuple[int, str], tuple[object, tuple[int, ...]]] = {}
        self._covered: dict[int, tuple[NodePods, Mapping[int, CoveredPods]]] = {}
        self._selected: dict[frozenset[int], Sequence[str]] = {}
        self._selected_from: tuple[object, object] = (None, None)

    def with_allowed_evictions(
        self, budgets: tuple[PodDisruptionBudget, ...], pods: Pods
    ) -> tuple[PodDisruptionBudget, ...]:
        """Return the budgets with their allowed evictions; ``pods`` are all pods of the cluster.

        The pods of a node are counted again only when one of them changes.
        """
        self._use(budgets)
        last, self._covered = self._covered, {}
        total = [CoveredPods() for _ in budgets]
        for on_node in (*pods.by_node.values(), NodePods.from_tuple(pods.unbound)):
            known = last.get(id(on_node)) or (on_node, self._count_covered(budgets, on_node))
            self._covered[id(on_node)] = known  # the pods are kept, so that no others get their id
            for number, covered in known[1].items():
                total[number] = total[number].plus(covered)
        return tuple(
            replace(b, status=PodDisruptionBudgetStatus(evictions_left(b, covered)))
            for b, covered in zip(budgets, total, strict=True)
        )

    def _count_covered(
        self, budgets: tuple[PodDisruptionBudget, ...], pods: Iterable[Pod]
    ) -> Mapping[int, CoveredPods]:
        """Return what counts for each budget that selects one of the pods, by its number."""
        selected: dict[int, list[Pod]] = {}
        for pod in pods:
            for number in self._selecting_budgets(budgets, pod):
                selected.setdefault(number, []).append(pod)
        return {number: count_covered(own) for number, own in selected.items()}

    def protecting_budgets(
        self, budgets: tuple[PodDisruptionBudget, ...], evicted: Iterable[Pod]
    ) -> frozenset[int]:
        """Return which of the budgets protect ``evicted`` pods."""
        return frozenset(n for pod in evicted for n in self._selecting_budgets(budgets, pod))

    def selects(
        self, budgets: tuple[PodDisruptionBudget, ...], numbers: frozenset[int], pod: Pod
    ) -> bool:
        """Return whether one of the numbered budgets selects a pod."""
        return not numbers.isdisjoint(self._selecting_budgets(budgets, pod))

    def selected_keys(
        self,
        budgets: tuple[PodDisruptionBudget, ...],
        numbers: frozenset[int],
        pods: tuple[Pod, ...],
    ) -> Sequence[str]:
        """Return the keys of the pods that the numbered budgets select, found once for a tuple."""
        if self._selected_from[0] is not budgets or self._selected_from[1] is not pods:
            self._selected_from, self._selected = (budgets, pods), {}
        known = self._selected.get(numbers)
        if known is None:
            known = [pod.key for pod in pods if self.selects(budgets, numbers, pod)]
            self._selected[numbers] = known
        return known

    def _selecting_budgets(
        self, budgets: tuple[PodDisruptionBudget, ...], pod: Pod
    ) -> tuple[int, ...]:
        """Return which of the budgets select a pod.

        This depends on its namespace and labels, and is computed once.
        """
        self._use(budgets)
        labels = pod.metadata.labels
        known = self._numbers.get((id(labels), pod.namespace))
        if known is None:  # the labels are kept, so that no others get their id
            selecting = tuple(n for n, budget in enumerate(budgets) if budget.selects(pod))
            known = self._numbers[id(labels), pod.namespace] = (labels, selecting)
        return known[1]

    def _use(self, budgets: tuple[PodDisruptionBudget, ...]) -> None:
        """Forget what is known of the pods if these are other budgets than before."""
        if budgets is not self._budgets:
            self._budgets, self._numbers, self._covered = budgets, {}, {}
