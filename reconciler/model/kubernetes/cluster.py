"""Other Kubernetes kinds that decisions depend on: storage, PodDisruptionBudgets, namespaces."""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import Amounts, ClaimSpec, NodeSelector, Pod, PodSpec

EBS_DRIVER: Final = "ebs.csi.aws.com"
MIGRATED_DRIVERS: Final = {
    "kubernetes.io/aws-ebs": EBS_DRIVER,
    "kubernetes.io/gce-pd": "pd.csi.storage.gke.io",
    "kubernetes.io/azure-disk": "disk.csi.azure.com",
    "kubernetes.io/azure-file": "file.csi.azure.com",
    "kubernetes.io/cinder": "cinder.csi.openstack.org",
    "kubernetes.io/vsphere-volume": "csi.vsphere.vmware.com",
    "kubernetes.io/portworx-volume": "pxd.portworx.com",
}
"""The CSI driver that has taken over each provisioner of Kubernetes itself."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object in the API's spelling."""


class Namespace(_Struct, frozen=True):
    metadata: Metadata


class PriorityClass(_Struct, frozen=True):
    metadata: Metadata
    value: int = 0
    global_default: bool = False
    preemption_policy: str = ""


class PodTemplate(_Struct, frozen=True):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()


class DaemonSetSpec(_Struct, frozen=True):
    template: PodTemplate = PodTemplate()
    selector: LabelSelector | None = None


class DaemonSet(_Struct, frozen=True):
    """Runs one pod on every eligible node."""

    metadata: Metadata
    spec: DaemonSetSpec = DaemonSetSpec()

    def pod(self) -> Pod:
        """Return the pod of its template."""
        template = self.spec.template
        return Pod(
            metadata=Metadata(
                name=self.metadata.name,
                namespace=self.metadata.namespace,
                labels=template.metadata.labels,
                annotations=template.metadata.annotations,
            ),
            spec=template.spec,
        )


class ServiceSpec(_Struct, frozen=True):
    selector: dict[str, str] = {}


class Service(_Struct, frozen=True):
    """A service that selects pods; without a selector, none."""

    metadata: Metadata
    spec: ServiceSpec = ServiceSpec()


class ReplicationController(_Struct, frozen=True):
    metadata: Metadata
    spec: ServiceSpec = ServiceSpec()


class PodDisruptionBudgetSpec(_Struct, frozen=True):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    unhealthy_pod_eviction_policy: str = ""


class PodDisruptionBudgetStatus(_Struct, frozen=True):
    disruptions_allowed: int = 0


class PodDisruptionBudget(_Struct, frozen=True):
    metadata: Metadata
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.metadata.name}"

    def selects(self, pod: Pod) -> bool:
        """Return whether the budget covers ``pod``; one without a selector covers none."""
        selector = self.spec.selector
        if selector is None or pod.namespace != self.namespace:
            return False
        return selector.matches(pod.metadata.labels)

    @property
    def is_fully_blocking(self) -> bool:
        """Whether it can never allow an eviction by its definition, at any time."""
        if self.spec.max_unavailable in (0, "0", "0%"):
            return True
        return self.spec.min_available == "100%"


class TopologyExpression(_Struct, frozen=True):
    key: str
    values: tuple[str, ...] = ()


class TopologyTerm(_Struct, frozen=True):
    match_label_expressions: tuple[TopologyExpression, ...] = ()


class StorageClass(_Struct, frozen=True):
    metadata: Metadata
    provisioner: str = ""
    volume_binding_mode: str = "Immediate"
    allowed_topologies: tuple[TopologyTerm, ...] = ()


class ClaimStatus(_Struct, frozen=True):
    phase: str = ""


class PersistentVolumeClaim(_Struct, frozen=True):
    metadata: Metadata
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()

    @property
    def key(self) -> str:
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"


class VolumeNodeAffinity(_Struct, frozen=True):
    required: NodeSelector | None = None


class CSISource(_Struct, frozen=True):
    driver: str = ""


class PathSource(_Struct, frozen=True):
    path: str = ""


class DiskSource(_Struct, frozen=True):
    volume_id: str = msgspec.field(default="", name="volumeID")


class ClaimReference(_Struct, frozen=True):
    name: str = ""
    namespace: str = ""


class VolumeSpec(_Struct, frozen=True):
    node_affinity: VolumeNodeAffinity | None = None
    csi: CSISource | None = None
    local: PathSource | None = None
    host_path: PathSource | None = None
    aws_elastic_block_store: DiskSource | None = None
    storage_class_name: str | None = None
    capacity: Amounts = {}
    access_modes: tuple[str, ...] = ()
    claim_ref: ClaimReference | None = None
    volume_mode: str = "Filesystem"


class PersistentVolume(_Struct, frozen=True):
    metadata: Metadata
    spec: VolumeSpec = VolumeSpec()
