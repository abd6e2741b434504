"""NodeClaims as objects of the cluster: shown after each pass, and deleted by people.

The copies have no effect, with one exception: if somebody deletes a copy, its NodeClaim is deleted,
like with ``kubectl delete nodeclaim`` and Karpenter. Problems with the copies stop no pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

from reconciler.engine.desired import Desired
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation
from reconciler.engine.steps import lifecycle
from reconciler.engine.world import World
from reconciler.model.errors import ClusterError
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.plan.value.plan import Plan
from reconciler.ports.cluster import Mirror
from reconciler.ports.progress import EventKind

CLAIM_DELETED: Final = "NodeClaimDeleted"
_NAME: Final = "mirror NodeClaims"


def read(effects: Effects, seen: Observation) -> None:
    """Mark the claims as deleted whose copies somebody has deleted."""
    world = effects.world
    try:
        names = world.mirror.deleted()
    except ClusterError as error:
        world.deletion_problems.report(world, str(error))
        return
    world.deletion_problems.report(world, "")
    gone = []
    for claim in seen.claims:
        if claim.name not in names or claim.metadata.deletion_timestamp is not None:
            continue
        what = f"NodeClaim {claim.name} was deleted in the cluster"
        gone.append(lifecycle.removed(claim, seen.at, CLAIM_DELETED, what))
        world.notify(
            EventKind.NODE_DELETED,
            f"{what}: its node is drained, then its instance is terminated",
            node_claim=claim.name,
            node_pool=claim.node_pool,
        )
    if gone:
        world.store.put_node_claims(gone)


def show(world: World, desired: Desired, plan: Plan) -> None:
    """Begin to bring the copies up to date, and report the result of the last time."""
    answer = world.calls.answer(_NAME)
    if answer is not None:
        world.mirror_problems.report(world, str(answer.error) if answer.error else "")
        if isinstance(answer.value, frozenset):
            _report_pools(world, answer.value - {pool.name for pool in desired.node_pools})
    claims = tuple(world.store.node_claims())
    drifted = {found.node_claim: found.reason for found in plan.drift}
    world.calls.start(_NAME, partial(_shown, world.mirror, claims, drifted))


def _shown(
    mirror: Mirror, claims: Sequence[NodeClaim], drifted: Mapping[str, str]
) -> frozenset[str]:
    """Show the claims; return the NodePools of the cluster."""
    mirror.show(claims, drifted)
    return frozenset(mirror.node_pools())


def _report_pools(world: World, names: frozenset[str]) -> None:
    """Report the NodePools of the cluster that are not in git, once for the same ones."""
    listed = ", ".join(sorted(names))
    text = f"NodePools of the cluster that git does not have are not acted on: {listed}"
    world.pool_notices.report(world, text if names else "", EventKind.IGNORED)
