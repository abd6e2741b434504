"""The constraints that pods and their NodePool put on nodes, and specs without each of them.

The caller measures the cost of a constraint by placing the same pods without it. This module only
lists constraints and removes them. Requests, taints and volumes are not included, because users
cannot choose to drop them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from reconciler.model.karpenter.labels import normalize_label
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorTerm,
    PodAffinity,
    PodSpec,
)


class ConstraintKind(StrEnum):
    """Where a constraint is defined."""

    SPREAD = "spread"
    AFFINITY = "affinity"
    ANTI_AFFINITY = "anti-affinity"
    HOST_PORTS = "host-ports"
    LABEL = "label"
    PREFERENCES = "preferences"
    NODE_POOL = "node-pool"


@dataclass(frozen=True, slots=True, order=True)
class Constraint:
    """One constraint; ``key`` is the node label that it restricts, empty if there is none."""

    kind: ConstraintKind
    key: str = ""

    @property
    def is_plural(self) -> bool:
        """Whether its text is a plural."""
        return self.kind in (ConstraintKind.HOST_PORTS, ConstraintKind.PREFERENCES)

    def __str__(self) -> str:
        match self.kind:
            case ConstraintKind.SPREAD:
                return f"the topology spread over {self.key}"
            case ConstraintKind.AFFINITY:
                return f"the pod affinity by {self.key}"
            case ConstraintKind.ANTI_AFFINITY:
                return f"the pod anti-affinity by {self.key}"
            case ConstraintKind.HOST_PORTS:
                return "the pods' host ports"
            case ConstraintKind.LABEL:
                return f"the pods' requirement on {self.key}"
            case ConstraintKind.PREFERENCES:
                return "the pods' preferences"
            case ConstraintKind.NODE_POOL:
                return f"the NodePool's requirement on {self.key}"


def constraints_of(specs: Iterable[PodSpec], pool: NodePool) -> list[Constraint]:
    """Return the constraints of pods and of their NodePool, sorted and without duplicates."""
    found = {constraint for spec in specs for constraint in pod_constraints(spec)}
    found |= {
        Constraint(ConstraintKind.NODE_POOL, normalize_label(entry.key))
        for entry in pool.spec.template.spec.requirements
    }
    return sorted(found)


def pod_constraints(spec: PodSpec) -> Iterator[Constraint]:
    """Yield the constraints of a pod, some of them several times."""
    affinity = spec.affinity or Affinity()
    for key in spec.node_selector:
        yield Constraint(ConstraintKind.LABEL, normalize_label(key))
    for term in spec.required_node_terms:
        for expression in term.match_expressions:
            yield Constraint(ConstraintKind.LABEL, normalize_label(expression.key))
    for constraint in spec.topology_spread_constraints:
        if constraint.is_hard:
            yield Constraint(ConstraintKind.SPREAD, normalize_label(constraint.topology_key))
    sides = (
        (ConstraintKind.AFFINITY, affinity.pod_affinity or PodAffinity()),
        (ConstraintKind.ANTI_AFFINITY, affinity.pod_anti_affinity or PodAffinity()),
    )
    for kind, side in sides:
        for item in side.required:
            yield Constraint(kind, normalize_label(item.topology_key))
    if _has_host_ports(spec):
        yield Constraint(ConstraintKind.HOST_PORTS)
    if _without_preferences(spec, affinity) != replace(spec, affinity=affinity):
        yield Constraint(ConstraintKind.PREFERENCES)


def has_constraint_kind(spec: PodSpec, kind: ConstraintKind) -> bool:
    """Return whether a pod's spec has a constraint of a kind."""
    return any(constraint.kind is kind for constraint in pod_constraints(spec))


def remove_constraint_kind(spec: PodSpec, kind: ConstraintKind) -> PodSpec:
    """Return a pod's spec without all constraints of a kind."""
    for constraint in {one for one in pod_constraints(spec) if one.kind is kind}:
        spec = remove_constraint(spec, constraint)
    return spec


