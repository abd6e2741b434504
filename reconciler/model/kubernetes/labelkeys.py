"""What the API server makes of ``matchLabelKeys`` and ``mismatchLabelKeys`` of pod affinity.

It adds the pod's own value of each key to the term's selector when a pod is created, as required or
as excluded, and schedulers read only the selector (Kubernetes ``pkg/registry/core/pod/strategy.go``
``applyMatchLabelKeysAndMismatchLabelKeys``). Pods that are made here get the same. Spread
constraints have only ``matchLabelKeys``, which the scheduler itself reads.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from reconciler.model.kubernetes.metadata import SelectorExpression
from reconciler.model.kubernetes.pod import PodAffinity, PodAffinityTerm, PodSpec


def with_label_keys(spec: PodSpec, labels: Mapping[str, str]) -> PodSpec:
    """Return a pod's spec with the label keys of its affinity terms in their selectors."""
    affinity = spec.affinity
    if affinity is None:
        return spec
    near = _with_keys(affinity.pod_affinity, labels)
    apart = _with_keys(affinity.pod_anti_affinity, labels)
    if near is affinity.pod_affinity and apart is affinity.pod_anti_affinity:
        return spec
    return replace(spec, affinity=replace(affinity, pod_affinity=near, pod_anti_affinity=apart))


def _with_keys(side: PodAffinity | None, labels: Mapping[str, str]) -> PodAffinity | None:
    if side is None:
        return None
    terms = (*side.required, *(item.pod_affinity_term for item in side.preferred))
    if not any(term.match_label_keys or term.mismatch_label_keys for term in terms):
        return side
    return replace(
        side,
        required=tuple(_with_selector(term, labels) for term in side.required),
        preferred=tuple(
            replace(item, pod_affinity_term=_with_selector(item.pod_affinity_term, labels))
            for item in side.preferred
        ),
    )


def _with_selector(term: PodAffinityTerm, labels: Mapping[str, str]) -> PodAffinityTerm:
    """Return the term with its keys in its selector; keys that the pod does not have are ignored.

    A term without a selector selects no pod, with or without keys.
    """
    selector = term.label_selector
    if selector is None:
        return term
    more = [
        SelectorExpression(key, operator, (labels[key],))
        for operator, keys in (("In", term.match_label_keys), ("NotIn", term.mismatch_label_keys))
        for key in keys
        if key in labels
    ]
    known = selector.match_expressions
    added = tuple(expression for expression in more if expression not in known)
    return replace(term, label_selector=replace(selector, match_expressions=(*known, *added)))
