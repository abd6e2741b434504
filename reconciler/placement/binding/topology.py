"""Rules between pods: required spread, affinity and anti-affinity.

Preferences (``ScheduleAnyway``, ``preferred…``) are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from reconciler.model.kubernetes.metadata import LabelSelector, SelectorExpression
from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import (
    Pod,
    PodAffinity,
    PodAffinityTerm,
    TopologySpreadConstraint,
)
from reconciler.placement.binding.selection import matches_node, untolerated_taints


@dataclass(slots=True)
class _PodGroup:
    """Placed pods that every rule treats equally, and the node of each.

    Rules read the namespace, the labels and the anti-affinity of a placed pod (``pod`` is one of
    them), and whether it still counts for a spread.
    """

    pod: Pod
    nodes: list[Node]
    counts: bool

    def domains(self, key: str) -> Iterator[str]:
        """Yield the domains of their nodes."""
        for node in self.nodes:
            domain = node.metadata.labels.get(key)
            if domain is not None:
                yield domain


@dataclass(frozen=True, slots=True)
class _Spread:
    """A spread constraint with the number of matching pods in each eligible domain."""

    key: str
    counts: Mapping[str, int]
    least: int
    own: bool
    max_skew: int


@dataclass(frozen=True, slots=True)
class Eligibility:
    """The domains that a pod may use given the other pods, computed once for all nodes.

    By key: ``required`` are domains of which one is required, ``excluded`` those not allowed. A
    node must have all labels in ``keys``.
    """

    spreads: tuple[_Spread, ...]
    required: tuple[tuple[str, frozenset[str]], ...]
    keys: tuple[str, ...]
    excluded: frozenset[tuple[str, str]]

    def matching_pods(self, node: Node) -> int | None:
        """Return how many pods that match the spread constraints are in the node's domains.

        Return None if a rule excludes the node.
        """
        labels = node.metadata.labels
        if any(labels.get(key) not in domains for key, domains in self.required):
            return None
        if any(key not in labels for key in self.keys):
            return None
        if any(labels.get(key) == domain for key, domain in self.excluded):
            return None
        total = 0
        for rule in self.spreads:
            domain = labels.get(rule.key)
            if domain is None:
                return None
            mine = rule.counts.get(domain, 0)
            if mine + rule.own - rule.least > rule.max_skew:
                return None
            total += mine
        return total


@dataclass(slots=True)
class _Tally:
    """The pods that match a spread constraint, counted by eligible domain as they are placed."""

    key: str
    namespace: str
    selector: LabelSelector
    counts: dict[str, int]

    def add(self, group: _PodGroup, nodes: Iterable[Node]) -> None:
        """Count pods that are alike on ``nodes``."""
        pod = group.pod
        if not group.counts or pod.namespace != self.namespace:
            return
        if not self.selector.matches(pod.metadata.labels):
            return
        for node in nodes:
            domain = node.metadata.labels.get(self.key, "")
            if domain in self.counts:
                self.counts[domain] += 1


@dataclass(slots=True)
class Neighbourhood:
    """What affects where a pod may be placed: nodes, namespaces, and the pods placed so far.

    Thousands of pods are placed, but few kinds of them: each rule is compared with a kind once.
    """

    nodes: Sequence[Node]
    namespaces: Mapping[str, Mapping[str, str]]
    _placed: dict[_GroupKey, _PodGroup] = field(default_factory=dict)
    _repelling: list[_PodGroup] = field(default_factory=list)
    _tallies: dict[bytes, _Tally] = field(default_factory=dict)

    def copy(self) -> Neighbourhood:
        """Return an independent copy of the neighbourhood."""
        placed = {k: _PodGroup(a.pod, list(a.nodes), a.counts) for k, a in self._placed.items()}
        repelling = [group for group in placed.values() if _anti_affinity_terms(group.pod)]
        return Neighbourhood(self.nodes, self.namespaces, placed, repelling)

    def add(self, pod: Pod, node: Node) -> None:
        """Record a pod that is bound to a node."""
        kind = _group_key(pod)
        group = self._placed.get(kind)
        if group is None:
            group = self._placed[kind] = _PodGroup(pod, [], _is_counted(pod))
            if _anti_affinity_terms(pod):
                self._repelling.append(group)
        group.nodes.append(node)
        for tally in self._tallies.values():
            tally.add(group, (node,))

    def eligibility(self, pod: Pod) -> Eligibility:
        """Return the domains that a pod's rules, and those of other pods, allow."""
        hard = [rule for rule in pod.spec.topology_spread_constraints if rule.is_hard]
        required, keys = self._required_domains(pod)
        return Eligibility(
            tuple(self._spread(pod, rule) for rule in hard),
            required,
            keys,
            self._excluded_domains(pod),
        )

    def _spread(self, pod: Pod, rule: TopologySpreadConstraint) -> _Spread:
        tally = self._tally(pod, rule)
        least = min(tally.counts.values(), default=0)
        if rule.min_domains is not None and len(tally.counts) < rule.min_domains:
            least = 0
        own = tally.selector.matches(pod.metadata.labels)
        return _Spread(rule.topology_key, tally.counts, least, own, rule.max_skew)

    def _tally(self, pod: Pod, rule: TopologySpreadConstraint) -> _Tally:
        """Return the matching pods by domain; pods that are alike share the count."""
        spec, labels = pod.spec, pod.metadata.labels
        own = [labels.get(key) for key in rule.match_label_keys]
        eligible = (spec.node_selector, spec.affinity, spec.tolerations)
        key = msgspec.json.encode((rule, pod.namespace, own, eligible))
        known = self._tallies.get(key)
        if known is None:
            domains = {
                node.metadata.labels[rule.topology_key]
                for node in self.nodes
                if rule.topology_key in node.metadata.labels and _counts_for_spread(pod, node, rule)
            }
            selector = _with_label_keys(rule.label_selector, rule.match_label_keys, pod)
            known = _Tally(rule.topology_key, pod.namespace, selector, dict.fromkeys(domains, 0))
            for group in self._placed.values():
                known.add(group, group.nodes)
            self._tallies[key] = known
        return known

    def _required_domains(
        self, pod: Pod
    ) -> tuple[tuple[tuple[str, frozenset[str]], ...], tuple[str, ...]]:
        """Return the domains of the pods that this one must be close to.

        The first pod of a group with affinity to itself may start the group in any domain.
        """
        required, keys = [], []
        for term in _required_terms(pod.spec.affinity.pod_affinity if pod.spec.affinity else None):
            others = [a for a in self._placed.values() if self._selects(term, pod, a.pod)]
            if not others and self._selects(term, pod, pod):
                keys.append(term.topology_key)
            else:
                required.append((term.topology_key, frozenset(_domains(term, others))))
        return tuple(required), tuple(keys)

    def _excluded_domains(self, pod: Pod) -> frozenset[tuple[str, str]]:
        """Return the domains of pods that this one repels, or that repel it."""
        mine = (
            (term, group)
            for term in _anti_affinity_terms(pod)
            for group in self._placed.values()
            if self._selects(term, pod, group.pod)
        )
        theirs = (
            (term, group)
            for group in self._repelling
            for term in _anti_affinity_terms(group.pod)
            if self._selects(term, group.pod, pod)
        )
        return frozenset(
            (term.topology_key, domain)
            for term, group in chain(mine, theirs)
            for domain in group.domains(term.topology_key)
        )

    def _selects(self, term: PodAffinityTerm, owner: Pod, other: Pod) -> bool:
        """Return whether a term of ``owner`` selects ``other``."""
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


