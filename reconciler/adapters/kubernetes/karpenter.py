"""Objects of Karpenter's kinds in the cluster: copies of our NodeClaims, and NodeOverlays.

The copies exist where the API knows the kind, so that ``kubectl get nodeclaims`` works.
NodeOverlays are written by server-side apply.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import (
    CONFLICT,
    MERGE_PATCH,
    NOT_FOUND,
    Api,
    ApiError,
    ObjectList,
    list_items,
    list_objects,
)
from reconciler.adapters.kubernetes.kinds import NODE_CLAIM, NODE_OVERLAY, NODE_POOL, Kind
from reconciler.catalog.commitments.overlays import OverlayAction, OverlayRow, document
from reconciler.model.decode import decode, decode_json, describe_mismatch
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import (
    NODECLASS_HASH,
    NODEPOOL_HASH,
    REBOOT_BOOT_ID,
    REBOOT_DRAIN_LIMIT,
)
from reconciler.model.karpenter.nodeclaim import REBOOTING, NodeClaim
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.ownership import FLEET_TAG, NODE_FINALIZER
from reconciler.observed.isolation import name_in

APPLY_PATCH: Final = "application/apply-patch+yaml"
"""JSON is YAML, so the body is JSON."""
_MANAGER: Final = {"fieldManager": "reconciler"}

CLASS_GROUP: Final = "reconciler"
"""The group of ``nodeClassRef``, which no Karpenter supports."""
_CONDITIONS: Final = (
    "Launched",
    "Registered",
    "Initialized",
    "Drifted",
    "Consolidatable",
    "DisruptionReason",
    "Drained",
    "VolumesDetached",
    REBOOTING,
    "InstanceTerminating",
)
"""Karpenter's conditions; the other recorded conditions of a claim are internal."""
_ANNOTATIONS: Final = (
    NODEPOOL_HASH,
    NODECLASS_HASH,
    "karpenter.sh/do-not-disrupt",
    REBOOT_BOOT_ID,
    REBOOT_DRAIN_LIMIT,
)

_DEPENDENTS: Final = ("Launched", "Registered", "Initialized")


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
        found = [_decode_overlay(raw) for raw in list_items(api, required)]
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        raise ClusterError(
            "the cluster does not know NodeOverlays",
            where=f"GET {NODE_OVERLAY.path}",
            remedy="install Karpenter 1.7 or later, with its feature gate NodeOverlay",
        ) from error
    return {row.overlay.name: row for row in found}


def _decode_overlay(raw: bytes | msgspec.Raw) -> PresentOverlay:
    try:
        overlay = decode(decode_json(raw), NodeOverlay)
        version = decode_json(raw, _Versioned).metadata.resource_version
    except msgspec.MsgspecError as error:
        what = f"NodeOverlay {name_in(raw)} cannot be read: {describe_mismatch(error)}"
        raise ClusterError(what, where=f"GET {NODE_OVERLAY.path}") from error
    return PresentOverlay(overlay, version)


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
        current = present.get(row.overlay.name)
        try:
            _write_overlay(api, row, current.version if current is not None else "")
        except ApiError as error:
            failures.append(OverlayFailure(row.overlay.name, _with_remedy(error)))
    return failures


def _write_overlay(api: Api, row: OverlayRow, version: str) -> None:
    path = f"{NODE_OVERLAY.path}/{row.overlay.name}"
    body = document(row.overlay)
    match row.action:
        case OverlayAction.CREATE:
            api.call("PATCH", path, _MANAGER, body, content=APPLY_PATCH)
        case OverlayAction.UPDATE:
            metadata = msgspec.to_builtins(row.overlay.metadata)
            body["metadata"] = {**metadata, "resourceVersion": version}
            api.call("PATCH", path, {**_MANAGER, "force": "true"}, body, content=APPLY_PATCH)
        case OverlayAction.DELETE:
            try:
                api.call("DELETE", path, body={"preconditions": {"resourceVersion": version}})
            except ApiError as error:
                if error.status != NOT_FOUND:
                    raise


def _with_remedy(error: ApiError) -> ClusterError:
    if error.status != CONFLICT:
        return error
    what = "somebody else wrote it at the same time"
    return ClusterError(what, where=error.where, remedy="run the command again")


class _Metadata(Metadata, frozen=True, rename="camel"):
    resource_version: str = ""


class _Versioned(msgspec.Struct, frozen=True):
    metadata: _Metadata


class _ClassRef(msgspec.Struct, frozen=True):
    group: str = ""


class _Spec(msgspec.Struct, frozen=True, rename="camel"):
    node_class_ref: _ClassRef = _ClassRef()


class _Copy(msgspec.Struct, frozen=True, rename="camel"):
    metadata: _Metadata
    spec: _Spec = _Spec()
    status: JsonDict = {}


