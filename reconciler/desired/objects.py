"""Convert the resources of a fleet to the values of the model.

This is separate from ``fleet``, because decoding loads msgspec, which validation does not need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final, TypeVar

import msgspec

from reconciler.desired.fleet import Fleet
from reconciler.model.decode import decode, decode_json, describe_mismatch
from reconciler.model.errors import UnreadableError
from reconciler.model.json import JsonDict
from reconciler.model.karpenter.capacitybuffer import (
    SCALABLE,
    CapacityBuffer,
    Scalable,
    StoredTemplate,
)
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.karpenter.nodeclass import EC2NodeClass
from reconciler.model.karpenter.nodeoverlay import NodeOverlay
from reconciler.model.karpenter.nodepool import NodePool
from reconciler.model.kubernetes.cluster import PodTemplate
from reconciler.model.text.urls import without_secrets
from reconciler.source.resource import CONFIG_FILES, LOCK_FILE, Resource

T = TypeVar("T")

_LOCK_METADATA: Final = ("apiVersion", "digest", "lockedAt", "nodePools")


def node_pools(fleet: Fleet) -> tuple[NodePool, ...]:
    """Return the NodePools, in order of their names."""
    return _decode_all(fleet.node_pools, NodePool)


def node_claims(fleet: Fleet) -> tuple[NodeClaim, ...]:
    """Return the NodeClaims that are declared in git, in order of their names."""
    return _decode_all(fleet.node_claims, NodeClaim)


def node_overlays(fleet: Fleet) -> tuple[NodeOverlay, ...]:
    """Return the NodeOverlays, in order of their names."""
    return _decode_all(fleet.node_overlays, NodeOverlay)


def node_classes(fleet: Fleet) -> tuple[EC2NodeClass, ...]:
    """Return the EC2NodeClasses, in order of their names."""
    return _decode_all(fleet.node_classes, EC2NodeClass)


def capacity_buffers(fleet: Fleet) -> tuple[CapacityBuffer, ...]:
    """Return the CapacityBuffers, in order of their names."""
    return tuple(_decode_in_namespace(r, CapacityBuffer) for r in fleet.capacity_buffers)


def buffer_templates(
    fleet: Fleet, references: Collection[tuple[str, str]]
) -> tuple[dict[str, PodTemplate], dict[tuple[str, str], Scalable]]:
    """Return the PodTemplates and workloads in git that ``references`` name.

    A reference is a kind and ``namespace/name``.
    """
    stored: dict[str, PodTemplate] = {}
    scalables: dict[tuple[str, str], Scalable] = {}
    for resource in fleet.workloads:
        key = f"{resource.namespace}/{resource.name}"
        if (resource.kind, key) not in references:
            continue
        if resource.kind == "PodTemplate":
            stored[key] = _decode_in_namespace(resource, StoredTemplate).template
        elif resource.kind in SCALABLE:
            scalables[resource.kind, key] = _decode_in_namespace(resource, Scalable)
    return stored, scalables


def _decode_in_namespace(resource: Resource, kind: type[T]) -> T:
    metadata = {**resource.data["metadata"], "namespace": resource.namespace}
    return _decode_resource(resource._replace(data={**resource.data, "metadata": metadata}), kind)


def _decode_all(resources: Iterable[Resource], kind: type[T]) -> tuple[T, ...]:
    """Decode each resource.

    Raises:
        UnreadableError: the model cannot hold a value that the schema allows.
    """
    return tuple(_decode_resource(resource, kind) for resource in resources)


def _decode_resource(resource: Resource, kind: type[T]) -> T:
    try:
        return decode(resource.data, kind)
    except msgspec.ValidationError as error:
        where = f"{resource.file}:{resource.line}"
        raise UnreadableError(
            f"{resource.kind} {resource.name}: {describe_mismatch(error)}", where=where
        ) from error


def file_objects(fleet: Fleet) -> tuple[JsonDict, ...]:
    """Return the fleet's config and its lock as objects, to be recorded and compared as such.

    Metadata of the lock is omitted, as are passwords in URLs.
    """
    found: list[JsonDict] = []
    if fleet.config:
        known = {"kind": "Configuration", "metadata": {"name": CONFIG_FILES[0]}}
        found.append({**_without_secrets(fleet.config), **known})
    if fleet.lock is not None:
        plain = decode_json(msgspec.json.encode(fleet.lock), dict[str, object])
        contents = {k: v for k, v in plain.items() if k not in _LOCK_METADATA}
        found.append({**contents, "kind": "Lock", "metadata": {"name": LOCK_FILE}})
    return tuple(found)


def _without_secrets(value: object) -> Any:
    if isinstance(value, str):
        return without_secrets(value)
    if isinstance(value, dict):
        return {key: _without_secrets(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_secrets(item) for item in value]
    return value
