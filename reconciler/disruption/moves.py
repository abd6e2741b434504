"""The commands that a pass has decided since its scheduler was built, and whom they affect.

A scheduler is reused after a command unless pods to place have rules about the pods that moved.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from reconciler.model.karpenter.labels import HOSTNAME, RESERVED, ZONE
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.fingerprint import PodKind
from reconciler.placement.question import Placement


class CommandMoves:
    """The commands decided since the scheduler was built."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.touched: set[str] = set()
        self._kinds: dict[PodKind, dict[str, str]] = {}
        self._repels = False
        self._draws = False

    def __bool__(self) -> bool:
        return bool(self.gone or self.touched)

    @property
    def excluded_nodes(self) -> frozenset[str]:
        """The nodes that no later pod may be placed on."""
        return frozenset(self.gone | self.touched)

    def add(self, gone: Collection[str], placement: Placement, moved: Iterable[Pod]) -> None:
        """Record a command; ``moved`` are the pods that leave their nodes."""
        self.gone.update(gone)
        self.touched.update(placement.on_nodes.values())
        for claim in placement.claims:
            drawn = claim.launch[1].capacity_type == RESERVED
            self._draws = self._draws or drawn or bool(claim.node_pool.spec.limits)
        for pod in moved:
            self._draws |= pod.is_virtual  # buffer room may still move or change
            labels = pod.metadata.labels
            self._kinds.setdefault((pod.namespace, frozenset(labels.items())), labels)
            affinity = pod.spec.affinity
            self._repels |= affinity is not None and affinity.pod_anti_affinity is not None

    def force_rebuild(self) -> None:
        """Make the moves affect every simulation."""
        self._draws = True

    def affects(self, pods: Iterable[Pod]) -> bool:
        """Return whether simulating these pods needs a scheduler that includes the moves."""
        if self._draws or self._repels:
            return True
        return any(
            self._selects(selector, namespace)
            for pod in pods
            for selector, namespace in _rule_selectors(pod)
        )

    def _selects(self, selector: LabelSelector | None, namespace: str | None) -> bool:
        if selector is None:
            return True
        return any(
            (namespace is None or namespace == kind[0]) and selector.matches(labels)
            for kind, labels in self._kinds.items()
        )


def _rule_selectors(pod: Pod) -> Iterator[tuple[LabelSelector | None, str | None]]:
    """Yield selector and namespace of the pod's rules, with a None namespace for any.

    A None selector stands for a rule that a change of nodes alone may affect.
    """
    for constraint in pod.spec.topology_spread_constraints:
        plain = constraint.topology_key in (ZONE, HOSTNAME) and constraint.min_domains is None
        yield (constraint.label_selector if plain else None), pod.namespace
    affinity = pod.spec.affinity
    if affinity is None:
        return
    for side in (affinity.pod_affinity, affinity.pod_anti_affinity):
        if side is not None:
            terms = [*side.required, *(preferred.pod_affinity_term for preferred in side.preferred)]
            for term in terms:
                plain = not term.namespaces and term.namespace_selector is None
                yield term.label_selector, pod.namespace if plain else None
