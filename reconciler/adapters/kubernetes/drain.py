"""One step of a drain: which pods are evicted or deleted now, and what it waits for.

As in Karpenter's terminator and its eviction queue, pods that must be gone by the deadline are
deleted at once, whatever their group. The others are evicted group by group, by the eviction API,
which honours PodDisruptionBudgets. Nothing waits here; the next pass takes the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import (
    CONFLICT,
    NO_ANSWER,
    NOT_FOUND,
    TOO_MANY,
    Api,
    ApiError,
    listed,
)
from reconciler.adapters.kubernetes.kinds import POD, VOLUME_ATTACHMENT
from reconciler.model.errors import ClusterError, UnreadableError
from reconciler.model.kubernetes.eviction import drain_groups, grace_left, must_go
from reconciler.model.kubernetes.pod import Pod
from reconciler.observed.isolation import SnapshotPlace
from reconciler.observed.snapshot import Snapshot, decoded_as

_SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"


class _Source(msgspec.Struct, frozen=True):
    volume: str | None = msgspec.field(default=None, name="persistentVolumeName")


class _Attached(msgspec.Struct, frozen=True):
    node: str = msgspec.field(default="", name="nodeName")
    source: _Source = _Source()


class _Attachment(msgspec.Struct, frozen=True):
    spec: _Attached = _Attached()


@dataclass
class Drain:
    """The drains of one pass; ``seen`` is the observation of that pass."""

    api: Api
    seen: Snapshot
    _attachments: list[_Attached] | None = field(default=None, repr=False)

    def advance(self, node: str, deadline: datetime | None, now: datetime) -> int:
        """Take a step, and return how many pods, then volumes, it still waits for.

        Raises: ClusterError: an eviction was rejected for another reason than a budget; the others
        were tried nevertheless, if the API responded at all.
        """
        pods = self._pods(node)
        waiting = [p for p in pods if not p.is_terminal and p.is_drainable(now)]
        forced = [p for p in waiting if deadline is not None and must_go(p, deadline, now)]
        others = drain_groups(p for p in waiting if p not in forced)
        gone, problems = 0, list[ApiError]()
        for pod in (*forced, *(others[0] if others else ())):
            try:
                if deadline is not None and pod in forced:
                    gone += self._delete(pod, grace_left(deadline, now))
                elif pod.is_evictable(now):
                    gone += self._evict(pod)
            except ApiError as error:
                problems.append(error)
                if error.status == NO_ANSWER:
                    break
        if problems:
            raise problems[0]
        if len(waiting) > gone:
            return len(waiting) - gone
        if deadline is not None and now > deadline:
            return 0
        return self._volumes(node, [p for p in pods if not p.is_drainable(now)])

    def _pods(self, node: str) -> list[Pod]:
        """Return the pods that are bound to a node now, in the order of their names."""
        where = f"GET {POD.path}"
        found = listed(self.api, POD, f"spec.nodeName={node}")
        try:
            pods = [
                decoded_as(raw, "Pod", SnapshotPlace(where, b"", n))
                for n, raw in enumerate(found, 1)
            ]
        except UnreadableError as error:
            raise ClusterError(error.message, where=where) from error
        return sorted((p for p in pods if p.spec.node_name == node), key=lambda p: p.key)

    def _evict(self, pod: Pod) -> bool:
        """Evict a pod; return whether it is already gone, or another with that name exists.

        A budget that blocks it is not an error, nor are several, which the API rejects.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.namespace},
            "deleteOptions": _only(pod),
        }
        try:
            self.api.call("POST", f"{_path(pod)}/eviction", body=body, is_answer=_is_held)
        except ApiError as error:
            if _is_held(error):
                return False
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return True
        return False

    def _delete(self, pod: Pod, grace_s: int) -> bool:
        """Delete a pod regardless of its budgets; return whether it is already gone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_s}
        try:
            self.api.call("DELETE", _path(pod), body={**body, **_only(pod)})
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return True
        return False

    def _volumes(self, node: str, staying: Sequence[Pod]) -> int:
        """Return how many volumes are attached to a node and not used by pods that stay there.

        Only those of PersistentVolumes are waited for.
        """
        attached = {a.source.volume for a in self._attached() if a.node == node} - {None}
        if not attached:
            return 0
        claims = {c.key: c.spec.volume_name for c in self.seen.volume_claims}
        used = {claims.get(f"{p.namespace}/{name}") for p in staying for name in _claims_of(p)}
        return len(attached - used)

    def _attached(self) -> list[_Attached]:
        """Return all attachments, listed once in a pass."""
        if self._attachments is None:
            found = listed(self.api, VOLUME_ATTACHMENT)
            try:
                self._attachments = [msgspec.json.decode(r, type=_Attachment).spec for r in found]
            except msgspec.MsgspecError as error:
                where = f"GET {VOLUME_ATTACHMENT.path}"
                raise ClusterError(f"no VolumeAttachment: {error}", where=where) from error
        return self._attachments


def _is_held(error: ApiError) -> bool:
    """Return whether budgets block the pod, or the API is temporarily overloaded."""
    return error.status == TOO_MANY or _SEVERAL_BUDGETS in error.message


def _claims_of(pod: Pod) -> list[str]:
    """Return the names of the PersistentVolumeClaims that a pod mounts."""
    found = []
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            found.append(volume.persistent_volume_claim.claim_name)
        elif volume.ephemeral is not None:
            found.append(f"{pod.metadata.name}-{volume.name}")
    return found


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.metadata.name}"


def _only(pod: Pod) -> dict[str, object]:
    """Return the precondition for exactly this pod, not a later one with its name."""
    return {"preconditions": {"uid": pod.metadata.uid}}
