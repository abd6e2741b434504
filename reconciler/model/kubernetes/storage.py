"""Claims and the names that storage in Kubernetes goes by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from msgspec.structs import replace

from reconciler.model.kubernetes.cluster import (
    EBS_DRIVER,
    MIGRATED_DRIVERS,
    ClaimStatus,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
)
from reconciler.model.kubernetes.pod import Pod

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
"""The annotation of a claim that is bound to its volume."""
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
"""The provisioner of a StorageClass whose volumes somebody creates."""
ONE_POD: Final = "ReadWriteOncePod"
"""The access mode of a claim that only one pod may use at a time."""
SHARED_DRIVERS: Final = frozenset(
    {
        "efs.csi.aws.com",
        "fsx.csi.aws.com",
        "fsx.openzfs.csi.aws.com",
        "nfs.csi.k8s.io",
        "s3.csi.aws.com",
        "smb.csi.k8s.io",
    }
)
"""Drivers of file systems that every zone reaches: nothing is attached to an instance."""


def claim_keys(pod: Pod) -> Iterator[str]:
    """Yield the claims of a pod as ``namespace/name``.

    The claim of an ephemeral volume is named after pod and volume.
    """
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield f"{pod.namespace}/{volume.persistent_volume_claim.claim_name}"
        elif volume.ephemeral is not None:
            yield f"{pod.namespace}/{pod.metadata.name}-{volume.name}"


def class_driver(storage_class: StorageClass) -> str:
    """Return the CSI driver of the volumes of a class, empty if nothing provisions them."""
    name = storage_class.provisioner
    return "" if name == NO_PROVISIONER else MIGRATED_DRIVERS.get(name, name)


def csi_driver(
    claim: PersistentVolumeClaim,
    volumes: Mapping[str, PersistentVolume],
    classes: Mapping[str, StorageClass],
) -> str:
    """Return the CSI driver that attaches the volume of a claim, empty if there is none.

    It is that of the volume once the claim names one, and that of the StorageClass before.
    """
    if claim.spec.volume_name:
        volume = volumes.get(claim.spec.volume_name)
        if volume is None:
            return ""
        if volume.spec.csi is not None:
            return volume.spec.csi.driver
        return EBS_DRIVER if volume.spec.aws_elastic_block_store is not None else ""
    known = classes.get(claim.spec.storage_class_name or "")
    return class_driver(known) if known is not None else ""


def bound_claim(claim: PersistentVolumeClaim, volume: str) -> PersistentVolumeClaim:
    """Return the claim as the cluster shows it once it is bound to a volume."""
    annotations = {**claim.metadata.annotations, BIND_COMPLETED: "yes"}
    return replace(
        claim,
        metadata=replace(claim.metadata, annotations=annotations),
        spec=replace(claim.spec, volume_name=volume),
        status=ClaimStatus(phase="Bound"),
    )
