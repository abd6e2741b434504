"""Removes our finalizer from Nodes, so that they can be deleted without our daemon."""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.adapters.kubernetes import nodes
from reconciler.adapters.kubernetes.api import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    Api,
    ApiError,
    listed,
)
from reconciler.adapters.kubernetes.kinds import NODE
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict

_TRIES: Final = 5


def release_nodes(api: Api) -> list[str]:
    """Remove our finalizer from every Node of the cluster; return the names of those that had it.

    Nodes are changed in no other way. One that is being deleted is then removed, while its instance
    stays.

    Raises:
        ClusterError: the Nodes could not be listed, or one could not be changed.
    """
    released = []
    for raw in listed(api, NODE):
        node = _decoded(raw)
        if nodes.surrender(node) is not None:
            _release(api, node)
            released.append(str(node["metadata"]["name"]))
    return sorted(released)


def _release(api: Api, node: JsonDict) -> None:
    """Patch a Node, again after a conflict."""
    path = f"{NODE.path}/{node['metadata']['name']}"
    for left in reversed(range(_TRIES)):
        patch = nodes.surrender(node)
        if patch is None:
            return
        try:
            api.call("PATCH", path, body=patch, content=MERGE_PATCH)
        except ApiError as error:
            if error.status == NOT_FOUND:
                return
            if error.status != CONFLICT or not left:
                raise
        else:
            return
        try:
            node = _decoded(api.call("GET", path))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return
            raise


def _decoded(raw: bytes | msgspec.Raw) -> JsonDict:
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ClusterError("the answer is not a Node", where=f"GET {NODE.path}") from error
