"""The words of Kubernetes, Karpenter and AWS, which an anonymized snapshot shows.

A label key, annotation, resource, kind or field that somebody may have named is not among them,
even in a domain of Kubernetes: ``kubernetes.io/acme-project`` is a valid key.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from reconciler.model.karpenter.labels import (
    ARCH,
    BUFFER_NAME,
    BUFFER_NAMESPACE,
    CAPACITY_TYPE,
    DISRUPTED_TAINT,
    DISRUPTION_COST,
    DO_NOT_DISRUPT,
    DO_NOT_REPAIR,
    FAKE_POD,
    HOSTNAME,
    INITIALIZED,
    INSTANCE_TYPE,
    MIN_VALUES_RELAXED,
    NODECLAIM,
    NODECLASS_HASH,
    NODECLASS_HASH_VERSION,
    NODEPOOL_HASH,
    NODEPOOL_HASH_VERSION,
    OS,
    REGION,
    REGISTERED,
    TERMINATION_TIMESTAMP,
    UNREGISTERED_TAINT,
    WELL_KNOWN_AWS,
    WINDOWS_BUILD,
    ZONE,
    ZONE_ID,
    normalize_label,
)
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.karpenter.nodepool import NodePool

TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]{8,18}(Z|[+-][0-9]{2}:?[0-9]{2})"
DURATION: Final = r"([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h|d))+|Never"
_COUNT: Final = r"[0-9]{1,20}%?"
_QUANTITY: Final = r"[+-]?[0-9.]{1,40}([eE][+-]?[0-9]{1,3})?[A-Za-z]{0,2}"
_CAMEL_CASE: Final = r"([A-Z][A-Za-z0-9]{1,62})?"
_DAYS: Final = "SUN|MON|TUE|WED|THU|FRI|SAT"
_MONTHS: Final = "JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC"
_CRON: Final = rf"(?i:[0-9*/,?-]|{_DAYS}|{_MONTHS}){{1,60}}"
_GROUP: Final = r"(|apps|batch|core|policy|v1)|([a-z0-9-]+\.)*(k8s\.io|k8s\.aws|karpenter\.sh)"
_RESERVED: Final = (
    "cpu memory ephemeral-storage pid memory.available nodefs.available nodefs.inodesFree "
    "imagefs.available imagefs.inodesFree pid.available"
)
"""What a kubelet reserves, and what it measures to evict pods."""
FORMS: Final[dict[str, re.Pattern[str]]] = {
    name: re.compile(form)
    for form, names in {
        rf"({_GROUP})(/v[0-9]+((alpha|beta)[0-9]+)?)?|v1": "apiVersion apiGroup group",
        "In|NotIn|Exists|DoesNotExist|Gt|Lt|Gte|Lte|Equal": "operator",
        "|NoSchedule|PreferNoSchedule|NoExecute": "effect",
        "Always|OnFailure|Never": "restartPolicy",
        "DoNotSchedule|ScheduleAnyway": "whenUnsatisfiable",
        "Honor|Ignore": "nodeAffinityPolicy nodeTaintsPolicy",
        "AlwaysAllow|IfHealthyBudget": "unhealthyPodEvictionPolicy",
        "Immediate|WaitForFirstConsumer": "volumeBindingMode",
        "TCP|UDP|SCTP": "protocol",
        "True|False|Unknown": "status",
        "|Pending|Running|Succeeded|Failed|Unknown|Bound|Lost|Available|Released": "phase",
        "|Proposed|InProgress|Deferred|Infeasible": "resize",
        r"|([a-z0-9-]+\.)*x-k8s\.io/[a-z-]{1,40}": "provisioningStrategy",
        _CAMEL_CASE: "type reason",
        "default|dedicated|host": "tenancy",
        "on-demand|spot|reserved": "capacityType",
        r"[a-z0-9]{1,12}(-[a-z0-9]{1,12})?\.[a-z0-9-]{2,20}": "instanceType",
        r"[a-z]{2}(-[a-z]+){1,3}-[0-9]{1,2}[a-z]?(-[a-z0-9]+){0,3}": "zone",
        r"[a-z0-9]{3,6}-az[0-9]{1,2}": "zoneID",
        r"[0-9a-f]{1,64}": "resourceVersion hash",
        rf"{_COUNT}": "minAvailable maxUnavailable",
        _QUANTITY: "value default min max step validValues",
        rf"{DURATION}": "expireAfter terminationGracePeriod consolidateAfter duration",
        "WhenEmpty|WhenEmptyOrUnderutilized|Balanced": "consolidationPolicy",
        "Underutilized|Empty|Drifted|Unhealthy": "reasons",
        "[0-9]{1,5}%?": "nodes",
        rf"@[a-z]{{4,8}}|{_CRON}( {_CRON}){{4}}": "schedule",
        "[+-]?[0-9.]{1,16}%?": "price priceAdjustment",
        "AL2|AL2023|Bottlerocket|Custom|Windows20[0-9]{2}": "amiFamily",
        "(al2|al2023|bottlerocket|windows20[0-9]{2})@(latest|v?[0-9.]{1,20})": "alias",
        "standard|io1|io2|gp2|gp3|sc1|st1": "volumeType",
        "enabled|disabled|required|optional": (
            "httpEndpoint httpProtocolIPv6 httpTokens nestedVirtualization"
        ),
        "RAID0|interface|efa-only|open|targeted": (
            "instanceStorePolicy interfaceType instanceMatchCriteria"
        ),
        rf"{_QUANTITY}|{_COUNT}|{DURATION}": f"volumeSize {_RESERVED}",
        rf"{TIME}": (
            "creationTimestamp deletionTimestamp lastTransitionTime lastPodEventTime startTime at"
        ),
    }.items()
    for name in names.split()
}
"""Fields whose texts contain no user-defined names if they have this form."""

_NODE_TAINTS: Final = (
    *("not-ready", "unreachable", "unschedulable", "memory-pressure", "disk-pressure"),
    *(
        "pid-pressure",
        "network-unavailable",
        "out-of-service",
        "exclude-from-external-load-balancers",
    ),
)
KEYS: Final = WELL_KNOWN_AWS | {
    *("CriticalAddonsOnly", "node-role.kubernetes.io/control-plane", "metadata.name"),
    *("eks:eks-cluster-name", "kubernetes.io/metadata.name", HOSTNAME, REGISTERED, INITIALIZED),
    *(NODECLAIM, DISRUPTED_TAINT, UNREGISTERED_TAINT, DO_NOT_DISRUPT, DO_NOT_REPAIR),
    *(TERMINATION_TIMESTAMP, NODEPOOL_HASH, NODEPOOL_HASH_VERSION, NODECLASS_HASH),
    *(NODECLASS_HASH_VERSION, MIN_VALUES_RELAXED, DISRUPTION_COST, FAKE_POD, BUFFER_NAME),
    *(BUFFER_NAMESPACE, "karpenter.sh/do-not-sync-taints", "karpenter.sh/do-not-consolidate"),
    *("karpenter.sh/do-not-evict", "karpenter.sh/termination", "karpenter.k8s.aws/tagged"),
    *("karpenter.sh/price-overlay-applied", "karpenter.sh/stored-version-migrated"),
    *("karpenter.sh/discovery", "karpenter.sh/provisioner-name", "karpenter.k8s.aws/termination"),
    *("node.cloudprovider.kubernetes.io/uninitialized", "topology.ebs.csi.aws.com/zone"),
    *("failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region"),
    *("beta.kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/instance-type"),
    *(f"node.kubernetes.io/{name}" for name in _NODE_TAINTS),
    *(f"topology.k8s.aws/network-node-layer-{number}" for number in range(1, 6)),
    *(
        f"reconciler/{name}"
        for name in (
            *("fleet", "intent", "nodepool", "gave-up", "nominated-pods", "termination"),
            *("planned", "source", "preference", "disabled"),
        )
    ),
}
"""Keys of labels, taints, tags, annotations and finalizers."""

_KINDS: Final = frozenset(
    {
        *("Pod", "Node", "NodeClaim", "NodePool", "NodeOverlay", "Deployment", "StatefulSet"),
        *("ReplicaSet", "ReplicationController", "DaemonSet", "Job", "CronJob", "Namespace"),
        *("PodDisruptionBudget", "PersistentVolumeClaim", "PersistentVolume", "StorageClass"),
        *("CSINode", "PriorityClass", "PodTemplate", "Service", "CapacityBuffer", "Rollout"),
        *("HorizontalPodAutoscaler", "ScaledObject", "FleetRecords", "SnapshotCapture"),
        *("Configuration", "Lock", "Machine", "Cluster", "Role", ""),
    }
)
_CLASS: Final = re.compile(r"([A-Z][A-Za-z0-9]{1,40})?NodeClass")

_RESOURCE: Final = re.compile(
    r"cpu|memory|pods|nodes|storage|ephemeral-storage|(hugepages|attachable-volumes)-[a-z0-9-]{1,40}"
    r"|(nvidia\.com|amd\.com|habana\.ai|intel\.com|qualcomm\.com|aws\.amazon\.com"
    r"|vpc\.amazonaws\.com|smarter-devices|xilinx\.com)/[A-Za-z0-9._-]{1,40}"
)

_ZONE: Final = r"[a-z]{2}(-[a-z]+){1,3}-[0-9]{1,2}[a-z]?(-[a-z0-9]+){0,3}"
_NUMBER: Final = r"[0-9]{1,12}"
_MODEL: Final = r"(?=[a-z-]*[0-9])[a-z0-9-]{1,24}|inferentia|trainium"
_TYPE: Final = r"(?=[a-z-]*[0-9])[a-z0-9-]{1,16}\.[a-z0-9-]{2,20}"
_MAKER: Final = "nvidia|amd|habana|aws|intel|qualcomm|xilinx"
_AWS: Final = "karpenter.k8s.aws/"

_KUBELET: Final = frozenset(
    {
        *("clusterDNS", "maxPods", "podsPerCore", "systemReserved", "kubeReserved"),
        *("evictionHard", "evictionSoft", "evictionSoftGracePeriod", "evictionMaxPodGracePeriod"),
        *("imageGCHighThresholdPercent", "imageGCLowThresholdPercent", "cpuCFSQuota"),
        *("memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available"),
        *("imagefs.inodesFree", "pid.available", "cpu", "memory", "ephemeral-storage", "pid"),
    }
)


def is_kind(text: str) -> bool:
    """Return whether a kind belongs to Kubernetes or Karpenter; the others are named by users."""
    return text in _KINDS or _CLASS.fullmatch(text) is not None


def is_amount(text: str) -> bool:
    """Return whether a text is a quantity, and no name."""
    return FORMS["value"].fullmatch(text) is not None


def is_resource(name: str) -> bool:
    """Return whether a resource is one of Kubernetes or of a vendor of devices."""
    return _RESOURCE.fullmatch(name) is not None


_VALUES: Final[dict[str, re.Pattern[str]]] = {
    key: re.compile(form)
    for key, form in {
        ZONE: _ZONE,
        REGION: _ZONE,
        ZONE_ID: r"[a-z0-9]{3,6}(-[a-z0-9]{2,4}){0,1}-az[0-9]{1,2}",
        INSTANCE_TYPE: _TYPE,
        ARCH: "amd64|arm64|386|arm",
        OS: "linux|windows",
        CAPACITY_TYPE: "spot|on-demand|reserved",
        WINDOWS_BUILD: r"10\.0\.[0-9]{5}",
        f"{_AWS}capacity-reservation-id": "cr-[0-9a-f]{8,17}",
        f"{_AWS}capacity-reservation-type": "default|capacity-block",
        f"{_AWS}placement-group-id": "pg-[0-9a-f]{8,17}",
        f"{_AWS}instance-tenancy": "default|dedicated|host",
        f"{_AWS}instance-category": "[a-z]{1,4}",
        f"{_AWS}instance-family": _MODEL,
        f"{_AWS}instance-size": r"(nano|micro|small|medium|[0-9]{0,3}x?large|metal)[a-z0-9-]{0,9}",
        f"{_AWS}instance-hypervisor": "nitro|xen|",
        f"{_AWS}instance-accelerator-name": _MODEL,
        f"{_AWS}instance-gpu-name": _MODEL,
        **{f"{_AWS}instance-{name}-manufacturer": _MAKER for name in ("cpu", "gpu", "accelerator")},
    }.items()
}


def is_value(key: str, value: str) -> bool:
    """Return whether AWS or Kubernetes gives a well-known label this value."""
    known = normalize_label(key)
    if known not in WELL_KNOWN_AWS:
        return False
    form = _VALUES.get(known)
    if form is not None:
        return form.fullmatch(value) is not None
    return value in ("true", "false") or re.fullmatch(_NUMBER, value) is not None


def _field_names(kind: msgspec.inspect.Type) -> Iterator[str]:
    """Yield the names of all fields of a type in the model, in the API's spelling."""
    match kind:
        case msgspec.inspect.StructType():
            for known in kind.fields:
                yield known.encode_name
                yield from _field_names(known.type)
        case msgspec.inspect.UnionType():
            for one in kind.types:
                yield from _field_names(one)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            yield from _field_names(kind.item_type)
        case msgspec.inspect.TupleType():
            for one in kind.item_types:
                yield from _field_names(one)
        case msgspec.inspect.DictType():
            yield from _field_names(kind.value_type)


FIELDS: Final = _KUBELET | {
    *("apiVersion", "kind", "generation", "observedGeneration", "resourceVersion"),
    *(
        name
        for kind in (NodePool, NodeOverlay, EC2NodeClass)
        for name in _field_names(msgspec.inspect.type_info(kind))
    ),
}
"""Fields of NodePools, NodeOverlays and EC2NodeClasses."""
