"""Whether our credentials could write to a cluster that is only to be watched."""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import REVIEWS, Api, review_access
from reconciler.adapters.kubernetes.kinds import (
    EC2_NODE_CLASS,
    NODE,
    NODE_CLAIM,
    NODE_OVERLAY,
    NODE_POOL,
    POD,
)
from reconciler.model.errors import ClusterError, UsageError

_VERBS: Final = ("create", "update", "patch", "delete", "deletecollection")
_PARTS: Final = ("status", "resize", "ephemeralcontainers")
_WRITES: Final = (
    *(
        (verb, kind.group, kind.resource)
        for kind in (NODE_CLAIM, NODE_POOL, NODE_OVERLAY, EC2_NODE_CLASS, NODE, POD)
        for verb in _VERBS
    ),
    ("patch", NODE_CLAIM.group, f"{NODE_CLAIM.resource}/status"),
    ("create", POD.group, f"{POD.resource}/eviction"),
    ("create", POD.group, f"{POD.resource}/binding"),
    ("create", POD.group, f"{POD.resource}/exec"),
    ("create", POD.group, f"{POD.resource}/attach"),
    *(("patch", POD.group, f"{POD.resource}/{part}") for part in _PARTS),
    ("patch", NODE.group, f"{NODE.resource}/status"),
    ("create", NODE.group, f"{NODE.resource}/proxy"),
    ("create", "", "serviceaccounts/token"),
    *(("impersonate", "", who) for who in ("users", "groups", "serviceaccounts")),
)
"""What acts on nodes and pods, or in another name.

Any of it lets a mistake do what Karpenter alone should do.
"""


def _writing_rights(api: Api) -> tuple[str, ...]:
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


def expect_read_only(api: Api, *, may_write: bool) -> None:
    """Refuse credentials that could change nodes, unless ``may_write``.

    Raises:
        UsageError: they could; the message lists what.
        ClusterError: the API server does not say what it would allow.
    """
    if may_write:
        return
    found = _writing_rights(api)
    if found:
        raise UsageError(
            f"the credentials could write: {', '.join(found)}",
            where=str(api.access),
            remedy="use those of docs/kubernetes/clusterrole-watch.yaml, which only reads, or pass "
            "--allow-write-access",
        )
