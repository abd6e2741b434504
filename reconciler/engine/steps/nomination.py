"""Nomination: pods stay assigned to the node that was launched for them.

While nodes start, a later pass would otherwise place the same pods again, now on existing nodes and
in another order. Sometimes a pod would not fit, and a superfluous node would be launched for it.
Karpenter nominates nodes for the same reason.

The scheduler of Kubernetes does not know this: it binds any of several equal pods to the first node
that is ready. A pod whose place was taken that way is pending again: otherwise two pods would count
on one node, and a missing node would be launched a minute late. For the same reason, so is a pod
that no longer fits beside the DaemonSets, which may have grown since the launch.

Pods that a command moves to new nodes keep these places from the start, while they still run where
they were. Placed again one after another, as Karpenter places the pods of draining nodes, they
would not always fit: other pods have come, and several new nodes were packed for cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace as with_fields
from datetime import datetime, timedelta
from itertools import chain
from typing import Final, NamedTuple

from msgspec.structs import replace

from reconciler.engine.steps.lifecycle import INITIALIZED
from reconciler.model.karpenter.nodeclaim import NodeClaim
from reconciler.model.kubernetes.pod import Pod
from reconciler.model.resources import Resources, fits, subtract_resources
from reconciler.observed.fingerprint import Pods
from reconciler.observed.snapshot import Snapshot
from reconciler.observed.state import ClusterState, StateNode
from reconciler.placement.nodes.existing import room_beside_daemons
from reconciler.ports.state import RunningCommand

NOMINATED: Final = "reconciler/nominated-pods"
"""Annotation of a recorded claim: the pods it was launched for, separated by spaces."""

WINDOW: Final = timedelta(seconds=60)
"""How long an unbound pod keeps its place on a node that is ready."""


class Seat(NamedTuple):
    """A nominated pod, and its node, or its NodeClaim while there is no node."""

    pod: Pod
    node: str


def with_nominated_pods(snapshot: Snapshot, seats: Iterable[Seat]) -> Snapshot:
    """Return the snapshot with every nominated pod on the node launched for it."""
    seated = {id(seat.pod): _bind_pod(*seat) for seat in seats}
    if not seated:
        return snapshot
    pods = [seated.get(id(pod), pod) for pod in snapshot.pods]
    return with_fields(snapshot, pods=Pods.index_after(pods, snapshot.indexed_pods))


def _expected_claims(
    snapshot: Snapshot, now: datetime, moving: Sequence[RunningCommand]
) -> list[NodeClaim]:
    """Return the claims with nominated pods that may still be bound to their nodes."""
    replacements = {name for command in moving for name in command.replacements}
    return [
        claim
        for claim in snapshot.node_claims
        if claim.metadata.annotations.get(NOMINATED)
        and _is_expected(claim, now, replaces=claim.name in replacements)
    ]


def _hosts_of(claims: Sequence[NodeClaim], snapshot: Snapshot) -> list[StateNode]:
    """Return each claim with its Node and the pods there."""
    nodes = {n.spec.provider_id: n for n in snapshot.nodes if n.spec.provider_id}
    by_node = snapshot.indexed_pods.by_node
    hosts = []
    for claim in claims:
        node = nodes.get(claim.status.provider_id)
        on_node = by_node.get(node.name, ()) if node is not None else ()
        hosts.append(StateNode(node, claim, on_node))
    return hosts


def nominated_seats(
    snapshot: Snapshot, now: datetime, commands: Iterable[RunningCommand] = ()
) -> Mapping[str, Seat]:
    """Return the seats of nominated pods by ``namespace/name``.

    These are pending pods, and those that one of the ``commands`` moves to new nodes. Not included
    are pods whose place other pods have taken.
    """
    moving = list(filter(moves_pods, commands))
    expected = _expected_claims(snapshot, now, moving)
    pods = snapshot.indexed_pods
    unseated = {**pods.provisionable, **_moving_pods(snapshot, moving)} if expected else {}
    if not unseated:
        return {}
    hosts = _hosts_of(expected, snapshot)
    cluster = ClusterState(pods=snapshot.pods, daemon_sets=snapshot.daemon_sets)
    seats: dict[str, Seat] = {}
    for claim, host, room in zip(expected, hosts, room_beside_daemons(hosts, cluster), strict=True):
        nominated = claim.metadata.annotations[NOMINATED].split()
        waiting = [unseated[key] for key in nominated if key in unseated]
        seats.update((pod.key, Seat(pod, host.node_name)) for pod in waiting)
        has_others = not set(pods.workload_names.get(host.node_name, ())) <= set(nominated)
        if has_others or host.allocatable:
            for pod in _displaced_pods(waiting, room, beside_others=has_others):
                del seats[pod.key]
    return seats


def moves_pods(command: RunningCommand) -> bool:
    """Return whether the command is moving pods to nodes that were launched for them."""
    return bool(command.replacements) and command.is_under_way


def _moving_pods(snapshot: Snapshot, commands: Iterable[RunningCommand]) -> dict[str, Pod]:
    """Return the pods that these commands move; successors of evicted pods move by themselves."""
    going = {name for command in commands for name in command.node_claims}
    if not going:
        return {}
    nodes = [c.status.node_name for c in snapshot.node_claims if c.name in going]
    by_node = snapshot.indexed_pods.by_node
    pods = (pod for node in nodes for pod in by_node.get(node, ()))
    return {pod.key: pod for pod in pods if pod.is_reschedulable}


def claims_awaiting_pods(snapshot: Snapshot, commands: Iterable[RunningCommand]) -> frozenset[str]:
    """Return the claims that will receive pods from nodes that are being drained.

    They are the replacements of running commands, and claims launched for a pod on a node that is
    being removed. Such a pod is still being evicted, so nothing else shows that the node will be
    needed: it would be removed as empty and launched again. Karpenter places the pods of draining
    nodes every ten seconds and does not disrupt nominated nodes (``provisioning/controller.go``).
    """
    expected = set(chain.from_iterable(c.replacements for c in commands if c.is_under_way))
    going = {c.status.node_name for c in snapshot.node_claims if c.is_deleting}
    going.discard("")
    if going:
        leaving = {pod.key for pod in snapshot.pods if pod.spec.node_name in going}
        expected.update(
            claim.name
            for claim in snapshot.node_claims
            if not leaving.isdisjoint(claim.metadata.annotations.get(NOMINATED, "").split())
        )
    return frozenset(expected)


def nomination_expiries(snapshot: Snapshot, nodes: Iterable[str]) -> Iterator[datetime]:
    """Yield the times at which nominations of unbound pods end; ``nodes`` are theirs."""
    node_names = set(nodes)
    names = {n.spec.provider_id: n.name for n in snapshot.nodes} if node_names else {}
    for claim in snapshot.node_claims:
        ready = claim.condition(INITIALIZED)
        if names.get(claim.status.provider_id) not in node_names or not claim.is_true(INITIALIZED):
            continue
        if ready is not None and ready.last_transition_time is not None:
            yield ready.last_transition_time + WINDOW


def _displaced_pods(
    waiting: Iterable[Pod], room: Resources, *, beside_others: bool
) -> Iterator[Pod]:
    """Yield the pods that wait for a node without enough room for them.

    Beside pods that it was not launched for, those with rules about other pods, or with host
    ports, are placed again in any case: room is not all they need.
    """
    for pod in waiting:
        requests = pod.requests()
        if (beside_others and _has_placement_rules(pod)) or not fits(requests, room):
            yield pod
        else:
            room = subtract_resources(room, requests)


def _has_placement_rules(pod: Pod) -> bool:
    affinity = pod.spec.affinity
    if affinity is not None and (affinity.pod_affinity or affinity.pod_anti_affinity):
        return True
    return bool(pod.spec.topology_spread_constraints or pod.host_ports())


def _is_expected(claim: NodeClaim, now: datetime, *, replaces: bool) -> bool:
    """Return whether pods nominated to a claim may still be bound to its node.

    A replacement is expected to receive them for as long as its command runs.
    """
    if claim.is_deleting or not claim.status.provider_id:
        return False
    if replaces:
        return True
    ready = claim.condition(INITIALIZED)
    if ready is None or ready.status != "True" or ready.last_transition_time is None:
        return True
    return now - ready.last_transition_time < WINDOW


def _bind_pod(pod: Pod, node: str) -> Pod:
    conditions = tuple(c for c in pod.status.conditions if c.type != "PodScheduled")
    return replace(
        pod,
        spec=replace(pod.spec, node_name=node),
        status=replace(pod.status, conditions=conditions),
    )
