"""Which pods a pass has to place, and which of them no pass can.

The pods that wait for a node, and those that have to leave a node that is on its way out
(Karpenter ``provisioner.go``; ``Validate`` there).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Final

from reconciler.model.karpenter.labels import NODEPOOL, is_restricted
from reconciler.model.karpenter.requirements import Operator, Requirement, equals
from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.pod import NodeSelectorTerm, Pod, is_ready_false
from reconciler.observed.state import ClusterState
from reconciler.placement.pods.shape import Shape
from reconciler.placement.question import Rejection
from reconciler.placement.topology.rules import expressions

CLAIMS_IGNORED: Final = Rejection(
    "ResourceClaimsIgnored",
    "it requests devices with a ResourceClaim, which is not supported: request an extended "
    "resource of a device plugin, or assign a node manually",
)
"""Karpenter's answer too, unless it is started with ``--ignore-dra-requests=false``."""


def pods_to_place(cluster: ClusterState, now: datetime) -> tuple[Pod, ...]:
    """Return the pods that need a place: those that wait, and those of nodes that go away.

    A pod that says it runs on no NodePool's node is not ours. Whether a waiting pod can be placed
    at all is looked at when it is (``invalid``).
    """
    leaving = [
        pod
        for node in cluster.nodes
        if node.is_deleting and node.node is not None
        for pod in node.pods
        if is_reschedulable_now(pod, cluster.pod_disruption_budgets, now)
    ]
    return (*(pod for pod in cluster.pending if not opts_out(pod)), *leaving)


def is_reschedulable_now(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Return whether a pod of a node that goes away will come back and may be moved now."""
    if not pod.is_reschedulable or (pod.is_active and pod.do_not_disrupt(now)):
        return False
    return not _is_fully_blocked(pod, budgets, now)


def _is_fully_blocked(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Return whether PodDisruptionBudgets forbid, by their form, that it is ever evicted."""
    if not pod.is_evictable(now):
        return False
    covering = [budget for budget in budgets if budget.selects(pod)]
    if len(covering) > 1:
        return True
    for budget in covering:
        lenient = budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        return budget.is_fully_blocking and not (lenient and is_ready_false(pod))
    return False


def opts_out(pod: Pod) -> bool:
    """Return whether the pod demands a node without a NodePool."""
    affinity = pod.spec.affinity
    if affinity is None:  # nearly always, and it is asked of every pod that waits
        return False
    node = affinity.node_affinity
    terms: list[NodeSelectorTerm] = []
    if node is not None and node.required is not None:
        terms += node.required.node_selector_terms[:1]
    if node is not None and node.preferred:
        terms.append(max(node.preferred, key=lambda t: t.weight).preference)
    return any(
        e.key == NODEPOOL and e.operator == Operator.DOES_NOT_EXIST
        for term in terms
        for e in term.match_expressions
    )


def impossible(shape: Shape) -> Rejection | None:
    """Return why pods of a shape have no place anywhere, also those that run already, or None."""
    if shape.unreadable is not None:
        return Rejection("Unreadable", f"invalid pod: {shape.unreadable}")
    if shape.model.spec.claims_devices:
        return CLAIMS_IGNORED
    return shape.volumes.missing


def invalid(shape: Shape, well_known: frozenset[str]) -> Rejection | None:
    """Return why waiting pods of a shape cannot be placed whatever is launched, or None."""
    certain = impossible(shape)
    if certain is not None:
        return certain
    spec = shape.model.spec
    affinity = spec.affinity.node_affinity if spec.affinity is not None else None
    terms = affinity.required.node_selector_terms if affinity and affinity.required else ()
    if any(term.match_fields for term in terms):
        return Rejection(
            "MatchFieldsNotSupported",
            "its required node affinity uses matchFields, which is not supported: "
            "select the node by a label",
        )
    asked = [equals(key, value) for key, value in spec.node_selector.items()]
    for term in terms:
        asked += expressions(term.match_expressions)
    for item in asked:
        problem = _restricted(item, well_known)
        if problem is not None:
            return problem
    return None


def _restricted(item: Requirement, well_known: frozenset[str]) -> Rejection | None:
    if not is_restricted(item.key, well_known):
        return None
    return Rejection(
        "RestrictedLabel",
        f"it selects nodes by the restricted label {item.key}, which no NodePool can set: "
        "use a label of your own domain",
        facts={"label": item.key},
    )
