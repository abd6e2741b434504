"""The claims that the pods of a workload use."""

from __future__ import annotations

import msgspec

from reconciler.model.decode import decode
from reconciler.model.kubernetes.cluster import PersistentVolumeClaim
from reconciler.source.resource import Resource


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
