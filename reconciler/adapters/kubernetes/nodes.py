"""The changes of a Node: from the object in the API to the patch that it needs.

A patch names the version that it is based on, because a list of taints is replaced completely; None
means that nothing has to change. Unknown fields are not changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from reconciler.model.json import JsonDict, JsonObject
from reconciler.model.karpenter.labels import (
    DISRUPTED_TAINT,
    INITIALIZED,
    REGISTERED,
    UNREGISTERED_TAINT,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.taint import Taint
from reconciler.model.ownership import NODE_FINALIZER

EXCLUDED_FROM_BALANCERS: Final = "node.kubernetes.io/exclude-from-external-load-balancers"
DO_NOT_SYNC_TAINTS: Final = "karpenter.sh/do-not-sync-taints"

KARPENTER_FINALIZER: Final = "karpenter.sh/termination"
_MARK: Final = "karpenter"
_DISRUPTED: Final = Taint(DISRUPTED_TAINT, "NoSchedule")
_UNREGISTERED: Final = Taint(UNREGISTERED_TAINT, "NoExecute")

Object = JsonObject
Patch = JsonDict


def registration(node: Object, claim: NodeClaim) -> Patch | None:
    """Add our finalizer and the claim's labels, annotations and taints; remove the initial taint.

    Taints are added once: a node that is already registered, or whose kubelet was given its taints,
    keeps those that it has (Karpenter's ``lifecycle/registration.go``).
    """
    have = _labels(node)
    keeps = have.get(REGISTERED) == "true" or have.get(DO_NOT_SYNC_TAINTS) == "true"
    wanted = () if keeps else (*claim.spec.taints, *claim.spec.startup_taints)
    taints = [t for t in _taints(node) if not _is(t, _UNREGISTERED)]
    for taint in wanted:
        if not any(_is(t, taint) for t in taints):
            taints.append(msgspec.to_builtins(taint))
    labels = {**claim.metadata.labels, REGISTERED: "true"}
    return _patch(
        node,
        labels=labels,
        annotations=claim.metadata.annotations,
        taints=taints,
        finalizers=_held(node),
    )


def hold(node: Object) -> Patch | None:
    """Add our finalizer to a node, unless it is already being deleted."""
    return _patch(node, finalizers=_held(node))


def initialization(node: Object) -> Patch | None:
    """Mark a node as initialized."""
    return _patch(node, labels={INITIALIZED: "true"})


def disruption(node: Object) -> Patch | None:
    """Add our taint to a node, in place of one with the same key and another effect."""
    taints = _taints(node)
    if any(_is(t, _DISRUPTED) for t in taints):
        return None
    others = [t for t in taints if t.get("key") != DISRUPTED_TAINT]
    return _patch(node, taints=[*others, msgspec.to_builtins(_DISRUPTED)])


def reprieve(node: Object) -> Patch | None:
    """Remove our taint, and what a drain has added."""
    taints = [t for t in _taints(node) if not _is(t, _DISRUPTED)]
    ours = _labels(node).get(EXCLUDED_FROM_BALANCERS) == _MARK
    return _patch(node, labels={EXCLUDED_FROM_BALANCERS: None} if ours else {}, taints=taints)


def cordon(node: Object) -> Patch | None:
    """Mark a node as unschedulable, like ``kubectl cordon``."""
    return _patch(node, unschedulable=True)


def uncordon(node: Object) -> Patch | None:
    """Undo that, and what a drain has added to the node."""
    ours = _labels(node).get(EXCLUDED_FROM_BALANCERS) == _MARK
    labels = {EXCLUDED_FROM_BALANCERS: None} if ours else {}
    return _patch(node, labels=labels, unschedulable=False)


def departure(node: Object) -> Patch | None:
    """Exclude a node that is being drained from load balancers."""
    return _patch(node, labels={EXCLUDED_FROM_BALANCERS: _MARK})


def release(node: Object) -> Patch | None:
    """Remove our finalizer, and Karpenter's, which an adopted node still has."""
    ours = (NODE_FINALIZER, KARPENTER_FINALIZER)
    return _patch(node, finalizers=[name for name in _finalizers(node) if name not in ours])


def surrender(node: Object) -> Patch | None:
    """Remove our finalizer from a node that is kept."""
    return _patch(node, finalizers=[name for name in _finalizers(node) if name != NODE_FINALIZER])


def _held(node: Object) -> list[str]:
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
    """Return the merge patch that leads there, for this version of the node alone."""
    metadata: Patch = {}
    have = _labels(node)
    lacking = {k: v for k, v in (labels or {}).items() if have.get(k) != v}
    if lacking:
        metadata["labels"] = lacking
    noted = node["metadata"].get("annotations") or {}
    missing = {k: v for k, v in (annotations or {}).items() if noted.get(k) != v}
    if missing:
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


def _is(taint: Object, other: Taint) -> bool:
    return (taint.get("key"), taint.get("effect", "")) == (other.key, other.effect)
