"""How many pods each kind of controller creates, and what these have besides their template.

Labels, owners and names are Kubernetes' own, except that random parts are replaced by numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

import msgspec

from reconciler.desired.gotext import json_text
from reconciler.model.decode import decode
from reconciler.model.kubernetes.cluster import PersistentVolumeClaim, PodTemplate
from reconciler.model.kubernetes.metadata import OwnerReference
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


def family_of(resource: Resource) -> tuple[Controller, ControllerPods] | None:
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
    return ControllerPods(max(spec.replicas, 0), _owner(resource, resource.kind), {}, _serial)


def _deployment(resource: Resource, spec: Controller) -> ControllerPods:
    """The pods of the ReplicaSet that a Deployment makes for its present template."""
    template = resource.data.get("spec", {}).get("template")
    digest = _template_hash(template)
    owner = _owner(resource, "ReplicaSet", f"{resource.name}-{digest}", "apps/v1")
    return ControllerPods(max(spec.replicas, 0), owner, {"pod-template-hash": digest}, _serial)


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
        str if indexed else _serial,
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


def _serial(number: int) -> str:
    """Return ``number`` as five characters that sort as the numbers do: 00000, …, 0000a."""
    text = ""
    for _ in range(5):
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def _template_hash(template: object) -> str:
    """Return a short name that changes with the template, without vowels as in Kubernetes."""
    value = crc32(json_text(template).encode())
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
