"""What a PriorityClass gives to pods, as the API server admits them.

A pod has its priority and whether it may evict others from its class, or from the default class.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from msgspec.structs import replace

from reconciler.model.kubernetes.cluster import DaemonSet, PriorityClass
from reconciler.model.kubernetes.metadata import Metadata
from reconciler.model.kubernetes.pod import PodSpec

_BUILT_IN_CLASSES: Final = (
    PriorityClass(Metadata("system-cluster-critical"), 2_000_000_000),
    PriorityClass(Metadata("system-node-critical"), 2_000_001_000),
)


def class_of(spec: PodSpec, classes: Iterable[PriorityClass]) -> PriorityClass | None:
    """Return the class that a pod names, or the default one; None if there is none."""
    name = spec.priority_class_name
    if name:
        return next((c for c in (*_BUILT_IN_CLASSES, *classes) if c.metadata.name == name), None)
    return min((c for c in classes if c.global_default), key=lambda c: c.value, default=None)


def with_priority(spec: PodSpec, classes: Iterable[PriorityClass]) -> PodSpec:
    """Return the spec with the priority and preemption policy of its class."""
    found = class_of(spec, classes)
    if found is None:
        return spec
    return replace(
        spec,
        priority=found.value if spec.priority is None else spec.priority,
        preemption_policy=spec.preemption_policy or found.preemption_policy,
    )


def with_priorities(
    daemon_sets: Iterable[DaemonSet], classes: Sequence[PriorityClass]
) -> tuple[DaemonSet, ...]:
    """Return DaemonSets whose templates have the priority of the pods that they create."""
    return tuple(
        with_template_spec(daemon, with_priority(daemon.spec.template.spec, classes))
        for daemon in daemon_sets
    )


def with_template_spec(daemon: DaemonSet, spec: PodSpec) -> DaemonSet:
    """Return the DaemonSet with this spec in its template, the same object if it has it."""
    template = daemon.spec.template
    if spec == template.spec:
        return daemon
    return replace(daemon, spec=replace(daemon.spec, template=replace(template, spec=spec)))
