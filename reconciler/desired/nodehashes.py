"""The hashes that NodeClaims carry of their NodePool and node class, after those have changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from reconciler.desired.hash import object_hash
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import NODECLASS_HASH, NODEPOOL, NODEPOOL_HASH


def _templates_of(claim: JsonDict) -> dict[str, tuple[str, str]]:
    """Return the objects that a NodeClaim was made from, by the annotation with their hash."""
    labels = claim["metadata"].get("labels") or {}
    reference = (claim.get("spec") or {}).get("nodeClassRef") or {}
    return {
        NODEPOOL_HASH: ("NodePool", labels.get(NODEPOOL, "")),
        NODECLASS_HASH: ("EC2NodeClass", reference.get("name", "")),
    }


def carry_hashes(objects: Sequence[JsonDict], before: Iterable[JsonDict]) -> None:
    """Change the hashes in NodeClaims as those of their NodePool and node class have changed.

    Otherwise every node would seem to have drifted. A hash that differed still differs: both are
    combined with the same number.
    """
    old, new = _template_hashes(before), _template_hashes(objects)
    for item in objects:
        if item["kind"] != "NodeClaim":
            continue
        annotations = item["metadata"].get("annotations") or {}
        for key, known in _templates_of(item).items():
            recorded = str(annotations.get(key, ""))
            if recorded.isdecimal() and known in old and known in new:
                annotations[key] = str(int(recorded) ^ old[known] ^ new[known])


def _template_hashes(objects: Iterable[JsonDict]) -> dict[tuple[str, str], int]:
    found = {}
    for item in objects:
        try:
            known = object_hash(item)
        except ValueError:  # a value that cannot be read has no hash, neither here nor in a plan
            continue
        if known is not None:
            found[item["kind"], item["metadata"]["name"]] = int(known[0])
    return found
