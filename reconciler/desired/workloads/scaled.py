"""The workloads whose number of replicas has a range, for readers of a plan."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from reconciler.desired.workloads.podsets import PodSet


class ScaledWorkload(NamedTuple):
    """A scaled workload: the minimum, present and maximum number of its replicas.

    ``maximum`` is None if nothing limits it. ``by`` is the kind and name of what scales it.
    """

    kind: str
    namespace: str
    name: str
    minimum: int
    present: int
    maximum: int | None
    by: str


def scaled_workloads(sets: Iterable[PodSet]) -> tuple[ScaledWorkload, ...]:
    """Return the scaled workloads, in order of kind, namespace and name; each once."""
    found: dict[tuple[str, str, str], ScaledWorkload] = {}
    for pods in sets:
        replicas, resource = pods.replicas, pods.resource
        if not replicas.by:
            continue
        name = f"{resource.name}/{pods.group}" if pods.spec.each else resource.name
        found.setdefault(
            (resource.kind, resource.namespace, name),
            ScaledWorkload(
                resource.kind,
                resource.namespace,
                name,
                replicas.minimum,
                replicas.current,
                replicas.maximum,
                replicas.by,
            ),
        )
    return tuple(found[key] for key in sorted(found))
