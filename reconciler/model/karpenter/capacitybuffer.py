"""CapacityBuffers: capacity that is reserved for future pods.

The kind and the rules are the autoscaler's (``autoscaling.x-k8s.io/v1beta1``), as implemented in
Karpenter 1.14. A buffer references a PodTemplate, or a workload that has one, and defines the
number of such pods to reserve capacity for.
"""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.model.kubernetes.cluster import PodTemplate
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import Amounts

ACTIVE: Final = "buffer.x-k8s.io/active-capacity"
"""The strategy that requests nodes; others belong to other autoscalers."""

SCALABLE: Final = ("Deployment", "StatefulSet", "ReplicaSet")
"""The kinds of ``apps`` that a buffer may reference."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object in the API's spelling."""


class TemplateRef(_Struct, frozen=True):
    name: str = ""


class ScalableRef(_Struct, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class CapacityBufferSpec(_Struct, frozen=True):
    """``replicas`` and ``percentage`` define the number of pods, ``limits`` its maximum."""

    provisioning_strategy: str = ACTIVE
    pod_template_ref: TemplateRef | None = None
    scalable_ref: ScalableRef | None = None
    replicas: int | None = None
    percentage: int | None = None
    limits: Amounts | None = None


class CapacityBuffer(_Struct, frozen=True):
    metadata: Metadata
    spec: CapacityBufferSpec = CapacityBufferSpec()

    @property
    def key(self) -> str:
        """``namespace/name``; objects without a namespace are in ``default``."""
        return f"{self.namespace}/{self.metadata.name}"

    @property
    def namespace(self) -> str:
        return self.metadata.namespace or "default"


class StoredTemplate(_Struct, frozen=True):
    """A PodTemplate that is an object of its own."""

    metadata: Metadata
    template: PodTemplate = PodTemplate()


class ScalableSpec(_Struct, frozen=True):
    replicas: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate = PodTemplate()


class Scalable(_Struct, frozen=True):
    """The parts of a workload that a buffer uses; the default of ``replicas`` is one."""

    metadata: Metadata
    spec: ScalableSpec = ScalableSpec()


class Deployment(Scalable, frozen=True):
    pass


class StatefulSet(Scalable, frozen=True):
    pass


class ReplicaSet(Scalable, frozen=True):
    pass
