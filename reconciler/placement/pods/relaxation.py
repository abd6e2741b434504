"""A pod's preferences, and the order in which it drops them when it does not fit.

Karpenter first treats every preference as required and drops one at a time, always in the same
order (``pkg/controllers/provisioning/scheduling/preferences.go``): all but the last of the
alternative required terms, then preferred pod affinity, preferred anti-affinity and preferred node
affinity, each heaviest first, then ``ScheduleAnyway`` spreads. Finally it tolerates
``PreferNoSchedule`` taints.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
from msgspec.structs import replace as replaced

from reconciler.model.karpenter.labels import normalize_label
from reconciler.model.karpenter.requirements import Requirement, Requirements, equals
from reconciler.model.kubernetes.pod import (
    Affinity,
    NodeSelectorTerm,
    PodAffinity,
    PodAffinityTerm,
    PodSpec,
    TopologySpreadConstraint,
)
from reconciler.model.kubernetes.taint import Toleration
from reconciler.placement.topology.rules import (
    Rule,
    RuleKind,
    affinity_rule,
    expression_requirements,
    node_terms,
    spread_rule,
)

RULES_OF_STEPS_MAX: Final = 2_000
"""The topology rules of all relaxation steps of a pod together: some sixty preferences. Each step
has the rules that are left, so that a pod may otherwise have millions."""

CONDITIONS_OF_STEPS_MAX: Final = 20_000
"""The conditions on nodes and the tolerations that no step drops, in all steps of a pod together.
Each step has them all."""

_ALL_ELSE: Final = "all other alternatives and preferences"

PREFER_NO_SCHEDULE = Toleration(operator="Exists", effect="PreferNoSchedule")

_NO_AFFINITY: Final = Affinity()


class RelaxedPod(msgspec.Struct, frozen=True):
    """The constraints of a pod at one relaxation step; ``dropped`` names what this step dropped.

    ``demands`` apply to its node with the heaviest preference, ``strict`` without any.
    ``was_preferred`` is whether the dropped item was a preference, rather than an alternative
    required term or a soft taint.
    """

    demands: Requirements
    strict: Requirements
    tolerations: tuple[Toleration, ...]
    rules: tuple[Rule, ...]
    dropped: str = ""
    was_preferred: bool = False


class _Droppable(msgspec.Struct, frozen=True):
    """The parts of a pod's spec that can be dropped and are still in effect."""

    required: tuple[NodeSelectorTerm, ...]
    preferred: tuple[NodeSelectorTerm, ...]
    affinity: tuple[PodAffinityTerm, ...]
    anti_affinity: tuple[PodAffinityTerm, ...]
    spreads: tuple[TopologySpreadConstraint, ...]
    tolerations: tuple[Toleration, ...]

    @property
    def preference_count(self) -> int:
        """The number of preferences and spreads still in effect."""
        return (
            len(self.preferred) + len(self.affinity) + len(self.anti_affinity) + len(self.spreads)
        )


_TermRules = dict[tuple[RuleKind, int], Rule]
"""The rules of a pod by the identity of a term or spread. Steps share them while the required terms
and the tolerations stay the same."""


def relaxation_steps(
    spec: PodSpec,
    namespace: str,
    labels: Mapping[str, str],
    namespaces: Mapping[str, Mapping[str, str]],
    *,
    respect: bool,
    tolerate_soft_taints: bool,
) -> Iterator[RelaxedPod]:
    """Yield the constraints of the pod, first in full and then after each dropped item.

    Without ``respect``, preferences are ignored from the start, and only alternative terms and soft
    taints are left to drop. Beyond ``RULES_OF_STEPS_MAX`` or ``CONDITIONS_OF_STEPS_MAX`` everything
    else is dropped at once.
    """
    parts, dropped, preferred = _droppable_parts(spec, respect), "", False
    known: _TermRules = {}
    rules = conditions = 0
    while True:
        relaxed = _relaxed_pod(parts, spec, namespace, labels, namespaces, known)
        yield replaced(relaxed, dropped=dropped, was_preferred=preferred)
        rules += len(relaxed.rules)
        conditions += _carried_count(parts, spec)
        following = _drop_next(parts, tolerate_soft_taints)
        if following is None:
            return
        if rules > RULES_OF_STEPS_MAX or conditions > CONDITIONS_OF_STEPS_MAX:
            following = _drop_all(parts, tolerate_soft_taints), _ALL_ELSE
        preferred = following[0].preference_count < parts.preference_count
        if following[0].required != parts.required or following[0].tolerations != parts.tolerations:
            known.clear()
        parts, dropped = following


def _carried_count(parts: _Droppable, spec: PodSpec) -> int:
    """Return how many conditions and tolerations of a step the following ones have as well."""
    terms = parts.required if len(parts.required) == 1 else ()
    conditions = sum(len(term.match_expressions) for term in terms)
    return conditions + len(spec.node_selector) + len(parts.tolerations)


def _droppable_parts(spec: PodSpec, respect: bool) -> _Droppable:
    soft = (spec.affinity or _NO_AFFINITY) if respect else _NO_AFFINITY
    preferred = soft.node_affinity.preferred if soft.node_affinity is not None else ()
    return _Droppable(
        required=spec.required_node_terms,
        preferred=tuple(t.preference for t in sorted(preferred, key=lambda t: -t.weight)),
        affinity=_terms_by_weight(soft.pod_affinity),
        anti_affinity=_terms_by_weight(soft.pod_anti_affinity),
        spreads=tuple(c for c in spec.topology_spread_constraints if respect or c.is_hard),
        tolerations=spec.tolerations,
    )


