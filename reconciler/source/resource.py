"""The kinds of objects that a fleet folder may contain, and how each is handled."""

from __future__ import annotations

from typing import Final, NamedTuple

from reconciler.model.json import JsonDict
from reconciler.model.text.nearest import nearest

CONFIG_FILES: Final = ("reconciler.yaml", "reconciler.yml")
LOCK_FILE: Final = "reconciler.lock"
"""At the top of the fleet folder: AWS data that was resolved earlier (see ``lock``)."""

VALIDATED_KINDS: Final = {
    "NodePool": ("karpenter.sh", "v1"),
    "NodeClaim": ("karpenter.sh", "v1"),
    "NodeOverlay": ("karpenter.sh", "v1alpha1"),
    "EC2NodeClass": ("karpenter.k8s.aws", "v1"),
    "CapacityBuffer": ("autoscaling.x-k8s.io", "v1beta1"),
}
"""Completely validated: kind → (group, version); the schema is ``schemas/KIND.VERSION.json``."""

EC2: Final = "karpenter.k8s.aws"
"""The group of the node classes of EC2."""

AUTO_MODE: Final = "eks.amazonaws.com"
"""The group of the node classes of EKS Auto Mode, which launches nodes itself."""

KUBERNETES_KINDS: Final = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "ReplicaSet": "apps/v1",
    "ReplicationController": "v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
    "Pod": "v1",
    "PodTemplate": "v1",
    "PodDisruptionBudget": "policy/v1",
    "PriorityClass": "scheduling.k8s.io/v1",
    "PersistentVolumeClaim": "v1",
    "PersistentVolume": "v1",
    "StorageClass": "storage.k8s.io/v1",
    "CSINode": "storage.k8s.io/v1",
    "DeviceClass": "resource.k8s.io/v1",
    "ResourceClaim": "resource.k8s.io/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
    "ResourceSlice": "resource.k8s.io/v1",
    "Namespace": "v1",
    "LimitRange": "v1",
    "ResourceQuota": "v1",
    "RuntimeClass": "node.k8s.io/v1",
}
"""Needed for a plan without a cluster: only the fields that are read are validated."""

OLDER_VERSIONS: Final = {
    "resource.k8s.io/v1beta1": "resource.k8s.io/v1",
    "resource.k8s.io/v1beta2": "resource.k8s.io/v1",
}
"""Versions of the API that are read like a newer one."""

NAMESPACED: Final = frozenset(
    {
        "Deployment",
        "StatefulSet",
        "ReplicaSet",
        "ReplicationController",
        "DaemonSet",
        "Job",
        "CronJob",
        "Pod",
        "PodTemplate",
        "CapacityBuffer",
        "PodDisruptionBudget",
        "PersistentVolumeClaim",
        "ResourceClaim",
        "ResourceClaimTemplate",
        "LimitRange",
        "ResourceQuota",
    }
)

SUCCESSORS: Final = {
    ("karpenter.sh", "Provisioner"): "NodePool (karpenter.sh/v1)",
    ("karpenter.sh", "Machine"): "NodeClaim (karpenter.sh/v1)",
    ("karpenter.k8s.aws", "AWSNodeTemplate"): "EC2NodeClass (karpenter.k8s.aws/v1)",
    ("karpenter.k8s.aws", "NodeClass"): "EC2NodeClass (karpenter.k8s.aws/v1)",
}
"""Kinds of the alpha API, and their successors."""

_SIMILARITY_MIN: Final = 0.7
"""From here on, a group counts as a misspelled one of Karpenter's."""


class Resource(NamedTuple):
    """One object as it was written, without nulls; ``line`` is where it starts in ``file``."""

    kind: str
    api_version: str
    name: str
    namespace: str
    data: JsonDict
    file: str
    line: int

    @property
    def order(self) -> tuple[str, str, str]:
        return (self.kind, self.namespace, self.name)


def is_kubernetes(api_version: str, kind: str) -> bool:
    """Return whether it is a kind of Kubernetes that is read, in one of its versions."""
    return KUBERNETES_KINDS.get(kind) == OLDER_VERSIONS.get(api_version, api_version)


def group_of(api_version: str) -> str:
    """Return the group of an ``apiVersion``; the core group is ``""``."""
    return api_version.rpartition("/")[0]


def is_ours(api_version: str, kind: str) -> bool:
    """Return whether an object is of one of our kinds, in any version, even if it is misspelled.

    Other products have kinds of the same name, such as the NodePools of OpenYurt, HyperShift and
    of Crossplane's provider for Google Cloud.
    """
    if kind not in VALIDATED_KINDS:
        return False
    group = group_of(api_version)
    if "." not in group or "karpenter" in group or group == VALIDATED_KINDS[kind][0]:
        return True
    return nearest(group, [VALIDATED_KINDS[kind][0]], _SIMILARITY_MIN) is not None


def schema_name(kind: str) -> str:
    """Return the schema name of one of our kinds."""
    return f"{kind.lower()}.{VALIDATED_KINDS[kind][1]}"


def is_other_class(api_version: str, kind: str) -> bool:
    """Return whether it is a node class of another provider, such as a simulator's."""
    return kind.endswith("NodeClass") and group_of(api_version) != EC2