class ClusterMirror:
    """The port ``Mirror`` over the Kubernetes API; ``read`` returns the objects of a kind."""

    def __init__(
        self, api: Api, fleet: str, read: Callable[[Kind], ObjectList] | None = None
    ) -> None:
        self._api = api
        self._fleet = fleet
        self._read = read or partial(list_objects, api)
        self._lock = threading.Lock()
        self._foreign_names: frozenset[str] = frozenset()

    def deleted_claims(self) -> frozenset[str]:
        """Return the names of the copies that others have deleted."""
        copies = self._our_copies(self._read(NODE_CLAIM))
        return frozenset(n for n, c in copies.items() if c.metadata.deletion_timestamp)

    def node_pools(self) -> frozenset[str]:
        """Return the names of the NodePools in the cluster."""
        return frozenset(_copy_or_name(raw).metadata.name for raw in self._read(NODE_POOL).items)

    def update(self, claims: Sequence[NodeClaim], drifted: Mapping[str, str]) -> None:
        """Make the copies equal to the claims; ``drifted`` has the reasons of those that are.

        Raises: ClusterError: a call was rejected; the other copies were brought up to date.
        """
        with self._lock:
            found = self._read(NODE_CLAIM)
            if not found.version:  # the API does not have the kind
                return
            copies = self._our_copies(found)
            problems: list[ClusterError] = []
            for claim in claims:
                try:
                    self._show_claim(claim, copies.get(claim.name), drifted.get(claim.name, ""))
                except ClusterError as error:
                    problems.append(error)
            for name in sorted(copies.keys() - {claim.name for claim in claims}):
                try:
                    self._remove(copies[name])
                except ClusterError as error:
                    problems.append(error)
            if problems:
                raise problems[0]

    def _our_copies(self, listed_claims: ObjectList) -> dict[str, _Copy]:
        """Return our copies among the NodeClaims, by name."""
        found = [_copy_or_name(raw) for raw in listed_claims.items]
        self._foreign_names = frozenset(c.metadata.name for c in found if not self._is_ours(c))
        return {c.metadata.name: c for c in found if self._is_ours(c)}

    def _is_ours(self, copy: _Copy) -> bool:
        """Return whether we created a copy, according to its immutable spec."""
        fleet = copy.metadata.labels.get(FLEET_TAG, self._fleet)
        return copy.spec.node_class_ref.group == CLASS_GROUP and fleet == self._fleet

    def _show_claim(self, claim: NodeClaim, copy: _Copy | None, drift: str) -> None:
        if copy is None:
            if claim.name in self._foreign_names:
                raise ClusterError(
                    f"a NodeClaim {claim.name} that is not ours exists",
                    where=f"GET {NODE_CLAIM.path}",
                    remedy="it was not changed; the claim is not shown in the cluster",
                )
            copy = self._create(claim)
        else:
            self._correct(claim, copy)
        status = _status(claim, drift)
        if not _is_merged(copy.status, status):
            path = f"{NODE_CLAIM.path}/{claim.name}/status"
            self._api.call("PATCH", path, body={"status": status}, content=MERGE_PATCH)
        is_leaving = claim.metadata.deletion_timestamp is not None
        if is_leaving and copy.metadata.deletion_timestamp is None:
            self._delete(copy)

    def _create(self, claim: NodeClaim) -> _Copy:
        spec = msgspec.to_builtins(claim.spec)
        spec["nodeClassRef"] = {
            "group": CLASS_GROUP,
            "kind": "EC2NodeClass",
            "name": claim.spec.node_class_ref.name or "unknown",
        }
        spec.setdefault("requirements", [])
        body = {
            "apiVersion": NODE_CLAIM.api_version,
            "kind": NODE_CLAIM.kind,
            "metadata": {
                "name": claim.name,
                "labels": self._labels(claim),
                "annotations": _annotations(claim),
                "finalizers": [NODE_FINALIZER],
            },
            "spec": spec,
        }
        return _decode_copy(self._api.call("POST", NODE_CLAIM.path, body=body))

    def _correct(self, claim: NodeClaim, copy: _Copy) -> None:
        """Update a copy that others have changed, or whose claim has changed."""
        metadata: JsonDict = {}
        for key, wanted, have in (
            ("labels", self._labels(claim), copy.metadata.labels),
            ("annotations", _annotations(claim), copy.metadata.annotations),
        ):
            missing = {k: v for k, v in wanted.items() if have.get(k) != v}
            if missing:
                metadata[key] = missing
        finalizers = copy.metadata.finalizers
        if NODE_FINALIZER not in finalizers and copy.metadata.deletion_timestamp is None:
            metadata["finalizers"] = [*finalizers, NODE_FINALIZER]
        if metadata:
            metadata["resourceVersion"] = copy.metadata.resource_version
            self._patch(claim.name, metadata)

    def _labels(self, claim: NodeClaim) -> dict[str, str]:
        return {**claim.metadata.labels, FLEET_TAG: self._fleet}

    def _remove(self, copy: _Copy) -> None:
        """Release a copy whose claim is gone."""
        others = [name for name in copy.metadata.finalizers if name != NODE_FINALIZER]
        if len(others) != len(copy.metadata.finalizers):
            version = copy.metadata.resource_version
            self._patch(copy.metadata.name, {"finalizers": others, "resourceVersion": version})
        self._delete(copy)

    def _delete(self, copy: _Copy) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1"}
        precondition = {"preconditions": {"uid": copy.metadata.uid}}
        path = f"{NODE_CLAIM.path}/{copy.metadata.name}"
        try:
            self._api.call("DELETE", path, body={**body, **precondition})
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    def _patch(self, name: str, metadata: JsonDict) -> None:
        path = f"{NODE_CLAIM.path}/{name}"
        try:
            self._api.call("PATCH", path, body={"metadata": metadata}, content=MERGE_PATCH)
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):  # the next pass corrects it
                raise


