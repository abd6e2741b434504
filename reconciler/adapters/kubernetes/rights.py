"""Whether our credentials could write to a cluster that is only to be watched."""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import REVIEWS, Api
from reconciler.adapters.kubernetes.kinds import NODE, NODE_CLAIM, NODE_POOL, POD
from reconciler.model.errors import ClusterError

_WRITES: Final = (
    *((verb, NODE_CLAIM.group, NODE_CLAIM.resource, "") for verb in ("create", "patch", "delete")),
    *((verb, NODE_POOL.group, NODE_POOL.resource, "") for verb in ("create", "patch", "delete")),
    *((verb, NODE.group, NODE.resource, "") for verb in ("patch", "update", "delete")),
    ("create", POD.group, POD.resource, "eviction"),
    ("delete", POD.group, POD.resource, ""),
)
"""What acts on nodes; any of it lets a mistake do what Karpenter alone should do."""


class _Access(msgspec.Struct, frozen=True):
    allowed: bool


class _AccessReview(msgspec.Struct, frozen=True):
    status: _Access


def writing_rights(api: Api) -> tuple[str, ...]:
    """Return what we could write, as ``delete nodeclaims.karpenter.sh``; nothing is tried.

    Raises:
        ClusterError: the API server does not say what it would allow.
    """
    found = []
    for verb, group, resource, part in _WRITES:
        attributes = {"verb": verb, "group": group, "resource": resource}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": attributes | ({"subresource": part} if part else {})},
        }
        try:
            review = msgspec.json.decode(api.call("POST", REVIEWS, body=body), type=_AccessReview)
        except msgspec.MsgspecError as error:
            raise ClusterError(
                f"the answer about our rights cannot be read: {error}",
                where=f"POST {REVIEWS}",
                remedy="check what answers at the address of the API server",
            ) from error
        if review.status.allowed:
            name = f"{resource}/{part}" if part else resource
            found.append(f"{verb} {name}{f'.{group}' if group else ''}")
    return tuple(found)
