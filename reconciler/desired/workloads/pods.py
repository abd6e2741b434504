"""The pods that a cluster would run for the workloads of a fleet folder.

A Deployment becomes the pods that its ReplicaSet would create, a StatefulSet its pods and their
volume claims, and so on, with the labels, owners and defaults that Kubernetes would give them, so
that spread, affinity and priority behave as in a cluster. The pods are pending: nobody has placed
them yet. Names have numbers instead of random parts, so that the same folder gives the same plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from zlib import crc32

import msgspec

from reconciler.desired.hash import format_json
from reconciler.desired.workloads.shape import PODS_MAX
from reconciler.desired.workloads.volumes import bind_claims
from reconciler.model.decode import decode
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.capacitybuffer import ReplicaSet, StatefulSet
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodTemplate,
    PriorityClass,
    ReplicationController,
    Service,
    StorageClass,
)
from reconciler.model.kubernetes.metadata import Condition, HasMetadata, Metadata, OwnerReference
from reconciler.model.kubernetes.node import CSINode
from reconciler.model.kubernetes.pod import (
    ClaimSpec,
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    PodStatus,
    Volume,
)
from reconciler.source.resource import Resource

_SAFE: Final = "bcdfghjklmnpqrstvwxz2456789"
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    """A part of a workload in the API's spelling."""


class _Ordinals(_Struct, frozen=True):
    start: int = 0


class Controller(_Struct, frozen=True):
    """The spec of anything that makes pods from a template."""

    template: PodTemplate = PodTemplate()
    replicas: int = 1
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    suspend: bool = False
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()
    ordinals: _Ordinals = _Ordinals()


@dataclass(frozen=True, slots=True)
class ControllerPods:
    """The pods of one controller: how many, and what they have besides their template.

    ``own_labels`` differ from pod to pod: they may name its ``{pod}`` and ``{index}``.
    """

    count: int
    owner: OwnerReference
    labels: dict[str, str]
    suffix: Callable[[int], str]
    own_labels: tuple[tuple[str, str], ...] = ()


def controller_pods(resource: Resource) -> tuple[Controller, ControllerPods] | None:
    """Return the spec of a controller and the pods it makes; None for other kinds.

    Raises:
        msgspec.ValidationError: the object has not the shape of its kind.
    """
    maker = _CONTROLLERS.get(resource.kind)
    if maker is None:
        return None
    spec = decode({"spec": resource.data.get("spec") or {}}, _Envelope).spec
    return spec, maker(resource, spec)


Maker = Callable[[Resource, Controller], ControllerPods]


def _replica_set(resource: Resource, spec: Controller) -> ControllerPods:
    """The pods of a ReplicaSet or ReplicationController."""
    return ControllerPods(
        max(spec.replicas, 0), _owner(resource, resource.kind), {}, _format_serial
    )


def _deployment(resource: Resource, spec: Controller) -> ControllerPods:
    """The pods of the ReplicaSet that a Deployment makes for its present template."""
    template = resource.data.get("spec", {}).get("template")
    digest = _template_hash(template)
    owner = _owner(resource, "ReplicaSet", f"{resource.name}-{digest}", "apps/v1")
    return ControllerPods(
        max(spec.replicas, 0), owner, {"pod-template-hash": digest}, _format_serial
    )


def _stateful_set(resource: Resource, spec: Controller) -> ControllerPods:
    start = spec.ordinals.start
    own = (
        ("statefulset.kubernetes.io/pod-name", "{pod}"),
        ("apps.kubernetes.io/pod-index", "{index}"),
    )
    return ControllerPods(
        max(spec.replicas, 0),
        _owner(resource, "StatefulSet"),
        {},
        lambda number: str(start + number),
        own,
    )


def _job(resource: Resource, spec: Controller) -> ControllerPods:
    """The pods that a Job runs at first: as many as may run at once, none while suspended."""
    count = spec.parallelism
    if spec.completions is not None:
        count = min(count, spec.completions)
    owner = _owner(resource, "Job")
    labels = {
        "batch.kubernetes.io/job-name": resource.name,
        "job-name": resource.name,
        "batch.kubernetes.io/controller-uid": owner.uid,
        "controller-uid": owner.uid,
    }
    indexed = spec.completion_mode == "Indexed"
    return ControllerPods(
        0 if spec.suspend else max(count, 0),
        owner,
        labels,
        str if indexed else _format_serial,
        (("batch.kubernetes.io/job-completion-index", "{index}"),) if indexed else (),
    )


