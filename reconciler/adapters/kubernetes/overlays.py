"""NodeOverlays of the cluster: read, and written by server-side apply.

An update names the version that it replaces, and a creation takes no field that somebody else has
set. So concurrent writes of others are never overwritten; the next round decides again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import CONFLICT, NOT_FOUND, Api, ApiError, listed
from reconciler.adapters.kubernetes.kinds import NODE_OVERLAY
from reconciler.catalog.commitments.overlays import OverlayAction, OverlayRow, document
from reconciler.model.decode import decode
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.nodeoverlay import NodeOverlay

APPLY_PATCH: Final = "application/apply-patch+yaml"
"""JSON is YAML, so the body is JSON."""
_MANAGER: Final = {"fieldManager": "reconciler"}


@dataclass(frozen=True, slots=True)
class PresentOverlay:
    """An overlay of the cluster, and its version."""

    overlay: NodeOverlay
    version: str


def read_overlays(api: Api) -> dict[str, PresentOverlay]:
    """Return the overlays of the cluster, by name.

    Raises: ClusterError: they cannot be read, or the cluster does not have the kind.
    """
    try:
        required = replace(NODE_OVERLAY, optional=False)
        found = [_decoded(raw) for raw in listed(api, required)]
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise ClusterError(
            "the cluster does not know NodeOverlays",
            where=f"GET {NODE_OVERLAY.path}",
            remedy="install Karpenter 1.7 or later, with its feature gate NodeOverlay",
        ) from error
    return {one.overlay.name: one for one in found}


def _decoded(raw: bytes | msgspec.Raw) -> PresentOverlay:
    try:
        data = msgspec.json.decode(raw, type=JsonDict)
        version = str(data["metadata"].get("resourceVersion") or "")
        return PresentOverlay(decode(data, NodeOverlay), version)
    except (msgspec.MsgspecError, KeyError, AttributeError) as error:
        what = f"a NodeOverlay cannot be read: {error}"
        raise ClusterError(what, where=f"GET {NODE_OVERLAY.path}") from error


@dataclass(frozen=True, slots=True)
class OverlayFailure:
    """An overlay that could not be written, and why."""

    name: str
    error: ClusterError


def write_overlays(
    api: Api, rows: Iterable[OverlayRow], present: dict[str, PresentOverlay]
) -> list[OverlayFailure]:
    """Create, update and delete overlays according to the rows; return what failed."""
    failures = []
    for row in rows:
        there = present.get(row.overlay.name)
        try:
            _write(api, row, there.version if there is not None else "")
        except ApiError as error:
            failures.append(OverlayFailure(row.overlay.name, _explained(error)))
    return failures


def _write(api: Api, row: OverlayRow, version: str) -> None:
    path = f"{NODE_OVERLAY.path}/{row.overlay.name}"
    whole = document(row.overlay)
    match row.action:
        case OverlayAction.CREATE:
            api.call("PATCH", path, _MANAGER, whole, content=APPLY_PATCH)
        case OverlayAction.UPDATE:
            metadata = msgspec.to_builtins(row.overlay.metadata)
            whole["metadata"] = {**metadata, "resourceVersion": version}
            api.call("PATCH", path, {**_MANAGER, "force": "true"}, whole, content=APPLY_PATCH)
        case OverlayAction.DELETE:
            try:
                api.call("DELETE", path, body={"preconditions": {"resourceVersion": version}})
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise


def _explained(error: ApiError) -> ClusterError:
    if error.status != CONFLICT:
        return error
    what = "somebody else wrote it at the same time"
    return ClusterError(what, where=error.where, remedy="run the command again")
