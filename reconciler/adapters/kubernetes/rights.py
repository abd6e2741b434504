"""Whether our credentials could write to a cluster that is only to be watched."""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import REVIEWS, Api, review_access
from reconciler.adapters.kubernetes.kinds import NODE, NODE_CLAIM, NODE_POOL, POD
from reconciler.model.errors import ClusterError

_WRITES: Final = (
    *((verb, NODE_CLAIM.group, NODE_CLAIM.resource) for verb in ("create", "patch", "delete")),
    *((verb, NODE_POOL.group, NODE_POOL.resource) for verb in ("create", "patch", "delete")),
    *((verb, NODE.group, NODE.resource) for verb in ("patch", "update", "delete")),
    ("create", POD.group, f"{POD.resource}/eviction"),
    ("delete", POD.group, POD.resource),
)
"""What acts on nodes; any of it lets a mistake do what Karpenter alone should do."""


def writing_rights(api: Api) -> tuple[str, ...]:
    """Return what we could write, as ``delete nodeclaims.karpenter.sh``; nothing is tried.

    Raises:
        ClusterError: the API server does not say what it would allow.
    """
    found = []
    for verb, group, resource in _WRITES:
        try:
            answer = review_access(api, verb, group, resource)
        except msgspec.MsgspecError as error:
            raise ClusterError(
                f"the answer about our rights cannot be read: {error}",
                where=f"POST {REVIEWS}",
                remedy="check what answers at the address of the API server",
            ) from error
        if answer.allowed:
            found.append(f"{verb} {resource}{f'.{group}' if group else ''}")
    return tuple(found)
