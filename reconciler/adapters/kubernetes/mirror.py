"""Our NodeClaims as objects of the cluster, if its API has the kind: a copy for people.

The records remain the source of truth (decision 5): a changed object is changed back, and a missing
one is created again. Only deletion is taken from the cluster. Our finalizer then keeps the object
until the instance is gone.

Objects are ours by the group of their ``nodeClassRef``, which nobody can change, and the label
``reconciler/fleet``. Any other NodeClaim, such as Karpenter's, is neither read nor written. A
Karpenter in the same cluster ignores ours, because it supports no kind of that group.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
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
    listed,
    listing,
)
from reconciler.adapters.kubernetes.kinds import NODE_CLAIM, NODE_POOL, Kind
from reconciler.model.errors import ClusterError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.labels import NODECLASS_HASH, NODEPOOL_HASH
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.metadata import Condition
from reconciler.model.ownership import FLEET_TAG, NODE_FINALIZER

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
    "InstanceTerminating",
)
"""Karpenter's conditions; the other recorded conditions of a claim are internal."""
_ANNOTATIONS: Final = (NODEPOOL_HASH, NODECLASS_HASH, "karpenter.sh/do-not-disrupt")


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    finalizers: tuple[str, ...] | None = None
    deletion_timestamp: str | None = None


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
        self._read = read or partial(listing, api)
        self._lock = threading.Lock()
        self._strange: frozenset[str] = frozenset()

    def deleted(self) -> frozenset[str]:
        """Return the names of the copies that somebody has deleted."""
        copies = self._ours(self._read(NODE_CLAIM))
        return frozenset(n for n, c in copies.items() if c.metadata.deletion_timestamp)

    def node_pools(self) -> frozenset[str]:
        """Return the names of the NodePools in the cluster."""
        return frozenset(_decoded(raw).metadata.name for raw in self._read(NODE_POOL).items)

    def show(self, claims: Sequence[NodeClaim], drifted: Mapping[str, str]) -> None:
        """Make the copies equal to the claims; ``drifted`` has the reasons of those that are.

        Raises: ClusterError: a call was rejected; the other copies were brought up to date.
        """
        with self._lock:
            found = self._read(NODE_CLAIM)
            if not found.version:  # the API does not have the kind
                return
            copies = self._ours(found)
            problems: list[ClusterError] = []
            for claim in claims:
                try:
                    self._show(claim, copies.get(claim.name), drifted.get(claim.name, ""))
                except ClusterError as error:
                    problems.append(error)
            for name in sorted(copies.keys() - {claim.name for claim in claims}):
                try:
                    self._remove(copies[name])
                except ClusterError as error:
                    problems.append(error)
            if problems:
                raise problems[0]

    def _ours(self, listed_claims: ObjectList) -> dict[str, _Copy]:
        """Return our copies among the NodeClaims, by name."""
        found = [_decoded(raw) for raw in listed_claims.items]
        self._strange = frozenset(c.metadata.name for c in found if not self._is_ours(c))
        return {c.metadata.name: c for c in found if self._is_ours(c)}

    def _is_ours(self, copy: _Copy) -> bool:
        """Return whether we created a copy, according to its immutable spec."""
        fleet = (copy.metadata.labels or {}).get(FLEET_TAG, self._fleet)
        return copy.spec.node_class_ref.group == CLASS_GROUP and fleet == self._fleet

    def _show(self, claim: NodeClaim, copy: _Copy | None, drift: str) -> None:
        if copy is None:
            if claim.name in self._strange:
                raise ClusterError(
                    f"a NodeClaim {claim.name} that is not ours exists",
                    where=f"GET {NODE_CLAIM.path}",
                    remedy="it was not changed; the claim is not shown in the cluster",
                )
            copy = self._create(claim)
        else:
            self._correct(claim, copy)
        status = _status(claim, drift)
        if not _contains(copy.status, status):
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
        return _decoded(self._api.call("POST", NODE_CLAIM.path, body=body))

    def _correct(self, claim: NodeClaim, copy: _Copy) -> None:
        """Update a copy that somebody has changed, or whose claim has changed."""
        metadata: JsonDict = {}
        for key, wanted, have in (
            ("labels", self._labels(claim), copy.metadata.labels),
            ("annotations", _annotations(claim), copy.metadata.annotations),
        ):
            lacking = {k: v for k, v in wanted.items() if (have or {}).get(k) != v}
            if lacking:
                metadata[key] = lacking
        finalizers = copy.metadata.finalizers or ()
        if NODE_FINALIZER not in finalizers and copy.metadata.deletion_timestamp is None:
            metadata["finalizers"] = [*finalizers, NODE_FINALIZER]
        if metadata:
            metadata["resourceVersion"] = copy.metadata.resource_version
            self._patch(claim.name, metadata)

    def _labels(self, claim: NodeClaim) -> dict[str, str]:
        return {**claim.metadata.labels, FLEET_TAG: self._fleet}

    def _remove(self, copy: _Copy) -> None:
        """Release a copy whose claim is gone."""
        kept = [name for name in copy.metadata.finalizers or () if name != NODE_FINALIZER]
        if len(kept) != len(copy.metadata.finalizers or ()):
            version = copy.metadata.resource_version
            self._patch(copy.metadata.name, {"finalizers": kept, "resourceVersion": version})
        self._delete(copy)

    def _delete(self, copy: _Copy) -> None:
        body = {"kind": "DeleteOptions", "apiVersion": "v1"}
        only = {"preconditions": {"uid": copy.metadata.uid}}
        path = f"{NODE_CLAIM.path}/{copy.metadata.name}"
        try:
            self._api.call("DELETE", path, body={**body, **only})
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
    for raw in listed(api, NODE_CLAIM):
        copy = _decoded(raw)
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
    begun = claim.metadata.creation_timestamp
    if drift:
        known.append(Condition("Drifted", "True", drift, "", begun))
    ready = all(claim.is_true(kind) for kind in ("Launched", "Registered", "Initialized"))
    since = claim.condition("Initialized")
    at = since.last_transition_time if since is not None else begun
    known.append(Condition("Ready", "True" if ready else "False", "Ready", "", at))
    status["conditions"] = [_shown(c) for c in sorted(known, key=lambda c: c.type)]
    return status


def _shown(known: Condition) -> JsonDict:
    return {
        "type": known.type,
        "status": known.status,
        "reason": "".join(c for c in known.reason if c.isalnum()) or known.type,
        "message": known.message,
        "lastTransitionTime": msgspec.to_builtins(known.last_transition_time)
        or "1970-01-01T00:00:00Z",
    }


def _contains(have: object, wanted: object) -> bool:
    """Return whether a merge patch of ``wanted`` would change nothing."""
    if isinstance(have, dict) and isinstance(wanted, dict):
        return all(key in have and _contains(have[key], value) for key, value in wanted.items())
    if isinstance(have, list) and isinstance(wanted, list):
        return len(have) == len(wanted) and all(map(_contains, have, wanted))
    return have == wanted


def _decoded(raw: bytes | msgspec.Raw) -> _Copy:
    try:
        return msgspec.json.decode(raw, type=_Copy)
    except msgspec.MsgspecError as error:
        where = f"GET {NODE_CLAIM.path}"
        raise ClusterError(f"invalid NodeClaim: {error}", where=where) from error