def release_claims(api: Api) -> list[str]:
    """Remove our finalizer from every copy, and the copies; return their names.

    Raises:
        ClusterError: they could not be listed, or one could not be changed.
    """
    released = []
    for raw in list_items(api, NODE_CLAIM):
        copy = _copy_or_name(raw)
        if copy.spec.node_class_ref.group == CLASS_GROUP:
            ClusterMirror(api, "")._remove(copy)  # noqa: SLF001 - of this module
            released.append(copy.metadata.name)
    return sorted(released)


def _annotations(claim: NodeClaim) -> dict[str, str]:
    have = claim.metadata.annotations
    return {name: have[name] for name in _ANNOTATIONS if name in have}


def _status(claim: NodeClaim, drift: str) -> JsonDict:
    """Return the status that the copy shows: the recorded one, with Karpenter's conditions."""
    status: JsonDict = msgspec.to_builtins(claim.status)
    status.pop("lastPodEventTime", None)
    known = [c for c in claim.status.conditions if c.type in _CONDITIONS]
    created_at = claim.metadata.creation_timestamp
    if drift:
        known.append(Condition("Drifted", "True", drift, "", created_at))
    known.append(_ready_condition(claim))
    status["conditions"] = [_condition_json(c) for c in sorted(known, key=lambda c: c.type)]
    return status


def _ready_condition(claim: NodeClaim) -> Condition:
    """Return whether the claim is ready, and otherwise what it lacks, as Karpenter states it.

    It is unknown until one of the conditions that it depends on is False (operatorpkg
    ``recomputeRootCondition``). What a condition waits for is added to its state.
    """
    found = {kind: claim.condition(kind) for kind in sorted(_DEPENDENTS)}
    lacking = {kind: c for kind, c in found.items() if c is None or c.status != "True"}
    last = found["Initialized"]
    created_at = claim.metadata.creation_timestamp
    at = last.last_transition_time if last is not None else created_at
    if not lacking:
        return Condition("Ready", "True", "Ready", "", at)
    status, reason = "Unknown", "ReconcilingDependents"
    if any(c.status == "False" for c in filter(None, lacking.values())):
        status, reason = "False", "UnhealthyDependents"
    return Condition(
        "Ready",
        status,
        reason,
        ", ".join(_describe_lack(kind, c) for kind, c in lacking.items()),
        at,
    )


def _describe_lack(kind: str, known: Condition | None) -> str:
    if known is None:
        return f"{kind}=Unknown"
    return f"{kind}={known.status}" + (f" ({known.message})" if known.message else "")


def _condition_json(known: Condition) -> JsonDict:
    return {
        "type": known.type,
        "status": known.status,
        "reason": "".join(c for c in known.reason if c.isalnum()) or known.type,
        "message": known.message,
        "lastTransitionTime": msgspec.to_builtins(known.last_transition_time)
        or "1970-01-01T00:00:00Z",
    }


def _is_merged(current: object, patch: object) -> bool:
    """Return whether a merge patch would change nothing."""
    if isinstance(current, dict) and isinstance(patch, dict):
        return all(
            key in current and _is_merged(current[key], value) for key, value in patch.items()
        )
    if isinstance(current, list) and isinstance(patch, list):
        return len(current) == len(patch) and all(map(_is_merged, current, patch))
    return current == patch


def _decode_copy(raw: bytes | msgspec.Raw) -> _Copy:
    try:
        return decode_json(raw, _Copy)
    except msgspec.MsgspecError as error:
        where = f"GET {NODE_CLAIM.path}"
        raise ClusterError(f"invalid NodeClaim: {describe_mismatch(error)}", where=where) from error


def _copy_or_name(raw: bytes | msgspec.Raw) -> _Copy:
    """Return an object of a list; of one that cannot be read, the name: it is not one of ours."""
    try:
        return decode_json(raw, _Copy)
    except msgspec.MsgspecError:
        return _Copy(_Metadata(name=name_in(raw)))
