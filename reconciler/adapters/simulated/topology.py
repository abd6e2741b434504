"""How pods must stand to each other: spread, affinity and anti-affinity, as hard rules.

Preferences (``ScheduleAnyway``, ``preferred…``) are not rules and do not count here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from reconciler.adapters.simulated.selection import matches_node, repelling
from reconciler.model.metadata import LabelSelector, SelectorExpression
from reconciler.model.node import Node
from reconciler.model.pod import Pod, PodAffinity, PodAffinityTerm, TopologySpreadConstraint


@dataclass(frozen=True, slots=True)
class Placed:
    """A pod that has a node."""

    pod: Pod
    node: Node


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What a pod finds when it looks for a place: the nodes, the pods on them, the namespaces."""

    nodes: Sequence[Node]
    placed: Sequence[Placed]
    namespaces: Mapping[str, Mapping[str, str]]

    def crowding(self, pod: Pod, node: Node) -> int | None:
        """Return how many of the pods that this one is spread against share the node's domains.

        None means that a rule forbids the node.
        """
        if not self._affine(pod, node) or not self._undisturbed(pod, node):
            return None
        total = 0
        for constraint in pod.spec.topology_spread_constraints:
            if constraint.when_unsatisfiable != "DoNotSchedule":
                continue
            count = self._spread(pod, node, constraint)
            if count is None:
                return None
            total += count
        return total

    def _spread(self, pod: Pod, node: Node, rule: TopologySpreadConstraint) -> int | None:
        domain = node.metadata.labels.get(rule.topology_key)
        if domain is None:
            return None
        selector = _with_label_keys(rule.label_selector, rule.match_label_keys, pod)
        counts = {
            other.metadata.labels[rule.topology_key]: 0
            for other in self.nodes
            if rule.topology_key in other.metadata.labels and _counts(pod, other, rule)
        }
        for item in self.placed:
            place = item.node.metadata.labels.get(rule.topology_key, "")
            if place in counts and item.pod.namespace == pod.namespace and _counts_pod(item.pod):
                counts[place] += selector.matches(item.pod.metadata.labels)
        least = min(counts.values(), default=0)
        if rule.min_domains is not None and len(counts) < rule.min_domains:
            least = 0
        mine = counts.get(domain, 0)
        own = selector.matches(pod.metadata.labels)
        return mine if mine + own - least <= rule.max_skew else None

    def _affine(self, pod: Pod, node: Node) -> bool:
        """Return whether the pods that this one must be near are there.

        The first of a group that must be near its own kind may start the group anywhere.
        """
        for term in _required(pod.spec.affinity.pod_affinity if pod.spec.affinity else None):
            domain = node.metadata.labels.get(term.topology_key)
            if domain is None:
                return False
            near = [item for item in self.placed if self._selects(term, pod, item.pod)]
            if not near and self._selects(term, pod, pod):
                continue
            if not any(i.node.metadata.labels.get(term.topology_key) == domain for i in near):
                return False
        return True

    def _undisturbed(self, pod: Pod, node: Node) -> bool:
        """Return whether no pod that this one avoids, or that avoids this one, is too near."""
        own = _required(pod.spec.affinity.pod_anti_affinity if pod.spec.affinity else None)
        for item in self.placed:
            there = item.node.metadata.labels
            for term in own:
                if _same_domain(term, node, there) and self._selects(term, pod, item.pod):
                    return False
            other = item.pod.spec.affinity
            if other is None:
                continue
            for term in _required(other.pod_anti_affinity):
                if _same_domain(term, node, there) and self._selects(term, item.pod, pod):
                    return False
        return True

    def _selects(self, term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
        """Return whether a term of ``owner`` means ``other``."""
        if term.label_selector is None:
            return False
        selector = _with_label_keys(term.label_selector, term.match_label_keys, owner)
        if not selector.matches(other.metadata.labels):
            return False
        if any(
            owner.metadata.labels.get(key) == other.metadata.labels.get(key)
            for key in term.mismatch_label_keys
            if key in owner.metadata.labels
        ):
            return False
        if not term.namespaces and term.namespace_selector is None:
            return other.namespace == owner.namespace
        named = term.namespace_selector is not None and term.namespace_selector.matches(
            self.namespaces.get(other.namespace, {})
        )
        return named or other.namespace in term.namespaces


def _required(rules: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return rules.required if rules is not None else ()


def _same_domain(term: PodAffinityTerm, node: Node, there: Mapping[str, str]) -> bool:
    domain = node.metadata.labels.get(term.topology_key)
    return domain is not None and there.get(term.topology_key) == domain


def _counts(pod: Pod, node: Node, rule: TopologySpreadConstraint) -> bool:
    """Return whether a node's domain counts for a spread: by default affinity does, taints not."""
    if rule.node_affinity_policy != "Ignore" and not matches_node(pod.spec, node):
        return False
    return rule.node_taints_policy != "Honor" or not repelling(
        node.spec.taints, pod.spec.tolerations
    )


def _counts_pod(pod: Pod) -> bool:
    return not pod.is_terminating and not pod.is_terminal


def _with_label_keys(
    selector: LabelSelector | None, keys: Iterable[str], pod: Pod
) -> LabelSelector:
    """Return the selector narrowed to the pod's own values of ``keys``."""
    if selector is None:
        return _NOTHING
    pairs = {key: pod.metadata.labels[key] for key in keys if key in pod.metadata.labels}
    if not pairs:
        return selector
    return LabelSelector({**selector.match_labels, **pairs}, selector.match_expressions)


_NOTHING = LabelSelector(match_expressions=(SelectorExpression("", "In"),))
"""A selector that no pod satisfies: what a rule without one means."""
