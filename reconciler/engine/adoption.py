"""Taking in instances that bear our tags but stand in no record of ours.

They are what a lost or restored state leaves behind. Terminating them would turn a lost disk into
a lost fleet, so their claims are written anew from their tags; drift and consolidation then treat
them like any other node, and one whose NodePool is not in git is reported and left alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from reconciler.engine import lifecycle, provision
from reconciler.engine.effects import Effects
from reconciler.engine.observation import Observation
from reconciler.engine.termination import CLAIM_TAG, INTENT_TAG, strangers
from reconciler.model.labels import NODEPOOL
from reconciler.model.metadata import Metadata
from reconciler.model.nodeclaim import NodeClaim, NodeClaimSpec
from reconciler.model.nodepool import NodePool
from reconciler.ports import Instance


def adopt(
    effects: Effects,
    seen: Observation,
    pools: Mapping[str, NodePool],
    types: provision.TypeLookup,
) -> bool:
    """Record a claim for every instance of ours that has none; return whether there was one."""
    world = effects.world
    taken = {c.name for c in seen.claims}
    claims = []
    for instance in strangers(seen):
        if world.journal.entry(instance.tags.get(INTENT_TAG, "")) is not None:
            continue
        pool = pools.get(instance.tags.get(NODEPOOL, ""))
        name = instance.tags.get(CLAIM_TAG, "") or _name_of(instance)
        if pool is None or name in taken:
            world.tell("Unknown", f"instance {instance.id} bears our tags and fits no NodePool")
            continue
        claims.append(claim_of(instance, name, pool, types))
        world.tell("Adopted", f"{instance.id} as {name}", node_claim=name, node_pool=pool.name)
    if claims:
        world.store.put_node_claims(claims)
    return bool(claims)


def _name_of(instance: Instance) -> str:
    """Return a name for the claim of an instance that was launched with others.

    It would have got its claim's as a tag when its node joined.
    """
    return f"{instance.tags.get(NODEPOOL, '')[:40]}-{instance.id.removeprefix('i-')}"


def claim_of(
    instance: Instance, name: str, pool: NodePool, types: provision.TypeLookup
) -> NodeClaim:
    """Return the claim that an instance would have had, were its NodePool always as it is now."""
    template = pool.spec.template
    claim = NodeClaim(
        metadata=Metadata(name=name, labels=pool.labels(), creation_timestamp=instance.launched_at),
        spec=NodeClaimSpec(
            node_class_ref=template.spec.node_class_ref,
            requirements=template.spec.requirements,
            taints=template.spec.taints,
            startup_taints=template.spec.startup_taints,
            expire_after=template.spec.expire_after,
            termination_grace_period=template.spec.termination_grace_period,
        ),
    )
    kind = types(pool.name, instance.instance_type)
    return lifecycle.launched(claim, instance, kind, instance.launched_at)
