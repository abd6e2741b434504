"""The claim of an instance that is taken over and in no record: written anew from its tags.

Drift and consolidation then treat its node like any other. A pass takes over nothing by itself
(decision 15); ``takeover.py`` does, when a person has asked for it.
"""

from __future__ import annotations

import re
from typing import Final

from reconciler.engine import lifecycle, provision
from reconciler.engine.ownership import CLAIM_TAG
from reconciler.model.labels import NODEPOOL
from reconciler.model.metadata import Metadata
from reconciler.model.nodeclaim import NodeClaim, NodeClaimSpec
from reconciler.model.nodepool import NodePool
from reconciler.ports import Instance

_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,61}[a-z0-9])?", re.ASCII)
"""What may be the name of a claim: a tag can hold any text."""


def name_of(instance: Instance) -> str:
    """Return the name of an instance's claim: its tag, else one made from its NodePool and id.

    An instance that was launched with others gets that tag only when its node has joined.
    """
    made = f"{instance.tags.get(NODEPOOL, '')[:40]}-{instance.id.removeprefix('i-')}"
    named = instance.tags.get(CLAIM_TAG, "")
    return named if _NAME.fullmatch(named) else made


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
