"""Node classes of any provider of Karpenter, found through the NodePools that refer to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import FORBIDDEN, NOT_FOUND, Api, ApiError, read_objects
from reconciler.adapters.kubernetes.kinds import EC2_NODE_CLASS, Kind
from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict
from reconciler.source.schema import value_at

_GROUP: Final = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


class _Resource(msgspec.Struct, frozen=True):
    name: str = ""
    kind: str = ""


class _ResourceList(msgspec.Struct, frozen=True):
    resources: tuple[_Resource, ...] = ()


class _Version(msgspec.Struct, frozen=True, rename="camel"):
    version: str = ""


class _Group(msgspec.Struct, frozen=True, rename="camel"):
    preferred_version: _Version = _Version()


def other_node_classes(api: Api, pools: Iterable[JsonDict]) -> Iterator[JsonDict]:
    """Yield the node classes that NodePools refer to, without those of EC2.

    A kind that the API does not have, or that the role may not list, is left out: only the
    conditions of such classes are read, and without them a class counts as ready.

    Raises:
        ClusterError: the API server did not respond.
    """
    for group, kind_name in sorted({_reference(pool) for pool in pools}):
        if (group, kind_name) == (EC2_NODE_CLASS.group, EC2_NODE_CLASS.kind) or not group:
            continue
        try:
            kind = _find_kind(api, group, kind_name)
            items = [] if kind is None else list(read_objects(api, kind))
        except ApiError as error:
            if error.status not in (FORBIDDEN, NOT_FOUND):
                raise
            continue
        yield from items


def _reference(pool: JsonDict) -> tuple[str, str]:
    """Return group and kind of the class of a NodePool, empty if it has no valid reference."""
    found = value_at(pool, ("spec", "template", "spec", "nodeClassRef"))
    if not isinstance(found, dict):
        return "", ""
    group, kind = str(found.get("group") or ""), str(found.get("kind") or "")
    return (group, kind) if _GROUP.fullmatch(group) and kind.isalnum() else ("", "")


def _find_kind(api: Api, group: str, name: str) -> Kind | None:
    """Return a kind of a group as the API server serves it, None if it does not."""
    try:
        served = decode_json(api.call("GET", f"/apis/{group}"), _Group)
        version = served.preferred_version.version
        found = decode_json(api.call("GET", f"/apis/{group}/{version}"), _ResourceList)
    except msgspec.MsgspecError as error:
        what = f"invalid discovery: {describe_mismatch(error)}"
        raise ClusterError(what, where=f"GET /apis/{group}") from error
    plural = next((r.name for r in found.resources if r.kind == name and "/" not in r.name), None)
    return None if plural is None else Kind(name, plural, group, version, optional=True)
