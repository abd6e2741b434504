"""What the files of a fleet contain: in one line, and whether a plan depends on it."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads.entries import is_of_policies
from reconciler.desired.workloads.kinds import BUILT_IN, KindTable, kind_table
from reconciler.desired.workloads.shape import count_pods
from reconciler.model.text.counting import format_count
from reconciler.source.resource import Resource, group_of

_SCALED_BY_NOTHING: Final = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "Pod", "Job"})
POD_KINDS: Final = _SCALED_BY_NOTHING | {"CronJob", "DaemonSet", "ReplicationController"}
"""Kinds of Kubernetes whose objects are pods, or make some."""
_NO_WORKLOADS: Final = frozenset(
    {"Namespace", "PodDisruptionBudget", "PriorityClass", "Service", "StorageClass"}
    | {"DaemonSet", "PersistentVolume", "PersistentVolumeClaim", "CSINode"}
    | {"DeviceClass", "ResourceClaim", "ResourceClaimTemplate", "ResourceSlice"}
    | {"PodTemplate"}
)
"""Kinds that do not change the number of pods to place."""
_VERSION: Final = re.compile(rb"""^"?apiVersion"?:[ \t]++["']?([\w./-]++)""", re.MULTILINE)
_KIND: Final = re.compile(rb"""^"?kind"?:[ \t]++["']?(\w++)""", re.MULTILINE)
_JSON: Final = (b"{", b"[")
_CONTAINERS: Final = b"containers"


def seems_to_have_workload(content: bytes) -> bool:
    """Return whether a file that is not parsed has an object that pods depend on, by its kinds."""
    versions = {version.decode() for version in _VERSION.findall(content)}
    kinds = {kind.decode() for kind in _KIND.findall(content)}
    return any(BUILT_IN.reads(version, kind) for version in versions for kind in kinds)


def kinds_of_pods(content: bytes) -> list[str]:
    """Return the kinds in a file that is not parsed whose objects are pods or make some."""
    kinds = {kind.decode() for kind in _KIND.findall(content)}
    return sorted(kinds & POD_KINDS)


def may_have_pods(content: bytes) -> bool:
    """Return whether a file that is not parsed may change the pods of a plan.

    Besides the known kinds, others may contain templates of pods, but for policies.
    """
    if content.lstrip().startswith(_JSON) or seems_to_have_workload(content):
        return True
    groups = {group_of(version.decode()) for version in _VERSION.findall(content)}
    return _CONTAINERS in content and not all(map(is_of_policies, groups))


def count_objects(fleet: Fleet) -> str:
    """Return what the files contain: ``1 NodePool, 1 EC2NodeClass, 3 workloads, 18 pods``.

    Pods are counted where nothing scales, limits or schedules them.
    """
    table = kind_table(fleet.config)
    nodes = (*fleet.node_pools, *fleet.node_classes, *fleet.node_overlays, *fleet.node_claims)
    kinds = Counter(resource.kind for resource in (*nodes, *fleet.capacity_buffers))
    workloads = _workloads(fleet, table)
    if workloads:
        kinds["workload"] = len(workloads)
    if workloads and {r.kind for r in fleet.workloads} <= _SCALED_BY_NOTHING | _NO_WORKLOADS:
        kinds["pod"] = sum(count_pods(r, table) for r in workloads if r.kind != "DaemonSet")
    return ", ".join(format_count(count, kind) for kind, count in kinds.items())


def states_pods(fleet: Fleet) -> bool:
    """Return whether files state what runs, even if that is nothing at the moment.

    A Deployment with 0 replicas and a suspended CronJob state that. DaemonSets alone do not,
    because they run wherever there are nodes.
    """
    kinds = {resource.kind for resource in fleet.workloads}
    return "CronJob" in kinds or any(
        resource.kind != "DaemonSet" for resource in _workloads(fleet, kind_table(fleet.config))
    )


def _workloads(fleet: Fleet, table: KindTable) -> list[Resource]:
    """Return the objects that make pods all the time."""
    return [
        r
        for r in fleet.workloads
        if r.kind in ("Pod", "DaemonSet") or table.workload(r.data["apiVersion"], r.kind)
    ]
