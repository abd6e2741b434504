"""Where pods end up on the nodes that there are, and which daemons run there.

The planner makes room; Kubernetes' scheduler fills it as it likes, and may leave a node empty that
was launched for a pod. A pod that it finds no node for goes where the planner meant it to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace as with_fields
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from reconciler.model.cluster import DaemonSet
from reconciler.model.metadata import Condition
from reconciler.model.pod import Pod, PodSpec, PodStatus
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.binding import daemons
from reconciler.placement.binding.seats import Seats, seats_of
from reconciler.placement.binding.volumes import Volumes

_PAIRS_MAX: Final = 5_000_000
"""From so many pairs of a pod and a node on, pods go where the planner means them to: looking at
each pair would take longer than the plan."""


def bind(
    cluster: ClusterState,
    nodes: Sequence[StateNode],
    pods: Sequence[Pod],
    meant: Mapping[str, str],
) -> tuple[dict[str, str], Volumes]:
    """Return the node that each pod gets, and the volumes then; other pods go on waiting.

    ``meant`` is where the planner means pods to go.
    """
    volumes = Volumes(cluster.volume_claims, cluster.volumes, cluster.storage_classes, zones={})
    if not pods:
        return {}, volumes
    open_ = {n.name: n for n in nodes if n.node is not None and not n.is_deleting}
    bound: dict[str, str] = {}
    if len(pods) * len(open_) <= _PAIRS_MAX:
        bound = _bound(cluster, open_.values(), pods, volumes)
    for pod in pods:
        seat = meant.get(pod.key)
        if seat in open_:
            bound.setdefault(pod.key, seat)
        node = open_.get(bound.get(pod.key, ""))
        if node is not None and node.node is not None:
            volumes.settle(pod, node.node)
    return bound, volumes


def _bound(
    cluster: ClusterState, nodes: Iterable[StateNode], pods: Sequence[Pod], volumes: Volumes
) -> dict[str, str]:
    """Return the node that the scheduler gives each pod, if it finds one."""
    names = {n.node.name: n.name for n in nodes if n.node is not None}
    on = {n.node.name: n.pods for n in nodes if n.node is not None}
    seats = Seats(
        seats_of([n.node for n in nodes if n.node is not None], on),
        cluster.namespaces,
        volumes.suit,
    )
    free = [pod for pod in _sharing(pods) if not pod.spec.scheduling_gates]
    return {key: names[node.name] for key, node in seats.bind(free).items()}


def _sharing(pods: Iterable[Pod]) -> list[Pod]:
    """Return the pods with one spec for all that have the same: each is looked at once."""
    known: dict[bytes, PodSpec] = {}
    return [
        replace(pod, spec=known.setdefault(msgspec.json.encode(pod.spec), pod.spec)) for pod in pods
    ]


def with_daemons(node: StateNode, sets: Iterable[DaemonSet], now: datetime) -> StateNode:
    """Return a node that has just joined with the daemons that find room on it."""
    assert node.node is not None, "it has joined"
    seats = Seats(seats_of([node.node], {node.node.name: node.pods}), {}, lambda _, __: True)
    if not seats.seats:
        return node
    seat, running = seats.seats[0], list(node.pods)
    for daemon in sets:
        pod = daemons.pod_on(daemon, node.node)
        if seats.has_room(seat, pod):
            seat.take(pod, seats.wanted(pod))
            running.append(_running(pod, node.name, now))
    return with_fields(node, pods=tuple(running))


def _running(pod: Pod, node: str, now: datetime) -> Pod:
    status = PodStatus(
        phase="Running",
        conditions=(Condition("PodScheduled", "True"), Condition("Ready", "True")),
        start_time=now,
    )
    return replace(pod, spec=replace(pod.spec, node_name=node), status=status)
