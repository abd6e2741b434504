"""CapacityBuffers in a plan: whose they are, and where the room of each is.

A buffer counts wherever it is declared, in git or in the cluster; where both have one of a name,
git's does. What it names is looked for in the cluster first, since what runs there now is what
room is kept for, and a workload may be scaled by others than git.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from reconciler.desired.objects import capacity_buffers, templates
from reconciler.model.karpenter.capacitybuffer import CapacityBuffer
from reconciler.model.kubernetes.metadata import LabelSelector
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.settings import FeatureGate
from reconciler.observed.state import ClusterState
from reconciler.placement.pods.headroom import BufferTemplates, Headroom, headroom
from reconciler.placement.question import Placement, Rejection
from reconciler.placement.topology import defaultspread
from reconciler.placement.topology.defaultspread import DefaultSpread, Owner
from reconciler.plan.make.inputs import Inputs
from reconciler.plan.render.wording import counted
from reconciler.plan.value.nodes import PlannedHeadroom, Reason
from reconciler.plan.value.plan import PlanFinding

# Where the default spread of pods finds their controllers: in the cluster, and in git.


def with_default_spread(cluster: ClusterState, inputs: Inputs) -> ClusterState:
    """Return the cluster whose pods bear the configured spread where they name none."""
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


FITS: Final = "FitsExistingCapacity"
GROWS: Final = "RequiresNewCapacity"
_QUIET: Final = ("OtherStrategy", "BufferEmpty")
"""Codes of what is as its author may have meant it."""


def headroom_of(inputs: Inputs) -> tuple[Headroom, ...]:
    """Return what every CapacityBuffer asks for, by name; nothing while the gate is off."""
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
    """Return the cluster in which the virtual pods wait beside the real ones."""
    virtual = tuple(pod for room in rooms for pod in room.pods)
    return replace(cluster, pods=(*cluster.pods, *virtual)) if virtual else cluster


def planned_headroom(
    rooms: Sequence[Headroom],
    seats: Mapping[str, str],
    new: Iterable[str],
    placement: Placement | None,
) -> tuple[PlannedHeadroom, ...]:
    """Return where the room of each buffer is.

    ``seats`` are the places of all pods, by pod; ``new`` are those of them that this plan makes.
    """
    claims = frozenset(new)
    homeless: dict[str, tuple[Rejection, ...]] = {}
    if placement is not None:
        homeless = {**placement.deferred, **placement.unschedulable}
    return tuple(_planned(room, seats, claims, homeless) for room in rooms)


def _planned(
    room: Headroom,
    seats: Mapping[str, str],
    new: frozenset[str],
    homeless: Mapping[str, tuple[Rejection, ...]],
) -> PlannedHeadroom:
    if not room.pods:
        return PlannedHeadroom(buffer=room.buffer, code=room.code, message=room.message)
    nodes: dict[str, int] = {}
    claims: dict[str, int] = {}
    left = [pod.key for pod in room.pods if pod.key not in seats]
    for pod in room.pods:
        where = seats.get(pod.key)
        if where is not None:
            counts = claims if where in new else nodes
            counts[where] = counts.get(where, 0) + 1
    reasons = homeless.get(left[0], ()) if left else ()
    return PlannedHeadroom(
        buffer=room.buffer,
        replicas=len(room.pods),
        nodes=dict(sorted(nodes.items())),
        node_claims=dict(sorted(claims.items())),
        unschedulable=len(left),
        code=GROWS if left or claims else FITS,
        message=_said(len(room.pods), sum(nodes.values()), sum(claims.values()), len(left)),
        reasons=tuple(
            Reason(node_pool=r.node_pool, code=r.code, message=r.message) for r in reasons
        ),
    )


def _said(total: int, there: int, new: int, left: int) -> str:
    pods = counted(total, "pod")
    if there == total:
        return f"capacity for {pods} on existing nodes"
    parts = [
        f"{there} on existing nodes" if there else "",
        f"{new} on nodes to be launched" if new else "",
        f"{left} unschedulable" if left else "",
    ]
    return f"capacity for {pods}: {', '.join(filter(None, parts))}"


def of_buffers(inputs: Inputs, rooms: Iterable[Headroom]) -> Iterator[PlanFinding]:
    """Report the buffers that have no effect, where that is probably not intended."""
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