def _owner(resource: Resource, kind: str, name: str = "", api_version: str = "") -> OwnerReference:
    name = name or resource.name
    return OwnerReference(
        kind=kind,
        name=name,
        api_version=api_version or resource.api_version,
        uid=f"{kind.lower()}/{resource.namespace}/{name}",
        controller=True,
    )


def _format_serial(number: int) -> str:
    """Return ``number`` as five characters that sort in numeric order: 00000, …, 0000a."""
    text = ""
    for _ in range(5):
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def _template_hash(template: object) -> str:
    """Return a short name that changes with the template, without vowels as in Kubernetes."""
    value = crc32(format_json(template).encode())
    text = ""
    for _ in range(7):
        value, digit = divmod(value, len(_SAFE))
        text += _SAFE[digit]
    return text


class _Envelope(_Struct, frozen=True):
    """So that the decoder's paths begin at the object's root."""

    spec: Controller


_CONTROLLERS: Final[dict[str, Maker]] = {
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "ReplicationController": _replica_set,
    "StatefulSet": _stateful_set,
    "Job": _job,
}

CONTROLLERS: Final = tuple(_CONTROLLERS)
"""The kinds that make pods, DaemonSets aside."""


_BUILT_IN_PRIORITIES: Final = {
    "system-cluster-critical": 2_000_000_000,
    "system-node-critical": 2_000_001_000,
}


@dataclass(frozen=True, slots=True)
class Workloads:
    """The objects of a cluster that runs these workloads; every tuple is ordered by name.

    Of files, the controllers are expanded into their pods and not kept.
    """

    pods: tuple[Pod, ...] = ()
    daemon_sets: tuple[DaemonSet, ...] = ()
    pod_disruption_budgets: tuple[PodDisruptionBudget, ...] = ()
    volume_claims: tuple[PersistentVolumeClaim, ...] = ()
    volumes: tuple[PersistentVolume, ...] = ()
    storage_classes: tuple[StorageClass, ...] = ()
    csi_nodes: tuple[CSINode, ...] = ()
    namespaces: tuple[Namespace, ...] = ()
    priority_classes: tuple[PriorityClass, ...] = ()
    stateful_sets: tuple[StatefulSet, ...] = ()
    replica_sets: tuple[ReplicaSet, ...] = ()
    replication_controllers: tuple[ReplicationController, ...] = ()
    services: tuple[Service, ...] = ()


def expand(
    resources: Iterable[Resource], *, now: datetime | None = None, pods_max: int = PODS_MAX
) -> tuple[Workloads, tuple[Diagnostic, ...]]:
    """Return the objects that a cluster would have for ``resources``, and findings on errors.

    ``now`` becomes the time of creation of every pod; without it they have none. A workload that
    would lead to more than ``pods_max`` pods is left out with a finding.
    """
    expansion = _Expansion(now, pods_max)
    ordered = sorted(resources, key=lambda r: (_RANK.get(r.kind, len(_RANK)), r.order))
    for resource in ordered:
        try:
            expansion.add(resource)
        except msgspec.ValidationError as error:
            expansion.findings.append(_decode_finding(resource, error))
    expansion.bind_claims()
    return expansion.workloads(), tuple(sorted(expansion.findings, key=lambda d: d.order))


