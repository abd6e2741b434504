"""Changes to Nodes: the patch that a Node lacks, one step of a drain, and removal of the finalizer.

The finalizer is removed so that Nodes can be deleted if our daemon no longer runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

import msgspec

from reconciler.adapters.kubernetes.api import (
    CONFLICT,
    MERGE_PATCH,
    NO_ANSWER,
    NOT_FOUND,
    TOO_MANY,
    Api,
    ApiError,
    list_items,
)
from reconciler.adapters.kubernetes.evictions import BlockedEvictions
from reconciler.adapters.kubernetes.kinds import NODE, POD, VOLUME_ATTACHMENT
from reconciler.model.decode import decode_json
from reconciler.model.errors import ClusterError, UnreadableError
from reconciler.model.grouping import group_by
from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.labels import INITIALIZED, REGISTERED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.eviction import drain_groups, must_delete_now, remaining_grace
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.kubernetes.storage import claim_keys
from reconciler.model.kubernetes.taint import DISRUPTED, UNREGISTERED, Taint
from reconciler.model.ownership import NODE_FINALIZER
from reconciler.observed.positions import SnapshotText
from reconciler.observed.snapshot import Snapshot, decode_as_kind
from reconciler.ports.cluster import DrainStep

EXCLUDED_FROM_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
DO_NOT_SYNC_TAINTS: Final = "karpenter.sh/do-not-sync-taints"

KARPENTER_FINALIZER: Final = "karpenter.sh/termination"
_MARK: Final = "karpenter"

Object = JsonObject
Patch = JsonDict

_SOON: Final = timedelta(minutes=1)
"""Pods that are deleted within this time are worth waiting for: passes may be that far apart."""

_SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"

_TRIES: Final = 5


def registration_patch(node: Object, claim: NodeClaim) -> Patch | None:
    """Return the patch that adds our finalizer and what the claim defines to a node.

    Its labels, annotations and taints are added, and the initial taint is removed. Taints
    are added once: a node that is already registered, or whose kubelet has set its taints, keeps
    those that it has (Karpenter's ``lifecycle/registration.go``).
    """
    have = _labels(node)
    keeps_taints = have.get(REGISTERED) == "true" or have.get(DO_NOT_SYNC_TAINTS) == "true"
    claim_taints = () if keeps_taints else (*claim.spec.taints, *claim.spec.startup_taints)
    taints = [t for t in _taints(node) if not _is_same_taint(t, UNREGISTERED)]
    for taint in claim_taints:
        if not any(_is_same_taint(t, taint) for t in taints):
            taints.append(msgspec.to_builtins(taint))
    labels = {**claim.metadata.labels, REGISTERED: "true"}
    return _patch(
        node,
        labels=labels,
        annotations=claim.metadata.annotations,
        taints=taints,
        finalizers=_with_finalizer(node),
    )


def hold_patch(node: Object) -> Patch | None:
    """Return the patch that adds our finalizer, unless the node is already being deleted."""
    return _patch(node, finalizers=_with_finalizer(node))


def initialization_patch(node: Object) -> Patch | None:
    """Return the patch that marks a node as initialized."""
    return _patch(node, labels={INITIALIZED: "true"})


def uninitialization_patch(node: Object) -> Patch | None:
    """Return the patch that removes that mark."""
    return _patch(node, labels={INITIALIZED: None}) if INITIALIZED in _labels(node) else None


def taint_patch(node: Object, taint: Taint = DISRUPTED) -> Patch | None:
    """Return the patch that adds our taint, replacing one with the same key and another effect."""
    taints = _taints(node)
    if any(_is_same_taint(t, taint) for t in taints):
        return None
    others = [t for t in taints if t.get("key") != taint.key]
    return _patch(node, taints=[*others, msgspec.to_builtins(taint)])


def untaint_patch(node: Object, taint: Taint = DISRUPTED) -> Patch | None:
    """Return the patch that removes our taint, and what a drain has added."""
    taints = [t for t in _taints(node) if not _is_same_taint(t, taint)]
    ours = _labels(node).get(EXCLUDED_FROM_BALANCERS) == _MARK
    return _patch(node, labels={EXCLUDED_FROM_BALANCERS: None} if ours else {}, taints=taints)


def cordon_patch(node: Object) -> Patch | None:
    """Return the patch that marks a node as unschedulable, like ``kubectl cordon``."""
    return _patch(node, unschedulable=True)


def uncordon_patch(node: Object) -> Patch | None:
    """Return the patch that reverts that, and what a drain has added."""
    ours = _labels(node).get(EXCLUDED_FROM_BALANCERS) == _MARK
    labels = {EXCLUDED_FROM_BALANCERS: None} if ours else {}
    return _patch(node, labels=labels, unschedulable=False)


def balancer_exclusion_patch(node: Object) -> Patch | None:
    """Return the patch that excludes a draining node from load balancers."""
    return _patch(node, labels={EXCLUDED_FROM_BALANCERS: _MARK})


def release_patch(node: Object) -> Patch | None:
    """Return the patch that removes our finalizer, and Karpenter's, which adopted nodes have."""
    ours = (NODE_FINALIZER, KARPENTER_FINALIZER)
    return _patch(node, finalizers=[name for name in _finalizers(node) if name not in ours])


def finalizer_removal_patch(node: Object) -> Patch | None:
    """Return the patch that removes our finalizer from a node that is kept."""
    return _patch(node, finalizers=[name for name in _finalizers(node) if name != NODE_FINALIZER])


def _with_finalizer(node: Object) -> list[str]:
    """Return the finalizers with ours; the API accepts no new one during a deletion."""
    have = _finalizers(node)
    if NODE_FINALIZER in have or node["metadata"].get("deletionTimestamp"):
        return have
    return [*have, NODE_FINALIZER]


def _patch(
    node: Object,
    *,
    labels: Mapping[str, str | None] | None = None,
    annotations: Mapping[str, str] | None = None,
    taints: Sequence[Object] | None = None,
    finalizers: Sequence[str] | None = None,
    unschedulable: bool | None = None,
) -> Patch | None:
    """Return the merge patch to these values, valid only for this version of the node."""
    metadata: Patch = {}
    if labels and (missing := _missing(labels, _labels(node))):
        metadata["labels"] = missing
    if annotations and (missing := _missing(annotations, node["metadata"].get("annotations"))):
        metadata["annotations"] = missing
    if finalizers is not None and list(finalizers) != _finalizers(node):
        metadata["finalizers"] = list(finalizers)
    spec: Patch = {}
    if taints is not None and list(taints) != _taints(node):
        spec["taints"] = taints
    if unschedulable is not None and unschedulable != _is_cordoned(node):
        spec["unschedulable"] = unschedulable
    if not metadata and not spec:
        return None
    metadata["resourceVersion"] = node["metadata"]["resourceVersion"]
    return {"metadata": metadata} | ({"spec": spec} if spec else {})


def _is_cordoned(node: Object) -> bool:
    return (node.get("spec") or {}).get("unschedulable") is True


def _labels(node: Object) -> Mapping[str, str]:
    return node["metadata"].get("labels") or {}


def _finalizers(node: Object) -> list[str]:
    return list(node["metadata"].get("finalizers") or [])


def _taints(node: Object) -> list[JsonDict]:
    return list((node.get("spec") or {}).get("taints") or [])


def _is_same_taint(taint: Object, other: Taint) -> bool:
    return (taint.get("key"), taint.get("effect", "")) == (other.key, other.effect)


def _missing(
    wanted: Mapping[str, str | None], have: Mapping[str, str] | None
) -> dict[str, str | None]:
    """Return the wanted entries that a node does not have with their values."""
    return {key: value for key, value in wanted.items() if (have or {}).get(key) != value}


class _Source(msgspec.Struct, frozen=True):
    volume: str | None = msgspec.field(default=None, name="persistentVolumeName")


class _Attached(msgspec.Struct, frozen=True):
    node: str = msgspec.field(default="", name="nodeName")
    source: _Source = _Source()


class _Attachment(msgspec.Struct, frozen=True):
    spec: _Attached = _Attached()


class _Place(msgspec.Struct, frozen=True):
    node: str = msgspec.field(default="", name="nodeName")


class _PlacedAttachment(msgspec.Struct, frozen=True):
    spec: _Place = _Place()


def _decode_attachment(raw: bytes | msgspec.Raw) -> _Attached:
    """Return what is attached where.

    One that cannot be read counts as an unknown volume of its node, which then waits until the
    deadline. If its node cannot be read either, no node waits for it.
    """
    try:
        return decode_json(raw, _Attachment).spec
    except msgspec.MsgspecError:
        try:
            node = decode_json(raw, _PlacedAttachment).spec.node
        except msgspec.MsgspecError:
            node = ""
        return _Attached(node, _Source("an attachment that cannot be read"))


@dataclass
class Drain:
    """The drains of one pass; ``snapshot`` is the observation of that pass."""

    api: Api
    snapshot: Snapshot
    blocked: BlockedEvictions = field(default_factory=BlockedEvictions)
    _attachments: list[_Attached] | None = field(default=None, repr=False)
    _left: set[str] = field(default_factory=set, repr=False)

    def advance(self, node: str, deadline: datetime | None, now: datetime) -> DrainStep:
        """Take a step, and return what it still waits for.

        Raises: ClusterError: an eviction was rejected for another reason than a budget; the others
        were tried nevertheless, if the API responded at all.
        """
        pods = self._read_pods(node)
        by_fate = group_by(pods, lambda pod: pod.is_drainable(now))
        waiting = [pod for pod in by_fate.get(True, ()) if not pod.is_terminal]
        by_force = group_by(waiting, lambda pod: must_delete_now(pod, deadline, now))
        others = drain_groups(by_force.get(False, ()))
        tried = (*by_force.get(True, ()), *(others[0] if others else ()))
        gone = self._remove(tried, deadline, now)
        if len(waiting) > gone:
            moves = gone > 0 or self._moves(waiting, tried, deadline, now)
            return DrainStep(pods=len(waiting) - gone, is_blocked=not moves)
        if deadline is not None and now > deadline:
            return DrainStep()
        return DrainStep(volumes=self._count_volumes(node, by_fate.get(False, [])))

    def _remove(self, pods: Sequence[Pod], deadline: datetime | None, now: datetime) -> int:
        """Delete the pods that would miss the deadline, and evict the others that can be.

        Returns how many are already gone.
        """
        gone, problems = 0, list[ApiError]()
        for pod in pods:
            try:
                if deadline is not None and must_delete_now(pod, deadline, now):
                    gone += self._delete(pod, remaining_grace(deadline, now))
                elif self._may_evict(pod, now):
                    gone += self._evict(pod, now)
            except ApiError as error:
                problems.append(error)
                if error.status == NO_ANSWER:
                    break
        if problems:
            raise problems[0]
        return gone

    def _may_evict(self, pod: Pod, now: datetime) -> bool:
        return pod.is_evictable(now) and self.blocked.is_due(pod.metadata.uid, now)

    def _moves(
        self, waiting: Sequence[Pod], tried: Sequence[Pod], deadline: datetime | None, now: datetime
    ) -> bool:
        """Return whether a pod is leaving or was just evicted, or one will soon be deleted."""
        if any(pod.is_terminating or pod.metadata.uid in self._left for pod in waiting):
            return True
        soon = now + _SOON
        if any(must_delete_now(pod, deadline, soon) for pod in waiting):
            return True
        return any(self._may_evict(pod, now) for pod in tried)

    def _read_pods(self, node: str) -> list[Pod]:
        """Return the pods that are bound to a node now, in the order of their names."""
        where = f"GET {POD.path}"
        whole = SnapshotText(where, b"")
        found = list_items(self.api, POD, f"spec.nodeName={node}")
        try:
            pods = [
                decode_as_kind(raw, "Pod", whole.place(number))
                for number, raw in enumerate(found, 1)
            ]
        except UnreadableError as error:
            raise ClusterError(error.message, where=where) from error
        return sorted((p for p in pods if p.spec.node_name == node), key=lambda p: p.key)

    def _evict(self, pod: Pod, now: datetime) -> bool:
        """Evict a pod; return whether it is already gone, or another with that name exists.

        A budget that blocks it is not an error, nor are several, which the API rejects.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.metadata.name, "namespace": pod.namespace},
            "deleteOptions": _uid_precondition(pod),
        }
        try:
            self.api.call("POST", f"{_pod_path(pod)}/eviction", body=body, is_answer=_is_blocked)
        except ApiError as error:
            if _is_blocked(error):
                self.blocked.record(pod.metadata.uid, now)
                return False
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return True
        self.blocked.forget(pod.metadata.uid)
        self._left.add(pod.metadata.uid)
        return False

    def _delete(self, pod: Pod, grace_s: int) -> bool:
        """Delete a pod regardless of its budgets; return whether it is already gone."""
        body = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": grace_s}
        try:
            self.api.call("DELETE", _pod_path(pod), body={**body, **_uid_precondition(pod)})
        except ApiError as error:
            if error.status not in (NOT_FOUND, CONFLICT):
                raise
            return True
        self._left.add(pod.metadata.uid)
        return False

    def _count_volumes(self, node: str, staying: Sequence[Pod]) -> int:
        """Return how many volumes are attached to a node and not used by pods that stay there.

        Only those of PersistentVolumes are waited for.
        """
        attached = {a.source.volume for a in self._read_attachments() if a.node == node} - {None}
        if not attached:
            return 0
        claims = {c.key: c.spec.volume_name for c in self.snapshot.volume_claims}
        used = {claims.get(key) for pod in staying for key in claim_keys(pod)}
        return len(attached - used)

    def _read_attachments(self) -> list[_Attached]:
        """Return all attachments, listed once in a pass."""
        if self._attachments is None:
            found = list_items(self.api, VOLUME_ATTACHMENT)
            self._attachments = [_decode_attachment(raw) for raw in found]
        return self._attachments


def _is_blocked(error: ApiError) -> bool:
    """Return whether budgets block the pod, or the API is temporarily overloaded."""
    return error.status == TOO_MANY or _SEVERAL_BUDGETS in error.message


def _pod_path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.metadata.name}"


def _uid_precondition(pod: Pod) -> dict[str, object]:
    """Return the precondition for exactly this pod, not a later one with its name."""
    return {"preconditions": {"uid": pod.metadata.uid}}


def release_nodes(api: Api) -> list[str]:
    """Remove our finalizer from every Node of the cluster; return the names of those that had it.

    Nodes are changed in no other way. One that is being deleted is then removed, while its instance
    stays.

    Raises:
        ClusterError: the Nodes could not be listed, or one could not be changed.
    """
    released = []
    for raw in list_items(api, NODE):
        node = _decode_node(raw)
        if finalizer_removal_patch(node) is not None:
            _release_node(api, node)
            released.append(str(node["metadata"]["name"]))
    return sorted(released)


def _release_node(api: Api, node: JsonDict) -> None:
    """Patch a Node, again after a conflict."""
    path = f"{NODE.path}/{node['metadata']['name']}"
    for left in reversed(range(_TRIES)):
        patch = finalizer_removal_patch(node)
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
            node = _decode_node(api.call("GET", path))
        except ApiError as error:
            if error.status == NOT_FOUND:
                return
            raise


def _decode_node(raw: bytes | msgspec.Raw) -> JsonDict:
    try:
        return decode_json(raw, dict[str, object])
    except msgspec.MsgspecError as error:
        raise ClusterError("the answer is not a Node", where=f"GET {NODE.path}") from error
