"""A pod's topology rules, in a form that pods with the same rule share.

Spread, affinity and anti-affinity count pods by the value of a node label (a «domain»). A rule
defines which pods count, by which label, and on which nodes. Equal rules are counted once, however
many pods have them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

import msgspec

from reconciler.model.karpenter.labels import HOSTNAME, normalize_label
from reconciler.model.karpenter.requirements import Requirement, Requirements, equals, requirement
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.kubernetes.pod import PodAffinityTerm, PodSpec, TopologySpreadConstraint
from reconciler.model.kubernetes.taint import Taint, Toleration, untolerated_taints

HONOR = "Honor"


class RuleKind(StrEnum):
    """The kind of a topology rule."""

    SPREAD = "spread"
    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"


class Selector(msgspec.Struct, frozen=True, cache_hash=True):
    """A label selector in canonical form; ``nothing`` is a missing one, which selects no pod."""

    pairs: tuple[tuple[str, str], ...] = ()
    expressions: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    nothing: bool = False

    @classmethod
    def from_label_selector(
        cls, selector: LabelSelector | None, more: Iterable[tuple[str, str]] = ()
    ) -> Selector:
        """Return the selector, with ``more`` label values required by ``matchLabelKeys``."""
        if selector is None:
            return cls(nothing=True)
        expressions = {
            (e.key, e.operator, tuple(sorted(set(e.values)))) for e in selector.match_expressions
        }
        expressions.update((key, "In", (value,)) for key, value in more)
        return cls(tuple(sorted(selector.match_labels.items())), tuple(sorted(expressions)))

    @property
    def keys(self) -> Iterator[str]:
        """The label keys that it reads."""
        yield from (key for key, _ in self.pairs)
        yield from (key for key, _, _ in self.expressions)

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether a pod with ``labels`` is selected."""
        if self.nothing:
            return False
        for key, value in self.pairs:
            if labels.get(key) != value:
                return False
        return all(_expression_matches(expression, labels) for expression in self.expressions)


def _expression_matches(
    expression: tuple[str, str, tuple[str, ...]], labels: Mapping[str, str]
) -> bool:
    key, operator, values = expression
    match operator:
        case "In":
            return key in labels and labels[key] in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False


class NodeFilter(msgspec.Struct, frozen=True, cache_hash=True):
    """The nodes on which pods count for a spread: alternative ``terms``; None means any node."""

    terms: tuple[Requirements, ...] | None
    tolerations: tuple[Toleration, ...] | None

    def admits(self, requirements: Requirements, taints: Iterable[Taint]) -> bool:
        """Return whether a node with these requirements and taints counts.

        A missing label has no value: a zone that is not decided yet does not satisfy a filter on
        zones.
        """
        if self.tolerations is not None and untolerated_taints(taints, self.tolerations):
            return False
        return self.terms is None or any(requirements.is_compatible(term) for term in self.terms)


class Rule(msgspec.Struct, frozen=True, cache_hash=True):
    """One topology rule.

    ``tolerations`` limit its domains to those of pools that a pod tolerates; None means every pool.
    ``inverse`` marks an anti-affinity seen from the other side: its domains are those of pods that
    have the rule, and it applies to the pods that it selects.
    """

    kind: RuleKind
    key: str
    namespaces: frozenset[str]
    selector: Selector
    max_skew: int = 0
    min_domains: int | None = None
    node_filter: NodeFilter | None = None
    tolerations: tuple[Toleration, ...] | None = None
    inverse: bool = False

    @property
    def by_host(self) -> bool:
        """Whether each node is a domain of its own."""
        return self.key == HOSTNAME

    def selects(self, namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether a pod counts by its namespace and labels."""
        return namespace in self.namespaces and self.selector.matches(labels)

    def __str__(self) -> str:
        return f"{self.kind} on {self.key}"


def node_terms(spec: PodSpec) -> tuple[Requirements, ...]:
    """Return the required node constraints: alternatives, each including the node selector."""
    selector = [equals(normalize_label(k), v) for k, v in spec.node_selector.items()]
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    if affinity is None or affinity.required is None:
        return (Requirements(selector),)
    return tuple(
        Requirements([*selector, *expression_requirements(term.match_expressions)])
        for term in affinity.required.node_selector_terms
    ) or (Requirements(selector),)


def expression_requirements(items: Iterable[object]) -> list[Requirement]:
    """Return the requirements of a node selector term's expressions."""
    return [requirement(e.key, e.operator, e.values) for e in items]  # type: ignore[attr-defined]


def spread_rule(
    constraint: TopologySpreadConstraint,
    spec: PodSpec,
    namespace: str,
    labels: Mapping[str, str],
    terms: tuple[Requirements, ...],
) -> Rule:
    """Return the rule of a spread constraint; ``terms`` are the ``node_terms`` of the spec.

    Keys of ``matchLabelKeys`` that the pod does not have are ignored, as in Kubernetes.
    """
    more = [(k, labels[k]) for k in constraint.match_label_keys if k in labels]
    by_affinity = (constraint.node_affinity_policy or HONOR) == HONOR
    by_taints = constraint.node_taints_policy == HONOR
    node_filter = NodeFilter(
        terms=terms if by_affinity else None,
        tolerations=spec.tolerations if by_taints else None,
    )
    return Rule(
        RuleKind.SPREAD,
        normalize_label(constraint.topology_key),
        frozenset({namespace}),
        Selector.from_label_selector(constraint.label_selector, more),
        max_skew=constraint.max_skew,
        min_domains=constraint.min_domains,
        node_filter=None if node_filter == NodeFilter((Requirements(),), None) else node_filter,
        tolerations=spec.tolerations if by_taints else None,
    )


def affinity_rule(
    kind: RuleKind,
    term: PodAffinityTerm,
    spec: PodSpec,
    namespace: str,
    namespaces: Mapping[str, Mapping[str, str]],
    *,
    inverse: bool = False,
) -> Rule:
    """Return the rule of a term of pod affinity or anti-affinity.

    ``namespaces`` are the labels of each namespace of the cluster. An inverse rule covers the
    domains of all pools, because the pods it applies to have other tolerations than its owner.
    """
    return Rule(
        kind,
        normalize_label(term.topology_key),
        _namespaces(term, namespace, namespaces),
        Selector.from_label_selector(term.label_selector),
        tolerations=None if inverse else spec.tolerations,
        inverse=inverse,
    )


def _namespaces(
    term: PodAffinityTerm, own: str, known: Mapping[str, Mapping[str, str]]
) -> frozenset[str]:
    """Return the namespaces that a term covers; an explicit list does not add the pod's own."""
    chosen = set(term.namespaces)
    if term.namespace_selector is not None:
        selector = Selector.from_label_selector(term.namespace_selector)
        chosen.update(name for name, labels in known.items() if selector.matches(labels))
    elif not chosen:
        chosen.add(own)
    return frozenset(chosen)