def remove_constraint(spec: PodSpec, constraint: Constraint) -> PodSpec:
    """Return a pod's spec without a constraint; the same spec if it does not have it."""
    if constraint not in set(pod_constraints(spec)):
        return spec
    affinity = spec.affinity or Affinity()
    match constraint.kind:
        case ConstraintKind.SPREAD:
            return _without_spread(spec, constraint.key)
        case ConstraintKind.AFFINITY:
            side = _without_topology_key(affinity.pod_affinity, constraint.key)
            return replace(spec, affinity=replace(affinity, pod_affinity=side))
        case ConstraintKind.ANTI_AFFINITY:
            side = _without_topology_key(affinity.pod_anti_affinity, constraint.key)
            return replace(spec, affinity=replace(affinity, pod_anti_affinity=side))
        case ConstraintKind.HOST_PORTS:
            return _without_host_ports(spec)
        case ConstraintKind.LABEL:
            return _without_label(spec, affinity, constraint.key)
        case ConstraintKind.PREFERENCES:
            return _without_preferences(spec, affinity)
    return spec


def _has_host_ports(spec: PodSpec) -> bool:
    sidecars = (c for c in spec.init_containers if c.restart_policy == "Always")
    return any(port.host_port for c in (*spec.containers, *sidecars) for port in c.ports)


def _without_spread(spec: PodSpec, key: str) -> PodSpec:
    kept = tuple(
        c
        for c in spec.topology_spread_constraints
        if not c.is_hard or normalize_label(c.topology_key) != key
    )
    return replace(spec, topology_spread_constraints=kept)


def _without_label(spec: PodSpec, affinity: Affinity, key: str) -> PodSpec:
    selector = {k: v for k, v in spec.node_selector.items() if normalize_label(k) != key}
    node = _without_node_label(affinity.node_affinity, key)
    return replace(spec, node_selector=selector, affinity=replace(affinity, node_affinity=node))


def _without_host_ports(spec: PodSpec) -> PodSpec:
    own, init = (
        tuple(replace(c, ports=tuple(p for p in c.ports if not p.host_port)) for c in containers)
        for containers in (spec.containers, spec.init_containers)
    )
    return replace(spec, containers=own, init_containers=init)


def _without_topology_key(side: PodAffinity | None, key: str) -> PodAffinity | None:
    if side is None:
        return None
    kept = tuple(term for term in side.required if normalize_label(term.topology_key) != key)
    return replace(side, required=kept)


def _without_node_label(node: NodeAffinity | None, key: str) -> NodeAffinity | None:
    """Return the node affinity without the expressions on a label."""
    if node is None or node.required is None:
        return node
    terms = tuple(
        NodeSelectorTerm(
            tuple(e for e in term.match_expressions if normalize_label(e.key) != key),
            term.match_fields,
        )
        for term in node.required.node_selector_terms
    )
    return replace(node, required=NodeSelector(terms))


def _without_preferences(spec: PodSpec, affinity: Affinity) -> PodSpec:
    hard = tuple(c for c in spec.topology_spread_constraints if c.is_hard)
    sides = {
        name: replace(side, preferred=())
        for name in ("node_affinity", "pod_affinity", "pod_anti_affinity")
        if (side := getattr(affinity, name)) is not None
    }
    return replace(spec, topology_spread_constraints=hard, affinity=replace(affinity, **sides))


def remove_pool_constraint(pool: NodePool, constraint: Constraint) -> NodePool:
    """Return a NodePool without its requirement on a label."""
    if constraint.kind is not ConstraintKind.NODE_POOL:
        return pool
    template = pool.spec.template
    kept = tuple(r for r in template.spec.requirements if normalize_label(r.key) != constraint.key)
    spec = replace(template.spec, requirements=kept)
    return replace(pool, spec=replace(pool.spec, template=replace(template, spec=spec)))
