"""Determine which pods a pass has to place, and which of them can never be placed.

These are the pending pods, and the pods that have to leave a node that is being deleted (Karpenter
``provisioner.go`` and its ``Validate``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from typing import Final

from reconciler.model.karpenter.labels import NODEPOOL, is_restricted
from reconciler.model.karpenter.requirements import Operator, Requirement, equals
from reconciler.model.kubernetes.cluster import PodDisruptionBudget
from reconciler.model.kubernetes.pod import NodeSelectorTerm, Pod, is_ready_false
from reconciler.observed.state import ClusterState
from reconciler.placement.pods.shape import Shape
from reconciler.placement.pods.volumes import claim_in_use
from reconciler.placement.question import Rejection
from reconciler.placement.topology.rules import expression_requirements

CLAIMS_IGNORED: Final = Rejection(
    "ResourceClaimsIgnored",
    "it requests devices with a ResourceClaim, which the fleet ignores: set ignoreDRARequests: "
    "false in reconciler.yaml, or request an extended resource of a device plugin",
)
"""Karpenter also rejects these pods, unless it is started with ``--ignore-dra-requests=false``."""


def pods_to_place(cluster: ClusterState, now: datetime) -> tuple[Pod, ...]:
    """Return the pods to place: pending ones, and those on nodes that are being deleted.

    A pod that opts out of NodePool nodes is not included. Whether a pending pod can be placed at
    all is checked later (``invalid_rejection``). Nothing protects the pods of a Node that no longer
    exists or has not joined: they are not running.
    """
    leaving = [
        pod
        for node in cluster.nodes
        if node.is_deleting
        for pod in node.pods
        if (not node.is_host and pod.is_reschedulable)
        or is_reschedulable_now(pod, cluster.pod_disruption_budgets, now)
    ]
    return (*(pod for pod in cluster.pending if not opts_out(pod)), *leaving)


def is_reschedulable_now(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Return whether a pod on a node being deleted will be recreated and may be evicted now."""
    if not pod.is_reschedulable or (pod.is_active and pod.do_not_disrupt(now)):
        return False
    return not _is_fully_blocked(pod, budgets, now)


def _is_fully_blocked(pod: Pod, budgets: Iterable[PodDisruptionBudget], now: datetime) -> bool:
    """Return whether PodDisruptionBudgets block its eviction permanently, by their definition."""
    if not pod.is_evictable(now):
        return False
    covering = list(islice((budget for budget in budgets if budget.selects(pod)), 2))
    if len(covering) > 1:  # whoever may create budgets can create any number of them
        return True
    for budget in covering:
        lenient = budget.spec.unhealthy_pod_eviction_policy == "AlwaysAllow"
        return budget.is_fully_blocking and not (lenient and is_ready_false(pod))
    return False


def opts_out(pod: Pod) -> bool:
    """Return whether the pod requires a node without a NodePool."""
    affinity = pod.spec.affinity
    if affinity is None:  # the usual case, and this is called for every pending pod
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


def unplaceable_rejection(shape: Shape) -> Rejection | None:
    """Return why pods of a shape, running or pending, cannot be placed anywhere, or None."""
    if shape.unreadable is not None:
        return Rejection("Unreadable", f"invalid pod: {shape.unreadable}")
    if shape.devices is not None and shape.devices.problem is not None:
        return shape.devices.problem
    if shape.devices is None and shape.model.spec.claims_devices:
        return CLAIMS_IGNORED
    return shape.volumes.missing


def without_invalid(
    shape: Shape,
    pods: list[Pod],
    rejections: dict[str, tuple[Rejection, ...]],
    well_known: frozenset[str],
    claim_users: Mapping[str, str],
) -> list[Pod]:
    """Return the pods that can be placed at all; running pods are not checked.

    The reasons of the others are added to ``rejections``.
    """
    problem = invalid_rejection(shape, well_known, claim_users)
    if problem is None:
        return pods
    certain = unplaceable_rejection(shape)
    for pod in pods:
        if not pod.spec.node_name:
            rejections[pod.key] = (problem,)
        elif certain is not None:
            rejections[pod.key] = (certain,)
    return [pod for pod in pods if pod.key not in rejections]


def invalid_rejection(
    shape: Shape, well_known: frozenset[str], claim_users: Mapping[str, str]
) -> Rejection | None:
    """Return why pending pods of a shape cannot be placed whatever is launched, or None.

    ``claim_users`` are the pods that use claims now (``ClusterState.claim_users``).
    """
    certain = unplaceable_rejection(shape)
    if certain is not None:
        return certain
    spec = shape.model.spec
    terms = spec.required_node_terms
    if any(term.match_fields for term in terms):
        return Rejection(
            "MatchFieldsNotSupported",
            "its required node affinity uses matchFields, which is not supported: "
            "select the node by a label",
        )
    selected = [equals(key, value) for key, value in spec.node_selector.items()]
    for term in terms:
        selected += expression_requirements(term.match_expressions)
    for item in selected:
        problem = _restricted_label_rejection(item, well_known)
        if problem is not None:
            return problem
    if not shape.exclusive.isdisjoint(claim_users):
        return claim_in_use(shape.exclusive, claim_users, runs=True)
    return None


def _restricted_label_rejection(item: Requirement, well_known: frozenset[str]) -> Rejection | None:
    if not is_restricted(item.key, well_known):
        return None
    return Rejection(
        "RestrictedLabel",
        f"it selects nodes by the restricted label {item.key}, which no NodePool can set: "
        "use a label of your own domain",
        facts={"label": item.key},
    )
