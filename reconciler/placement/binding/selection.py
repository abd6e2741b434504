"""Decides which nodes a pod may use: selectors, affinity and taints.

It is written from Kubernetes' scheduler and does not share code with the placement engine, so it
checks plans independently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from reconciler.model.kubernetes.node import Node
from reconciler.model.kubernetes.pod import (
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
    PodSpec,
)
from reconciler.model.kubernetes.taint import Taint, Toleration

_REPELLING: Final = ("NoSchedule", "NoExecute")


def matches_node(spec: PodSpec, node: Node) -> bool:
    """Return whether a pod's node selector and required affinity allow the node."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in spec.node_selector.items()):
        return False
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    return affinity is None or affinity.required is None or allows(affinity.required, node)


def allows(selector: NodeSelector, node: Node) -> bool:
    """Return whether any term of a node selector matches; a selector without terms never does."""
    return any(_term_holds(term, node) for term in selector.node_selector_terms)


def repelling(taints: Iterable[Taint], tolerations: Iterable[Toleration]) -> list[Taint]:
    """Return the taints that keep a pod off a node; ``PreferNoSchedule`` does not."""
    known = tuple(tolerations)
    return [
        taint
        for taint in taints
        if taint.effect in _REPELLING and not any(t.tolerates(taint) for t in known)
    ]


def _term_holds(term: NodeSelectorTerm, node: Node) -> bool:
    if not term.match_expressions and not term.match_fields:
        return False
    labels = node.metadata.labels
    fields = {"metadata.name": node.name}
    return all(_holds(e, labels.get(e.key)) for e in term.match_expressions) and all(
        _holds(e, fields.get(e.key)) for e in term.match_fields
    )


def _holds(expression: NodeSelectorExpression, value: str | None) -> bool:
    match expression.operator:
        case "In":
            return value in expression.values
        case "NotIn":
            return value not in expression.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _compares(value, expression.values, lambda left, right: left > right)
        case "Lt":
            return _compares(value, expression.values, lambda left, right: left < right)
    return False


def _compares(
    value: str | None, values: tuple[str, ...], compare: Callable[[int, int], bool]
) -> bool:
    if value is None or len(values) != 1:
        return False
    try:
        return compare(int(value), int(values[0]))
    except ValueError:
        return False
