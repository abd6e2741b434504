"""Migration of the drift hashes on recorded claims when a release computes hashes differently.

Hashes of different versions cannot be compared, so a new version alone replaces no node. But
without a migration nothing would ever drift again. Each claim therefore gets the hash, by the new
rules, of the object that it was made from. Karpenter uses the current object for that, which hides
a change that arrives together with an upgrade. We have recorded the object that was applied last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec.structs import replace

from reconciler.model.karpenter.labels import (
    NODECLASS_HASH,
    NODECLASS_HASH_VERSION,
    NODEPOOL_HASH,
    NODEPOOL_HASH_VERSION,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.ports.state import RecordedObject

Hashed = tuple[str, str]
"""A hash and its version; both are empty where there is none."""


def restamped(
    claims: Iterable[NodeClaim],
    recorded: Sequence[RecordedObject],
    desired: Callable[[str, str], Hashed],
    rehash: Callable[[Mapping[str, object]], Hashed],
) -> list[NodeClaim]:
    """Return the claims whose hashes have another version, with hashes of this version.

    ``desired`` gives the hash of an object in git by kind and name, ``rehash`` that of an object
    as recorded.
    """
    objects = {(o.kind, o.name): o for o in recorded}
    changed = []
    for claim in claims:
        annotations = dict(claim.metadata.annotations)
        for kind, name, key, version_key in (
            ("NodePool", claim.node_pool, NODEPOOL_HASH, NODEPOOL_HASH_VERSION),
            (
                "EC2NodeClass",
                claim.spec.node_class_ref.name,
                NODECLASS_HASH,
                NODECLASS_HASH_VERSION,
            ),
        ):
            have, version = annotations.get(key, ""), desired(kind, name)[1]
            if have and version and annotations.get(version_key) != version:
                annotations[key] = _hash_today(
                    claim, have, objects.get((kind, name)), desired(kind, name)[0], rehash
                )
                annotations[version_key] = version
        if annotations != claim.metadata.annotations:
            metadata = replace(claim.metadata, annotations=annotations)
            changed.append(replace(claim, metadata=metadata))
    return changed


def _hash_today(
    claim: NodeClaim,
    have: str,
    known: RecordedObject | None,
    wanted: str,
    rehash: Callable[[Mapping[str, object]], Hashed],
) -> str:
    """Return the hash of what the claim was made from; for a drifted claim its old hash.

    The old hash matches no object, so the claim stays drifted. A record that already has a hash of
    this version cannot be compared with the claim.
    """
    if claim.is_true("Drifted"):
        return have
    if known is None:
        return wanted
    today = rehash(known.data)[0]
    if known.hash == have:
        return today
    return wanted if known.hash == today else have
