"""The objects of a cluster that pods are, or that decide where pods run."""

from __future__ import annotations

from dataclasses import dataclass, fields

from reconciler.model.json import JsonDict
from reconciler.model.karpenter.capacitybuffer import ReplicaSet, StatefulSet
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PriorityClass,
    ReplicationController,
    Service,
    StorageClass,
)
from reconciler.model.kubernetes.devices import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from reconciler.model.kubernetes.node import CSINode
from reconciler.model.kubernetes.pod import Pod


@dataclass(frozen=True, slots=True)
class WorkloadObjects:
    """Pods, and what constrains and owns them; each kind in the order of its names."""

    pods: tuple[Pod, ...] = ()
    daemon_sets: tuple[DaemonSet, ...] = ()
    pod_disruption_budgets: tuple[PodDisruptionBudget, ...] = ()
    volume_claims: tuple[PersistentVolumeClaim, ...] = ()
    volumes: tuple[PersistentVolume, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    csi_nodes: tuple[CSINode, ...] = ()
    device_classes: tuple[DeviceClass, ...] = ()
    resource_claims: tuple[ResourceClaim, ...] = ()
    claim_templates: tuple[ResourceClaimTemplate, ...] = ()
    resource_slices: tuple[ResourceSlice, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    stateful_sets: tuple[StatefulSet, ...] = ()
    replica_sets: tuple[ReplicaSet, ...] = ()
    replication_controllers: tuple[ReplicationController, ...] = ()
    services: tuple[Service, ...] = ()

    @property
    def has_devices(self) -> bool:
        """Whether there are objects of dynamic resource allocation."""
        claims = self.resource_claims or self.claim_templates
        return bool(self.device_classes or claims or self.resource_slices)

    def workload_objects(self) -> JsonDict:
        """Return these objects by the name of their field."""
        return {field.name: getattr(self, field.name) for field in fields(WorkloadObjects)}
