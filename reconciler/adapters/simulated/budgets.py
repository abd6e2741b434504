"""The PodDisruptionBudgets of a simulated cluster, and the pods that each of them selects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from reconciler.catalog.table import iterate_members, union_of
from reconciler.model.grouping import group_by
from reconciler.model.kubernetes.cluster import PodDisruptionBudget, PodDisruptionBudgetStatus
from reconciler.model.kubernetes.eviction import CoveredPods, count_covered, evictions_left
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import NodePods, Pods
from reconciler.placement.topology.rules import Selector
from reconciler.placement.topology.selectorindex import SelectorIndex


class CoveringBudgets:
    """Finds the budgets of pods; pods that share labels are evaluated once.

    A set of budgets is an integer with a bit for each, in their order.
    """

    def __init__(self) -> None:
        self._budgets: tuple[PodDisruptionBudget, ...] = ()
        self._index = SelectorIndex(())
        self._selecting: dict[tuple[int, str], tuple[object, int]] = {}
        self._covered: dict[int, tuple[NodePods, Mapping[int, CoveredPods]]] = {}
        self._selected: dict[int, Sequence[str]] = {}
        self._selected_from: tuple[object, object] = (None, None)

    def with_allowed_evictions(
        self, budgets: tuple[PodDisruptionBudget, ...], pods: Pods
    ) -> tuple[PodDisruptionBudget, ...]:
        """Return the budgets with their allowed evictions; ``pods`` are all pods of the cluster.

        The pods of a node are counted again only when one of them changes. Those with the same
        budgets are counted together: there may be as many budgets as pods.
        """
        self._use(budgets)
        last, self._covered = self._covered, {}
        by_budgets: dict[int, CoveredPods] = {}
        for on_node in (*pods.by_node.values(), NodePods.from_tuple(pods.unbound)):
            known = last.get(id(on_node)) or (on_node, self._count_covered(budgets, on_node))
            self._covered[id(on_node)] = known  # the pods are kept, so that no others get their id
            for selecting, covered in known[1].items():
                by_budgets[selecting] = by_budgets.get(selecting, CoveredPods()).plus(covered)
        total = [CoveredPods() for _ in budgets]
        for selecting, covered in by_budgets.items():
            for number in iterate_members(selecting):
                total[number] = total[number].plus(covered)
        return tuple(
            replace(b, status=PodDisruptionBudgetStatus(evictions_left(b, covered)))
            for b, covered in zip(budgets, total, strict=True)
        )

    def _count_covered(
        self, budgets: tuple[PodDisruptionBudget, ...], pods: Iterable[Pod]
    ) -> Mapping[int, CoveredPods]:
        """Return what counts of the pods for the budgets that select them, by their set."""
        by_budgets = group_by(pods, lambda pod: self._selecting_budgets(budgets, pod))
        return {some: count_covered(own) for some, own in by_budgets.items() if some}

    def protecting_budgets(
        self, budgets: tuple[PodDisruptionBudget, ...], evicted: Iterable[Pod]
    ) -> int:
        """Return which of the budgets protect ``evicted`` pods."""
        return union_of(self._selecting_budgets(budgets, pod) for pod in evicted)

    def selects(self, budgets: tuple[PodDisruptionBudget, ...], some: int, pod: Pod) -> bool:
        """Return whether one of some budgets selects a pod."""
        return bool(self._selecting_budgets(budgets, pod) & some)

    def selected_keys(
        self, budgets: tuple[PodDisruptionBudget, ...], some: int, pods: tuple[Pod, ...]
    ) -> Sequence[str]:
        """Return the keys of the pods that some of the budgets select, found once for a tuple."""
        if self._selected_from[0] is not budgets or self._selected_from[1] is not pods:
            self._selected_from, self._selected = (budgets, pods), {}
        known = self._selected.get(some)
        if known is None:
            known = [p.key for p in pods if self.selects(budgets, some, p)]
            self._selected[some] = known
        return known

    def _selecting_budgets(self, budgets: tuple[PodDisruptionBudget, ...], pod: Pod) -> int:
        """Return which of the budgets select a pod.

        This depends on its namespace and labels, and is computed once.
        """
        self._use(budgets)
        labels = pod.metadata.labels
        known = self._selecting.get((id(labels), pod.namespace))
        if known is None:  # the labels are kept, so that no others get their id
            known = labels, self._index.selecting(pod.namespace, labels)
            self._selecting[id(labels), pod.namespace] = known
        return known[1]

    def _use(self, budgets: tuple[PodDisruptionBudget, ...]) -> None:
        """Forget what is known of the pods if these are other budgets than before."""
        if budgets is not self._budgets:
            self._budgets, self._selecting, self._covered = budgets, {}, {}
            self._index = SelectorIndex(
                [((b.namespace,), Selector.from_label_selector(b.spec.selector)) for b in budgets]
            )
