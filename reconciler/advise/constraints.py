"""Constraints of workloads that may cost something, and the cluster without one of them.

A workload is the set of pods with the same controller. The owner decides about its constraints, so
the advice has no patch: only the cost of the fleet without one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import DO_NOT_DISRUPT
from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.eviction import desired_healthy
from reconciler.model.kubernetes.pod import Affinity, Pod, PodSpec
from reconciler.model.resources import CPU
from reconciler.observed.allocation import workload_of
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.explain.constraints import (
    ConstraintKind,
    has_constraint_kind,
    remove_constraint_kind,
)


class Loosening(StrEnum):
    """A constraint that can be removed from a workload."""

    NODE_SELECTOR = "nodeSelector"
    NODE_AFFINITY = "nodeAffinity"
    POD_AFFINITY = "podAffinity"
    ANTI_AFFINITY = "podAntiAffinity"
    TOPOLOGY_SPREAD = "topologySpread"
    DO_NOT_DISRUPT = "doNotDisrupt"
    DISRUPTION_BUDGET = "podDisruptionBudget"


@dataclass(frozen=True, slots=True)
class WorkloadConstraint:
    """A constraint of one owner; ``owner`` is a kind and ``namespace/name``."""

    owner: str
    constraint: Loosening

    def remove_from(self, cluster: ClusterState) -> ClusterState:
        """Return the cluster with the constraint removed from all pods of the owner."""
        if self.constraint is Loosening.DISRUPTION_BUDGET:
            kept = [b for b in cluster.pod_disruption_budgets if _budget_owner(b) != self.owner]
            return replace(cluster, pod_disruption_budgets=tuple(kept))
        return self._remove_from_pods(cluster)

    def _remove_from_pods(self, cluster: ClusterState) -> ClusterState:
        remove, specs = _REMOVERS[self.constraint], dict[int, PodSpec]()
        known: dict[str, Pod] = {}

        def loosen_pod(pod: Pod) -> Pod:
            if workload_of(pod) != self.owner:
                return pod
            made = known.get(pod.key)
            if made is None:  # a pod is listed by the cluster and by its node: one object
                made = known[pod.key] = remove(pod, specs)
            return made

        def with_pods(node: StateNode) -> StateNode:
            pods = tuple(map(loosen_pod, node.pods))
            is_same = all(new is old for new, old in zip(pods, node.pods, strict=True))
            return node if is_same else replace(node, pods=pods)

        return replace(
            cluster,
            nodes=tuple(map(with_pods, cluster.nodes)),
            pods=tuple(map(loosen_pod, cluster.pods)),
        )


@dataclass(frozen=True, slots=True)
class ConstrainedWorkload:
    """A constraint that may increase the cost, the number of its pods, and its description."""

    constraint: WorkloadConstraint
    pods: int
    title: str
    risk: str


def _pods_by_workload(cluster: ClusterState) -> dict[str, list[Pod]]:
    owned: dict[str, list[Pod]] = {}
    for pod in cluster.pods:
        if not (pod.is_daemon or pod.is_mirror or pod.is_terminal or pod.is_virtual):
            owned.setdefault(workload_of(pod), []).append(pod)
    return owned


def constrained_workloads(cluster: ClusterState) -> tuple[ConstrainedWorkload, ...]:
    """Return the constraints of the workloads, those with the largest CPU requests first."""
    found = [
        (_requested_cpu(pods), _describe_workload(WorkloadConstraint(owner, constraint), len(pods)))
        for owner, pods in _pods_by_workload(cluster).items()
        for constraint, has in _CHECKS.items()
        if any(map(has, pods))
    ]
    found += [
        (
            _requested_cpu(pods),
            _describe_workload(WorkloadConstraint(name, Loosening.DISRUPTION_BUDGET), len(pods)),
        )
        for name, pods in _closed_budgets(cluster)
    ]
    found.sort(key=lambda one: (-one[0], one[1].constraint.owner, one[1].constraint.constraint))
    return tuple(workload for _, workload in found)


def _requested_cpu(pods: Iterable[Pod]) -> int:
    return sum(pod.requests().get(CPU, 0) for pod in pods)


def _closed_budgets(cluster: ClusterState) -> Iterator[tuple[str, Sequence[Pod]]]:
    """Yield the PodDisruptionBudgets that never allow an eviction, with their pods."""
    for budget in cluster.pod_disruption_budgets:
        covered = [p for p in cluster.pods if not p.is_terminal and budget.selects(p)]
        if covered and desired_healthy(budget, len(covered)) >= len(covered):
            yield _budget_owner(budget), covered


def _budget_owner(budget: PodDisruptionBudget) -> str:
    return f"PodDisruptionBudget {budget.key}"


# Each constraint of a pod, and the pod without it. Pods that share a spec continue to share one:
# placement recognizes equal pods by it.

_PodChange = Callable[[Pod, dict[int, PodSpec]], Pod]


def _change_spec(change: Callable[[PodSpec], PodSpec]) -> _PodChange:
    def change_pod(pod: Pod, specs: dict[int, PodSpec]) -> Pod:
        spec = specs.get(id(pod.spec))
        if spec is None:
            spec = specs[id(pod.spec)] = change(pod.spec)
        return msgspec.structs.replace(pod, spec=spec)

    return change_pod


def _without_node_affinity(spec: PodSpec) -> PodSpec:
    affinity = spec.affinity
    own = None if affinity is None else affinity.node_affinity
    if affinity is None or own is None:
        return spec
    kept = msgspec.structs.replace(own, required=None)
    return msgspec.structs.replace(
        spec, affinity=msgspec.structs.replace(affinity, node_affinity=kept)
    )


def _without_do_not_disrupt(pod: Pod, _: dict[int, PodSpec]) -> Pod:
    meta = pod.metadata
    kept = {name: text for name, text in meta.annotations.items() if name != DO_NOT_DISRUPT}
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(meta, annotations=kept))


def _has_node_affinity(pod: Pod) -> bool:
    nodes = (pod.spec.affinity or Affinity()).node_affinity
    return nodes is not None and nodes.required is not None


_KINDS: Final = {
    Loosening.POD_AFFINITY: ConstraintKind.AFFINITY,
    Loosening.ANTI_AFFINITY: ConstraintKind.ANTI_AFFINITY,
    Loosening.TOPOLOGY_SPREAD: ConstraintKind.SPREAD,
}


def _kind_remover(kind: ConstraintKind) -> _PodChange:
    return _change_spec(lambda spec: remove_constraint_kind(spec, kind))


def _kind_check(kind: ConstraintKind) -> Callable[[Pod], bool]:
    return lambda pod: has_constraint_kind(pod.spec, kind)


_REMOVERS: Final[Mapping[Loosening, _PodChange]] = {
    Loosening.NODE_SELECTOR: _change_spec(lambda s: msgspec.structs.replace(s, node_selector={})),
    Loosening.NODE_AFFINITY: _change_spec(_without_node_affinity),
    **{loosening: _kind_remover(kind) for loosening, kind in _KINDS.items()},
    Loosening.DO_NOT_DISRUPT: _without_do_not_disrupt,
}
_CHECKS: Final[Mapping[Loosening, Callable[[Pod], bool]]] = {
    Loosening.NODE_SELECTOR: lambda pod: bool(pod.spec.node_selector),
    Loosening.NODE_AFFINITY: _has_node_affinity,
    **{loosening: _kind_check(kind) for loosening, kind in _KINDS.items()},
    Loosening.DO_NOT_DISRUPT: lambda pod: DO_NOT_DISRUPT in pod.metadata.annotations,
}
_WORDS: Final[Mapping[Loosening, tuple[str, str]]] = {
    Loosening.NODE_SELECTOR: (
        "the nodeSelector of {}",
        "its pods must be able to run on any node that they tolerate",
    ),
    Loosening.NODE_AFFINITY: (
        "the required node affinity of {}",
        "its pods must be able to run on any node that they tolerate",
    ),
    Loosening.POD_AFFINITY: (
        "the required pod affinity of {}",
        "its pods run apart from those that they have to be near",
    ),
    Loosening.ANTI_AFFINITY: (
        "the required pod anti-affinity of {}",
        "its pods may share a node or zone, and fail together",
    ),
    Loosening.TOPOLOGY_SPREAD: (
        "the topology spread constraints (DoNotSchedule) of {}",
        "its pods may share a node or zone, and fail together",
    ),
    Loosening.DO_NOT_DISRUPT: (
        "the annotation karpenter.sh/do-not-disrupt of {}",
        "its pods are evicted when their nodes are consolidated",
    ),
    Loosening.DISRUPTION_BUDGET: (
        "{}, which allows no eviction",
        "the pods that it covers are evicted when their nodes are consolidated",
    ),
}
"""The text of a constraint after "Remove", and the consequence of its removal for the owner."""


def _describe_workload(constraint: WorkloadConstraint, pods: int) -> ConstrainedWorkload:
    words, risk = _WORDS[constraint.constraint]
    return ConstrainedWorkload(constraint, pods, f"Remove {words.format(constraint.owner)}", risk)
