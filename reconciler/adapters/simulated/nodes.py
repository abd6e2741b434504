"""Nodes as their kubelets would register them, made from instances and their claims."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from string import ascii_lowercase
from typing import Final

import msgspec

from reconciler.adapters.simulated.conditions import REBOOTED_TAG
from reconciler.model.karpenter.instancetype import InstanceType
from reconciler.model.karpenter.labels import (
    ARCH,
    CAPACITY_TYPE,
    HOSTNAME,
    INITIALIZED,
    INSTANCE_TYPE,
    NODECLASS,
    NODEPOOL,
    OS,
    REGION,
    REGISTERED,
    ZONE,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.devices import DeviceTemplate
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.node import Node, NodeSpec, NodeStatus, NodeSystemInfo
from reconciler.model.kubernetes.taint import UNREGISTERED, Taint, merge_taints
from reconciler.model.ownership import NODE_FINALIZER
from reconciler.model.resources import format_resources
from reconciler.ports.cloud import Instance

Types = Callable[[str], InstanceType | None]
Drivers = Callable[[InstanceType, str], tuple[DeviceTemplate, ...]]
"""What the drivers of a node publish, from its type and the name of its node class."""

_UNSCHEDULABLE: Final = Taint("node.kubernetes.io/unschedulable", "NoSchedule")
_NOT_READY: Final = (
    Taint("node.kubernetes.io/not-ready", "NoSchedule"),
    Taint("node.kubernetes.io/not-ready", "NoExecute"),
)


def devices_of_catalog(kind: InstanceType, class_name: str) -> tuple[DeviceTemplate, ...]:
    """Return the devices that the catalog lists for a type, whatever the class (``Drivers``)."""
    del class_name
    return kind.devices


def boot_of(instance: Instance) -> str:
    """Return the id of the current boot of an instance."""
    rebooted = instance.tags.get(REBOOTED_TAG, "")
    return f"{instance.id}-{rebooted}" if rebooted else instance.id


def create_node(instance: Instance, claim: NodeClaim | None, types: Types, name: str) -> Node:
    """Return the Node of an instance at the time it joins: not ready, not registered.

    An instance without a claim of ours still joins: its tags identify the owner. A device plugin
    registers capacity that the claim has besides its type (from a NodeOverlay).
    """
    kind = types(instance.instance_type)
    spec, status = (claim.spec, claim.status) if claim is not None else (None, None)
    capacity = dict(status.capacity) if status is not None else {}
    usable = dict(status.allocatable) if status is not None else {}
    if kind is not None:
        capacity |= format_resources(kind.capacity)
        usable |= format_resources(kind.allocatable)
    taints = (*spec.taints, *spec.startup_taints) if spec is not None else ()
    return Node(
        metadata=Metadata(
            name=name,
            uid=instance.id,
            labels=_labels(instance, claim, kind, name),
            creation_timestamp=instance.launched_at,
        ),
        spec=NodeSpec(
            provider_id=instance.provider_id,
            taints=merge_taints(taints, (UNREGISTERED, *_NOT_READY)),
        ),
        status=NodeStatus(
            capacity=capacity,
            allocatable=usable,
            conditions=(_not_ready(instance.launched_at),),
            node_info=NodeSystemInfo(boot_of(instance)),
        ),
    )


def _labels(
    instance: Instance,
    claim: NodeClaim | None,
    kind: InstanceType | None,
    name: str,
) -> dict[str, str]:
    """Return the labels that the kubelet, the cloud and the user data set on a new node."""
    fixed = kind.requirements.fixed_labels() if kind is not None else {}
    tagged = {k: v for k, v in instance.tags.items() if k in (NODEPOOL, NODECLASS)}
    labels = {
        **tagged,
        **(claim.metadata.labels if claim is not None else {}),
        ARCH: fixed.get(ARCH, "amd64"),
        OS: fixed.get(OS, "linux"),
        HOSTNAME: name,
        INSTANCE_TYPE: instance.instance_type,
        ZONE: instance.zone,
        REGION: instance.zone.rstrip(ascii_lowercase),
        CAPACITY_TYPE: instance.capacity_type,
    }
    return {key: labels[key] for key in sorted(labels) if key != REGISTERED}


def with_readiness(node: Node, *, ready: bool, now: datetime) -> Node:
    """Return the node ready or not, with the taints that the node controller sets."""
    if node.is_ready == ready and (ready or all(t in node.spec.taints for t in _NOT_READY)):
        return node
    others = tuple(t for t in node.spec.taints if not any(t.matches(n) for n in _NOT_READY))
    taints = others if ready else (*others, *_NOT_READY)
    reason = "KubeletReady" if ready else "NodeStatusUnknown"
    condition = Condition("Ready", "True" if ready else "False", reason, "", now)
    return msgspec.structs.replace(
        node,
        spec=msgspec.structs.replace(node.spec, taints=taints),
        status=msgspec.structs.replace(node.status, conditions=(condition,)),
    )


def with_boot(node: Node, boot_id: str, now: datetime) -> Node:
    """Return the node with its current boot; after another one it reports its state again."""
    if node.boot_id == boot_id:
        return node
    status = msgspec.structs.replace(
        node.status, node_info=NodeSystemInfo(boot_id), conditions=(_not_ready(now),)
    )
    return msgspec.structs.replace(node, status=status)


def _not_ready(since: datetime) -> Condition:
    return Condition("Ready", "False", "KubeletNotReady", "", since)


def with_registration(node: Node, claim: NodeClaim) -> Node:
    """Return the node with the metadata and taints of its claim, without the initial taint."""
    metadata = node.metadata
    taints = tuple(t for t in node.spec.taints if not t.matches(UNREGISTERED))
    return msgspec.structs.replace(
        node,
        metadata=msgspec.structs.replace(
            metadata,
            labels={**metadata.labels, **claim.metadata.labels, REGISTERED: "true"},
            annotations={**metadata.annotations, **claim.metadata.annotations},
            finalizers=_finalizers(node),
        ),
        spec=msgspec.structs.replace(
            node.spec,
            taints=taints
            if metadata.labels.get(REGISTERED) == "true"
            else merge_taints(taints, (*claim.spec.taints, *claim.spec.startup_taints)),
        ),
    )


def with_finalizer(node: Node) -> Node:
    """Return the node with our finalizer; this is idempotent."""
    metadata = msgspec.structs.replace(node.metadata, finalizers=_finalizers(node))
    return msgspec.structs.replace(node, metadata=metadata)


def _finalizers(node: Node) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*node.metadata.finalizers, NODE_FINALIZER)))


def with_initialization(node: Node) -> Node:
    """Return the node with the label that it is initialized."""
    return _with_labels(node, {**node.metadata.labels, INITIALIZED: "true"})


def without_initialization(node: Node) -> Node:
    """Return the node without that label."""
    labels = {name: value for name, value in node.metadata.labels.items() if name != INITIALIZED}
    return _with_labels(node, labels)


def _with_labels(node: Node, labels: dict[str, str]) -> Node:
    metadata = msgspec.structs.replace(node.metadata, labels=labels)
    return msgspec.structs.replace(node, metadata=metadata)


def with_taint(node: Node, taint: Taint) -> Node:
    """Return the node with a taint; this is idempotent."""
    return _replace_taints(node, merge_taints(node.spec.taints, (taint,)))


def without_taints(node: Node, *taints: Taint) -> Node:
    """Return the node without these taints, regardless of their values."""
    remaining = tuple(
        t for t in node.spec.taints if not any(t.matches(removed) for removed in taints)
    )
    return _replace_taints(node, remaining)


def with_cordon(node: Node, *, is_cordoned: bool) -> Node:
    """Return the node cordoned or not, with the corresponding taint of Kubernetes."""
    spec = msgspec.structs.replace(node.spec, unschedulable=is_cordoned)
    fresh = msgspec.structs.replace(node, spec=spec)
    return (
        with_taint(fresh, _UNSCHEDULABLE) if is_cordoned else without_taints(fresh, _UNSCHEDULABLE)
    )


def _replace_taints(node: Node, taints: tuple[Taint, ...]) -> Node:
    if taints == node.spec.taints:
        return node
    return msgspec.structs.replace(node, spec=msgspec.structs.replace(node.spec, taints=taints))
