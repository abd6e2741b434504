"""The pods that a cluster would run for the workloads of a fleet folder.

A Deployment becomes the pods that its ReplicaSet would create, a StatefulSet its pods and their
volume claims, and so on, with the labels, owners and defaults that Kubernetes would give them, so
that spread, affinity and priority behave as in a cluster. The pods are pending: nobody has placed
them yet. ``steps`` lists what a cluster does on the way.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import msgspec

from reconciler.desired.fleet import Fleet
from reconciler.desired.workloads import quota, remarks
from reconciler.desired.workloads.admission import Admission, Admitted, read_admission
from reconciler.desired.workloads.kinds import (
    BUILT_IN,
    WORKLOAD_KINDS,
    KindTable,
    kind_table,
    value_of,
)
from reconciler.desired.workloads.naming import PodNames, names_of
from reconciler.desired.workloads.podsets import (
    PRESENT,
    PodSet,
    ReplicaChoice,
    Scaler,
    ScaleTarget,
    pod_sets,
    scalers_of,
    target_of,
)
from reconciler.desired.workloads.scaled import ScaledWorkload, scaled_workloads
from reconciler.desired.workloads.shape import PODS_MAX
from reconciler.desired.workloads.volumes import bind_claims, claim_templates
from reconciler.model.decode import Mismatch, decode, mismatch_of
from reconciler.model.diagnostics import Diagnostic, Place, Severity
from reconciler.model.json import JsonDict
from reconciler.model.kubernetes.cluster import (
    DaemonSet,
    Namespace,
    PersistentVolume,
    PersistentVolumeClaim,
    PodDisruptionBudget,
    PodTemplate,
    PriorityClass,
    StorageClass,
)
from reconciler.model.kubernetes.devices import (
    DEVICE_KINDS,
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)
from reconciler.model.kubernetes.labelkeys import with_label_keys
from reconciler.model.kubernetes.metadata import Condition, HasMetadata, Metadata
from reconciler.model.kubernetes.node import CSINode
from reconciler.model.kubernetes.objects import WorkloadObjects
from reconciler.model.kubernetes.pod import (
    ClaimSpec,
    PersistentVolumeClaimSource,
    Pod,
    PodSpec,
    PodStatus,
    Volume,
)
from reconciler.model.kubernetes.priority import class_of, with_priority, with_template_spec
from reconciler.model.kubernetes.storage import claim_keys
from reconciler.source.document import Pointer
from reconciler.source.finding import field_path
from reconciler.source.resource import Resource

_DECODED_KINDS: Final[dict[str, type]] = {
    "PriorityClass": PriorityClass,
    "StorageClass": StorageClass,
    "PersistentVolumeClaim": PersistentVolumeClaim,
    "PersistentVolume": PersistentVolume,
    "CSINode": CSINode,
    **DEVICE_KINDS,
    "Namespace": Namespace,
    "DaemonSet": DaemonSet,
    "PodDisruptionBudget": PodDisruptionBudget,
}

_PENDING: Final = PodStatus(
    phase="Pending",
    conditions=(Condition(type="PodScheduled", status="False", reason="Unschedulable"),),
)
_GATED: Final = PodStatus(
    phase="Pending",
    conditions=(Condition(type="PodScheduled", status="False", reason="SchedulingGated"),),
)


@dataclass(frozen=True, slots=True)
class Workloads(WorkloadObjects):
    """The objects of a cluster that runs these workloads.

    Of files, the controllers are expanded into their pods and not kept. ``scaled`` are the
    workloads whose number of replicas has a range.
    """

    scaled: tuple[ScaledWorkload, ...] = ()


def expand(
    resources: Iterable[Resource],
    *,
    now: datetime | None = None,
    pods_max: int = PODS_MAX,
    kinds: KindTable = BUILT_IN,
    choice: ReplicaChoice = PRESENT,
) -> tuple[Workloads, tuple[Diagnostic, ...]]:
    """Return the objects that a cluster would have for ``resources``, and findings on errors.

    ``now`` becomes the time of creation of every pod; without it they have none. A workload that
    would lead to more than ``pods_max`` pods is left out with a finding. ``choice`` is how many
    replicas scaled workloads have.
    """
    ordered = sorted(resources, key=lambda r: (_RANK.get(r.kind, len(_RANK)), r.order))
    expansion = _Expansion(
        now,
        pods_max,
        kinds,
        choice,
        read_admission(ordered),
        scalers_of(ordered),
        {target_of(r): value_of(r.data, "spec.template") for r in ordered},
        quota.quotas_of(ordered),
    )
    for resource in ordered:
        try:
            expansion.add(resource)
        except msgspec.ValidationError as error:
            expansion.findings.append(_decode_finding(resource, error))
    expansion.bind_claims()
    made = expansion.workloads()
    expansion.find_remarks()
    return made, tuple(sorted(expansion.findings, key=lambda d: d.order))


def workloads_of(
    fleet: Fleet, *, now: datetime | None = None, choice: ReplicaChoice = PRESENT
) -> tuple[Workloads, tuple[Diagnostic, ...]]:
    """Return the objects that a cluster would have for a fleet's workloads, and findings.

    Every command that runs workloads of a folder calls this function.
    """
    return expand(fleet.workloads, now=now, kinds=kind_table(fleet.config), choice=choice)


class _PodEnvelope(msgspec.Struct, frozen=True):
    """So that the decoder's paths begin at the object's root."""

    template: PodTemplate


@dataclass(slots=True)
class _Expansion:
    """The objects read so far; classes come before the pods and claims that refer to them."""

    now: datetime | None
    pods_max: int
    kinds: KindTable
    choice: ReplicaChoice
    admission: Admission
    scalers: dict[ScaleTarget, list[Scaler]]
    templates: dict[ScaleTarget, object]
    quotas: dict[str, list[quota.NamespaceQuota]]
    findings: list[Diagnostic] = field(default_factory=list)
    read: dict[type, list[Any]] = field(default_factory=dict)
    pods: dict[tuple[str, str], Pod] = field(default_factory=dict)
    sources: dict[str, Resource] = field(default_factory=dict)
    sets: list[PodSet] = field(default_factory=list)

    def add(self, resource: Resource) -> None:
        """Read one object.

        Raises:
            msgspec.ValidationError: it has not the shape of its kind.
        """
        plain = _DECODED_KINDS.get(resource.kind)
        if self.kinds.workload(resource.api_version, resource.kind) is not None:
            for pods in pod_sets(resource, self.kinds, self.scalers, self.templates):
                try:
                    self._add_pods(pods)
                except msgspec.ValidationError as error:
                    self.findings.append(_decode_finding(resource, error, pods.at))
        elif resource.kind == "Pod":
            self._add_pod(resource)
        elif plain is not None:
            item: Any = decode(self._admitted_data(resource), plain)
            if isinstance(item, PersistentVolumeClaim):
                self.sources.setdefault(item.key, resource)
            elif isinstance(item, DaemonSet):
                item = self._with_daemon_priority(resource, item)
            self.read.setdefault(plain, []).append(item)

    def _admitted_data(self, resource: Resource) -> JsonDict:
        """Return the data of an object in its namespace; a DaemonSet has an admitted template."""
        data = _data_in_namespace(resource)
        template = value_of(data, "spec.template")
        if resource.kind != "DaemonSet" or not isinstance(template, dict):
            return data
        admitted = self._admit(template, resource)
        return {**data, "spec": {**data["spec"], "template": admitted.template}}

    def _admit(self, template: JsonDict, resource: Resource) -> Admitted:
        """Return an admitted template, with findings about what admission notes."""
        admitted = self.admission.admit(template, resource)
        for note in admitted.notes:
            self._add_finding(resource, note.code, note.message, note.hint, Severity.WARNING)
        return admitted

    def _add_pod(self, resource: Resource) -> None:
        admitted = self._admit(_data_in_namespace(resource), resource)
        pod = decode({**admitted.template, "status": {}}, Pod)
        if admitted.rejected:
            self._report_rejected(resource, 1, admitted.rejected)
        elif self._has_room(resource, 1):
            spec = self._with_priority(resource, pod.spec)
            self._record_pod(resource, pod.metadata, spec)

    def _add_pods(self, pods: PodSet) -> None:
        """Append the pods of a set, equal except for their names, and their claims."""
        resource, count = pods.resource, pods.count(self.choice)
        self.sets.append(pods)
        if not self._has_room(resource, count):
            return
        admitted = self._admit(pods.template, resource)
        decoded = decode({"template": admitted.template}, _PodEnvelope).template
        if not count:
            return
        names, spec = names_of(pods), self._with_priority(resource, decoded.spec)
        labels = {**decoded.metadata.labels, **names.labels}
        refused = admitted.rejected or self._missing_for_quotas(resource, labels, spec)
        if refused:
            self._report_rejected(resource, count, refused)
            return
        created = self._allowed_by_quotas(resource, Pod(Metadata(labels=labels), spec), count)
        claims = claim_templates(resource)
        for number in range(created):
            suffix = names.suffix(number)
            metadata = self._metadata(pods, decoded.metadata, names, labels, suffix)
            volumes = self._add_claims(resource, claims, spec, suffix)
            self._record_pod(
                resource,
                metadata,
                msgspec.structs.replace(spec, volumes=volumes) if volumes else spec,
            )

    def _metadata(
        self, pods: PodSet, template: Metadata, names: PodNames, labels: dict[str, str], suffix: str
    ) -> Metadata:
        namespace = pods.resource.namespace
        name = self._free_name(namespace, f"{pods.name}-{suffix}")
        own = {key: text.format(pod=name, index=suffix) for key, text in names.own_labels}
        return Metadata(
            name=name,
            namespace=namespace,
            uid=f"{namespace}/{name}",
            generate_name=f"{names.owner.name}-",
            labels={**labels, **own} if own else labels,
            annotations=template.annotations,
            owner_references=(names.owner,),
            creation_timestamp=self.now,
        )

    def _missing_for_quotas(
        self, resource: Resource, labels: dict[str, str], spec: PodSpec
    ) -> tuple[str, ...]:
        """Return why the quotas of the namespace reject pods that state too little."""
        quotas = self.quotas.get(resource.namespace, ())
        pod = Pod(Metadata(labels=labels), spec)
        return tuple(quota.missing_resources(pod, quotas)) if quotas else ()

    def _allowed_by_quotas(self, resource: Resource, pod: Pod, count: int) -> int:
        """Return how many of ``count`` equal pods the quotas allow; the others are a finding."""
        quotas = self.quotas.get(resource.namespace, ())
        if not quotas:
            return count
        usage = quota.pod_usage(pod)
        for number in range(count):
            excess = quota.take(pod, usage, quotas)
            if excess is not None:
                left = count - number
                noun, verb = ("pod", "is") if left == 1 else ("pods", "are")
                message = f"{left} {noun} of {_describe(resource)} {verb} never created: {excess}"
                hint = "raise the quota, or lower the requests or replicas"
                self._add_finding(resource, "quota-exceeded", message, hint, Severity.WARNING)
                return number
        return count

    def _report_rejected(self, resource: Resource, count: int, why: tuple[str, ...]) -> None:
        noun, verb = ("pod", "is") if count == 1 else ("pods", "are")
        message = f"{count} {noun} of {_describe(resource)} {verb} never created: {why[0]}"
        hint = "the API server rejects them"
        self._add_finding(resource, "pod-rejected", message, hint, Severity.WARNING)

    def find_remarks(self) -> None:
        """Add the findings about autoscalers, and about pods without requests."""
        self.findings += remarks.autoscaler_findings(self.scalers, self.sets)
        self.findings += remarks.request_findings(self.pods.values())
        self.findings += remarks.unplanned_findings(self.pods.values())

    def _record_pod(self, resource: Resource, metadata: Metadata, spec: PodSpec) -> None:
        if not metadata.uid:
            uid = f"{metadata.namespace}/{metadata.name}"
            metadata = msgspec.structs.replace(metadata, uid=uid, creation_timestamp=self.now)
        spec = with_label_keys(spec, metadata.labels)
        self._add_ephemeral_claims(resource, metadata, spec)
        pod = Pod(metadata, spec, _GATED if spec.scheduling_gates else _PENDING)
        for key in claim_keys(pod):
            self.sources.setdefault(key, resource)
        self.pods[metadata.namespace, metadata.name] = pod

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
        """Return the spec with what its class, or the default one, gives it.

        That is its priority, and whether it may evict pods of a lower one.
        """
        classes: list[PriorityClass] = self.read.get(PriorityClass, [])
        name = spec.priority_class_name
        if name and class_of(spec, classes) is None:
            message = f"PriorityClass {name} not found in this folder; priority 0 is used"
            self._add_finding(resource, "missing-priorityclass", message, "", Severity.WARNING)
        return with_priority(spec, classes)

    def _with_daemon_priority(self, resource: Resource, daemon: DaemonSet) -> DaemonSet:
        """Return a DaemonSet whose template has the priority of the pods that it creates."""
        spec = self._with_priority(resource, daemon.spec.template.spec)
        return with_template_spec(daemon, spec)

    def _add_claims(
        self,
        resource: Resource,
        templates: tuple[PersistentVolumeClaim, ...],
        spec: PodSpec,
        suffix: str,
    ) -> tuple[Volume, ...]:
        """Append the claims of a StatefulSet's pod; return its volumes, empty without claims."""
        if not templates:
            return ()
        names = {t.metadata.name for t in templates}
        volumes = [v for v in spec.volumes if v.name not in names]
        for template in templates:
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
            (key for pod in self.pods.values() for key in claim_keys(pod)),
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
            device_classes=kinds.get(DeviceClass, ()),
            resource_claims=kinds.get(ResourceClaim, ()),
            claim_templates=kinds.get(ResourceClaimTemplate, ()),
            resource_slices=kinds.get(ResourceSlice, ()),
            namespaces=tuple(_with_name_label(declared.get(name), name) for name in names),
            priority_classes=kinds.get(PriorityClass, ()),
            scaled=scaled_workloads(self.sets),
        )


def _describe(resource: Resource) -> str:
    return f"{resource.kind} {resource.namespace}/{resource.name}"


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


def _decode_finding(
    resource: Resource, error: msgspec.ValidationError, template: Pointer = ()
) -> Diagnostic:
    """Return the decoder's error as a finding; ``template`` is where the template is."""
    found = mismatch_of(error) or Mismatch("", str(error))
    path = found.field
    if template:
        path = field_path(template) + path.removeprefix("template")
    place = Place(resource.file, resource.line, 1)
    text = f"{resource.kind} {resource.name}: {path or 'it'} {found.problem}"
    return Diagnostic(Severity.ERROR, "wrong-type", text, place, path)


_RANK: Final = {
    kind: rank
    for rank, kind in enumerate(
        dict.fromkeys([*_DECODED_KINDS, "Pod", *(row.kind for row in WORKLOAD_KINDS)])
    )
}
