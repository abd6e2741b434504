"""DaemonSets: one pod on every node that suits them."""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.model.cluster import DaemonSet
from reconciler.model.metadata import OwnerReference
from reconciler.model.node import Node
from reconciler.model.pod import Pod
from reconciler.model.taint import Toleration
from reconciler.placement.binding.selection import matches_node, repelling

_ALWAYS_TOLERATED: Final = tuple(
    Toleration(key=f"node.kubernetes.io/{name}", operator="Exists", effect=effect)
    for name, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
)
"""What the DaemonSet controller adds to its pods."""


def key_of(daemon: DaemonSet) -> str:
    """Return ``namespace/name``."""
    return f"{daemon.metadata.namespace or 'default'}/{daemon.metadata.name}"


def pod_on(daemon: DaemonSet, node: Node) -> Pod:
    """Return the pod of a DaemonSet for a node, without its status."""
    pod = daemon.pod()
    name = f"{daemon.metadata.name}-{node.name}"
    owner = OwnerReference(
        kind="DaemonSet",
        name=daemon.metadata.name,
        api_version="apps/v1",
        uid=daemon.metadata.uid or key_of(daemon),
        controller=True,
    )
    return msgspec.structs.replace(
        pod,
        metadata=msgspec.structs.replace(
            pod.metadata, name=name, uid=f"{pod.namespace}/{name}", owner_references=(owner,)
        ),
        spec=msgspec.structs.replace(
            pod.spec, tolerations=(*pod.spec.tolerations, *_ALWAYS_TOLERATED)
        ),
    )


def suits(pod: Pod, node: Node) -> bool:
    """Return whether the DaemonSet controller would make a pod for a node."""
    return matches_node(pod.spec, node) and not repelling(node.spec.taints, pod.spec.tolerations)
