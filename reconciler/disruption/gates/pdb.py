"""Determine which PodDisruptionBudgets prevent the eviction of a pod.

The rules are Karpenter's (``pkg/utils/pdb/pdb.go``). Each pod is evaluated separately, so two pods
behind a budget that allows one disruption do not block each other here. Only pods that a drain
would evict can be protected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import chain, islice
from typing import Final

from reconciler.model.karpenter.requirements import Operator
from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.pod import Pod, is_ready_false

_Label = tuple[str, str, str]

BUDGETS_SHOWN: Final = 10
"""How many of the budgets that select a pod are named; somebody may create any number of them."""


EVALUATED_MAX: Final = 200
"""How many budgets are evaluated for a pod.

Beyond that, all of them count as selecting it, so it is not evicted. Otherwise a tenant with many
pods and budgets would make a pass as long as the number of pods times that of budgets.
"""


class PodDisruptionBudgets:
    """The budgets of a cluster, indexed by the label that the fewest of them select."""

    def __init__(self, budgets: Iterable[PodDisruptionBudget]) -> None:
        self._by_label: dict[_Label, list[PodDisruptionBudget]] = {}
        self._by_namespace: dict[str, list[PodDisruptionBudget]] = {}
        self._known: dict[tuple[str, int], tuple[object, tuple[PodDisruptionBudget, ...]]] = {}
        selecting = sorted((b for b in budgets if b.spec.selector is not None), key=lambda b: b.key)
        choices = [_label_choices(budget) for budget in selecting]
        count = Counter(label for choice in choices for labels in choice for label in labels)
        for budget, choice in zip(selecting, choices, strict=True):
            labels = min(choice, key=lambda c: (max(count[label] for label in c), c), default=None)
            for label in labels or ():
                self._by_label.setdefault(label, []).append(budget)
            if labels is None:
                self._by_namespace.setdefault(budget.namespace, []).append(budget)

    def budgets_selecting(self, pod: Pod) -> Sequence[PodDisruptionBudget]:
        """Return the budgets that select the pod, by name.

        They depend on its namespace and labels, which the pods of a workload often share.
        """
        if not self._by_label and not self._by_namespace:
            return ()
        labels = pod.metadata.labels
        key = (pod.metadata.namespace, id(labels))
        known = self._known.get(key)
        if known is None:  # the labels are kept, so that no others get their id
            known = self._known[key] = (labels, tuple(self._find_selecting(pod)))
        return known[1]

    def _find_selecting(self, pod: Pod) -> Sequence[PodDisruptionBudget]:
        namespace = pod.namespace
        indexed = [self._by_namespace.get(namespace, [])]
        for key, value in pod.metadata.labels.items():
            indexed.append(self._by_label.get((namespace, key, value), []))
        some = list(islice(chain.from_iterable(indexed), EVALUATED_MAX + 1))
        found = [b for b in some if b.selects(pod)] if len(some) <= EVALUATED_MAX else some
        return sorted(found, key=lambda b: b.key) if len(found) > 1 else found

    def refusal(self, pod: Pod, now: datetime) -> str | None:
        """Return why the eviction API would reject the pod now, or None."""
        names = self.budgets_refusing(pod, now)
        if not names:
            return None
        if len(names) > EVALUATED_MAX:
            found = list_budgets(names[:BUDGETS_SHOWN], " ")
            return f"more than {EVALUATED_MAX} PDBs may select the pod (such as [{found}])"
        if len(names) > 1:
            found = list_budgets(names, " ")
            return f"eviction does not support multiple PDBs (PodDisruptionBudget(s)=[{found}])"
        return f"pdb prevents pod evictions (PodDisruptionBudget=[{names[0]}])"

    def budgets_refusing(self, pod: Pod, now: datetime) -> Sequence[str]:
        """Return the budgets because of which the eviction API would reject the pod now.

        One allows no eviction. Several select the pod: the API then never evicts it.
        """
        selecting = self.budgets_selecting(pod)
        if not selecting or not pod.is_evictable(now):
            return ()
        first = selecting[0]
        allowed = _evicts_unready(first, pod) or first.status.disruptions_allowed > 0
        return () if allowed and len(selecting) == 1 else [b.key for b in selecting]

    def is_fully_blocked(self, pod: Pod, now: datetime) -> bool:
        """Return whether the pod can never be evicted."""
        selecting = self.budgets_selecting(pod)
        if not selecting or not pod.is_evictable(now):
            return False
        if len(selecting) > 1:
            return True
        return any(b.is_fully_blocking and not _evicts_unready(b, pod) for b in selecting)

    def is_currently_reschedulable(self, pod: Pod, now: datetime) -> bool:
        """Return whether the pod would actually need another node."""
        if not pod.is_reschedulable or not pod.is_disruptable(now):
            return False
        return not self.is_fully_blocked(pod, now)

    def without_fully_blocked(self, pods: Iterable[Pod], now: datetime) -> tuple[Pod, ...]:
        """Return the pods that can be evicted some time."""
        selecting, blocked = self.budgets_selecting, self.is_fully_blocked
        return tuple([pod for pod in pods if not selecting(pod) or not blocked(pod, now)])


def _label_choices(budget: PodDisruptionBudget) -> list[tuple[_Label, ...]]:
    """Return sets of labels; a pod that is selected has exactly one label of each set."""
    namespace, selector = budget.namespace, budget.spec.selector
    assert selector is not None, "a budget without a selector selects nothing"
    found = [((namespace, key, value),) for key, value in selector.match_labels.items()]
    return found + [
        tuple((namespace, e.key, value) for value in dict.fromkeys(e.values))
        for e in selector.match_expressions
        if e.operator == Operator.IN and e.values
    ]


def list_budgets(names: Sequence[str], separator: str = " and ") -> str:
    """Return the names of budgets in one text, the first ``BUDGETS_SHOWN`` of them."""
    more = len(names) - BUDGETS_SHOWN
    found = separator.join(names[:BUDGETS_SHOWN])
    return f"{found} and {more} more" if more > 0 else found


def _evicts_unready(budget: PodDisruptionBudget, pod: Pod) -> bool:
    return budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow" and is_ready_false(pod)
