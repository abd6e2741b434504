"""Removes the fields of an object that a cluster has added, which do not belong in git."""

from __future__ import annotations

from typing import Final

from reconciler.model.json import JsonDict

_METADATA: Final = (
    *("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp"),
    *("deletionGracePeriodSeconds", "managedFields", "selfLink", "ownerReferences", "finalizers"),
)
_ANNOTATIONS: Final = (
    "kubectl.kubernetes.io/last-applied-configuration",
    "karpenter.sh/nodepool-hash",
    "karpenter.sh/nodepool-hash-version",
    "karpenter.sh/provisioner-hash",
    "karpenter.sh/stored-version-migrated",
    "karpenter.k8s.aws/ec2nodeclass-hash",
    "karpenter.k8s.aws/ec2nodeclass-hash-version",
    "karpenter.k8s.aws/nodetemplate-hash",
    "deployment.kubernetes.io/revision",
)
_PREFIX: Final = "compatibility.karpenter"


def without_live_fields(data: JsonDict) -> bool:
    """Remove status and bookkeeping from an object; return whether there was any."""
    found = data.pop("status", None) is not None
    metadata = data.get("metadata")
    if not isinstance(metadata, dict):
        return found
    for key in _METADATA:
        found = metadata.pop(key, None) is not None or found
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict):
        for key in [k for k in annotations if k in _ANNOTATIONS or k.startswith(_PREFIX)]:
            del annotations[key]
            found = True
        if not annotations:
            del metadata["annotations"]
    return found
