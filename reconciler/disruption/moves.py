"""What a pass has moved since its scheduler was made, and whether that matters to a question.

Making a scheduler takes as long as a hundred questions to it. So it is kept after a command, and
the nodes that the command touched are left out of what follows: room is then never counted on
twice. That is exact unless the pods of the question look at pods that have moved, or a limit or
a reservation has been drawn on; then the scheduler is made anew.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from reconciler.model.labels import HOSTNAME, RESERVED, ZONE
from reconciler.model.metadata import LabelSelector
from reconciler.model.pod import Pod
from reconciler.placement.result import Placement

Kind = tuple[str, frozenset[tuple[str, str]]]
"""Namespace and labels: what selectors see of a pod."""


class Moves:
    """The commands decided since the scheduler was made."""

    def __init__(self) -> None:
        self.gone: set[str] = set()
        self.touched: set[str] = set()
        self._kinds: dict[Kind, dict[str, str]] = {}
        self._repels = False
        self._draws = False

    def __bool__(self) -> bool:
        return bool(self.gone or self.touched)

    @property
    def left_out(self) -> frozenset[str]:
        """The nodes that no later pod may be put on."""
        return frozenset(self.gone | self.touched)

    def add(self, gone: Collection[str], placement: Placement, moved: Iterable[Pod]) -> None:
        """Count what one command does; ``moved`` are the pods that leave their nodes."""
        self.gone.update(gone)
        self.touched.update(placement.on_nodes.values())
        for claim in placement.claims:
            drawn = claim.launch[1].capacity_type == RESERVED
            self._draws = self._draws or drawn or bool(claim.node_pool.spec.limits)
        for pod in moved:
            self._draws |= pod.is_virtual  # the nodes with its room may still go, or take more
            labels = pod.metadata.labels
            self._kinds.setdefault((pod.namespace, frozenset(labels.items())), labels)
            affinity = pod.spec.affinity
            self._repels |= affinity is not None and affinity.pod_anti_affinity is not None

    def matter(self) -> None:
        """Make the moves matter to every question."""
        self._draws = True

    def matter_to(self, pods: Iterable[Pod]) -> bool:
        """Return whether a question about these pods needs a scheduler that knows the moves."""
        if self._draws or self._repels:
            return True
        return any(
            self._selects(selector, namespace)
            for pod in pods
            for selector, namespace in _views(pod)
        )

    def _selects(self, selector: LabelSelector | None, namespace: str | None) -> bool:
        if selector is None:
            return True
        return any(
            (namespace is None or namespace == kind[0]) and selector.matches(labels)
            for kind, labels in self._kinds.items()
        )


def _views(pod: Pod) -> Iterator[tuple[LabelSelector | None, str | None]]:
    """Yield how the pod looks at others: selector and namespace, None where it may be any.

    No selector stands for a rule that a change of nodes alone may change.
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