@dataclass(slots=True)
class _Expansion:
    """The objects read so far; classes come before the pods and claims that refer to them."""

    now: datetime | None
    pods_max: int
    findings: list[Diagnostic] = field(default_factory=list)
    read: dict[type, list[Any]] = field(default_factory=dict)
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    sources: dict[str, Resource] = field(default_factory=dict)

    def add(self, resource: Resource) -> None:
        """Read one object.

        Raises:
            msgspec.ValidationError: it has not the shape of its kind.
        """
        controller = controller_pods(resource)
        plain = _DECODED_KINDS.get(resource.kind)
        if controller is not None:
            self._add_controller_pods(resource, *controller)
        elif resource.kind == "Pod":
            self._add_pod(resource)
        elif plain is not None:
            item: Any = decode(_data_in_namespace(resource), plain)
            if isinstance(item, PersistentVolumeClaim):
                self.sources.setdefault(item.key, resource)
            self.read.setdefault(plain, []).append(item)

    def _add_pod(self, resource: Resource) -> None:
        pod = decode({**_data_in_namespace(resource), "status": {}}, Pod)
        if self._has_room(resource, 1):
            spec = self._with_priority(resource, pod.spec)
            self._record_pod(resource, pod.metadata, spec)

    def _add_controller_pods(
        self, resource: Resource, spec: Controller, family: ControllerPods
    ) -> None:
        """Append the pods of a controller, equal except for their names, and their claims."""
        if not self._has_room(resource, family.count):
            return
        template = spec.template.metadata
        pod_spec = self._with_priority(resource, spec.template.spec)
        labels = {**template.labels, **family.labels}
        for number in range(family.count):
            suffix = family.suffix(number)
            name = self._free_name(resource.namespace, f"{resource.name}-{suffix}")
            own = {key: text.format(pod=name, index=suffix) for key, text in family.own_labels}
            metadata = Metadata(
                name=name,
                namespace=resource.namespace,
                uid=f"{resource.namespace}/{name}",
                generate_name=f"{family.owner.name}-",
                labels={**labels, **own} if own else labels,
                annotations=template.annotations,
                owner_references=(family.owner,),
                creation_timestamp=self.now,
            )
            volumes = self._add_claims(resource, spec, suffix)
            self._record_pod(
                resource,
                metadata,
                msgspec.structs.replace(pod_spec, volumes=volumes) if volumes else pod_spec,
            )

    def _record_pod(self, resource: Resource, metadata: Metadata, spec: PodSpec) -> None:
        if not metadata.uid:
            uid = f"{metadata.namespace}/{metadata.name}"
            metadata = msgspec.structs.replace(metadata, uid=uid, creation_timestamp=self.now)
        self._add_ephemeral_claims(resource, metadata, spec)
        for key in _claim_keys(metadata, spec):
            self.sources.setdefault(key, resource)
        status = _GATED if spec.scheduling_gates else _PENDING
        self.pods[metadata.namespace, metadata.name] = Pod(metadata, spec, status)

    def _free_name(self, namespace: str, name: str) -> str:
        """Return ``name``, extended if a pod of another owner already has it."""
        while (namespace, name) in self.pods:
            name += "x"
        return name

    def _has_room(self, resource: Resource, count: int) -> bool:
        if len(self.pods) + count <= self.pods_max:
            return True
        message = (
            f"{resource.kind} {resource.name} has {count} pods; with the {len(self.pods)} "
            f"before it, that is more than {self.pods_max}"
        )
        self._add_finding(
            resource, "too-many-pods", message, "lower its replicas, or plan with --snapshot"
        )
        return False

    def _with_priority(self, resource: Resource, spec: PodSpec) -> PodSpec:
        """Return the spec with the priority that its class, or the default one, gives it."""
        classes: list[PriorityClass] = self.read.get(PriorityClass, [])
        name = spec.priority_class_name
        if name:
            values = {c.metadata.name: c.value for c in classes} | _BUILT_IN_PRIORITIES
            value = values.get(name)
            if value is None:
                message = f"PriorityClass {name} not found in this folder; priority 0 is used"
                self._add_finding(resource, "missing-priorityclass", message, "", Severity.WARNING)
        else:
            value = max((c.value for c in classes if c.global_default), default=None)
        if spec.priority is not None or value is None:
            return spec
        return msgspec.structs.replace(spec, priority=value)

    def _add_claims(self, resource: Resource, spec: Controller, suffix: str) -> tuple[Volume, ...]:
        """Append the claims of a StatefulSet's pod; return its volumes, empty without claims."""
        if resource.kind != "StatefulSet" or not spec.volume_claim_templates:
            return ()
        names = {t.metadata.name for t in spec.volume_claim_templates}
        volumes = [v for v in spec.template.spec.volumes if v.name not in names]
        for template in spec.volume_claim_templates:
            name = f"{template.metadata.name}-{resource.name}-{suffix}"
            metadata = Metadata(
                name=name, namespace=resource.namespace, labels=template.metadata.labels
            )
            self._add_claim(resource, metadata, template.spec)
            source = PersistentVolumeClaimSource(name)
            volumes.append(Volume(template.metadata.name, persistent_volume_claim=source))
        return tuple(volumes)

    def _add_ephemeral_claims(self, resource: Resource, metadata: Metadata, spec: PodSpec) -> None:
        """Append the claim that Kubernetes makes for each ephemeral volume of a pod."""
        for volume in spec.volumes:
            if volume.ephemeral is None or volume.ephemeral.volume_claim_template is None:
                continue
            claim_spec = volume.ephemeral.volume_claim_template.spec
            name = f"{metadata.name}-{volume.name}"
            self._add_claim(resource, Metadata(name=name, namespace=metadata.namespace), claim_spec)

    def _add_claim(self, resource: Resource, metadata: Metadata, spec: ClaimSpec) -> None:
        claim = PersistentVolumeClaim(metadata, spec)
        self.read.setdefault(PersistentVolumeClaim, []).append(claim)
        self.sources.setdefault(claim.key, resource)

    def bind_claims(self) -> None:
        """Bind the claims, and report what that assumes."""
        found = bind_claims(
            self.read.get(PersistentVolumeClaim, ()),
            self.read.get(PersistentVolume, ()),
            self.read.get(StorageClass, ()),
            (k for pod in self.pods.values() for k in _claim_keys(pod.metadata, pod.spec)),
        )
        self.read[PersistentVolumeClaim] = list(found.claims)
        self.read[PersistentVolume] = list(found.volumes)
        self.read[StorageClass] = list(found.classes)
        for note in found.notes:
            resource = self.sources[note.claim]
            self._add_finding(resource, note.code, note.message, note.hint, note.severity)

    def _add_finding(
        self,
        resource: Resource,
        code: str,
        message: str,
        hint: str,
        severity: Severity = Severity.ERROR,
    ) -> None:
        place = Place(resource.file, resource.line, 1)
        self.findings.append(Diagnostic(severity, code, message, place, hint=hint))

    def workloads(self) -> Workloads:
        """Return everything, ordered, with the namespaces that only objects imply."""
        kinds: dict[type, tuple[Any, ...]] = {
            kind: tuple(sorted(items, key=_order_key)) for kind, items in self.read.items()
        }
        pods = tuple(self.pods[key] for key in sorted(self.pods))
        declared = {n.metadata.name: n for n in kinds.get(Namespace, ())}
        used = {key[0] for key in self.pods} | {
            item.metadata.namespace for item in kinds.get(DaemonSet, ())
        }
        names = sorted(declared.keys() | used)
        return Workloads(
            pods=pods,
            daemon_sets=kinds.get(DaemonSet, ()),
            pod_disruption_budgets=kinds.get(PodDisruptionBudget, ()),
            volume_claims=kinds.get(PersistentVolumeClaim, ()),
            volumes=kinds.get(PersistentVolume, ()),
            storage_classes=kinds.get(StorageClass, ()),
            csi_nodes=kinds.get(CSINode, ()),
            namespaces=tuple(_with_name_label(declared.get(name), name) for name in names),
            priority_classes=kinds.get(PriorityClass, ()),
        )


