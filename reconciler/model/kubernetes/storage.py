"""Claims and the names that storage in Kubernetes goes by."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from reconciler.model.kubernetes.cluster import ClaimStatus, PersistentVolumeClaim

BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
"""The annotation of a claim that is bound to its volume."""
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
"""The provisioner of a StorageClass whose volumes somebody creates."""
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


def bound_claim(claim: PersistentVolumeClaim, volume: str) -> PersistentVolumeClaim:
    """Return the claim as the cluster shows it once it is bound to a volume."""
    annotations = {**claim.metadata.annotations, BIND_COMPLETED: "yes"}
    return replace(
        claim,
        metadata=replace(claim.metadata, annotations=annotations),
        spec=replace(claim.spec, volume_name=volume),
        status=ClaimStatus(phase="Bound"),
    )