def _required_terms(rules: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    return rules.required if rules is not None else ()


def _anti_affinity_terms(pod: Pod) -> tuple[PodAffinityTerm, ...]:
    affinity = pod.spec.affinity
    return _required_terms(affinity.pod_anti_affinity if affinity is not None else None)


def _domains(term: PodAffinityTerm, groups: Iterable[_PodGroup]) -> Iterator[str]:
    for group in groups:
        yield from group.domains(term.topology_key)


def _counts_for_spread(pod: Pod, node: Node, rule: TopologySpreadConstraint) -> bool:
    """Return whether a node's domain counts for a spread, by its affinity and taint policies."""
    if rule.node_affinity_policy != "Ignore" and not matches_node(pod.spec, node):
        return False
    return rule.node_taints_policy != "Honor" or not untolerated_taints(
        node.spec.taints, pod.spec.tolerations
    )


_GroupKey = tuple[str, frozenset[tuple[str, str]], bytes, bool]
"""The facts about a placed pod that rules read: see ``_PodGroup``."""


def _group_key(pod: Pod) -> _GroupKey:
    terms = _anti_affinity_terms(pod)
    repels = msgspec.json.encode(terms) if terms else b""
    return pod.namespace, frozenset(pod.metadata.labels.items()), repels, _is_counted(pod)


def _is_counted(pod: Pod) -> bool:
    return not pod.is_terminating and not pod.is_terminal


def _with_label_keys(
    selector: LabelSelector | None, keys: Iterable[str], pod: Pod
) -> LabelSelector:
    """Return the selector with the pod's own values of ``keys`` added."""
    if selector is None:
        return _MATCHES_NOTHING
    pairs = {key: pod.metadata.labels[key] for key in keys if key in pod.metadata.labels}
    if not pairs:
        return selector
    return LabelSelector({**selector.match_labels, **pairs}, selector.match_expressions)


_MATCHES_NOTHING = LabelSelector(match_expressions=(SelectorExpression("", "In"),))
"""A selector that no pod matches: the meaning of a rule without a selector."""
