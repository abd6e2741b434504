"""What becomes of the drift hashes on recorded claims when a release computes them otherwise.

Hashes of two versions say nothing about each other, so a new version alone replaces no node; but
then nothing would ever drift again. Each claim is therefore given the hash, by today's rules, of
the object it was made from. Karpenter takes the object as it is now for that and so forgives a
change that comes with an upgrade; we have recorded what was carried out last, and know better.
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
    """Return the claims whose hashes are of another version, each with those of this one.

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
    """Return the hash of what the claim was made from; the old one, nobody's now, if it drifted.

    A record that bears a hash of today already cannot be compared with the claim.
    """
    if claim.is_true("Drifted"):
        return have
    if known is None:
        return wanted
    today = rehash(known.data)[0]
    if known.hash == have:
        return today
    return wanted if known.hash == today else have
