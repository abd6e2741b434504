"""Which objects of the Kubernetes API are listed, written and removed, and why.

This is the only declaration: lists and the ClusterRoles in ``docs/kubernetes`` are derived from it,
``reconciler check`` checks each permission, and a test compares it with the actual calls.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from reconciler.model.decode import decode_json, describe_mismatch
from reconciler.model.errors import ClusterError
from reconciler.model.grouping import group_pairs
from reconciler.model.json import JsonDict
from reconciler.model.settings import FeatureGate, Settings

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object: ``resource`` is its plural, as paths and RBAC spell it.

    An ``optional`` one need not exist in every cluster.
    """

    kind: str
    resource: str
    group: str = ""
    version: str = "v1"
    optional: bool = False

    def decode(self, item: bytes | msgspec.Raw) -> JsonDict:
        """Return an object of a list; see ``decode_as``."""
        return self.decode_as(item, JsonDict)

    def decode_as(self, item: bytes | msgspec.Raw, shape: type[T]) -> T:
        """Return an object of a list in the shape of what is read of it.

        Raises:
            ClusterError: it is not one.
        """
        try:
            return decode_json(item, shape)
        except msgspec.MsgspecError as error:
            what = f"invalid {self.kind}: {describe_mismatch(error)}"
            raise ClusterError(what, where=f"GET {self.path}") from error

    @property
    def api_version(self) -> str:
        """The group and version, as an object states them."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def path(self) -> str:
        """Return the path of all objects of the kind, in every namespace."""
        prefix = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        return f"{prefix}/{self.resource}"


NODE: Final = Kind("Node", "nodes")
POD: Final = Kind("Pod", "pods")
EVENT: Final = Kind("Event", "events", "events.k8s.io")
NAMESPACE: Final = Kind("Namespace", "namespaces")
POD_DISRUPTION_BUDGET: Final = Kind("PodDisruptionBudget", "poddisruptionbudgets", "policy")
VOLUME_ATTACHMENT: Final = Kind("VolumeAttachment", "volumeattachments", "storage.k8s.io")
OBSERVED: Final = (
    NODE,
    POD,
    Kind("DaemonSet", "daemonsets", "apps"),
    POD_DISRUPTION_BUDGET,
    Kind("PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind("PersistentVolume", "persistentvolumes"),
    Kind("StorageClass", "storageclasses", "storage.k8s.io"),
    Kind("CSINode", "csinodes", "storage.k8s.io"),
    Kind("DeviceClass", "deviceclasses", "resource.k8s.io", optional=True),
    Kind("ResourceClaim", "resourceclaims", "resource.k8s.io", optional=True),
    Kind("ResourceClaimTemplate", "resourceclaimtemplates", "resource.k8s.io", optional=True),
    Kind("ResourceSlice", "resourceslices", "resource.k8s.io", optional=True),
    NAMESPACE,
    Kind("PriorityClass", "priorityclasses", "scheduling.k8s.io"),
    Kind("PodTemplate", "podtemplates"),
    Kind("Deployment", "deployments", "apps"),
    Kind("StatefulSet", "statefulsets", "apps"),
    Kind("ReplicaSet", "replicasets", "apps"),
    Kind("ReplicationController", "replicationcontrollers"),
    Kind("Service", "services"),
    Kind("CapacityBuffer", "capacitybuffers", "autoscaling.x-k8s.io", "v1beta1", optional=True),
)
"""The order of the lists. Pods come after nodes: a pod that is bound in between is on an unknown
node, and requests nothing; in the opposite order, a node would look empty."""

NODE_POOL: Final = Kind("NodePool", "nodepools", "karpenter.sh", optional=True)
NODE_CLAIM: Final = Kind("NodeClaim", "nodeclaims", "karpenter.sh", optional=True)
WATCHED: Final = (*OBSERVED, NODE_CLAIM, NODE_POOL)
"""The kinds of which `run` keeps a copy: those that it observes or compares its NodeClaims with."""
NODE_OVERLAY: Final = Kind("NodeOverlay", "nodeoverlays", "karpenter.sh", "v1alpha1", optional=True)
EC2_NODE_CLASS: Final = Kind("EC2NodeClass", "ec2nodeclasses", "karpenter.k8s.aws", optional=True)
OF_KARPENTER: Final = (NODE_POOL, NODE_CLAIM, NODE_OVERLAY, EC2_NODE_CLASS)
"""Read by a plan and a snapshot of a cluster in which Karpenter has nodes."""


@dataclass(frozen=True, slots=True)
class Permission:
    """A permission in RBAC; ``writes`` marks those that a plan does not need."""

    verb: str
    group: str
    resource: str
    why: str
    writes: bool = False

    @property
    def name(self) -> str:
        """The permission in words: ``list poddisruptionbudgets.policy``."""
        return f"{self.verb} {self.resource}{'.' if self.group else ''}{self.group}"

    @property
    def rule(self) -> str:
        """As a rule of a ClusterRole, on one line of YAML."""
        return (
            f'{{apiGroups: ["{self.group}"], resources: [{self.resource}], verbs: [{self.verb}]}}'
        )


PERMISSIONS: Final = (
    *(Permission("list", k.group, k.resource, "read by every plan") for k in OBSERVED),
    *(
        Permission("watch", k.group, k.resource, "lets `run` notice changes at once", writes=True)
        for k in WATCHED
    ),
    Permission("get", "", "nodes", "read before the node is changed", writes=True),
    Permission("patch", "", "nodes", (
        "set labels and taints for registration and disruption"
    ), writes=True),
    Permission("delete", "", "nodes", "delete the Node of a terminated instance", writes=True),
    Permission("create", "", "pods/eviction", "evict pods while draining", writes=True),
    Permission("delete", "", "pods", "delete pods at the deadline of a drain", writes=True),
    Permission(
        "list", "storage.k8s.io", "volumeattachments",
        "wait until the volumes of a drained node are detached", writes=True,
    ),
    *(
        Permission(verb, NODE_CLAIM.group, NODE_CLAIM.resource, "show our NodeClaims", writes=True)
        for verb in ("list", "create", "patch", "delete")
    ),
    Permission(
        "patch", NODE_CLAIM.group, "nodeclaims/status", "show our NodeClaims", writes=True
    ),
    Permission(
        "create", EVENT.group, EVENT.resource,
        "report about pods and nodes in Events", writes=True,
    ),
    Permission(
        "list", NODE_POOL.group, NODE_POOL.resource,
        "report NodePools that are not in git", writes=True,
    ),
)  # fmt: skip


POD_COSTS: Final = Permission("patch", "", "pods", "write the deletion costs of pods", writes=True)
"""What only a fleet with the gate PodDeletionCostManagement needs."""

_BESIDE_KARPENTER: Final = tuple(
    Permission("list", k.group, k.resource, "read by a plan beside Karpenter") for k in OF_KARPENTER
)


def permissions_of(*, writes: bool, settings: Settings | None = None) -> tuple[Permission, ...]:
    """Return the permissions of a plan, with ``writes`` those of ``apply`` and ``run``.

    With ``settings``, those of ``run`` include what only these need.
    """
    if writes:
        gate = FeatureGate.POD_DELETION_COST_MANAGEMENT
        return (*PERMISSIONS, *((POD_COSTS,) if settings and settings.gate(gate) else ()))
    return (*(p for p in PERMISSIONS if not p.writes), *_BESIDE_KARPENTER)


def cluster_role(name: str, *, writes: bool) -> dict[str, object]:
    """Return the minimal ClusterRole of a plan, with ``writes`` that of ``apply`` and ``run``."""
    return _role(name, permissions_of(writes=writes))


def snapshot_role(name: str) -> dict[str, object]:
    """Return the minimal ClusterRole for ``snapshot``: that of a plan."""
    return cluster_role(name, writes=False)


def watch_role(name: str) -> dict[str, object]:
    """Return the minimal ClusterRole for ``watch``, which keeps copies and writes nothing."""
    return _role(
        name,
        (
            *(
                Permission(verb, kind.group, kind.resource, "read")
                for kind in (*OBSERVED, *OF_KARPENTER)
                for verb in ("list", "watch")
            ),
            Permission("list", EVENT.group, EVENT.resource, "name why a prediction was wrong"),
        ),
    )


def overlays_role(name: str) -> dict[str, object]:
    """Return the minimal ClusterRole for ``overlays --apply``, which writes nothing else."""
    read = (Permission("list", k.group, k.resource, "read") for k in (NODE, NODE_POOL))
    write = (
        Permission(verb, NODE_OVERLAY.group, NODE_OVERLAY.resource, "written")
        for verb in ("list", "create", "patch", "delete")
    )
    return _role(name, (*read, *write))


def pod_costs_role(name: str) -> dict[str, object]:
    """Return the ClusterRole that a fleet with the gate PodDeletionCostManagement also needs."""
    return _role(name, (POD_COSTS,))


def _role(name: str, permissions: Iterable[Permission]) -> dict[str, object]:
    verbs = group_pairs(((needed.group, needed.resource), needed.verb) for needed in permissions)
    rules = group_pairs(
        ((group, tuple(sorted(allowed))), resource) for (group, resource), allowed in verbs.items()
    )
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [
            {"apiGroups": [group], "resources": sorted(resources), "verbs": [*allowed]}
            for (group, allowed), resources in sorted(rules.items())
        ],
    }
