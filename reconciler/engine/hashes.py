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

VersionedHash = tuple[str, str]
"""A hash and its version; both are empty where there is none."""


def migrate_hashes(
    claims: Iterable[NodeClaim],
    recorded: Sequence[RecordedObject],
    desired: Callable[[str, str], VersionedHash],
    rehash: Callable[[Mapping[str, object]], VersionedHash],
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
            current, version = annotations.get(key, ""), desired(kind, name)[1]
            if current and version and annotations.get(version_key) != version:
                annotations[key] = _origin_hash(
                    claim, current, objects.get((kind, name)), desired(kind, name)[0], rehash
                )
                annotations[version_key] = version
        if annotations != claim.metadata.annotations:
            metadata = replace(claim.metadata, annotations=annotations)
            changed.append(replace(claim, metadata=metadata))
    return changed


def _origin_hash(
    claim: NodeClaim,
    current: str,
    known: RecordedObject | None,
    desired: str,
    rehash: Callable[[Mapping[str, object]], VersionedHash],
) -> str:
    """Return the hash of what the claim was made from; for a drifted claim its old hash.

    The old hash matches no object, so the claim stays drifted. A record that already has a hash of
    this version cannot be compared with the claim.
    """
    if claim.is_true("Drifted"):
        return current
    if known is None:
        return desired
    recomputed = rehash(known.data)[0]
    if known.hash == current:
        return recomputed
    return desired if known.hash == recomputed else current
