"""Pods that only EKS Auto Mode gives nodes: AWS launches these, so no plan forecasts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from reconciler.model.decision.finding import PlanFinding
from reconciler.model.karpenter.labels import WELL_KNOWN_AWS
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.taint import repelling_taints
from reconciler.model.text.counting import format_count, format_list
from reconciler.placement.topology.rules import node_terms
from reconciler.plan.render.unknown import NOT_KNOWN
from reconciler.plan.render.wording import format_pods
from reconciler.source.resource import AUTO_MODE

NOT_FORECAST: Final = "which AWS launches and a plan does not forecast"
"""Why the cost of a node of EKS Auto Mode is not known."""

_POOLS_NAMED: Final = 3


def is_auto_mode(pool: NodePool) -> bool:
    """Return whether AWS launches the nodes of a NodePool."""
    return pool.spec.template.spec.node_class_ref.group == AUTO_MODE


def left_to_auto_mode(pods: Iterable[Pod], pools: Iterable[NodePool]) -> frozenset[str]:
    """Return the pods that may run on nodes of EKS Auto Mode, by their labels and taints.

    Which instance types Auto Mode launches, and how much of each its pods may use, is not known.
    """
    auto = [pool for pool in pools if is_auto_mode(pool)]
    return frozenset(pod.key for pod in pods if any(may_take(pool, pod) for pool in auto))


def may_take(pool: NodePool, pod: Pod) -> bool:
    if repelling_taints(pool.spec.template.spec.taints, pod.spec.tolerations):
        return False
    try:
        terms = node_terms(pod.spec)
    except ValueError:  # its affinity cannot be read
        return False
    own = pool.template_requirements()
    set_by_eks = AUTO_MODE if is_auto_mode(pool) else ()
    return any(
        own.is_compatible(term, WELL_KNOWN_AWS | {k for k in term if k.startswith(set_by_eks)})
        for term in terms
    )


def auto_mode_findings(
    left: Sequence[str], pools: Sequence[NodePool], *, has_base: bool
) -> Iterator[PlanFinding]:
    """Yield that pods of a plan are left to EKS Auto Mode, and that their cost is not known.

    With a base, ``rest.automode`` decides whether the cost of the change is known.
    """
    if not left:
        return
    names = [pool.name for pool in pools if is_auto_mode(pool)]
    which = format_list((f"NodePool {name}" for name in names), _POOLS_NAMED)
    yield PlanFinding(
        severity="info",
        code="auto-mode-pods",
        message=f"{format_count(len(left), 'pod')} left to EKS Auto Mode ({which}), whose nodes a "
        f"plan does not forecast: {format_pods(left)}",
    )
    if not has_base and len(names) == len(pools):
        yield unknown_cost(f"all nodes are those of EKS Auto Mode, {NOT_FORECAST}")


def unknown_cost(why: str) -> PlanFinding:
    return PlanFinding(
        severity="warning",
        code="auto-mode-cost",
        message=f"{NOT_KNOWN}{why}",
        hint="to forecast it as if Karpenter launched these nodes, convert a copy with "
        "`reconciler init --from`",
    )
