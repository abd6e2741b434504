"""The claims and volumes of a folder, bound as a cluster would bind them.

Kubernetes binds a claim to the volume that it names, or to the smallest volume that suits it, or
provisions one: immediately, or when the first pod that uses it is scheduled. A folder often leaves
out what the cluster has: StorageClasses, volumes, claims. For these a plan assumes the usual, and a
note says so (Kubernetes ``pkg/controller/volume/persistentvolume``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from reconciler.model.decode import decode
from reconciler.model.diagnostics import Severity
from reconciler.model.kubernetes.cluster import (
    EBS_DRIVER,
    CSISource,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeNodeAffinity,
    VolumeSpec,
)
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import (
    ClaimSpec,
    NodeSelector,
    NodeSelectorExpression,
    NodeSelectorTerm,
)
from reconciler.model.kubernetes.storage import NO_PROVISIONER, bound_claim, class_driver
from reconciler.model.resources import parse_quantity
from reconciler.source.resource import Resource

_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_WAIT: Final = "WaitForFirstConsumer"
_STORAGE: Final = "storage"
_ASSUMED_DEFAULT: Final = "default"
_SHARED_MODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_SHARED_DRIVER: Final = "efs.csi.aws.com"


class VolumeNote(NamedTuple):
    """What a plan assumes about volumes; ``claim`` is the key of the first claim concerned."""

    claim: str
    code: str
    message: str
    hint: str
    severity: Severity = Severity.INFO


class BoundVolumes(NamedTuple):
    """The objects after binding, and what was assumed."""

    claims: tuple[PersistentVolumeClaim, ...]
    volumes: tuple[PersistentVolume, ...]
    classes: tuple[StorageClass, ...]
    notes: tuple[VolumeNote, ...]


def default_class(classes: Iterable[StorageClass]) -> str | None:
    """Return the name of the default StorageClass, None if there is none."""
    marked = (c for c in classes if c.metadata.annotations.get(_DEFAULT_CLASS) == "true")
    return next((c.metadata.name for c in marked), None)


def bind_claims(
    claims: Iterable[PersistentVolumeClaim],
    volumes: Iterable[PersistentVolume],
    classes: Iterable[StorageClass],
    used: Iterable[str] = (),
) -> BoundVolumes:
    """Return claims and volumes as the cluster would show them before any pod is scheduled.

    ``used`` are the keys of the claims that pods use; those that the folder does not have are
    assumed to exist.
    """
    binding = _Binding(
        {volume.metadata.name: volume for volume in volumes},
        {kind.metadata.name: kind for kind in classes},
    )
    listed = {claim.key: claim for claim in claims}
    for key in sorted(set(used) - listed.keys()):
        listed[key] = binding.assumed_claim(key)
    order = sorted(listed.values(), key=lambda c: (not c.spec.volume_name, _size(c), c.key))
    bound = {claim.key: binding.bind(claim) for claim in order}
    return BoundVolumes(
        tuple(bound[key] for key in sorted(bound)),
        tuple(binding.volumes[name] for name in sorted(binding.volumes)),
        tuple(binding.classes[name] for name in sorted(binding.classes)),
        tuple(binding.notes()),
    )


@dataclass(slots=True)
class _Binding:
    volumes: dict[str, PersistentVolume]
    classes: dict[str, StorageClass]
    _taken: set[str] = field(default_factory=set)
    _assumed: dict[str, list[str]] = field(default_factory=dict)
    _notes: list[VolumeNote] = field(default_factory=list)

    def bind(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Return the claim bound to its volume, or unbound while it waits for a pod."""
        if claim.spec.volume_name:
            return self._bind_by_name(claim)
        claim = self._with_class(claim)
        volume = self._matching_volume(claim)
        if volume is not None:
            return self._bound(claim, volume.metadata.name)
        kind = self.classes.get(claim.spec.storage_class_name or "")
        if kind is not None and kind.provisioner == NO_PROVISIONER:
            self._note_unprovisioned(claim, kind)
            return claim
        if kind is None or kind.volume_binding_mode == _WAIT:
            return claim
        return self._provision(claim, kind)

    def _bind_by_name(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        name = claim.spec.volume_name
        known = self.volumes.get(name)
        if known is None:
            self.volumes[name] = PersistentVolume(Metadata(name=name))
            self._notes.append(
                VolumeNote(
                    claim.key,
                    "assumed-volume",
                    f"PersistentVolume {name} is not in the folder; the plan assumes that every "
                    "zone reaches it",
                    "add it to the folder, or plan with --snapshot",
                )
            )
        elif known.metadata.deletion_timestamp is not None or not _may_claim(known, claim):
            return claim
        return self._bound(claim, name)

    def _bound(self, claim: PersistentVolumeClaim, volume: str) -> PersistentVolumeClaim:
        self._taken.add(volume)
        return bound_claim(claim, volume)

    def _with_class(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        """Return the claim with its StorageClass, which is assumed if the folder has none."""
        name = claim.spec.storage_class_name
        if name is None:
            name = default_class(self.classes.values()) or _ASSUMED_DEFAULT
        if name and name not in self.classes and self._matching_volume(claim) is None:
            shared = not _SHARED_MODES.isdisjoint(claim.spec.access_modes)
            driver = _SHARED_DRIVER if shared else EBS_DRIVER
            self.classes[name] = StorageClass(Metadata(name=name), driver, _WAIT)
            self._assumed[name] = []
        if name in self._assumed:
            self._assumed[name].append(claim.key)
        return replace(claim, spec=replace(claim.spec, storage_class_name=name))

    def _matching_volume(self, claim: PersistentVolumeClaim) -> PersistentVolume | None:
        """Return the volume that the claim is bound to: reserved for it, or the smallest."""
        suitable = [
            volume
            for name, volume in self.volumes.items()
            if name not in self._taken
            and volume.metadata.deletion_timestamp is None
            and _may_claim(volume, claim)
            and _suits(volume, claim)
        ]
        return min(
            suitable,
            key=lambda v: (v.spec.claim_ref is None, _capacity(v), v.metadata.name),
            default=None,
        )

    def _note_unprovisioned(self, claim: PersistentVolumeClaim, kind: StorageClass) -> None:
        """Note that somebody has to create the volume of a claim.

        A pod of a class that waits for its consumer gets a node, because the volumes of such a
        class are usually those of local disks, which exist once the node runs.
        """
        waits = kind.volume_binding_mode == _WAIT
        outcome = (
            "the plan assumes that one is created on the new node, as for a local disk"
            if waits
            else "its pods wait until one is created"
        )
        self._notes.append(
            VolumeNote(
                claim.key,
                "no-volume",
                f"no PersistentVolume in the folder suits PersistentVolumeClaim {claim.key}, and "
                f"StorageClass {kind.metadata.name} provisions none; {outcome}",
                "add the volume to the folder, or plan with --snapshot",
                Severity.WARNING,
            )
        )

    def _provision(self, claim: PersistentVolumeClaim, kind: StorageClass) -> PersistentVolumeClaim:
        """Return the claim bound to the volume that an Immediate class provisions."""
        name = f"pvc-{claim.key.replace('/', '-')}"
        terms = tuple(
            NodeSelectorTerm(
                tuple(
                    NodeSelectorExpression(e.key, "In", e.values)
                    for e in term.match_label_expressions
                )
            )
            for term in kind.allowed_topologies
        )
        affinity = VolumeNodeAffinity(NodeSelector(terms)) if terms else None
        driver = class_driver(kind)
        self.volumes[name] = PersistentVolume(
            Metadata(name=name), VolumeSpec(affinity, CSISource(driver))
        )
        if driver == EBS_DRIVER and not terms:
            self._notes.append(
                VolumeNote(
                    claim.key,
                    "zone-of-volume-unknown",
                    f"StorageClass {kind.metadata.name} binds immediately, in a zone that is not "
                    "known before; the plan assumes that every zone reaches its volumes",
                    f"use volumeBindingMode {_WAIT}",
                )
            )
        return self._bound(claim, name)

    def assumed_claim(self, key: str) -> PersistentVolumeClaim:
        """Return a claim that a pod uses and the folder does not have."""
        namespace, _, name = key.partition("/")
        volume = f"pvc-{namespace}-{name}"
        self.volumes[volume] = PersistentVolume(Metadata(name=volume))
        self._notes.append(
            VolumeNote(
                key,
                "assumed-claim",
                f"PersistentVolumeClaim {key} is not in the folder; the plan assumes that it "
                "exists and that every zone reaches its volume",
                "add it to the folder, or plan with --snapshot",
                Severity.WARNING,
            )
        )
        return PersistentVolumeClaim(Metadata(name, namespace), ClaimSpec("", volume))

    def notes(self) -> Iterator[VolumeNote]:
        """Yield what was assumed, once for each StorageClass."""
        seen: set[str] = set()
        for note in self._notes:
            if note.message not in seen:
                seen.add(note.message)
                yield note
        for name, claims in sorted(self._assumed.items()):
            kind = self.classes[name]
            what = (
                "The default StorageClass"
                if name == _ASSUMED_DEFAULT and default_class(self.classes.values()) is None
                else f"StorageClass {name}"
            )
            sort = (
                "volumes that every zone reaches"
                if kind.provisioner == _SHARED_DRIVER
                else "EBS volumes in the zone of the first pod"
            )
            count = f"{len(claims)} claim{'s' if len(claims) > 1 else ''}"
            yield VolumeNote(
                claims[0],
                "assumed-storageclass",
                f"{what} is not in the folder; the plan assumes {sort} for {count}",
                "add it to the folder, or plan with --snapshot",
            )


def _may_claim(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Return whether the volume is not reserved for another claim."""
    reserved = volume.spec.claim_ref
    return reserved is None or claim.key == f"{reserved.namespace or 'default'}/{reserved.name}"


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    own, wanted = volume.spec, claim.spec
    return (
        (own.storage_class_name or "") == (wanted.storage_class_name or "")
        and set(wanted.access_modes) <= set(own.access_modes)
        and own.volume_mode == wanted.volume_mode
        and _capacity(volume) >= _size(claim)
        and (wanted.selector is None or wanted.selector.matches(volume.metadata.labels))
    )


def _size(claim: PersistentVolumeClaim) -> int:
    return _amount(claim.spec.resources.requests.get(_STORAGE))


def _capacity(volume: PersistentVolume) -> int:
    return _amount(volume.spec.capacity.get(_STORAGE))


def _amount(text: object) -> int:
    """Return a quantity; 0 where it is missing or invalid, which the API server would reject."""
    try:
        return parse_quantity(str(text)) if text is not None else 0
    except ValueError:
        return 0


class _StatefulSetSpec(msgspec.Struct, frozen=True, rename="camel"):
    volume_claim_templates: tuple[PersistentVolumeClaim, ...] = ()


class _ClaimEnvelope(msgspec.Struct, frozen=True):
    """So that the decoder's paths begin at the object's root."""

    spec: _StatefulSetSpec = _StatefulSetSpec()


def claim_templates(resource: Resource) -> tuple[PersistentVolumeClaim, ...]:
    """Return the claims that each pod of a StatefulSet has."""
    if resource.kind != "StatefulSet":
        return ()
    return decode(
        {"spec": resource.data.get("spec") or {}}, _ClaimEnvelope
    ).spec.volume_claim_templates
