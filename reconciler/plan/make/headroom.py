"""CapacityBuffers of a plan: where they are declared, and the capacity they reserve.

Buffers are declared in git or in the cluster; git takes precedence. The workload of a buffer is
looked up in the cluster first: capacity is reserved for what runs there, and a workload may be
scaled outside git.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from reconciler.desired.objects import capacity_buffers, templates
from reconciler.model.karpenter.capacitybuffer import CapacityBuffer
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate
from reconciler.observed.state import ClusterState
from reconciler.placement.pods.headroom import BufferTemplates, Headroom, headroom
from reconciler.placement.topology import defaultspread
from reconciler.placement.topology.defaultspread import DefaultSpread, Owner
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.value.plan import PlanFinding

# Where the default spread of pods finds their controllers: in the cluster, and in git.


def with_default_spread(cluster: ClusterState, inputs: Inputs) -> ClusterState:
    """Return the cluster with the configured default spread on pods without one."""
    every = [*cluster.pods, *(pod for node in cluster.nodes for pod in node.pods)]
    _, in_git = templates(inputs.fleet, frozenset(_owners(every)))
    scalables = {**in_git, **cluster.scalables}
    selectors: dict[Owner, LabelSelector] = {
        owner: item.spec.selector
        for owner, item in scalables.items()
        if item.spec.selector is not None
    }
    spread = DefaultSpread(
        inputs.settings.default_constraints,
        cluster.services,
        selectors,
        {
            f"{item.metadata.namespace or 'default'}/{item.metadata.name}": item.spec.selector
            for item in cluster.replication_controllers
        },
    )
    return defaultspread.with_default_spread(cluster, spread)


def _owners(pods: Iterable[Pod]) -> Iterator[Owner]:
    for pod in pods:
        for owner in pod.metadata.owner_references:
            if owner.kind in ("ReplicaSet", "StatefulSet"):
                yield owner.kind, f"{pod.namespace}/{owner.name}"


_QUIET: Final = ("OtherStrategy", "BufferEmpty")
"""Codes of buffers that their author may have intended."""


def headroom_of(inputs: Inputs) -> tuple[Headroom, ...]:
    """Return the request of every CapacityBuffer, by name; empty while the gate is off."""
    if not inputs.settings.gate(FeatureGate.CAPACITY_BUFFER):
        return ()
    buffers = _buffers(inputs)
    known = _templates(inputs, buffers)
    return tuple(headroom(buffer, known) for buffer in buffers)


def _buffers(inputs: Inputs) -> list[CapacityBuffer]:
    every = {b.key: b for b in (*inputs.cluster.capacity_buffers, *capacity_buffers(inputs.fleet))}
    return [every[key] for key in sorted(every)]


def _templates(inputs: Inputs, buffers: Iterable[CapacityBuffer]) -> BufferTemplates:
    wanted = set()
    for buffer in buffers:
        spec = buffer.spec
        if spec.pod_template_ref is not None:
            wanted.add(("PodTemplate", f"{buffer.namespace}/{spec.pod_template_ref.name}"))
        elif spec.scalable_ref is not None:
            wanted.add((spec.scalable_ref.kind, f"{buffer.namespace}/{spec.scalable_ref.name}"))
    stored, scalables = templates(inputs.fleet, wanted)
    cluster = inputs.cluster
    return BufferTemplates({**stored, **cluster.pod_templates}, {**scalables, **cluster.scalables})


def with_headroom(cluster: ClusterState, rooms: Iterable[Headroom]) -> ClusterState:
    """Return the cluster with the virtual pods pending in addition to the real ones."""
    virtual = tuple(pod for room in rooms for pod in room.pods)
    return replace(cluster, pods=(*cluster.pods, *virtual)) if virtual else cluster


def of_buffers(inputs: Inputs, rooms: Iterable[Headroom]) -> Iterator[PlanFinding]:
    """Report the buffers that have no effect, if that is probably not intended."""
    if not inputs.settings.gate(FeatureGate.CAPACITY_BUFFER):
        names = ", ".join(buffer.key for buffer in _buffers(inputs))
        yield PlanFinding(
            severity="warning",
            code="capacitybuffer-gate-off",
            message=f"CapacityBuffers have no effect because their feature gate is off: {names}",
            hint="set featureGates.CapacityBuffer=true",
        )
    for room in rooms:
        if room.code and room.code not in _QUIET:
            message = f"CapacityBuffer {room.buffer} has no effect: {room.message}"
            yield PlanFinding(severity="warning", code="capacitybuffer-unresolved", message=message)
