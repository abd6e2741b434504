"""Refuses to watch with credentials that could write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reconciler.adapters.kubernetes.rights import writing_rights
from reconciler.model.errors import UsageError

if TYPE_CHECKING:
    from reconciler.adapters.kubernetes.api import Api


def expect_read_only(api: Api, *, may_write: bool) -> None:
    """Refuse credentials that could change nodes, unless ``may_write``.

    Raises:
        UsageError: they could; the message lists what.
        ClusterError: the API server does not say what it would allow.
    """
    if may_write:
        return
    found = writing_rights(api)
    if found:
        raise UsageError(
            f"the credentials could write: {', '.join(found)}",
            where=str(api.access),
            remedy="use those of docs/kubernetes/clusterrole-watch.yaml, which only reads, or pass "
            "--allow-write-access",
        )
