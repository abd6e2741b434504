"""CapacityBuffers: room that is kept free for pods that are yet to come.

The kind and the rules are the autoscaler's (``autoscaling.x-k8s.io/v1beta1``), as Karpenter 1.14
reads them: a buffer names the shape of a pod, by a PodTemplate or by a workload that has one, and
says how many such pods there should be room for.
"""

from __future__ import annotations

from typing import Final

import msgspec

from reconciler.model.kubernetes.cluster import PodTemplate
from reconciler.model.kubernetes.metadata import LabelSelector, Metadata
from reconciler.model.kubernetes.pod import Amounts

ACTIVE: Final = "buffer.x-k8s.io/active-capacity"
"""The strategy that asks for nodes; others belong to other autoscalers."""

SCALABLE: Final = ("Deployment", "StatefulSet", "ReplicaSet")
"""The kinds of ``apps`` that a buffer may take its pods' shape from."""


class _Struct(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A part of an object in the API's spelling."""


class TemplateRef(_Struct, frozen=True):
    name: str = ""


class ScalableRef(_Struct, frozen=True):
    api_group: str = ""
    kind: str = ""
    name: str = ""


class CapacityBufferSpec(_Struct, frozen=True):
    """``replicas`` and ``percentage`` say how many pods, ``limits`` how many at most."""

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
    """What a buffer reads of a workload; one without ``replicas`` has one."""

    metadata: Metadata
    spec: ScalableSpec = ScalableSpec()


class Deployment(Scalable, frozen=True):
    pass


class StatefulSet(Scalable, frozen=True):
    pass


class ReplicaSet(Scalable, frozen=True):
    pass