def _claim_keys(metadata: Metadata, spec: PodSpec) -> Iterator[str]:
    """Yield the keys of the claims that a pod uses by name."""
    for volume in spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield f"{metadata.namespace}/{volume.persistent_volume_claim.claim_name}"


def _data_in_namespace(resource: Resource) -> JsonDict:
    """Return the object's data with the namespace that it is in."""
    metadata = {**resource.data.get("metadata", {}), "namespace": resource.namespace}
    return {**resource.data, "metadata": metadata}


def _with_name_label(namespace: Namespace | None, name: str) -> Namespace:
    """Return a namespace with the label that Kubernetes adds to each."""
    metadata = namespace.metadata if namespace else Metadata(name=name)
    labels = {**metadata.labels, "kubernetes.io/metadata.name": name}
    return Namespace(msgspec.structs.replace(metadata, labels=labels))


def _order_key(item: HasMetadata) -> tuple[str, str]:
    return (item.metadata.namespace, item.metadata.name)


def _decode_finding(resource: Resource, error: msgspec.ValidationError) -> Diagnostic:
    """Return the decoder's error as a finding on the object."""
    message, _, at = str(error).partition(" - at `$")
    path = at.rstrip("`").lstrip(".")
    place = Place(resource.file, resource.line, 1)
    text = f"{resource.kind} {resource.name}: {message}"
    return Diagnostic(Severity.ERROR, "wrong-type", text, place, path)


_DECODED_KINDS: Final[dict[str, type]] = {
    "PriorityClass": PriorityClass,
    "StorageClass": StorageClass,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "PersistentVolume": PersistentVolume,
    "CSINode": CSINode,
    "Namespace": Namespace,
    "DaemonSet": DaemonSet,
    "PodDisruptionBudget": PodDisruptionBudget,
}
_RANK: Final = {kind: rank for rank, kind in enumerate([*_DECODED_KINDS, "Pod", *CONTROLLERS])}
_PENDING: Final = PodStatus(
    phase="Pending",
    conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),),
)
_GATED: Final = PodStatus(
    phase="Pending",
    conditions=(Condition(type="PodScheduled", status="False", reason="SchedulingGated"),),
)
