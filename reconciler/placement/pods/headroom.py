"""CapacityBuffers as virtual pods: how many each requests, and their spec.

A virtual pod is placed like any other and never bound. It keeps a node, or requests one, so that a
real pod finds room at once. Each pass places them again, after the real pods, in the room these
leave (Karpenter ``capacitybuffer/controller.go``, ``virtualpods/utilities.go``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from reconciler.model.karpenter.capacitybuffer import ACTIVE, SCALABLE, CapacityBuffer, Scalable
from reconciler.model.karpenter.labels import BUFFER_NAME, BUFFER_NAMESPACE, FAKE_POD
from reconciler.model.kubernetes.cluster import PodTemplate
from reconciler.model.kubernetes.labelkeys import with_label_keys
from reconciler.model.kubernetes.metadata import Condition, Metadata
from reconciler.model.kubernetes.pod import Pod, PodSpec, PodStatus
from reconciler.model.resources import PODS, Resources, parse_resources

PRIORITY: Final = -(2**31)
"""Lower than the priority of any running pod."""

PODS_MAX: Final = 10_000
"""Maximum number of virtual pods of one buffer; a larger number is more likely a typing error."""

_UNPLACED: Final = PodStatus(
    conditions=(Condition("PodScheduled", "False", reason="Unschedulable"),)
)


@dataclass(frozen=True, slots=True)
class Headroom:
    """The virtual ``pods`` of one CapacityBuffer (``namespace/name``), all alike.

    If there are none, ``code`` and ``message`` give the reason: the referenced object does not
    exist, or the size is zero.
    """

    buffer: str
    pods: tuple[Pod, ...] = ()
    code: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class BufferTemplates:
    """What buffers may reference: PodTemplates by ``namespace/name``, workloads by kind too."""

    pods: Mapping[str, PodTemplate]
    scalables: Mapping[tuple[str, str], Scalable]


def resolve_headroom(buffer: CapacityBuffer, known: BufferTemplates) -> Headroom:
    """Return the virtual pods of a buffer."""
    if buffer.spec.provisioning_strategy != ACTIVE:
        strategy = buffer.spec.provisioning_strategy
        text = f"provisioningStrategy is {strategy}, not {ACTIVE}: another autoscaler handles it"
        return Headroom(buffer.key, code="OtherStrategy", message=text)
    found = _resolve_template(buffer, known)
    if isinstance(found, Headroom):
        return found
    template, replicas = found
    try:
        count = _count_pods(buffer, template, replicas)
    except ValueError as error:
        return Headroom(buffer.key, code="ResolutionFailed", message=f"invalid buffer: {error}")
    if count > PODS_MAX:
        text = f"it needs {count:,} pods, more than {PODS_MAX:,}: lower replicas or limits"
        return Headroom(buffer.key, code="TooManyPods", message=text)
    if count <= 0:
        text = "it needs 0 pods: raise replicas, percentage or limits, or remove the buffer"
        return Headroom(buffer.key, code="BufferEmpty", message=text)
    return Headroom(buffer.key, _virtual_pods(buffer, template, count))


def _resolve_template(
    buffer: CapacityBuffer, known: BufferTemplates
) -> tuple[PodTemplate, int | None] | Headroom:
    """Return the pod template, and the replicas of the workload that it comes from."""
    spec = buffer.spec
    if spec.pod_template_ref is not None:
        name = spec.pod_template_ref.name
        template = known.pods.get(f"{buffer.namespace}/{name}")
        if template is None:
            text = f"PodTemplate {name} not found in namespace {buffer.namespace}"
            return Headroom(buffer.key, code="PodTemplateNotFound", message=text)
        return template, None
    ref = spec.scalable_ref
    if ref is None:
        text = "neither podTemplateRef nor scalableRef is set"
        return Headroom(buffer.key, code="ResolutionFailed", message=text)
    if ref.kind not in SCALABLE or ref.api_group not in ("", "apps"):
        kind = f"{ref.kind}.{ref.api_group}" if ref.api_group else ref.kind
        text = f"scalableRef to {kind} is not supported (only {', '.join(SCALABLE)} of apps): "
        text += "use a podTemplateRef"
        return Headroom(buffer.key, code="ResolutionFailed", message=text)
    workload = known.scalables.get((ref.kind, f"{buffer.namespace}/{ref.name}"))
    if workload is None:
        text = f"{ref.kind} {ref.name} not found in namespace {buffer.namespace}"
        return Headroom(buffer.key, code="ScalableRefNotFound", message=text)
    replicas = workload.spec.replicas
    return workload.spec.template, 1 if replicas is None else replicas


def _count_pods(buffer: CapacityBuffer, template: PodTemplate, replicas: int | None) -> int:
    """Return the number of pods: the larger of number and percentage, capped by the limits.

    Raises:
        ValueError: a limit or a request is not a quantity.
    """
    spec = buffer.spec
    sizes = [] if spec.replicas is None else [spec.replicas]
    if spec.percentage is not None and replicas is not None and replicas > 0:
        sizes.append(-(-replicas * spec.percentage // 100))
    within_limits = (
        _count_within_limits(template, parse_resources(spec.limits))
        if spec.limits is not None
        else None
    )
    if within_limits is None:
        return max(sizes, default=0)
    return min(max(sizes), within_limits) if sizes else within_limits


def _count_within_limits(template: PodTemplate, limits: Resources) -> int | None:
    """Return how many pods fit the limits; None if no limit applies to their requests."""
    requests = Pod(Metadata(), template.spec).requests()
    shares = [
        limit // requests[name]
        for name, limit in limits.items()
        if name != PODS and requests.get(name)
    ]
    return min(shares, default=None)


def _virtual_pods(buffer: CapacityBuffer, template: PodTemplate, count: int) -> tuple[Pod, ...]:
    marks = {
        FAKE_POD: "true",
        BUFFER_NAME: buffer.metadata.name,
        BUFFER_NAMESPACE: buffer.namespace,
    }
    spec = with_label_keys(_virtual_pod_spec(template.spec), template.metadata.labels)
    uid = buffer.metadata.uid or buffer.key
    return tuple(
        Pod(
            Metadata(
                name=f"capacity-buffer-{buffer.metadata.name}-{number}",
                namespace=buffer.namespace,
                uid=f"{uid}-{number}",
                labels=template.metadata.labels,
                annotations=marks,
                creation_timestamp=buffer.metadata.creation_timestamp,
            ),
            spec,
            _UNPLACED,
        )
        for number in range(1, count + 1)
    )


def _virtual_pod_spec(spec: PodSpec) -> PodSpec:
    """Return the spec without a node name, and without volumes, which have no claims."""
    return replace(spec, node_name="", volumes=(), scheduling_gates=(), priority=PRIORITY)


def buffer_of(pod: Pod) -> str:
    """Return the buffer (``namespace/name``) that a virtual pod belongs to."""
    marks = pod.metadata.annotations
    return f"{marks.get(BUFFER_NAMESPACE, '')}/{marks.get(BUFFER_NAME, '')}"
