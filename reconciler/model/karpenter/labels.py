"""The label, annotation and taint keys of Karpenter, and which of them a user may set."""

from __future__ import annotations

from typing import Final

NODEPOOL: Final = "karpenter.sh/nodepool"
KWOK_GROUP: Final = "karpenter.kwok.sh"
"""The API group of the node classes of Karpenter's kwok provider."""
NODECLAIM: Final = "karpenter.sh/nodeclaim"
"""The tag of an instance that names its NodeClaim."""

CAPACITY_TYPE: Final = "karpenter.sh/capacity-type"
INITIALIZED: Final = "karpenter.sh/initialized"
REGISTERED: Final = "karpenter.sh/registered"
ZONE: Final = "topology.kubernetes.io/zone"
ZONE_ID: Final = "topology.k8s.aws/zone-id"
REGION: Final = "topology.kubernetes.io/region"
INSTANCE_TYPE: Final = "node.kubernetes.io/instance-type"
ARCH: Final = "kubernetes.io/arch"
OS: Final = "kubernetes.io/os"
HOSTNAME: Final = "kubernetes.io/hostname"
WINDOWS_BUILD: Final = "node.kubernetes.io/windows-build"
PLACEMENT_GROUP_ID: Final = "karpenter.k8s.aws/placement-group-id"
RESERVATION_ID: Final = "karpenter.k8s.aws/capacity-reservation-id"
RESERVATION_TYPE: Final = "karpenter.k8s.aws/capacity-reservation-type"
TENANCY: Final = "karpenter.k8s.aws/instance-tenancy"
NODECLASS: Final = "karpenter.k8s.aws/ec2nodeclass"

DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"
TERMINATION_TIMESTAMP: Final = "karpenter.sh/nodeclaim-termination-timestamp"
"""When the pods of a NodeClaim that is being deleted are deleted, at the latest."""
DO_NOT_REPAIR: Final = "karpenter.sh/do-not-repair"
"""Excludes a node from repair, in Karpenter 1.15."""
REBOOT_BOOT_ID: Final = "karpenter.sh/reboot-pre-boot-id"
"""The annotation of a NodeClaim with the boot of its node that a reboot is to end."""
REBOOT_DRAIN_LIMIT: Final = "karpenter.sh/reboot-termination-grace-period"
"""The annotation of a NodeClaim with how long the drain before a reboot may take."""
NODEPOOL_HASH: Final = "karpenter.sh/nodepool-hash"
NODEPOOL_HASH_VERSION: Final = "karpenter.sh/nodepool-hash-version"
NODECLASS_HASH: Final = "karpenter.k8s.aws/ec2nodeclass-hash"
NODECLASS_HASH_VERSION: Final = "karpenter.k8s.aws/ec2nodeclass-hash-version"
GPU_SHARING: Final = "karpenter.k8s.aws/nvidia-consumable-capacity"
"""The annotation of an EC2NodeClass with the sharing mode of the NVIDIA driver."""
REQUESTED_DRIVERS: Final = "karpenter.sh/requested-dra-drivers"
"""The annotation of a NodeClaim with the drivers whose devices its pods claim."""
MIN_VALUES_RELAXED: Final = "karpenter.sh/nodeclaim-min-values-relaxed"
POD_DELETION_COST: Final = "controller.kubernetes.io/pod-deletion-cost"
DISRUPTION_COST: Final = "karpenter.sh/disruption-cost"
"""The cost of evicting a pod, as an int32; read before the pod deletion cost."""
DISRUPTION_ANNOTATIONS: Final = (DO_NOT_DISRUPT, DISRUPTION_COST, POD_DELETION_COST)
"""The annotations of a pod that say whether and in which order its node is disrupted."""
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
"""The object as ``kubectl apply`` last sent it, secrets included."""
UNREADABLE: Final = "reconciler/unreadable"
"""The annotation of what stands for a pod or Node that cannot be read, and is not disrupted."""
FAKE_POD: Final = "karpenter.sh/capacity-buffer-fake-pod"
"""Marks with ``true`` a virtual pod, which only represents the capacity of a CapacityBuffer."""
BUFFER_NAME: Final = "karpenter.sh/capacity-buffer-name"
BUFFER_NAMESPACE: Final = "karpenter.sh/capacity-buffer-namespace"

DISRUPTED_TAINT: Final = "karpenter.sh/disrupted"
UNREGISTERED_TAINT: Final = "karpenter.sh/unregistered"
REBOOTING_TAINT: Final = "karpenter.sh/rebooting"

SPOT: Final = "spot"
ON_DEMAND: Final = "on-demand"
RESERVED: Final = "reserved"

WELL_KNOWN: Final = frozenset(
    {NODEPOOL, ZONE, REGION, INSTANCE_TYPE, ARCH, OS, CAPACITY_TYPE, WINDOWS_BUILD}
)
"""The well-known labels of every provider (Karpenter core)."""

_AWS = "karpenter.k8s.aws/"
WELL_KNOWN_AWS: Final = WELL_KNOWN | {
    ZONE_ID,
    NODECLASS,
    *(
        _AWS + name
        for name in (
            "capacity-reservation-id",
            "capacity-reservation-interruptible",
            "capacity-reservation-type",
            "instance-accelerator-count",
            "instance-accelerator-manufacturer",
            "instance-accelerator-name",
            "instance-capability-flex",
            "instance-category",
            "instance-cpu",
            "instance-cpu-manufacturer",
            "instance-cpu-sustained-clock-speed-mhz",
            "instance-ebs-bandwidth",
            "instance-encryption-in-transit-supported",
            "instance-family",
            "instance-generation",
            "instance-gpu-count",
            "instance-gpu-manufacturer",
            "instance-gpu-memory",
            "instance-gpu-name",
            "instance-hypervisor",
            "instance-local-nvme",
            "instance-memory",
            "instance-network-bandwidth",
            "instance-size",
            "instance-tenancy",
            "nitro-sandbox",
            "placement-group-id",
            "placement-group-partition",
        )
    ),
}
"""The core's and the AWS provider's well-known labels."""

_ALIASES: Final = {
    "failure-domain.beta.kubernetes.io/zone": ZONE,
    "failure-domain.beta.kubernetes.io/region": REGION,
    "topology.ebs.csi.aws.com/zone": ZONE,
    "beta.kubernetes.io/arch": ARCH,
    "beta.kubernetes.io/os": OS,
    "beta.kubernetes.io/instance-type": INSTANCE_TYPE,
}
_RESTRICTED_DOMAINS: Final = ("karpenter.sh", "karpenter.k8s.aws")


def normalize_label(key: str) -> str:
    """Return the stable spelling of a label key: the beta keys are aliases."""
    return _ALIASES.get(key, key)


def is_restricted(key: str, well_known: frozenset[str] = WELL_KNOWN_AWS) -> bool:
    """Return whether a user must not set or select ``key``.

    The kubernetes.io and k8s.io domains are allowed for custom labels; karpenter.sh and the
    provider's own domain are not, except for the well-known keys (Karpenter ``labels.go``).
    """
    if key in well_known:
        return False
    if key == HOSTNAME:
        return True
    domain = key.partition("/")[0] if "/" in key else ""
    return any(domain == d or domain.endswith("." + d) for d in _RESTRICTED_DOMAINS)
