"""What a change of NodePools lets them launch: other architectures, and few types of spot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

from msgspec.structs import replace

from reconciler.desired.objects import node_pools
from reconciler.disruption.consolidation.proposal import SPOT_FLEXIBILITY
from reconciler.model.decision.changes import Change
from reconciler.model.decision.finding import PlanFinding
from reconciler.model.karpenter.labels import ARCH, ON_DEMAND, SPOT, WELL_KNOWN_AWS
from reconciler.model.karpenter.nodepool import WHEN_EMPTY, NodePool
from reconciler.model.karpenter.requirements import Requirements
from reconciler.model.kubernetes.taint import repelling_taints
from reconciler.model.settings import FeatureGate
from reconciler.model.text.counting import format_count
from reconciler.observed.state import ClusterState
from reconciler.placement.explain.constraints import Constraint, ConstraintKind, pod_constraints
from reconciler.placement.question import LaunchPool
from reconciler.plan.make.costs import launchable_types
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.render.wording import format_words

_REQUIREMENTS: Final = "spec.template.spec.requirements"


def offer_risks(
    head: Inputs,
    changes: Iterable[Change],
    before: Iterable[LaunchPool],
    after: Iterable[LaunchPool],
) -> Iterator[PlanFinding]:
    """Yield what may go wrong with the nodes that NodePools may launch after the change."""
    replaces_spot = head.settings.gate(FeatureGate.SPOT_TO_SPOT_CONSOLIDATION)
    places = {row.name: row for row in changes if row.kind == "NodePool"}
    for name, finding in (
        *_new_architectures(head, before, after),
        *_few_spot_types(before, after, replaces_spot=replaces_spot),
    ):
        place = places.get(name)
        yield finding if place is None else replace(finding, file=place.file, line=place.line)


def _few_spot_types(
    before: Iterable[LaunchPool], after: Iterable[LaunchPool], *, replaces_spot: bool
) -> Iterator[tuple[str, PlanFinding]]:
    """Yield the NodePools whose spot nodes are of few instance types, and of fewer than before.

    Few is fewer than Karpenter needs to replace a spot node by a cheaper spot node.
    """
    known = {pool.node_pool.name: _capacity(pool)[SPOT] for pool in before}
    for pool in after:
        name, capacity = pool.node_pool.name, _capacity(pool)
        count, old = capacity[SPOT], known.get(name, 0)
        if not 0 < count < min(old or SPOT_FLEXIBILITY, SPOT_FLEXIBILITY):
            continue
        number = format_count(count, "instance type") + (f" ({old} before)" if old else "")
        instead = "on-demand nodes are" if capacity[ON_DEMAND] else "no node is"
        policy = pool.node_pool.spec.disruption.consolidation_policy
        more = ""
        if replaces_spot and policy != WHEN_EMPTY:
            more = f", and consolidation of spot nodes needs {SPOT_FLEXIBILITY} types"
        finding = PlanFinding(
            severity="warning",
            code="change-of-spot-types",
            message=f"NodePool {name} may launch spot nodes of only {number}: EC2 may reclaim many "
            f"of them at once, {'' if more else 'and '}{instead} launched while it has no capacity "
            f"of {'it' if count == 1 else 'them'}{more}",
            path=_REQUIREMENTS,
            hint=f"allow at least {SPOT_FLEXIBILITY} instance types",
        )
        yield name, finding


def _capacity(pool: LaunchPool) -> Counter[str]:
    """Return how many instance types the NodePool may launch of each capacity type."""
    return Counter(
        capacity_type
        for _, offerings in launchable_types(pool)
        for capacity_type in {offering.capacity_type for offering in offerings}
    )


def _new_architectures(
    inputs: Inputs, base: Iterable[LaunchPool], head: Iterable[LaunchPool]
) -> Iterator[tuple[str, PlanFinding]]:
    """Yield the NodePools with nodes of an architecture for which images may not be built.

    Pods that require an architecture are not affected. A new NodePool is compared with all of the
    base.
    """
    before, after = (_architectures_of(side) for side in (base, head))
    anywhere = frozenset[str]().union(*before.values())
    for pool in node_pools(inputs.fleet):
        known = before.get(pool.name) or anywhere
        new = sorted(after.get(pool.name, frozenset()) - known)
        pods = _pods_of_any_architecture(inputs.cluster, pool)
        if not new or not known or pods == 0:
            continue
        whose = "its pods" if pods is None else f"{format_count(pods, 'pod')} that may run there"
        finding = PlanFinding(
            severity="warning",
            code="change-of-architecture",
            message=f"NodePool {pool.name} may launch {format_words(new)} nodes, which it could "
            f"not before: the container images of {whose} must be built for {format_words(new)}",
            path=_REQUIREMENTS,
            hint="let pods whose images are not built for it require another kubernetes.io/arch",
        )
        yield pool.name, finding


def _architectures_of(pools: Iterable[LaunchPool]) -> dict[str, frozenset[str]]:
    """Return the CPU architectures of the instance types that each NodePool may launch now."""
    return {
        pool.node_pool.name: frozenset[str]().union(
            *(kind.requirements.requirement_on(ARCH).values for kind, _ in launchable_types(pool))
        )
        for pool in pools
    }


def _pods_of_any_architecture(cluster: ClusterState, pool: NodePool) -> int | None:
    """Return how many pods may run on the NodePool and require no architecture, None if unknown."""
    pods = [pod for pod in cluster.pods if pod.is_reschedulable]
    if not pods:
        return None
    architecture = Constraint(ConstraintKind.LABEL, ARCH)
    labels = pool.template_requirements()
    taints = pool.spec.template.spec.taints
    return sum(
        labels.is_compatible(Requirements.from_labels(pod.spec.node_selector), WELL_KNOWN_AWS)
        and not repelling_taints(taints, pod.spec.tolerations)
        and architecture not in pod_constraints(pod.spec)
        for pod in pods
    )
