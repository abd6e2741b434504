"""The names, labels and owners that controllers give to the pods of a template.

Names have numbers instead of random parts, so that the same folder gives the same plan.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from zlib import crc32

from reconciler.desired.hash import format_json
from reconciler.desired.workloads.kinds import Naming, value_of
from reconciler.desired.workloads.podsets import PodSet, number_at
from reconciler.model.kubernetes.metadata import OwnerReference
from reconciler.source.resource import Resource

_SAFE: Final = "bcdfghjklmnpqrstvwxz2456789"
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class PodNames:
    """What the pods of a set have besides their template.

    ``own_labels`` differ from pod to pod: they may name its ``{pod}`` and ``{index}``.
    """

    owner: OwnerReference
    labels: dict[str, str]
    suffix: Callable[[int], str]
    own_labels: tuple[tuple[str, str], ...] = ()


def names_of(pods: PodSet) -> PodNames:
    """Return the names, labels and owner of the pods of a set."""
    resource = pods.resource
    match pods.row.naming:
        case Naming.DEPLOYMENT:
            return _deployment(pods)
        case Naming.STATEFUL_SET:
            return _stateful_set(resource)
        case Naming.JOB:
            return _job(resource)
    labels = {
        key: text.format(name=resource.name, group=pods.group) for key, text in pods.spec.labels
    }
    return PodNames(_owner(resource, resource.kind), labels, format_serial)


def _deployment(pods: PodSet) -> PodNames:
    """Return the names of the ReplicaSet that is made for the present template."""
    resource = pods.resource
    digest = template_hash(pods.template)
    owner = _owner(resource, "ReplicaSet", f"{resource.name}-{digest}", "apps/v1")
    label = "pod-template-hash" if resource.kind == "Deployment" else "rollouts-pod-template-hash"
    return PodNames(owner, {label: digest}, format_serial)


def _stateful_set(resource: Resource) -> PodNames:
    start = number_at(resource.data, "spec.ordinals.start", 0)
    own = (
        ("statefulset.kubernetes.io/pod-name", "{pod}"),
        ("apps.kubernetes.io/pod-index", "{index}"),
    )
    owner = _owner(resource, "StatefulSet")
    return PodNames(owner, {}, lambda number: str(start + number), own)


def _job(resource: Resource) -> PodNames:
    owner = _owner(resource, "Job")
    labels = {
        "batch.kubernetes.io/job-name": resource.name,
        "job-name": resource.name,
        "batch.kubernetes.io/controller-uid": owner.uid,
        "controller-uid": owner.uid,
    }
    indexed = value_of(resource.data, "spec.completionMode") == "Indexed"
    own = (("batch.kubernetes.io/job-completion-index", "{index}"),) if indexed else ()
    return PodNames(owner, labels, str if indexed else format_serial, own)


def _owner(resource: Resource, kind: str, name: str = "", api_version: str = "") -> OwnerReference:
    name = name or resource.name
    return OwnerReference(
        kind=kind,
        name=name,
        api_version=api_version or resource.api_version,
        uid=f"{kind.lower()}/{resource.namespace}/{name}",
        controller=True,
    )


def format_serial(number: int) -> str:
    """Return ``number`` as five characters that sort in numeric order: 00000, …, 0000a."""
    text = ""
    for _ in range(5):
        number, digit = divmod(number, 36)
        text = _DIGITS[digit] + text
    return text


def template_hash(template: object) -> str:
    """Return a short name that changes with the template, without vowels as in Kubernetes."""
    value = crc32(format_json(template).encode())
    text = ""
    for _ in range(7):
        value, digit = divmod(value, len(_SAFE))
        text += _SAFE[digit]
    return text
