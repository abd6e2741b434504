"""What the files of a fleet contain, in one line."""

from __future__ import annotations

from collections import Counter
from typing import Final

from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads.kinds import KindTable, kind_table
from reconciler.desired.workloads.shape import count_pods
from reconciler.model.text.counting import format_count
from reconciler.source.resource import Resource

_SCALED_BY_NOTHING: Final = frozenset({"Deployment", "StatefulSet", "ReplicaSet", "Pod", "Job"})
_NO_WORKLOADS: Final = frozenset(
    {"Namespace", "PodDisruptionBudget", "PriorityClass", "Service", "StorageClass"}
    | {"DaemonSet", "PersistentVolume", "PersistentVolumeClaim"}
)
"""Kinds that do not change the number of pods to place."""


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