def _terms_by_weight(side: PodAffinity | None) -> tuple[PodAffinityTerm, ...]:
    terms = side.preferred if side is not None else ()
    return tuple(t.pod_affinity_term for t in sorted(terms, key=lambda t: -t.weight))


def _drop_next(parts: _Droppable, tolerate_soft_taints: bool) -> tuple[_Droppable, str] | None:
    """Return what is left after dropping the next item, and the name of that item."""
    if len(parts.required) > 1:
        return replaced(parts, required=parts.required[1:]), (
            f"required node affinity alternative {_format_term(parts.required[0])}"
        )
    if parts.affinity:
        return replaced(parts, affinity=parts.affinity[1:]), (
            f"preferred pod affinity on {parts.affinity[0].topology_key}"
        )
    if parts.anti_affinity:
        return replaced(parts, anti_affinity=parts.anti_affinity[1:]), (
            f"preferred pod anti-affinity on {parts.anti_affinity[0].topology_key}"
        )
    if parts.preferred:
        return replaced(parts, preferred=parts.preferred[1:]), (
            f"preferred node affinity {_format_term(parts.preferred[0])}"
        )
    for index, constraint in enumerate(parts.spreads):
        if not constraint.is_hard:
            return replaced(parts, spreads=_without_spread(parts.spreads, index)), (
                f"topology spread on {constraint.topology_key}"
            )
    if tolerate_soft_taints and PREFER_NO_SCHEDULE not in parts.tolerations:
        return replaced(parts, tolerations=(*parts.tolerations, PREFER_NO_SCHEDULE)), (
            "avoiding PreferNoSchedule taints"
        )
    return None


def _drop_all(parts: _Droppable, tolerate_soft_taints: bool) -> _Droppable:
    """Return what is left after dropping everything that can be dropped."""
    tolerations = parts.tolerations
    if tolerate_soft_taints and PREFER_NO_SCHEDULE not in tolerations:
        tolerations = (*tolerations, PREFER_NO_SCHEDULE)
    return _Droppable(
        required=parts.required[-1:],
        preferred=(),
        affinity=(),
        anti_affinity=(),
        spreads=tuple(constraint for constraint in parts.spreads if constraint.is_hard),
        tolerations=tolerations,
    )


def _without_spread(
    spreads: tuple[TopologySpreadConstraint, ...], index: int
) -> tuple[TopologySpreadConstraint, ...]:
    """Return the constraints without one; the last takes its place, as in Karpenter."""
    rest = list(spreads)
    rest[index] = rest[-1]
    return tuple(rest[:-1])


def _format_term(term: NodeSelectorTerm) -> str:
    return f"({Requirements(expression_requirements(term.match_expressions))})"


def _relaxed_pod(
    parts: _Droppable,
    spec: PodSpec,
    namespace: str,
    labels: Mapping[str, str],
    namespaces: Mapping[str, Mapping[str, str]],
    known: _TermRules,
) -> RelaxedPod:
    strict: list[Requirement] = [
        equals(normalize_label(k), v) for k, v in spec.node_selector.items()
    ]
    if parts.required:
        strict += expression_requirements(parts.required[0].match_expressions)
    demands = list(strict)
    if parts.preferred:
        demands += expression_requirements(parts.preferred[0].match_expressions)
    return RelaxedPod(
        demands=Requirements(demands),
        strict=Requirements(strict),
        tolerations=parts.tolerations,
        rules=tuple(_rules(parts, spec, namespace, labels, namespaces, known)),
    )


def _rules(
    parts: _Droppable,
    spec: PodSpec,
    namespace: str,
    labels: Mapping[str, str],
    namespaces: Mapping[str, Mapping[str, str]],
    known: _TermRules,
) -> Iterator[Rule]:
    if not parts.spreads and (
        spec.affinity is None
        or (spec.affinity.pod_affinity is None and spec.affinity.pod_anti_affinity is None)
    ):
        return
    relaxed_spec = _relaxed_spec(parts, spec)
    nodes = node_terms(relaxed_spec) if parts.spreads else ()
    for constraint in parts.spreads:
        key = (RuleKind.SPREAD, id(constraint))
        if key not in known:
            known[key] = spread_rule(constraint, relaxed_spec, namespace, labels, nodes)
        yield known[key]
    if spec.affinity is None:
        return
    near, apart = spec.affinity.pod_affinity, spec.affinity.pod_anti_affinity
    terms = [(RuleKind.AFFINITY, t) for t in (*(near.required if near else ()), *parts.affinity)]
    terms += (
        (RuleKind.ANTI_AFFINITY, t)
        for t in (*(apart.required if apart else ()), *parts.anti_affinity)
    )
    for kind, term in terms:
        if (kind, id(term)) not in known:
            # Karpenter finds the domains before a pod tolerates soft taints, and keeps them
            known[kind, id(term)] = affinity_rule(kind, term, spec, namespace, namespaces)
        yield known[kind, id(term)]


def _relaxed_spec(parts: _Droppable, spec: PodSpec) -> PodSpec:
    """Return the spec with the current alternatives and tolerations, for node filters."""
    spec = replaced(spec, tolerations=parts.tolerations)
    affinity = spec.affinity
    node = affinity.node_affinity if affinity is not None else None
    if affinity is None or node is None or node.required is None:
        return spec
    required = replaced(node.required, node_selector_terms=parts.required)
    node = replaced(node, required=required)
    return replaced(spec, affinity=replaced(affinity, node_affinity=node))
