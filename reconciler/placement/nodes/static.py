"""NodePools with a fixed number of replicas, whatever the pods.

Their nodes take pods like any others. Missing replicas are launched directly from the template
(Karpenter ``controllers/static/provisioning``).
"""

from __future__ import annotations

from collections.abc import Iterable

from reconciler.catalog.table import indices, table_of
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.resources import MILLI, NODES
from reconciler.model.settings import FeatureGate, Settings
from reconciler.observed.state import ClusterState
from reconciler.placement.answer import claim_labels, claim_name
from reconciler.placement.nodes.space import SpaceBook
from reconciler.placement.nodes.template import PoolTemplate
from reconciler.placement.question import TYPES_MAX, LaunchPool, PlannedClaim


def static_claims(
    pools: Iterable[LaunchPool], cluster: ClusterState, settings: Settings, *, salt: str = ""
) -> tuple[PlannedClaim, ...]:
    """Return the NodeClaims that static pools are missing, by pool and name.

    They have no pods and no requests. None are created while enough nodes exist or are about to be
    replaced, nor beyond ``limits.nodes``.
    """
    if not settings.gate(FeatureGate.STATIC_CAPACITY):
        return ()
    found = []
    for pool in sorted(pools, key=lambda p: p.node_pool.name):
        node_pool = pool.node_pool
        if not node_pool.is_static or not node_pool.is_ready or node_pool.is_deleting:
            continue
        existing = _node_names(cluster, node_pool.name)
        missing = _count_missing(node_pool, cluster, len(existing))
        found += [
            _template_claim(pool, (salt, "static", str(i), *existing)) for i in range(missing)
        ]
    return tuple(claim for claim in found if claim.types)


def _node_names(cluster: ClusterState, pool: str) -> list[str]:
    """Return the names of all nodes and NodeClaims of a pool, including those being deleted."""
    nodes = [n.name for n in cluster.nodes if n.node_pool == pool]
    return sorted([*nodes, *(c.name for c in cluster.unlaunched if c.node_pool == pool)])


def _count_present(pool: NodePool, cluster: ClusterState) -> tuple[int, int]:
    """Return how many nodes a NodePool has or is launching, and how many commands are removing."""
    nodes = [node for node in cluster.nodes if node.node_pool == pool.name]
    running = sum(not node.is_deleting for node in nodes)
    running += sum(c.node_pool == pool.name and not c.is_deleting for c in cluster.unlaunched)
    leaving = sum(1 for n in nodes if n.marked and not (n.claim and n.claim.is_deleting))
    return running, leaving


def _count_missing(pool: NodePool, cluster: ClusterState, existing: int) -> int:
    """Return how many nodes to launch; a node that a command is removing still counts."""
    running, leaving = _count_present(pool, cluster)
    replicas = pool.spec.replicas or 0
    if running + leaving >= replicas:
        return 0
    missing = replicas - running
    limit = pool.limits().get(NODES)
    return missing if limit is None else max(0, min(missing, limit // MILLI - existing))


def _template_claim(pool: LaunchPool, parts: tuple[str, ...]) -> PlannedClaim:
    template = PoolTemplate(pool.node_pool, SpaceBook(table_of(pool.types)), (), best_effort=True)
    allowed = set(indices(template.types))
    order = [i for i in template.table.order_by_price(template.space.offers) if i in allowed]
    requirements = template.space.requirements.without((REGISTERED, INITIALIZED))
    spec = pool.node_pool.spec.template
    return PlannedClaim(
        name=claim_name(pool.node_pool.name, parts),
        node_pool=pool.node_pool,
        pods=(),
        requests={},
        requirements=requirements,
        types=template.table.select_types(order[:TYPES_MAX]),
        types_total=len(order),
        labels=claim_labels(pool.node_pool, requirements, template.table.well_known),
        annotations=dict(spec.metadata.annotations),
        taints=spec.spec.taints,
        startup_taints=spec.spec.startup_taints,
    )
